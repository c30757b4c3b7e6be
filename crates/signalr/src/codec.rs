//! The JSON hub protocol, version 1: reading and writing messages, without I/O.
//!
//! A message is a JSON object followed by the byte 0x1E. A WebSocket frame may contain several messages or a part of
//! one, so a [`Splitter`] cuts frames into messages. Clients and servers use the same functions.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Describes an error without quoting the message, whose arguments may be secret.
fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(", expected ")
        .map_or_else(|| text.clone(), |(_, expected)| format!("expected {expected}"))
}

/// Terminates every message.
const RECORD_SEPARATOR: u8 = 0x1E;

/// How much of a malformed message is shown: enough to tell a web page from a message, too little to reach the
/// arguments, which may be secret.
const SHOWN_BYTES: usize = 32;

/// A message of the hub protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Type 1: calls a method.
    Invocation {
        /// Identifies the call. `None` if the caller does not wait for its completion.
        invocation_id: Option<String>,
        /// The name of the method.
        target: String,
        /// The arguments.
        arguments: Vec<Value>,
    },
    /// Type 3: completes a call.
    Completion {
        /// The call.
        invocation_id: String,
        /// Its result or error.
        answer: Answer,
    },
    /// Type 4: opens a stream. The arguments are not kept.
    StreamInvocation {
        /// Identifies the call.
        invocation_id: String,
        /// The name of the method.
        target: String,
    },
    /// Type 6: keeps the connection alive.
    Ping,
    /// Type 7: the sender is about to close the connection.
    Close {
        /// Why, if it is an error.
        error: Option<String>,
        /// Whether the client may reconnect.
        allow_reconnect: bool,
    },
    /// Any other type: part of a stream or of a stateful reconnect, or from a later version of the protocol. Its fields
    /// are not kept. Receivers ignore it.
    Other {
        /// The type.
        kind: u64,
    },
}

/// The content of a completion: the result (null if the method returns nothing), or an error.
pub type Answer = Result<Value, String>;

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// It is not JSON, or not a message.
    #[error("invalid message: {reason} (starts with {start:?})")]
    NotJson {
        /// What is wrong with it.
        reason: String,
        /// The first bytes of the message.
        start: String,
    },
    /// A required field is missing.
    #[error("message of type {kind} without {member}")]
    Incomplete {
        /// The type of the message.
        kind: u64,
        /// The name of the field.
        member: &'static str,
    },
    /// It is longer than the receiver accepts.
    #[error("message longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The handshake request or response is malformed.
    #[error("invalid handshake: {reason}")]
    BadHandshake {
        /// What is wrong with it.
        reason: String,
    },
}

/// The wire format of a message. All fields but the type are optional, because each type has its own.
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
}

impl Message {
    /// Reads a message, without its terminator.
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
            3 => Self::Completion {
                invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))?,
                answer: wire.error.map_or(Ok(wire.result), Err),
            },
            4 => Self::StreamInvocation {
                invocation_id: wire.invocation_id.ok_or_else(lacks("invocationId"))?,
                target: wire.target.ok_or_else(lacks("target"))?,
            },
            6 => Self::Ping,
            7 => Self::Close { error: wire.error, allow_reconnect: wire.allow_reconnect.unwrap_or(false) },
            kind => Self::Other { kind },
        })
    }

    /// Writes the message with its terminator, ready for a frame.
    pub fn write(&self) -> String {
        let value = match self {
            Self::Invocation { invocation_id: Some(id), target, arguments } => {
                json!({"type": 1, "invocationId": id, "target": target, "arguments": arguments})
            }
            Self::Invocation { invocation_id: None, target, arguments } => {
                json!({"type": 1, "target": target, "arguments": arguments})
            }
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
            Self::Ping => json!({"type": 6}),
            Self::Close { error: None, allow_reconnect } => {
                json!({"type": 7, "allowReconnect": allow_reconnect})
            }
            Self::Close { error: Some(error), allow_reconnect } => {
                json!({"type": 7, "error": error, "allowReconnect": allow_reconnect})
            }
            Self::Other { kind } => json!({"type": kind}),
        };
        terminated(value.to_string())
    }
}

/// Writes an invocation whose arguments are JSON text already (`[…]`), to avoid encoding them twice.
pub fn write_invocation(invocation_id: &str, target: &str, arguments: &str) -> String {
    terminated(format!(
        "{{\"type\":1,\"invocationId\":{},\"target\":{},\"arguments\":{arguments}}}",
        Value::from(invocation_id),
        Value::from(target),
    ))
}

