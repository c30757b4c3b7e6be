//! The server half of one SignalR connection, from the handshake to its end.
//!
//! Two loops share the socket. The reader takes one message at a time and is done with it before it looks at the
//! next, so the calls of a client are handled one by one and in order. The writer sends whatever is queued,
//! and a ping when nothing was for a while. The `cut` token ends both; either sets it off when it ends.

use std::sync::Arc;

use axum::extract::ws::{self, WebSocket};
use hawser_signalr::codec::Message;
use hawser_signalr::server::{self, PendingResults, ReadError, ServerOptions, WriteError, split};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::events::ConnectionId;
use crate::faults::{Fault, Moment, Rubbish};
use crate::orchestrator::Event;
use crate::reader::Reader;
use crate::shared::Shared;

pub(super) type SocketReader = server::SocketReader<WebSocket>;
type SocketWriter = server::SocketWriter<WebSocket, ws::Message>;

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
    pub(super) results: PendingResults,
    /// When the token that the connection was opened with runs out, if that is to close it.
    pub(super) expires: Option<Instant>,
}

impl Connection {
    /// Serves the socket until its end.
    pub(super) async fn serve(self, socket: WebSocket) {
        let Self { place, instance, out, queue, cut, results, expires } = self;
        let (shared, id) = (&*place.shared, place.id);
        let options = ServerOptions {
            handshake_timeout: shared.options.handshake_timeout,
            keep_alive: shared.options.keep_alive,
            client_timeout: shared.options.client_timeout,
            max_message_bytes: shared.options.max_message_bytes,
        };
        let (mut incoming, mut outgoing) = split(socket, &options);
        let greeted = tokio::select! {
            () = cut.cancelled() => return,
            greeted = handshake(shared, &instance, &mut incoming, &mut outgoing) => greeted,
        };
        if let Err(reason) = greeted {
            shared.refused(Some(&instance), reason);
            return;
        }
        // Neither this event nor the one at the end is ever refused.
        let _ = shared.act(Event::Connected { connection: id, instance: instance.clone() });
        let (cut, out, results) = (&cut, &out, &results);
        let reader = Reader { shared, instance: &instance, id, out, cut, results, expires };
        let writer = Writer { shared, instance: &instance, cut, socket: outgoing };
        let read = async {
            let reason = reader.run(incoming).await;
            cut.cancel();
            reason
        };
        let write = async {
            let reason = writer.run(queue).await;
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
    reader: &mut SocketReader,
    writer: &mut SocketWriter,
) -> Result<(), String> {
    let asked = match reader.handshake().await {
        Ok(request) => request.check(),
        Err(ReadError::Malformed(error)) => Err(error.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    let answer = match shared.fault(&Moment::Handshake, Some(instance)) {
        Some(Fault::Refuse(error)) => Err(error),
        Some(Fault::Lose | Fault::Forget | Fault::Stall) => {
            shared.core().registry.mark_stalled(instance);
            std::future::pending().await
        }
        Some(Fault::Delay(time)) => {
            sleep(time).await;
            asked
        }
        Some(_) => return Err("cut off by the hub during the handshake".to_owned()),
        None => asked,
    };
    writer.answer_handshake(answer.clone()).await.map_err(|error| error.to_string())?;
    answer
}

/// Sends what is queued, in order, and keeps the connection alive.
struct Writer<'a> {
    shared: &'a Shared,
    instance: &'a str,
    cut: &'a CancellationToken,
    socket: SocketWriter,
}

impl Writer<'_> {
    /// Ends with the reason, or with none when the connection was cut.
    async fn run(mut self, queue: mpsc::Receiver<Out>) -> Option<String> {
        let cut = self.cut;
        tokio::select! {
            () = cut.cancelled() => None,
            ended = self.write(queue) => match ended {
                Ok(reason) => reason,
                Err(error) => Some(error.to_string()),
            },
        }
    }

    async fn write(&mut self, mut queue: mpsc::Receiver<Out>) -> Result<Option<String>, WriteError> {
        while let Some(out) = self.socket.keep_alive_while(queue.recv()).await? {
            match out {
                Out::Message(message) => self.socket.send(&message).await?,
                Out::Rubbish(rubbish) => self.socket.send_raw(rubbish_frame(&rubbish)).await?,
                Out::Close { error, allow_reconnect } => {
                    let reason = error.clone().unwrap_or_else(|| "closed by the hub".to_owned());
                    self.socket.send(&Message::Close { error, allow_reconnect }).await?;
                    // The Close message is what counts; the WebSocket's own close frame is a courtesy.
                    let _ = self.socket.send_raw(ws::Message::Close(None)).await;
                    return Ok(Some(reason));
                }
                Out::Stall => return self.stall().await,
                Out::Push { invocation_id, method, arguments } => {
                    let fault = self.shared.fault(&Moment::Push(Some(method.clone())), Some(self.instance));
                    let push = Message::Invocation { invocation_id, target: method, arguments };
                    match fault {
                        Some(Fault::DropBefore) => return Ok(None),
                        Some(Fault::Lose | Fault::Forget | Fault::Refuse(_)) => continue,
                        Some(Fault::StopReading | Fault::Stall) => return self.stall().await,
                        Some(Fault::Delay(time)) => sleep(time).await,
                        Some(Fault::Send(ref rubbish)) => {
                            self.socket.send_raw(rubbish_frame(rubbish)).await?;
                        }
                        Some(Fault::DropAfter | Fault::Close { .. } | Fault::Status(_)) | None => {}
                    }
                    self.socket.send(&push).await?;
                    match fault {
                        Some(Fault::DropAfter) => return Ok(None),
                        Some(Fault::Close { error, allow_reconnect }) => {
                            self.socket.send(&Message::Close { error, allow_reconnect }).await?;
                            return Ok(Some("closed by the hub".to_owned()));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(None)
    }

    /// Sends nothing more and keeps the socket open until the connection is cut.
    async fn stall(&self) -> Result<Option<String>, WriteError> {
        self.shared.core().registry.mark_stalled(self.instance);
        std::future::pending().await
    }
}

fn rubbish_frame(rubbish: &Rubbish) -> ws::Message {
    let (bytes, is_text) = rubbish.frame();
    match String::from_utf8(bytes) {
        Ok(text) if is_text => ws::Message::text(text),
        Ok(text) => ws::Message::binary(text.into_bytes()),
        Err(error) => ws::Message::binary(error.into_bytes()),
    }
}
