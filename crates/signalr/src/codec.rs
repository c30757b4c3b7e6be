//! The SignalR JSON hub protocol, version 1, as text in and text out.
//!
//! A message is a JSON object that ends with the byte 0x1E. A WebSocket frame may hold several messages or a
//! part of one, so [`Splitter`] cuts the stream of frames into messages, whatever the frames look like. Both
//! halves of the line use this module. Nothing here does I/O.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Says what is wrong with a message without quoting it: its arguments may be secret.
fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(", expected ")
        .map_or_else(|| text.clone(), |(_, expected)| format!("expected {expected}"))
}

/// Ends every message.
const RECORD_SEPARATOR: u8 = 0x1E;

/// What is shown of a message that cannot be read. Enough to tell a web page from a message, too little to reach
/// the arguments of one, which may be secret.
const SHOWN_BYTES: usize = 32;

/// One message of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Invocation {
        invocation_id: Option<String>,
        target: String,
        arguments: Vec<Value>,
    },
    StreamItem {
        invocation_id: String,
    },
    Completion {
        invocation_id: String,
        answer: Answer,
    },
    StreamInvocation {
        invocation_id: String,
        target: String,
    },
    CancelInvocation {
        invocation_id: String,
    },
    Ping,
    Close {
        error: Option<String>,
        allow_reconnect: bool,
    },
    Ack {
        sequence_id: u64,
    },
    Sequence {
        sequence_id: u64,
    },
    /// A type that a later version of the protocol may bring: to be ignored.
    Unknown {
        kind: u64,
    },
}

/// What a Completion says: the result (null when the method returns nothing), or the error.
pub type Answer = Result<Value, String>;

#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error("a message is not valid JSON: {reason} (message starts {start:?})")]
    NotJson { reason: String, start: String },
    #[error("a message of type {kind} lacks {member}")]
    Incomplete { kind: u64, member: &'static str },
    #[error("a message has grown beyond {limit} bytes without an end")]
    TooLong { limit: usize },
    #[error("the handshake answer cannot be read: {reason}")]
    BadHandshake { reason: String },
}

/// The wire form of a message; every member is optional because each type has its own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(rename = "type")]
    kind: u64,
    invocation_id: Option<String>,
    target: Option<String>,
    arguments: Option<Vec<Value>>,
    #[serde(default)]
    result: Value,
    error: Option<String>,
    allow_reconnect: Option<bool>,
    sequence_id: Option<u64>,
}

impl Message {
    pub fn read(text: &[u8]) -> Result<Self, CodecError> {
        let wire: Wire = serde_json::from_slice(text).map_err(|error| CodecError::NotJson {
            reason: without_value(&error),
            start: String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]).into_owned(),
        })?;
        let kind = wire.kind;
        let lacks = |member| move || CodecError::Incomplete { kind, member };
        Ok(match kind {
            1 => Self::Invocation {
                invocation_id: wire.invocation_id,
                target: wire.target.ok_or_else(lacks("target"))?,
                arguments: wire.arguments.unwrap_or_default(),
            },
            2 => Self::StreamItem { invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))? },
            3 => Self::Completion {
                invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))?,
                answer: wire.error.map_or(Ok(wire.result), Err),
            },
            4 => Self::StreamInvocation {
                invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))?,
                target: wire.target.ok_or_else(lacks("target"))?,
            },
            5 => Self::CancelInvocation {
                invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))?,
            },
            6 => Self::Ping,
            7 => Self::Close { error: wire.error, allow_reconnect: wire.allow_reconnect.unwrap_or(false) },
            8 => Self::Ack { sequence_id: wire.sequence_id.ok_or_else(lacks("sequenceId"))? },
            9 => Self::Sequence { sequence_id: wire.sequence_id.ok_or_else(lacks("sequenceId"))? },
            kind => Self::Unknown { kind },
        })
    }

    /// The message with its end mark, ready for a frame.
    pub fn write(&self) -> String {
        let value = match self {
            Self::Invocation { invocation_id: Some(id), target, arguments } => {
                json!({"type": 1, "invocationId": id, "target": target, "arguments": arguments})
            }
            Self::Invocation { invocation_id: None, target, arguments } => {
                json!({"type": 1, "target": target, "arguments": arguments})
            }
            Self::StreamItem { invocation_id } => json!({"type": 2, "invocationId": invocation_id}),
            Self::Completion { invocation_id, answer: Ok(Value::Null) } => {
                json!({"type": 3, "invocationId": invocation_id})
            }
            Self::Completion { invocation_id, answer: Ok(result) } => {
                json!({"type": 3, "invocationId": invocation_id, "result": result})
            }
            Self::Completion { invocation_id, answer: Err(error) } => {
                json!({"type": 3, "invocationId": invocation_id, "error": error})
            }
            Self::StreamInvocation { invocation_id, target } => {
                json!({"type": 4, "invocationId": invocation_id, "target": target, "arguments": []})
            }
            Self::CancelInvocation { invocation_id } => json!({"type": 5, "invocationId": invocation_id}),
            Self::Ping => json!({"type": 6}),
            Self::Close { error: None, allow_reconnect } => {
                json!({"type": 7, "allowReconnect": allow_reconnect})
            }
            Self::Close { error: Some(error), allow_reconnect } => {
                json!({"type": 7, "error": error, "allowReconnect": allow_reconnect})
            }
            Self::Ack { sequence_id } => json!({"type": 8, "sequenceId": sequence_id}),
            Self::Sequence { sequence_id } => json!({"type": 9, "sequenceId": sequence_id}),
            Self::Unknown { kind } => json!({"type": kind}),
        };
        finish(value.to_string())
    }
}

