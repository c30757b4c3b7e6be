//! What a client says on its connection: frames become messages, and each call is checked, taken and answered.

use std::borrow::Cow;
use std::collections::VecDeque;

use axum::extract::ws::{self, WebSocket};
use futures::StreamExt;
use futures::stream::SplitStream;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::{ClientResults, Out};
use crate::events::ConnectionId;
use crate::faults::{Fault, Moment};
use crate::orchestrator::Event;
use crate::reports::Report;
use crate::shared::Shared;
use hawser_signalr::codec::{Answer, CodecError, Message, Splitter};

/// The messages of a client, whatever the frames that they come in.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: SplitStream<WebSocket>,
    splitter: Splitter,
    complete: VecDeque<Vec<u8>>,
}

impl Incoming {
    /// `limit` counts the end mark, as ASP.NET does.
    pub(super) fn new(stream: SplitStream<WebSocket>, limit: usize) -> Self {
        Self { stream, splitter: Splitter::new(limit.saturating_sub(1)), complete: VecDeque::new() }
    }

    /// The next message without its end mark, or why there will be none.
    pub(super) async fn message(&mut self) -> Result<Vec<u8>, ReadError> {
        loop {
            if let Some(message) = self.complete.pop_front() {
                return Ok(message);
            }
            let frame = match self.stream.next().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Err(ReadError::Broken(error)),
                None => return Err(ReadError::Closed),
            };
            let bytes = match &frame {
                ws::Message::Text(text) => text.as_bytes(),
                ws::Message::Binary(bytes) => bytes,
                ws::Message::Close(_) => return Err(ReadError::ClosedByClient),
                ws::Message::Ping(_) | ws::Message::Pong(_) => continue,
            };
            self.complete.extend(self.splitter.push(bytes)?);
        }
    }
}

/// Why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the connection broke: {0}")]
    Broken(axum::Error),
    #[error("the connection was closed")]
    Closed,
    #[error("the client closed the WebSocket")]
    ClosedByClient,
    #[error(transparent)]
    Unreadable(#[from] CodecError),
}

/// What the reader does after a message.
enum Next {
    GoOn,
    /// Nothing more is read; the writer, or whoever cuts the connection, ends it.
    Wait,
    End(String),
}

/// Enough of a message to tell calls, which are read strictly, from the rest. Arguments stay text: floods of
/// logs pass through here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Peek<'a> {
    #[serde(rename = "type")]
    kind: u64,
    #[serde(borrow)]
    invocation_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    target: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

pub(super) struct Reader<'a> {
    pub(super) shared: &'a Shared,
    pub(super) instance: &'a str,
    pub(super) id: ConnectionId,
    pub(super) out: &'a mpsc::Sender<Out>,
    pub(super) cut: &'a CancellationToken,
    pub(super) results: &'a ClientResults,
    pub(super) expires: Option<Instant>,
}

