//! What one connection does, without doing it: bytes, calls and the clock come in as events, and what is to be
//! sent, delivered and answered goes out as actions.
//!
//! ```text
//! Shaking ──{} received──→ Open ──Close, silence or rubbish──→ Ended
//!    └──refused, time-out or rubbish────────────────────────────↑
//! ```
//!
//! `C` is the caller's ticket for a call (in the program the sender of its answer).
//!
//! Invariants: no call is sent before the handshake is answered; every ticket comes back exactly once, in an
//! [`Action::Answer`] or from [`Machine::abandon`]; only sending moves the ping timer and only receiving moves
//! the silence timer (a client that also moves the ping timer when it receives is dropped by the server, which
//! then hears nothing for 30 s); one event causes at most one [`Action::Send`], so that whoever holds room for one
//! message can carry out any event.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::client::CallError;
use crate::codec::{self, Answer, CodecError, Message, Splitter};
use crate::timing::Timing;

/// What a message from the server may grow to: extra files ride along with pushes, so much more than what the
/// server takes from us.
pub(crate) const MAX_INCOMING_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(crate) enum Event<'a, C> {
    /// The socket is there.
    Start,
    /// A frame came.
    Received(&'a [u8]),
    /// A part of a frame came: the server lives, though there is nothing to read yet.
    Heard,
    Call {
        method: &'a str,
        arguments: &'a str,
        ticket: C,
    },
    /// A pushed invocation that waits for its answer got it.
    Replied {
        invocation_id: String,
        answer: Answer,
    },
    /// [`Machine::deadline`] has passed.
    Tick,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Action<C> {
    Send(String),
    /// The handshake is done.
    Opened,
    Push {
        target: String,
        arguments: Vec<Value>,
        invocation_id: Option<String>,
    },
    /// The server wants an answer to what we do not offer.
    Decline {
        invocation_id: String,
        reason: String,
    },
    Answer(C, Result<Value, CallError>),
    /// The connection is over. No further action follows.
    End(Ending),
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    #[error("the server did not answer the handshake within {} s", .0.as_secs_f64())]
    HandshakeTimeout(Duration),
    #[error("the server refused the handshake: {0}")]
    HandshakeRefused(String),
    #[error("the server was silent for {} s", .0.as_secs_f64())]
    Silence(Duration),
    #[error("the server took nothing that was sent to it for {} s", .0.as_secs_f64())]
    WriteStalled(Duration),
    #[error("the server closed the connection{}", reason(.error.as_deref()))]
    Closed { error: Option<String>, allow_reconnect: bool },
    #[error("the server closed the socket (code {code}){}", reason(Some(.text)))]
    SocketClosed { code: u16, text: String },
    #[error("the connection was lost: {0}")]
    Lost(String),
    #[error("the server sent what cannot be read: {0}")]
    Unreadable(String),
}

fn reason(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default()
}

impl From<CodecError> for Ending {
    fn from(error: CodecError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

#[derive(Debug)]
enum State<C> {
    Shaking { until: Instant },
    Open { ping_at: Instant, silent_at: Instant, next_id: u64, calls: BTreeMap<u64, C> },
    Ended,
}

#[derive(Debug)]
pub(crate) struct Machine<C> {
    state: State<C>,
    splitter: Splitter,
    ping_after: Duration,
    server_timeout: Duration,
    handshake_timeout: Duration,
    max_message_bytes: usize,
}

impl<C> Machine<C> {
    pub(crate) fn new(timing: &Timing, max_message_bytes: usize, now: Instant) -> Self {
        Self {
            state: State::Shaking { until: now + timing.handshake_timeout },
            splitter: Splitter::new(MAX_INCOMING_BYTES),
            ping_after: timing.ping_after,
            server_timeout: timing.server_timeout,
            handshake_timeout: timing.handshake_timeout,
            max_message_bytes,
        }
    }

    /// When the machine wants its next [`Event::Tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Shaking { until } => Some(*until),
            State::Open { ping_at, silent_at, .. } => Some(*ping_at.min(silent_at)),
            State::Ended => None,
        }
    }

    /// The calls that will not be answered any more.
    pub(crate) fn abandon(&mut self) -> Vec<C> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Open { calls, .. } => calls.into_values().collect(),
            State::Shaking { .. } | State::Ended => Vec::new(),
        }
    }

    pub(crate) fn on(&mut self, event: Event<'_, C>, now: Instant) -> Vec<Action<C>> {
        match event {
            Event::Start => vec![Action::Send(codec::handshake_request())],
            Event::Received(frame) => self.received(frame, now),
            Event::Heard => {
                self.heard(now);
                Vec::new()
            }
            Event::Call { method, arguments, ticket } => vec![self.call(method, arguments, ticket, now)],
            Event::Replied { invocation_id, answer } => {
                self.replied(&invocation_id, &answer, now).into_iter().collect()
            }
            Event::Tick => self.tick(now).into_iter().collect(),
        }
    }

    fn received(&mut self, frame: &[u8], now: Instant) -> Vec<Action<C>> {
        self.heard(now);
        let mut actions = Vec::new();
        let messages = match self.splitter.push(frame) {
            Ok(messages) => messages,
            Err(error) => return vec![Action::End(error.into())],
        };
        for text in messages {
            // The keep-alive of some servers is an empty record; there is nothing in it to read.
            if text.is_empty() {
                continue;
            }
            let action = match self.state {
                State::Shaking { .. } => Some(self.handshake(&text, now)),
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
            Ok(Err(refusal)) => Action::End(Ending::HandshakeRefused(refusal)),
            Err(error) => Action::End(error.into()),
        }
    }

    fn message(&mut self, text: &[u8]) -> Option<Action<C>> {
        match Message::read(text) {
            Ok(Message::Invocation { invocation_id, target, arguments }) => {
                Some(Action::Push { target, arguments, invocation_id })
            }
            Ok(Message::Completion { invocation_id, answer }) => {
                let State::Open { calls, .. } = &mut self.state else { return None };
                // An answer to what nobody asked does no harm.
                let ticket = calls.remove(&invocation_id.parse().ok()?)?;
                Some(Action::Answer(ticket, answer.map_err(CallError::Refused)))
            }
            Ok(Message::StreamInvocation { invocation_id, target }) => Some(Action::Decline {
                invocation_id,
                reason: format!("the runner offers no stream, and so none named {target:?}"),
            }),
            Ok(Message::Close { error, allow_reconnect }) => {
                Some(Action::End(Ending::Closed { error, allow_reconnect }))
            }
            // We open no streams and do not ask for stateful reconnects, so these concern nobody.
            Ok(
                Message::StreamItem { .. }
                | Message::CancelInvocation { .. }
                | Message::Ping
                | Message::Ack { .. }
                | Message::Sequence { .. }
                | Message::Unknown { .. },
            ) => None,
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

    fn replied(&mut self, invocation_id: &str, answer: &Answer, now: Instant) -> Option<Action<C>> {
        if !matches!(self.state, State::Open { .. }) {
            return None;
        }
        let mut text = codec::write_client_answer(invocation_id, answer);
        if text.len() > self.max_message_bytes {
            let error = format!("the answer takes {} bytes, more than the server accepts", text.len());
            text = codec::write_client_answer(invocation_id, &Err(error));
        }
        Some(self.send(text, now))
    }

    fn tick(&mut self, now: Instant) -> Option<Action<C>> {
        match self.state {
            State::Shaking { until } if now >= until => {
                Some(Action::End(Ending::HandshakeTimeout(self.handshake_timeout)))
            }
            State::Open { silent_at, .. } if now >= silent_at => {
                Some(Action::End(Ending::Silence(self.server_timeout)))
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

    fn heard(&mut self, now: Instant) {
        if let State::Open { silent_at, .. } = &mut self.state {
            *silent_at = now + self.server_timeout;
        }
    }
}

#[cfg(test)]
mod tests;