/// An invocation whose arguments are JSON text already (`[…]`): log batches are encoded once and only once.
pub fn write_invocation(invocation_id: &str, target: &str, arguments: &str) -> String {
    finish(format!(
        "{{\"type\":1,\"invocationId\":{},\"target\":{},\"arguments\":{arguments}}}",
        Value::from(invocation_id),
        Value::from(target),
    ))
}

/// The client's answer to an invocation of the server. A result is always there, if only null: .NET takes an answer
/// without one for a failure. (A server's answer to a client is another matter: a method without result has none.)
pub fn write_client_answer(invocation_id: &str, answer: &Answer) -> String {
    let message = match answer {
        Ok(result) => json!({"type": 3, "invocationId": invocation_id, "result": result}),
        Err(error) => json!({"type": 3, "invocationId": invocation_id, "error": error}),
    };
    finish(message.to_string())
}

/// The client's first message.
pub fn handshake_request() -> String {
    finish(json!({"protocol": "json", "version": 1}).to_string())
}

/// The server's answer to the handshake: accepted, or refused with a reason.
pub fn handshake_response(refusal: Option<&str>) -> String {
    finish(refusal.map_or_else(|| "{}".to_owned(), |error| json!({"error": error}).to_string()))
}

/// Reads the server's answer to the handshake.
pub fn read_handshake_response(text: &[u8]) -> Result<Result<(), String>, CodecError> {
    #[derive(Deserialize)]
    struct Response {
        error: Option<String>,
        #[serde(rename = "type")]
        kind: Option<u64>,
    }
    let response: Response = serde_json::from_slice(text)
        .map_err(|error| CodecError::BadHandshake { reason: error.to_string() })?;
    match response {
        Response { kind: Some(kind), error: None } => Err(CodecError::BadHandshake {
            reason: format!("a message of type {kind} came before the handshake was answered"),
        }),
        Response { error: Some(error), .. } => Ok(Err(error)),
        Response { error: None, kind: None } => Ok(Ok(())),
    }
}

/// What a client asks for in its handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeRequest {
    pub protocol: String,
    pub version: u32,
}

/// Reads a client's handshake (the server's half).
pub fn read_handshake_request(text: &[u8]) -> Result<HandshakeRequest, CodecError> {
    serde_json::from_slice(text).map_err(|error| CodecError::BadHandshake { reason: error.to_string() })
}

fn finish(mut text: String) -> String {
    text.push(char::from(RECORD_SEPARATOR));
    text
}

