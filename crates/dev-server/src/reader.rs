//! Handles the messages of a client: each call is checked, processed and completed.

use hawser_signalr::codec::{Answer, CodecError, Message};
use hawser_signalr::server::{ClientMessage, PendingResults, ReadError};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::connection::{Out, SocketReader};
use crate::events::ConnectionId;
use crate::faults::{Fault, Moment};
use crate::orchestrator::Event;
use crate::reports::Report;
use crate::shared::Shared;

/// What the reader does after a message.
enum Next {
    GoOn,
    /// Nothing more is read; the writer, or whoever cuts the connection, ends it.
    Wait,
    End(String),
}

pub(super) struct Reader<'a> {
    pub(super) shared: &'a Shared,
    pub(super) instance: &'a str,
    pub(super) id: ConnectionId,
    pub(super) out: &'a mpsc::Sender<Out>,
    pub(super) cut: &'a CancellationToken,
    pub(super) results: &'a PendingResults,
    pub(super) expires: Option<Instant>,
}

impl Reader<'_> {
    /// Ends with the reason, or with none when the connection was cut or closed from this side.
    pub(super) async fn run(self, mut incoming: SocketReader) -> Option<String> {
        loop {
            let next = tokio::select! {
                () = self.cut.cancelled() => return None,
                () = expiry(self.expires) => {
                    self.close("the token of this connection has run out").await;
                    Next::Wait
                }
                message = incoming.next() => match message {
                    Ok(message) => self.take(message).await,
                    Err(ReadError::Malformed(error)) => self.give_up(&error).await,
                    Err(error) => Next::End(error.to_string()),
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

    async fn take(&self, message: ClientMessage) -> Next {
        match message {
            ClientMessage::Invocation { invocation_id, target, arguments } => {
                self.call(invocation_id.as_deref(), &target, &arguments).await
            }
            ClientMessage::Completion { invocation_id, answer } => {
                if !self.results.complete(&invocation_id, answer) {
                    let reason = format!("no invocation {invocation_id:?} is pending");
                    self.shared.violation(self.instance, "(Completion)", reason);
                }
                Next::GoOn
            }
            ClientMessage::Close { error: None } => Next::End("closed by the client".to_owned()),
            ClientMessage::Close { error: Some(error) } => {
                Next::End(format!("closed by the client with an error: {error}"))
            }
            ClientMessage::Other(Message::StreamInvocation { invocation_id, target }) => {
                let error = format!("{target} is not a stream");
                self.shared.violation(self.instance, &target, error.clone());
                self.answer(Some(&invocation_id), Err(error)).await;
                Next::GoOn
            }
            ClientMessage::Other(other) => {
                let reason = format!("unexpected message from a client: {other:?}");
                self.shared.violation(self.instance, "(message)", reason);
                Next::GoOn
            }
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
