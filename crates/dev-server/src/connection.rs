//! The server half of one SignalR connection, from the handshake to its end.
//!
//! Two loops share the socket. The reader takes one message at a time and is done with it before it looks at the
//! next, so the calls of a client are handled one by one and in order. The writer sends whatever is queued,
//! and a ping when nothing was for a while. The `cut` token ends both; either sets it off when it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::ws::{self, WebSocket};
use futures::stream::SplitSink;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::events::ConnectionId;
use crate::faults::{Fault, Moment, Rubbish};
use crate::orchestrator::Event;
use crate::reader::{Incoming, Reader};
use crate::shared::Shared;
use hawser_signalr::codec::{Answer, Message, handshake_response, read_handshake_request};

/// Messages that may wait for the writer. A client that leaves more unread is given up.
pub(super) const QUEUED_MESSAGES: usize = 1024;

/// Something for the writer to send.
#[derive(Debug)]
pub(super) enum Out {
    Message(Message),
    Push {
        invocation_id: Option<String>,
        method: String,
        arguments: Vec<Value>,
    },
    Rubbish(Rubbish),
    Close {
        error: Option<String>,
        allow_reconnect: bool,
    },
    /// Send nothing more, and keep the socket open.
    Stall,
}

/// Invocations towards the client that wait for its answer.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientResults(Arc<Mutex<HashMap<String, oneshot::Sender<Answer>>>>);

impl ClientResults {
    pub(super) fn expect(&self, invocation_id: &str) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(invocation_id.to_owned(), sender);
        receiver
    }

    /// Whether somebody waited for this answer.
    pub(super) fn answer(&self, invocation_id: &str, answer: Answer) -> bool {
        let waiting = self.lock().remove(invocation_id);
        waiting.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// Whoever still waits learns that the connection is gone.
    fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that is taken in the registry for as long as this lives, whether its socket comes about or not.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ConnectionId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.core().registry.release(self.id);
        self.shared.changed();
    }
}

/// A connection that has its place and waits for its socket.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) place: Place,
    pub(super) instance: String,
    pub(super) out: mpsc::Sender<Out>,
    pub(super) queue: mpsc::Receiver<Out>,
    pub(super) cut: CancellationToken,
    pub(super) results: ClientResults,
    /// When the token that the connection was opened with runs out, if that is to close it.
    pub(super) expires: Option<Instant>,
}

impl Connection {
    /// Serves the socket until its end.
    pub(super) async fn serve(self, socket: WebSocket) {
        let Self { place, instance, out, queue, cut, results, expires } = self;
        let (shared, id) = (&*place.shared, place.id);
        let (mut sink, stream) = socket.split();
        let mut incoming = Incoming::new(stream, shared.options.max_message_bytes);
        let greeted = tokio::select! {
            () = cut.cancelled() => return,
            greeted = handshake(shared, &instance, &mut incoming, &mut sink) => greeted,
        };
        if let Err(reason) = greeted {
            shared.refused(Some(&instance), reason);
            return;
        }
        // Neither this event nor the one at the end is ever refused.
        let _ = shared.act(Event::Connected { connection: id, instance: instance.clone() });
        let (cut, out, results) = (&cut, &out, &results);
        let reader = Reader { shared, instance: &instance, id, out, cut, results, expires };
        let writer = Writer { shared, instance: &instance, cut };
        let read = async {
            let reason = reader.run(incoming).await;
            cut.cancel();
            reason
        };
        let write = async {
            let reason = writer.run(sink, queue).await;
            cut.cancel();
            reason
        };
        let (read, written) = tokio::join!(read, write);
        results.clear();
        let reason = read.or(written).unwrap_or_else(|| "cut off by the hub".to_owned());
        let _ = shared.act(Event::Disconnected { connection: id, instance, reason });
    }
}

/// The client's first message, and our answer.
async fn handshake(
    shared: &Shared,
    instance: &str,
    incoming: &mut Incoming,
    sink: &mut SplitSink<WebSocket, ws::Message>,
) -> Result<(), String> {
    let first = timeout(shared.options.handshake_timeout, incoming.message())
        .await
        .map_err(|_| "the client sent no handshake in time".to_owned())?
        .map_err(|error| error.to_string())?;
    let refusal = match shared.fault(&Moment::Handshake, Some(instance)) {
        Some(Fault::Refuse(error)) => Some(error),
        Some(Fault::Lose | Fault::Forget | Fault::Stall) => {
            shared.core().registry.mark_stalled(instance);
            std::future::pending().await
        }
        Some(Fault::Delay(time)) => {
            sleep(time).await;
            None
        }
        Some(_) => return Err("cut off by the hub during the handshake".to_owned()),
        None => match read_handshake_request(&first) {
            Ok(request) if request.protocol == "json" && request.version == 1 => None,
            Ok(request) => Some(format!(
                "the protocol {:?} in version {} is not supported, only json in version 1",
                request.protocol, request.version
            )),
            Err(error) => Some(error.to_string()),
        },
    };
    let answer = handshake_response(refusal.as_deref());
    sink.send(ws::Message::text(answer)).await.map_err(|error| error.to_string())?;
    refusal.map_or(Ok(()), Err)
}