impl Reader<'_> {
    /// Ends with the reason, or with none when the connection was cut or closed from this side.
    pub(super) async fn run(self, mut incoming: Incoming) -> Option<String> {
        let patience = self.shared.options.client_timeout;
        loop {
            let next = tokio::select! {
                () = self.cut.cancelled() => return None,
                () = expiry(self.expires) => {
                    self.close("the token of this connection has run out").await;
                    Next::Wait
                }
                message = timeout(patience, incoming.message()) => match message {
                    Ok(Ok(message)) => self.take(&message).await,
                    Ok(Err(ReadError::Unreadable(error))) => self.give_up(&error).await,
                    Ok(Err(error)) => Next::End(error.to_string()),
                    Err(_) => Next::End("the client has been silent for too long".to_owned()),
                },
            };
            match next {
                Next::GoOn => {}
                Next::Wait => {
                    self.cut.cancelled().await;
                    return None;
                }
                Next::End(reason) => return Some(reason),
            }
        }
    }

    async fn take(&self, message: &[u8]) -> Next {
        let peek: Result<Peek<'_>, _> = serde_json::from_slice(message);
        match peek {
            Ok(Peek { kind: 1, invocation_id, target: Some(target), arguments }) => {
                let arguments = arguments.unwrap_or(RawValue::NULL);
                self.call(invocation_id.as_deref(), &target, arguments).await
            }
            _ => self.other(message).await,
        }
    }

    async fn other(&self, text: &[u8]) -> Next {
        match Message::read(text) {
            Ok(Message::Ping) => Next::GoOn,
            Ok(Message::Completion { invocation_id, answer }) => {
                if !self.results.answer(&invocation_id, answer) {
                    let reason = format!("nobody waits for a Completion of {invocation_id:?}");
                    self.shared.violation(self.instance, "(Completion)", reason);
                }
                Next::GoOn
            }
            Ok(Message::Close { error: None, .. }) => Next::End("the client said good-bye".to_owned()),
            Ok(Message::Close { error: Some(error), .. }) => {
                Next::End(format!("the client closed with an error: {error}"))
            }
            Ok(Message::StreamInvocation { invocation_id, target }) => {
                let error = format!("{target} is no stream");
                self.shared.violation(self.instance, &target, error.clone());
                self.answer(Some(&invocation_id), Err(error)).await;
                Next::GoOn
            }
            Ok(other) => {
                let reason = format!("a client has no reason to send {other:?}");
                self.shared.violation(self.instance, "(message)", reason);
                Next::GoOn
            }
            Err(error) => self.give_up(&error).await,
        }
    }

    /// What cannot be read ends the connection: whatever follows might be misread.
    async fn give_up(&self, error: &CodecError) -> Next {
        let reason = error.to_string();
        self.close(&reason).await;
        self.shared.violation(self.instance, "(message)", reason);
        Next::Wait
    }

    async fn call(&self, invocation_id: Option<&str>, method: &str, arguments: &RawValue) -> Next {
        let fault = self.shared.fault(&Moment::Call(Some(method.to_owned())), Some(self.instance));
        match &fault {
            Some(Fault::DropBefore) => return self.drop_now(),
            Some(Fault::Lose) => return Next::GoOn,
            Some(Fault::Refuse(error)) => {
                self.answer(invocation_id, Err(error.clone())).await;
                return Next::GoOn;
            }
            _ => {}
        }
        if invocation_id.is_none() {
            self.shared.violation(self.instance, method, "the call does not wait for its Completion");
        }
        let answer = self.handle(method, arguments);
        match &fault {
            Some(Fault::DropAfter) => return self.drop_now(),
            Some(Fault::Forget) => return Next::GoOn,
            Some(Fault::Delay(time)) => tokio::select! {
                () = self.cut.cancelled() => return Next::Wait,
                () = sleep(*time) => {}
            },
            Some(Fault::Stall) => {
                self.send(Out::Stall).await;
                return Next::Wait;
            }
            _ => {}
        }
        self.answer(invocation_id, answer).await;
        match fault {
            Some(Fault::Close { error, allow_reconnect }) => {
                self.send(Out::Close { error, allow_reconnect }).await;
                Next::Wait
            }
            Some(Fault::StopReading) => {
                self.shared.core().registry.mark_stalled(self.instance);
                Next::Wait
            }
            Some(Fault::Send(rubbish)) => {
                self.send(Out::Rubbish(rubbish)).await;
                Next::GoOn
            }
            _ => Next::GoOn,
        }
    }

    /// Checks a call and acts on it. Whatever is wrong with it is on record and in the answer.
    fn handle(&self, method: &str, arguments: &RawValue) -> Answer {
        let instance = self.instance.to_owned();
        let done = match Report::read(method, arguments) {
            Ok(report) => self
                .shared
                .act(Event::Reported { connection: self.id, instance, report })
                .map_err(|refusal| refusal.to_string()),
            Err(error) => Err(error.to_string()),
        };
        done.map(|()| Value::Null)
            .inspect_err(|reason| self.shared.violation(self.instance, method, reason.clone()))
    }

    /// Ends the connection at once: what the writer still has is not sent.
    fn drop_now(&self) -> Next {
        self.cut.cancel();
        Next::End("cut off by the hub".to_owned())
    }

    async fn answer(&self, invocation_id: Option<&str>, answer: Answer) {
        if let Some(id) = invocation_id {
            self.send(Out::Message(Message::Completion { invocation_id: id.to_owned(), answer })).await;
        }
    }

    async fn close(&self, error: &str) {
        let error = Some(format!("Connection closed with an error. {error}"));
        self.send(Out::Close { error, allow_reconnect: true }).await;
    }

    async fn send(&self, out: Out) {
        tokio::select! {
            () = self.cut.cancelled() => {}
            // The writer ends together with this reader; what it does not take any more is lost with the line.
            _ = self.out.send(out) => {}
        }
    }
}

async fn expiry(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