/// Cuts frames into messages, which may be split over frames or joined in one.
#[derive(Debug)]
pub struct Splitter {
    partial: Vec<u8>,
    limit: usize,
}

impl Splitter {
    /// `limit` bounds what one message may grow to.
    pub fn new(limit: usize) -> Self {
        Self { partial: Vec::new(), limit }
    }

    /// Takes the bytes of a frame and returns the messages that are now complete, without their end marks.
    pub fn push(&mut self, frame: &[u8]) -> Result<Vec<Vec<u8>>, CodecError> {
        let mut complete = Vec::new();
        let mut rest = frame;
        while let Some(end) = memchr::memchr(RECORD_SEPARATOR, rest) {
            self.partial.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            self.check()?;
            complete.push(std::mem::take(&mut self.partial));
        }
        self.partial.extend_from_slice(rest);
        self.check()?;
        Ok(complete)
    }

    fn check(&self) -> Result<(), CodecError> {
        if self.partial.len() > self.limit { Err(CodecError::TooLong { limit: self.limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let id = "[a-z0-9]{1,8}";
        let value = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            proptest::collection::vec(".*".prop_map(Value::from), 0..3).prop_map(Value::from),
        ];
        prop_oneof![
            (proptest::option::of(id), ".*", proptest::collection::vec(value.clone(), 0..4)).prop_map(
                |(invocation_id, target, arguments)| Message::Invocation { invocation_id, target, arguments }
            ),
            (id, prop_oneof![value.prop_map(Ok), ".*".prop_map(Err)])
                .prop_map(|(invocation_id, answer)| Message::Completion { invocation_id, answer }),
            id.prop_map(|invocation_id| Message::StreamItem { invocation_id }),
            (id, ".*")
                .prop_map(|(invocation_id, target)| Message::StreamInvocation { invocation_id, target }),
            id.prop_map(|invocation_id| Message::CancelInvocation { invocation_id }),
            Just(Message::Ping),
            (proptest::option::of(".*"), any::<bool>())
                .prop_map(|(error, allow_reconnect)| Message::Close { error, allow_reconnect }),
            any::<u64>().prop_map(|sequence_id| Message::Ack { sequence_id }),
            any::<u64>().prop_map(|sequence_id| Message::Sequence { sequence_id }),
        ]
    }

    proptest! {
        #[test]
        fn whatever_the_frames_the_messages_are_the_same(
            messages in proptest::collection::vec(message(), 0..6),
            cuts in proptest::collection::vec(1usize..40, 1..30),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| message.write().into_bytes()).collect();
            let mut splitter = Splitter::new(1 << 20);
            let mut read = Vec::new();
            let mut rest = &bytes[..];
            for length in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (frame, others) = rest.split_at((*length).min(rest.len()));
                rest = others;
                read.extend(splitter.push(frame).unwrap());
            }
            let read: Vec<_> = read.iter().map(|text| Message::read(text).unwrap()).collect();
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn rubbish_is_an_error_or_ignored_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::read(&bytes);
            let _ = read_handshake_response(&bytes);
            let _ = read_handshake_request(&bytes);
            let _ = Splitter::new(100).push(&bytes);
        }

        #[test]
        fn text_that_looks_like_json_is_never_a_panic(text in r#"[{}\[\],:"a-z0-9.\\-]{0,80}"#) {
            let _ = Message::read(text.as_bytes());
            let _ = read_handshake_response(text.as_bytes());
        }
    }

    #[test]
    fn a_message_without_an_end_does_not_grow_for_ever() {
        let mut splitter = Splitter::new(10);
        assert!(splitter.push(b"12345").is_ok());
        assert!(matches!(splitter.push(b"678901"), Err(CodecError::TooLong { limit: 10 })));
    }

    #[test]
    fn what_is_shown_of_an_unreadable_message_does_not_reach_its_arguments() {
        for text in [
            r#"{"type":1,"target":"Plan","arguments":["a secret" oops"#,
            r#"{"type":1,"target":"Plan","arguments":"a secret"}"#,
        ] {
            let error = Message::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("Plan") && !error.contains("secret"), "{error}");
        }
    }
}
