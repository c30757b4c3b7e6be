//! The client's side of one connection as a pure state machine: received bytes, calls and timers are events; messages to
//! send, invocations to deliver and results of calls are actions.
//!
//! ```text
//! Handshake ──{} received──→ Open ──Close, silence, malformed message──→ Ended
//!    └──refused, timeout, malformed response──────────────────────────────↑
//! ```
//!
//! `C` is the caller's ticket for a call (a connection uses the sender of its result).
//!
//! Invariants:
//! - No call is sent before the handshake is complete.
//! - Every ticket is returned exactly once, in an [`Action::Answer`] or by [`Protocol::abandon`].
//! - Only sending resets the ping timer, and only receiving resets the silence timer. A client that also resets the
//!   ping timer on receipt would send nothing while the server talks, and the server would time out.
//! - One event causes at most one [`Action::Send`], so a caller with room for one message can handle any event.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::backoff::RetryPace;
use crate::client::CallError;
use crate::codec::{self, Answer, CodecError, Message, Splitter};
use crate::timing::Timing;

/// The largest message accepted from the server. The documentation of the crate and its README name this limit.
pub(crate) const MAX_INCOMING_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(crate) enum Event<'a, C> {
    /// The WebSocket is open.
    Start,
    /// A frame was received.
    Received(&'a [u8]),
    /// A part of a frame was received, which proves that the server is alive.
    Activity,
    /// The application calls a method.
    Call { method: &'a str, arguments: &'a str, ticket: C },
    /// The application answered an invocation.
    Reply { invocation_id: String, answer: Answer },
    /// [`Protocol::deadline`] has passed.
    Tick,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Action<C> {
    /// Send this message.
    Send(String),
    /// The handshake is complete.
    Opened,
    /// Deliver a call from the server.
    Invocation { target: String, arguments: Vec<Value>, invocation_id: Option<String> },
    /// Answer the server with an error, because it asked for something that is not supported.
    Decline { invocation_id: String, reason: String },
    /// Pass the result of a call to its caller.
    Answer(C, Result<Value, CallError>),
    /// The connection has ended. No action follows.
    End(CloseReason),
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The server did not respond to the handshake within this time.
    #[error("handshake timed out after {} s", .0.as_secs_f64())]
    HandshakeTimeout(Duration),
    /// The server refused the handshake with this error.
    #[error("server refused the handshake: {0}")]
    HandshakeRefused(String),
    /// Nothing was received for this long.
    #[error("server was silent for {} s", .0.as_secs_f64())]
    Silence(Duration),
    /// A write made no progress for this long.
    #[error("write timed out after {} s", .0.as_secs_f64())]
    WriteStalled(Duration),
    /// The server sent a close message.
    #[error("server closed the connection{}", suffix(.error.as_deref()))]
    Closed {
        /// The error in the message.
        error: Option<String>,
        /// Whether the server invites the client to reconnect.
        allow_reconnect: bool,
    },
    /// The server closed the WebSocket without a close message.
    #[error("server closed the WebSocket (code {code}){}", suffix(Some(.text)))]
    SocketClosed {
        /// The status code of the close frame.
        code: u16,
        /// The reason in the close frame.
        text: String,
    },
    /// The connection failed below the WebSocket.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The server sent a malformed message.
    #[error("malformed message from the server: {0}")]
    Unreadable(String),
}

fn suffix(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default()
}

impl CloseReason {
    /// When to reconnect: later if the server does not want this client, soon otherwise.
    pub fn pace(&self) -> RetryPace {
        match self {
            Self::HandshakeRefused(_) | Self::Closed { allow_reconnect: false, .. } => RetryPace::Later,
            _ => RetryPace::Soon,
        }
    }
}

impl From<CodecError> for CloseReason {
    fn from(error: CodecError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

#[derive(Debug)]
enum State<C> {
    Handshake { until: Instant },
    Open { ping_at: Instant, silent_at: Instant, next_id: u64, calls: BTreeMap<u64, C> },
    Ended,
}

#[derive(Debug)]
pub(crate) struct Protocol<C> {
    state: State<C>,
    splitter: Splitter,
    ping_after: Duration,
    server_timeout: Duration,
    handshake_timeout: Duration,
    max_message_bytes: usize,
}

impl<C> Protocol<C> {
    pub(crate) fn new(timing: &Timing, max_message_bytes: usize, now: Instant) -> Self {
        Self {
            state: State::Handshake { until: now + timing.handshake_timeout },
            splitter: Splitter::new(MAX_INCOMING_BYTES),
            ping_after: timing.ping_after,
            server_timeout: timing.server_timeout,
            handshake_timeout: timing.handshake_timeout,
            max_message_bytes,
        }
    }

    /// When the next [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Handshake { until } => Some(*until),
            State::Open { ping_at, silent_at, .. } => Some(*ping_at.min(silent_at)),
            State::Ended => None,
        }
    }

    /// Ends the connection and returns the calls without a completion.
    pub(crate) fn abandon(&mut self) -> Vec<C> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Open { calls, .. } => calls.into_values().collect(),
            State::Handshake { .. } | State::Ended => Vec::new(),
        }
    }

    pub(crate) fn on(&mut self, event: Event<'_, C>, now: Instant) -> Vec<Action<C>> {
        match event {
            Event::Start => vec![Action::Send(codec::handshake_request())],
            Event::Received(frame) => self.received(frame, now),
            Event::Activity => {
                self.received_something(now);
                Vec::new()
            }
            Event::Call { method, arguments, ticket } => vec![self.call(method, arguments, ticket, now)],
            Event::Reply { invocation_id, answer } => {
                self.reply(&invocation_id, &answer, now).into_iter().collect()
            }
            Event::Tick => self.tick(now).into_iter().collect(),
        }
    }

    fn received(&mut self, frame: &[u8], now: Instant) -> Vec<Action<C>> {
        self.received_something(now);
        let mut actions = Vec::new();
        let messages = match self.splitter.push(frame) {
            Ok(messages) => messages,
            Err(error) => return vec![Action::End(error.into())],
        };
        for text in messages {
            // Some servers send an empty record as a keep-alive.
            if text.is_empty() {
                continue;
            }
            let action = match self.state {
                State::Handshake { .. } => Some(self.handshake(&text, now)),
                State::Open { .. } => self.message(&text),
                State::Ended => None,
            };
            let ended = matches!(action, Some(Action::End(_)));
            actions.extend(action);
            if ended {
                break;
            }
        }
        actions
    }

    fn handshake(&mut self, text: &[u8], now: Instant) -> Action<C> {
        match codec::read_handshake_response(text) {
            Ok(Ok(())) => {
                self.state = State::Open {
                    ping_at: now + self.ping_after,
                    silent_at: now + self.server_timeout,
                    next_id: 0,
                    calls: BTreeMap::new(),
                };
                Action::Opened
            }
            Ok(Err(refusal)) => Action::End(CloseReason::HandshakeRefused(refusal)),
            Err(error) => Action::End(error.into()),
        }
    }

    fn message(&mut self, text: &[u8]) -> Option<Action<C>> {
        match Message::read(text) {
            Ok(Message::Invocation { invocation_id, target, arguments }) => {
                Some(Action::Invocation { target, arguments, invocation_id })
            }
            Ok(Message::Completion { invocation_id, answer }) => {
                let State::Open { calls, .. } = &mut self.state else { return None };
                // Completions of unknown calls are ignored.
                let ticket = calls.remove(&invocation_id.parse().ok()?)?;
                Some(Action::Answer(ticket, answer.map_err(CallError::Refused)))
            }
            Ok(Message::StreamInvocation { invocation_id, target }) => Some(Action::Decline {
                invocation_id,
                reason: format!("client does not support streams: {target:?}"),
            }),
            Ok(Message::Close { error, allow_reconnect }) => {
                Some(Action::End(CloseReason::Closed { error, allow_reconnect }))
            }
            Ok(Message::Ping | Message::Other { .. }) => None,
            Err(error) => Some(Action::End(error.into())),
        }
    }

    fn call(&mut self, method: &str, arguments: &str, ticket: C, now: Instant) -> Action<C> {
        let State::Open { next_id, calls, .. } = &mut self.state else {
            return Action::Answer(ticket, Err(CallError::Disconnected));
        };
        let id = *next_id;
        let text = codec::write_invocation(&id.to_string(), method, arguments);
        if text.len() > self.max_message_bytes {
            let too_large = CallError::TooLarge { bytes: text.len(), limit: self.max_message_bytes };
            return Action::Answer(ticket, Err(too_large));
        }
        *next_id += 1;
        calls.insert(id, ticket);
        self.send(text, now)
    }

    fn reply(&mut self, invocation_id: &str, answer: &Answer, now: Instant) -> Option<Action<C>> {
        if !matches!(self.state, State::Open { .. }) {
            return None;
        }
        let mut text = codec::write_client_answer(invocation_id, answer);
        if text.len() > self.max_message_bytes {
            let error = format!("result too large ({} bytes, limit {})", text.len(), self.max_message_bytes);
            text = codec::write_client_answer(invocation_id, &Err(error));
        }
        Some(self.send(text, now))
    }

    fn tick(&mut self, now: Instant) -> Option<Action<C>> {
        match self.state {
            State::Handshake { until } if now >= until => {
                Some(Action::End(CloseReason::HandshakeTimeout(self.handshake_timeout)))
            }
            State::Open { silent_at, .. } if now >= silent_at => {
                Some(Action::End(CloseReason::Silence(self.server_timeout)))
            }
            State::Open { ping_at, .. } if now >= ping_at => Some(self.send(Message::Ping.write(), now)),
            _ => None,
        }
    }

    fn send(&mut self, text: String, now: Instant) -> Action<C> {
        if let State::Open { ping_at, .. } = &mut self.state {
            *ping_at = now + self.ping_after;
        }
        Action::Send(text)
    }

    fn received_something(&mut self, now: Instant) {
        if let State::Open { silent_at, .. } = &mut self.state {
            *silent_at = now + self.server_timeout;
        }
    }
}

#[cfg(test)]
mod tests;
