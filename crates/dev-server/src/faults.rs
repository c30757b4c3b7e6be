//! Misbehaviour on demand: what the hub is to do wrong, when, and how often.
//!
//! A [`Rule`] waits for its [`Moment`], lets the first `skip` of them pass, and then does its [`Fault`] the next
//! `times` times. With several rules for one moment the first that is due acts; the others do not count it.

use std::time::Duration;

use serde_json::{Value, json};

/// Where in the exchange something can go wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    Token,
    Negotiate,
    Upgrade,
    Handshake,
    /// A call of a runner: this method, or any.
    Call(Option<String>),
    /// A push to a runner: this method, or any.
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

/// What goes wrong. "Taken" means that the hub has acted on the message.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Answer with this error, not taken. Token, negotiation and upgrade answer 503 with the text.
    Refuse(String),
    /// Token, negotiation and upgrade: answer with this HTTP status.
    Status(u16),
    /// Neither taken nor answered; a push is not sent.
    Lose,
    /// Taken, never answered.
    Forget,
    /// Taken, and answered (or sent) that much later. Everything behind it waits too; pings go on.
    Delay(Duration),
    /// Cut the connection before the message is taken or sent.
    DropBefore,
    /// Cut the connection when the message is taken but not answered, or as soon as it is sent.
    DropAfter,
    /// Taken and answered; then a Close message and the end of the connection.
    Close { error: Option<String>, allow_reconnect: bool },
    /// Taken and answered; from then on nothing is read, while pings still go out.
    StopReading,
    /// Taken; from then on nothing is read and nothing written, and the socket stays open.
    Stall,
    /// Taken and answered; then this is sent.
    Send(Rubbish),
}

/// What no client should stumble over.
#[derive(Debug, Clone, PartialEq)]
pub enum Rubbish {
    /// Text that is no JSON, as a complete message.
    NotJson,
    /// A JSON value that is no message.
    NotAMessage,
    /// A message of a type that no version of the protocol has.
    UnknownType,
    /// An invocation of a method that no runner has.
    UnknownMethod,
    /// A Completion for an invocation that was never made.
    StrayCompletion,
    /// A frame with these bytes, which need not be text.
    Bytes(Vec<u8>),
    /// A text frame with this, end mark not added.
    Text(String),
}

impl Rubbish {
    /// The frame, and whether it goes out as text.
    pub(super) fn frame(&self) -> (Vec<u8>, bool) {
        let message = |value: &Value| (format!("{value}\u{1e}").into_bytes(), true);
        match self {
            Self::NotJson => (b"this is no JSON {\x1e".to_vec(), true),
            Self::NotAMessage => message(&json!([1, "two", null])),
            Self::UnknownType => message(&json!({"type": 99, "what": "ever"})),
            Self::UnknownMethod => message(&json!({"type": 1, "target": "NoSuchMethod", "arguments": [{}]})),
            Self::StrayCompletion => message(&json!({"type": 3, "invocationId": "stray", "result": 1})),
            Self::Bytes(bytes) => (bytes.clone(), false),
            Self::Text(text) => (text.clone().into_bytes(), true),
        }
    }
}

/// One thing to do wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    moment: Moment,
    fault: Fault,
    instance: Option<String>,
    skip: u64,
    times: u64,
}

impl Rule {
    /// At the next such moment, once.
    pub fn new(moment: Moment, fault: Fault) -> Self {
        Self { moment, fault, instance: None, skip: 0, times: 1 }
    }

    /// Let this many pass first.
    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Every time until [`EmbeddedHub::behave`](crate::EmbeddedHub::behave).
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Only towards the runner with this instance name.
    #[must_use]
    pub fn towards(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }
}

/// The rules that are still to act.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    pub(super) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn on(&mut self, moment: &Moment, instance: Option<&str>) -> Option<Fault> {
        let concerns = |rule: &Rule| {
            rule.moment.covers(moment) && rule.instance.as_deref().is_none_or(|name| instance == Some(name))
        };
        for index in 0..self.rules.len() {
            let rule = &mut self.rules[index];
            if !concerns(rule) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times = rule.times.saturating_sub(1);
            let (fault, done) = (rule.fault.clone(), rule.times == 0);
            if done {
                self.rules.remove(index);
            }
            return Some(fault);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_skips_acts_and_is_spent() {
        let mut faults = Faults::default();
        faults.add(Rule::new(Moment::call("AddLogs"), Fault::DropBefore).skip(2).times(2));
        let acted: Vec<bool> =
            (0..6).map(|_| faults.on(&Moment::call("AddLogs"), Some("a")).is_some()).collect();
        assert_eq!(acted, [false, false, true, true, false, false]);
    }

    #[test]
    fn a_rule_acts_only_at_its_moment_and_towards_its_runner() {
        let mut faults = Faults::default();
        faults.add(Rule::new(Moment::Call(None), Fault::Lose).towards("a").always());
        assert_eq!(faults.on(&Moment::call("InitCompleted"), Some("b")), None);
        assert_eq!(faults.on(&Moment::push("Init"), Some("a")), None);
        assert_eq!(faults.on(&Moment::Token, None), None);
        assert_eq!(faults.on(&Moment::call("InitCompleted"), Some("a")), Some(Fault::Lose));
        assert_eq!(faults.on(&Moment::call("AddLogs"), Some("a")), Some(Fault::Lose));
        faults.clear();
        assert_eq!(faults.on(&Moment::call("AddLogs"), Some("a")), None);
    }
}