/// Writes a client's completion of an invocation by the server.
///
/// Unlike in [`Message::write`], a null result is written explicitly: .NET servers treat a completion without a result
/// as a failure.
pub fn write_client_answer(invocation_id: &str, answer: &Answer) -> String {
    let message = match answer {
        Ok(result) => json!({"type": 3, "invocationId": invocation_id, "result": result}),
        Err(error) => json!({"type": 3, "invocationId": invocation_id, "error": error}),
    };
    terminated(message.to_string())
}

/// Writes the client's first message, which asks for the JSON protocol in version 1.
pub fn handshake_request() -> String {
    terminated(json!({"protocol": "json", "version": 1}).to_string())
}

/// Writes the server's response to the handshake: accepted, or refused with an error.
pub fn handshake_response(refusal: Option<&str>) -> String {
    terminated(refusal.map_or_else(|| "{}".to_owned(), |error| json!({"error": error}).to_string()))
}

/// Reads the server's response to the handshake: accepted, or refused with an error.
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
        Response { kind: Some(kind), error: None } => {
            Err(CodecError::BadHandshake { reason: format!("message of type {kind} before the response") })
        }
        Response { error: Some(error), .. } => Ok(Err(error)),
        Response { error: None, kind: None } => Ok(Ok(())),
    }
}

/// A client's handshake request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeRequest {
    /// The name of the protocol: `json` or `messagepack`.
    pub protocol: String,
    /// The version of the protocol.
    pub version: u32,
}

impl HandshakeRequest {
    /// Checks that the client asks for the JSON protocol in version 1, which is what this crate implements.
    pub fn check(&self) -> Result<(), String> {
        if self.protocol == "json" && self.version == 1 {
            return Ok(());
        }
        Err(format!(
            "protocol {:?} version {} is not supported, only \"json\" version 1",
            self.protocol, self.version
        ))
    }
}

/// Reads a client's handshake request.
pub fn read_handshake_request(text: &[u8]) -> Result<HandshakeRequest, CodecError> {
    serde_json::from_slice(text).map_err(|error| CodecError::BadHandshake { reason: error.to_string() })
}

fn terminated(mut text: String) -> String {
    text.push(char::from(RECORD_SEPARATOR));
    text
}

/// Cuts frames into messages, which may be split over several frames or joined in one.
///
/// ```
/// let mut splitter = hawser_signalr::codec::Splitter::new(1024);
/// assert!(splitter.push(b"{\"type\"").unwrap().is_empty());
/// assert_eq!(splitter.push(b":6}\x1e{}\x1e").unwrap(), [b"{\"type\":6}".to_vec(), b"{}".to_vec()]);
/// ```
#[derive(Debug)]
pub struct Splitter {
    partial: Vec<u8>,
    limit: usize,
}

impl Splitter {
    /// `limit` is the largest message in bytes, without its terminator.
    pub fn new(limit: usize) -> Self {
        Self { partial: Vec::new(), limit }
    }

    /// Takes the content of a frame and returns the messages that it completes, without their terminators.
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
            (id, ".*")
                .prop_map(|(invocation_id, target)| Message::StreamInvocation { invocation_id, target }),
            Just(Message::Ping),
            (proptest::option::of(".*"), any::<bool>())
                .prop_map(|(error, allow_reconnect)| Message::Close { error, allow_reconnect }),
            (8..u64::MAX).prop_map(|kind| Message::Other { kind }),
        ]
    }

    proptest! {
        #[test]
        fn messages_do_not_depend_on_the_frames(
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
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::read(&bytes);
            let _ = read_handshake_response(&bytes);
            let _ = read_handshake_request(&bytes);
            let _ = Splitter::new(100).push(&bytes);
        }

        #[test]
        fn text_that_looks_like_json_never_panics(text in r#"[{}\[\],:"a-z0-9.\\-]{0,80}"#) {
            let _ = Message::read(text.as_bytes());
            let _ = read_handshake_response(text.as_bytes());
        }
    }

    #[test]
    fn a_message_without_an_end_is_limited() {
        let mut splitter = Splitter::new(10);
        assert!(splitter.push(b"12345").is_ok());
        assert!(matches!(splitter.push(b"678901"), Err(CodecError::TooLong { limit: 10 })));
    }

    #[test]
    fn errors_do_not_show_the_arguments_of_a_message() {
        for text in [
            r#"{"type":1,"target":"Plan","arguments":["a secret" oops"#,
            r#"{"type":1,"target":"Plan","arguments":"a secret"}"#,
        ] {
            let error = Message::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("Plan") && !error.contains("secret"), "{error}");
        }
    }
}
