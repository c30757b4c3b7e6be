//! Deliberate misbehavior, for tests only: what the hub does wrong, when, and how often.
//!
//! A [`Rule`] waits for its [`Moment`], lets the first `skip` of them pass, and then causes its [`Fault`] the next
//! `times` times. If several rules match a moment, the first one that is due acts, and the later ones do not count it.
//!
//! | moment | faults |
//! |---|---|
//! | [`Moment::Token`], [`Moment::Negotiate`], [`Moment::Handshake`] | [`Fault::Refuse`] |
//! | [`Moment::Call`] | all |
//! | [`Moment::Push`] | [`Fault::Lose`], [`Fault::DropBefore`], [`Fault::DropAfter`], [`Fault::Stall`] |

mod behavior;
mod controls;

use std::time::Duration;

use axum::extract::ws;
use serde_json::{Value, json};

/// Where in the exchange a fault occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    Token,
    Negotiate,
    Handshake,
    /// A call from a runner: of this method, or any.
    Call(Option<String>),
    /// A push to a runner: of this method, or any.
    Push(Option<String>),
}

impl Moment {
    pub fn call(method: impl Into<String>) -> Self {
        Self::Call(Some(method.into()))
    }

    pub fn push(method: impl Into<String>) -> Self {
        Self::Push(Some(method.into()))
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Call(None), Self::Call(_)) | (Self::Push(None), Self::Push(_)) => true,
            (mine, theirs) => mine == theirs,
        }
    }
}

/// What goes wrong. A call is *processed* when the hub has acted on it.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Answers with this error without processing. HTTP requests get status 503 with this text.
    Refuse(String),
    /// Neither processes nor answers the call, or does not send the push.
    Lose,
    /// Processes the call and never answers.
    Forget,
    /// Processes the call and answers this much later. Later calls wait; pings are sent.
    Delay(Duration),
    /// Cuts the connection before the call is processed or the push is sent.
    DropBefore,
    /// Cuts the connection after the call is processed, without an answer, or after the push is sent.
    DropAfter,
    /// Processes and answers the call, then closes the connection with a Close message.
    Close { error: Option<String>, allow_reconnect: bool },
    /// Processes and answers the call, then reads nothing more. Pings are sent.
    StopReading,
    /// Processes the call, then reads and writes nothing more. The socket stays open.
    Stall,
    /// Processes and answers the call, then sends this.
    Send(Rubbish),
}

/// Something that a client must survive.
#[derive(Debug, Clone, PartialEq)]
pub enum Rubbish {
    /// A complete message that is not JSON.
    NotJson,
    /// A JSON value that is not a message.
    NotAMessage,
    /// A message of an unknown type.
    UnknownType,
    /// An invocation of a method that runners do not have.
    UnknownMethod,
    /// A Completion of an invocation that does not exist.
    StrayCompletion,
    /// A binary frame with these bytes.
    Bytes(Vec<u8>),
    /// A text frame with this text and no terminator.
    Text(String),
}

impl Rubbish {
    fn frame(self) -> ws::Message {
        let message = |value: &Value| ws::Message::text(format!("{value}\u{1e}"));
        match self {
            Self::NotJson => ws::Message::text("this is not JSON {\u{1e}"),
            Self::NotAMessage => message(&json!([1, "two", null])),
            Self::UnknownType => message(&json!({"type": 99, "what": "ever"})),
            Self::UnknownMethod => message(&json!({"type": 1, "target": "NoSuchMethod", "arguments": [{}]})),
            Self::StrayCompletion => message(&json!({"type": 3, "invocationId": "stray", "result": 1})),
            Self::Bytes(bytes) => ws::Message::binary(bytes),
            Self::Text(text) => ws::Message::text(text),
        }
    }
}

/// One fault to cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    moment: Moment,
    fault: Fault,
    instance: Option<String>,
    skip: u64,
    times: u64,
}

impl Rule {
    /// Acts once, at the next such moment.
    pub fn new(moment: Moment, fault: Fault) -> Self {
        Self { moment, fault, instance: None, skip: 0, times: 1 }
    }

    /// Lets this many moments pass first.
    #[must_use]
    pub fn skip(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// Acts every time until [`EmbeddedHub::behave`](crate::EmbeddedHub::behave).
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Acts only toward the runner with this instance name.
    #[must_use]
    pub fn towards(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    fn matches(&self, moment: &Moment, instance: Option<&str>) -> bool {
        self.moment.covers(moment) && (self.instance.is_none() || self.instance.as_deref() == instance)
    }
}

/// The rules that have not been used up.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    pub(super) fn on(&mut self, moment: &Moment, instance: Option<&str>) -> Option<Fault> {
        let due = self.0.iter_mut().filter(|rule| rule.matches(moment, instance)).find_map(|rule| {
            if rule.skip > 0 {
                rule.skip -= 1;
                return None;
            }
            rule.times = rule.times.saturating_sub(1);
            Some(rule.fault.clone())
        });
        self.0.retain(|rule| rule.times > 0);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_skips_acts_and_is_used_up() {
        let mut faults = Faults(vec![Rule::new(Moment::call("AddLogs"), Fault::DropBefore).skip(2).times(2)]);
        let acted: Vec<bool> =
            (0..6).map(|_| faults.on(&Moment::call("AddLogs"), Some("a")).is_some()).collect();
        assert_eq!(acted, [false, false, true, true, false, false]);
    }

    #[test]
    fn a_rule_acts_only_at_its_moment_and_toward_its_runner() {
        let mut faults = Faults(vec![Rule::new(Moment::Call(None), Fault::Lose).towards("a").always()]);
        assert_eq!(faults.on(&Moment::call("InitCompleted"), Some("b")), None);
        assert_eq!(faults.on(&Moment::push("Init"), Some("a")), None);
        assert_eq!(faults.on(&Moment::Token, None), None);
        assert_eq!(faults.on(&Moment::call("InitCompleted"), Some("a")), Some(Fault::Lose));
        assert_eq!(faults.on(&Moment::call("AddLogs"), Some("a")), Some(Fault::Lose));
    }
}
