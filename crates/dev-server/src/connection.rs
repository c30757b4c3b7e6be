//! The server half of one SignalR connection, from the handshake to its end.
//!
//! Two loops share the socket. The reader finishes each message before it reads the next, so the calls of a client
//! are handled one by one and in order. The writer sends queued messages, and pings while there are none. The
//! connection ends with whichever loop ends first, or when its `cut` token is cancelled.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::ws::{self, WebSocket};
use hawser_signalr::codec::{Answer, Message};
use hawser_signalr::server::{
    self, ClientMessage, PendingResults, ReadError, ServerOptions, WriteError, split,
};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::events::{ConnectionId, HubEvent};
use crate::orchestrator::{Event, Refusal};
use crate::reports::Report;
use crate::shared::Shared;

type SocketReader = server::SocketReader<WebSocket>;
type SocketWriter = server::SocketWriter<WebSocket, ws::Message>;

/// Messages that may wait for the writer. A client that leaves more unread is disconnected.
pub(super) const QUEUED_MESSAGES: usize = 1024;

/// Reserves an instance name in the registry until it is dropped, whether or not the WebSocket opens.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ConnectionId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.core().registry.release(self.id);
        self.shared.changed();
    }
}

/// A connection with a reserved name. Its WebSocket is yet to open.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) reservation: Reservation,
    pub(super) instance: String,
    pub(super) outgoing: mpsc::Sender<Message>,
    pub(super) cut: CancellationToken,
    pub(super) results: PendingResults,
    /// When to close the connection because its token expires.
    pub(super) expires: Option<Instant>,
}

impl Connection {
    /// Serves the socket until the connection ends.
    pub(super) async fn serve(self, socket: WebSocket, queue: mpsc::Receiver<Message>) {
        let options = &self.shared().options;
        let options = ServerOptions {
            handshake_timeout: options.handshake_timeout,
            keep_alive: options.keep_alive,
            client_timeout: options.client_timeout,
            max_message_bytes: options.max_message_bytes,
        };
        let (mut reader, mut writer) = split(socket, &options);
        let accepted = tokio::select! {
            () = self.cut.cancelled() => return,
            accepted = self.handshake(&mut reader, &mut writer) => accepted,
        };
        if let Err(reason) = accepted {
            self.shared().refused(Some(&self.instance), reason);
            return;
        }
        let (connection, instance) = (self.reservation.id, self.instance.clone());
        // The orchestrator never refuses this event or the one at the end.
        let _ = self.shared().act(Event::Connected { connection, instance: instance.clone() });
        let reason = tokio::select! {
            () = self.cut.cancelled() => "cut off by the hub".to_owned(),
            reason = self.read(reader) => reason,
            written = self.write(writer, queue) => written.unwrap_or_else(|error| error.to_string()),
        };
        self.results.clear();
        let _ = self.shared().act(Event::Disconnected { connection, instance, reason });
    }

    fn shared(&self) -> &Shared {
        &self.reservation.shared
    }

    async fn handshake(&self, reader: &mut SocketReader, writer: &mut SocketWriter) -> Result<(), String> {
        let answer = match reader.handshake().await {
            Ok(request) => request.check(),
            Err(ReadError::Malformed(error)) => Err(error.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        writer.answer_handshake(answer.clone()).await.map_err(|error| error.to_string())?;
        answer
    }

    /// Handles messages one by one. Returns why the connection ended.
    async fn read(&self, mut reader: SocketReader) -> String {
        loop {
            let message = tokio::select! {
                () = expiry(self.expires) => return self.close("the token of this connection has expired").await,
                message = reader.next() => message,
            };
            let next = match message {
                Ok(message) => self.handle(message).await,
                // The messages that follow might be misread.
                Err(ReadError::Malformed(error)) => {
                    self.violation("(message)", &error.to_string());
                    return self.close(&error.to_string()).await;
                }
                Err(error) => return error.to_string(),
            };
            if let ControlFlow::Break(reason) = next {
                return reason;
            }
        }
    }

    /// Breaks with the reason to end the connection.
    async fn handle(&self, message: ClientMessage) -> ControlFlow<String> {
        match message {
            ClientMessage::Invocation { invocation_id, target, arguments } => {
                let answer = self.call(invocation_id.as_deref(), &target, &arguments);
                self.answer(invocation_id, answer).await;
            }
            ClientMessage::Completion { invocation_id, answer } => {
                if !self.results.complete(&invocation_id, answer) {
                    self.violation("(Completion)", &format!("no invocation {invocation_id:?} is pending"));
                }
            }
            ClientMessage::Close { error: None } => {
                return ControlFlow::Break("closed by the client".to_owned());
            }
            ClientMessage::Close { error: Some(error) } => {
                return ControlFlow::Break(format!("closed by the client with an error: {error}"));
            }
            ClientMessage::Other(Message::StreamInvocation { invocation_id, target }) => {
                let error = format!("{target} is not a stream");
                self.violation(&target, &error);
                self.answer(Some(invocation_id), Err(error)).await;
            }
            ClientMessage::Other(other) => {
                self.violation("(message)", &format!("unexpected message from a client: {other:?}"));
            }
        }
        ControlFlow::Continue(())
    }

    /// Checks a call and acts on it. Every error is recorded as a violation, except for a claim that came too late.
    fn call(&self, invocation_id: Option<&str>, method: &str, arguments: &RawValue) -> Answer {
        if invocation_id.is_none() {
            self.violation(method, "the call does not wait for its Completion");
        }
        let (connection, instance) = (self.reservation.id, self.instance.clone());
        let acted = match Report::read(method, arguments) {
            Ok(report) => {
                self.shared().act(Event::Reported { connection, instance: instance.clone(), report })
            }
            Err(error) => {
                self.violation(method, &error.to_string());
                return Err(error.to_string());
            }
        };
        match &acted {
            Err(Refusal::ClaimLost { job, task }) => {
                let (job, task, method) = (*job, *task, method.to_owned());
                self.shared().record(HubEvent::ClaimLost { job, task, instance, method });
            }
            Err(refusal) => self.violation(method, &refusal.to_string()),
            Ok(()) => {}
        }
        acted.map(|()| Value::Null).map_err(|refusal| refusal.to_string())
    }

    fn violation(&self, method: &str, reason: &str) {
        self.shared().violation(&self.instance, method, reason);
    }

    async fn answer(&self, invocation_id: Option<String>, answer: Answer) {
        if let Some(invocation_id) = invocation_id {
            self.send(Message::Completion { invocation_id, answer }).await;
        }
    }

    /// Queues a Close message and reads nothing more. The writer ends the connection.
    async fn close(&self, error: &str) -> String {
        let error = Some(format!("Connection closed with an error. {error}"));
        self.send(Message::Close { error, allow_reconnect: true }).await;
        pending().await
    }

    async fn send(&self, message: Message) {
        // Fails only if the writer has ended, and the connection with it.
        let _ = self.outgoing.send(message).await;
    }

    /// Sends queued messages in order, and pings. Returns why the connection ended.
    async fn write(
        &self,
        mut writer: SocketWriter,
        mut queue: mpsc::Receiver<Message>,
    ) -> Result<String, WriteError> {
        while let Some(message) = writer.keep_alive_while(queue.recv()).await? {
            match message {
                Message::Close { error, allow_reconnect } => {
                    let reason = error.clone().unwrap_or_else(|| "closed by the hub".to_owned());
                    writer.close(error, allow_reconnect).await?;
                    return Ok(reason);
                }
                message => writer.send(&message).await?,
            }
        }
        // Unreachable: `self` holds a sender.
        pending().await
    }
}

async fn expiry(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