/// Sends what is queued, in order, and keeps the line alive.
struct Writer<'a> {
    shared: &'a Shared,
    instance: &'a str,
    cut: &'a CancellationToken,
}

impl Writer<'_> {
    /// Ends with the reason, or with none when the connection was cut.
    async fn run(
        self,
        mut sink: SplitSink<WebSocket, ws::Message>,
        mut queue: mpsc::Receiver<Out>,
    ) -> Option<String> {
        let keep_alive = self.shared.options.keep_alive;
        loop {
            let out = tokio::select! {
                () = self.cut.cancelled() => return None,
                out = queue.recv() => out?,
                () = sleep(keep_alive) => Out::Message(Message::Ping),
            };
            let mut last = None;
            let mut end = false;
            let frame = match out {
                Out::Message(message) => text(&message),
                Out::Rubbish(rubbish) => rubbish_frame(&rubbish),
                Out::Close { error, allow_reconnect } => {
                    last = Some(error.clone().unwrap_or_else(|| "closed by the hub".to_owned()));
                    text(&Message::Close { error, allow_reconnect })
                }
                Out::Stall => {
                    self.shared.core().registry.mark_stalled(self.instance);
                    self.cut.cancelled().await;
                    return None;
                }
                Out::Push { invocation_id, method, arguments } => {
                    let moment = Moment::Push(Some(method.clone()));
                    let push = text(&Message::Invocation { invocation_id, target: method, arguments });
                    match self.shared.fault(&moment, Some(self.instance)) {
                        Some(Fault::DropBefore) => return None,
                        Some(Fault::DropAfter) => end = true,
                        Some(Fault::Lose | Fault::Forget | Fault::Refuse(_)) => continue,
                        Some(Fault::Delay(time)) => tokio::select! {
                            () = self.cut.cancelled() => return None,
                            () = sleep(time) => {}
                        },
                        Some(Fault::Send(rubbish)) => {
                            self.send(&mut sink, rubbish_frame(&rubbish)).await.ok()?;
                        }
                        Some(Fault::Close { error, allow_reconnect }) => {
                            self.send(&mut sink, push).await.ok()?;
                            self.send(&mut sink, text(&Message::Close { error, allow_reconnect }))
                                .await
                                .ok()?;
                            return Some("closed by the hub".to_owned());
                        }
                        Some(Fault::StopReading | Fault::Stall) => {
                            self.shared.core().registry.mark_stalled(self.instance);
                            self.cut.cancelled().await;
                            return None;
                        }
                        Some(Fault::Status(_)) | None => {}
                    }
                    push
                }
            };
            if let Err(reason) = self.send(&mut sink, frame).await {
                return Some(reason);
            }
            if end {
                return None;
            }
            if last.is_some() {
                // The Close message said it all; the WebSocket's own farewell is a courtesy.
                let _ = self.send(&mut sink, ws::Message::Close(None)).await;
                return last;
            }
        }
    }

    async fn send(
        &self,
        sink: &mut SplitSink<WebSocket, ws::Message>,
        frame: ws::Message,
    ) -> Result<(), String> {
        tokio::select! {
            () = self.cut.cancelled() => Err("cut off by the hub".to_owned()),
            sent = timeout(self.shared.options.client_timeout, sink.send(frame)) => match sent {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(format!("cannot write: {error}")),
                Err(_) => Err("the client reads nothing any more".to_owned()),
            },
        }
    }
}

fn text(message: &Message) -> ws::Message {
    ws::Message::text(message.write())
}

fn rubbish_frame(rubbish: &Rubbish) -> ws::Message {
    let (bytes, is_text) = rubbish.frame();
    match String::from_utf8(bytes) {
        Ok(text) if is_text => ws::Message::text(text),
        Ok(text) => ws::Message::binary(text.into_bytes()),
        Err(error) => ws::Message::binary(error.into_bytes()),
    }
}
