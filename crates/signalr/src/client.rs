//! The handle with which the rest of the runner talks to the server, whatever connection happens to be up.
//!
//! A [`Line`] is cheap to clone and only sends messages; the session owns the other end ([`LineEnd`]) and
//! answers every call: with the Completion, or with [`CallError::Disconnected`] when there is no connection
//! or it went away before the answer came. Calls go out in the order in which they were made.

use std::time::Instant;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::codec::Answer;

/// Calls that may wait for the connection's writer; beyond that a caller waits.
const QUEUED_CALLS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("not connected to the server")]
    Disconnected,
    #[error("the server answered with an error: {0}")]
    Refused(String),
    #[error(
        "the call takes {bytes} bytes, more than the {limit} that the server accepts (Server.MaxMessageBytes)"
    )]
    TooLarge { bytes: usize, limit: usize },
    #[error("the arguments cannot be written as JSON: {0}")]
    Unwritable(String),
}

/// What the line is doing now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineStatus {
    Connecting {
        /// What went wrong last, with the setting to look at.
        problem: Option<String>,
    },
    /// `generation` grows with each connection.
    Connected { generation: u64 },
    /// The session has ended and will not connect again.
    Stopped,
}

/// A call on its way to the connection.
#[derive(Debug)]
pub struct Outgoing {
    pub method: String,
    /// The argument list as JSON text, `[…]`.
    pub arguments: String,
    pub answer: oneshot::Sender<Result<Value, CallError>>,
}

/// A call that was handed over and whose answer is still to come.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<Value, CallError>>);

impl Pending {
    pub async fn answer(self) -> Result<Value, CallError> {
        self.0.await.unwrap_or(Err(CallError::Disconnected))
    }
}

/// The runner's end: calls go in here.
#[derive(Debug, Clone)]
pub struct Line {
    outgoing: mpsc::Sender<Outgoing>,
    status: watch::Receiver<LineStatus>,
}

/// The session's end.
#[derive(Debug)]
pub struct LineEnd {
    pub outgoing: mpsc::Receiver<Outgoing>,
    pub status: watch::Sender<LineStatus>,
}

pub fn line() -> (Line, LineEnd) {
    let (outgoing, calls) = mpsc::channel(QUEUED_CALLS);
    let (status, seen) = watch::channel(LineStatus::Connecting { problem: None });
    (Line { outgoing, status: seen }, LineEnd { outgoing: calls, status })
}

impl Line {
    /// Hands a call over, in order, and returns without waiting for its answer. `arguments` is a JSON list.
    pub async fn start(&self, method: &str, arguments: String) -> Result<Pending, CallError> {
        let (answer, pending) = oneshot::channel();
        let call = Outgoing { method: method.to_owned(), arguments, answer };
        self.outgoing.send(call).await.map_err(|_| CallError::Disconnected)?;
        Ok(Pending(pending))
    }

    /// Calls a method and waits for its Completion. `arguments` must serialise to a list (a tuple, a slice).
    pub async fn invoke(&self, method: &str, arguments: impl Serialize) -> Result<Value, CallError> {
        let arguments =
            serde_json::to_string(&arguments).map_err(|error| CallError::Unwritable(error.to_string()))?;
        self.start(method, arguments).await?.answer().await
    }

    pub fn status(&self) -> watch::Receiver<LineStatus> {
        self.status.clone()
    }
}

/// A message that the server pushed. `reply` is there when the server waits for an answer.
#[derive(Debug)]
pub struct Pushed {
    pub target: String,
    pub arguments: Vec<Value>,
    /// When it came off the socket. It may have waited since, while answers that came after it did not.
    pub received: Instant,
    pub reply: Option<Reply>,
}

/// The answer that a pushed invocation with an id waits for. Dropped without one, the server is told so.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Answer>);

impl Reply {
    pub fn new() -> (Self, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        (Self(answer), receiver)
    }

    pub fn answer(self, answer: Answer) {
        // The connection may be gone by now; then nobody waits any more.
        let _ = self.0.send(answer);
    }
}
