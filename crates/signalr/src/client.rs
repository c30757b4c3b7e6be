//! The application's handle to a session, independent of which connection is currently open.
//!
//! A [`HubClient`] is cheap to clone and only sends messages. The session owns the other side, the [`ClientDriver`],
//! and answers every call: with the server's completion, or with [`CallError::Disconnected`] if there is no connection
//! or if it was lost before the completion arrived. Calls are sent in the order in which they were made.

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::codec::Answer;

/// Calls that may wait for the connection. Further callers wait for room.
const QUEUED_CALLS: usize = 64;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection, or it was lost before the completion arrived. In the second case the server may or may
    /// not have processed the call.
    #[error("not connected to the server")]
    Disconnected,
    /// The server completed the call with this error.
    #[error("server returned an error: {0}")]
    Refused(String),
    /// The call is larger than the server accepts and was not sent.
    #[error("call too large ({bytes} bytes, limit {limit})")]
    TooLarge {
        /// The size of the encoded call.
        bytes: usize,
        /// The largest message that the server accepts.
        limit: usize,
    },
    /// The arguments could not be serialized.
    #[error("failed to encode arguments as JSON: {0}")]
    Unwritable(String),
}

/// The state of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionStatus {
    /// There is no connection, and the session is trying to open one.
    Connecting {
        /// Why the last attempt or the last connection failed.
        problem: Option<String>,
    },
    /// The handshake is complete and calls can be made.
    Connected {
        /// The number of this connection. It grows by one with each.
        generation: u64,
    },
    /// The session has ended and does not connect again.
    Stopped,
}

/// A call on its way to the connection.
#[derive(Debug)]
pub struct OutgoingCall {
    /// The name of the hub method.
    pub method: String,
    /// The argument list as JSON text, `[…]`.
    pub arguments: String,
    /// Receives the result. If this is dropped, the call fails with [`CallError::Disconnected`].
    pub answer: oneshot::Sender<Result<Value, CallError>>,
    /// The tag of a call that [`HubClient::start_ordered`] made.
    pub ordered: Option<u64>,
}

/// A call that was handed over and is not completed yet.
#[derive(Debug)]
pub struct PendingCall(oneshot::Receiver<Result<Value, CallError>>);

impl PendingCall {
    /// Waits for the completion of the call.
    pub async fn answer(self) -> Result<Value, CallError> {
        self.0.await.unwrap_or(Err(CallError::Disconnected))
    }
}

/// Calls methods of the hub. Created by [`connect`](crate::connect); clones share the same session.
#[derive(Debug, Clone)]
pub struct HubClient {
    outgoing: mpsc::Sender<OutgoingCall>,
    status: watch::Receiver<ConnectionStatus>,
}

/// The other side of a [`HubClient`]: takes its calls and publishes the status.
///
/// [`connect`](crate::connect) drives it with a real connection. A test can drive it by hand instead.
#[derive(Debug)]
pub struct ClientDriver {
    /// The calls, in order.
    pub outgoing: mpsc::Receiver<OutgoingCall>,
    /// What [`HubClient::status`] reports.
    pub status: watch::Sender<ConnectionStatus>,
}

/// Creates a client and its driver without a connection, for example to test code that uses a [`HubClient`].
pub fn channel() -> (HubClient, ClientDriver) {
    let (outgoing, calls) = mpsc::channel(QUEUED_CALLS);
    let (status, seen) = watch::channel(ConnectionStatus::Connecting { problem: None });
    (HubClient { outgoing, status: seen }, ClientDriver { outgoing: calls, status })
}

impl HubClient {
    /// Hands over a call and returns without waiting for its completion. Calls are sent in the order in which `start` is
    /// called.
    ///
    /// `arguments` is a JSON list.
    pub async fn start(&self, method: &str, arguments: String) -> Result<PendingCall, CallError> {
        self.hand_over(method, arguments, None).await
    }

    /// Like [`start`](Self::start), but the completion takes its place among the invocations: the application receives it
    /// as an [`Incoming::Completion`] with this tag, in the order of the wire, and passes it on to the returned call.
    pub async fn start_ordered(
        &self,
        method: &str,
        arguments: String,
        tag: u64,
    ) -> Result<PendingCall, CallError> {
        self.hand_over(method, arguments, Some(tag)).await
    }

    async fn hand_over(
        &self,
        method: &str,
        arguments: String,
        ordered: Option<u64>,
    ) -> Result<PendingCall, CallError> {
        let (answer, pending) = oneshot::channel();
        let call = OutgoingCall { method: method.to_owned(), arguments, answer, ordered };
        self.outgoing.send(call).await.map_err(|_| CallError::Disconnected)?;
        Ok(PendingCall(pending))
    }

    /// Calls a method and waits for its completion.
    ///
    /// `arguments` must serialize to a list, as tuples, arrays and slices do. A method without a result returns
    /// [`Value::Null`].
    pub async fn invoke(&self, method: &str, arguments: impl Serialize) -> Result<Value, CallError> {
        let arguments =
            serde_json::to_string(&arguments).map_err(|error| CallError::Unwritable(error.to_string()))?;
        self.start(method, arguments).await?.answer().await
    }

    /// Watches the state of the connection.
    pub fn status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.clone()
    }
}

/// What the server sends, in the order of the wire.
#[derive(Debug)]
pub enum Incoming {
    /// A method call.
    Invocation(Invocation),
    /// The completion of a call that was made with [`HubClient::start_ordered`].
    Completion(Completion),
}

/// The completion of an ordered call. If it is dropped, the call fails with [`CallError::Disconnected`].
#[derive(Debug)]
pub struct Completion {
    /// The tag of the call.
    pub tag: u64,
    /// The result of the call.
    pub result: Result<Value, CallError>,
    pub(crate) caller: oneshot::Sender<Result<Value, CallError>>,
}

impl Completion {
    /// Passes the result to the caller, who may have stopped waiting.
    pub fn deliver(self) {
        let _ = self.caller.send(self.result);
    }
}

/// A method call from the server.
#[derive(Debug)]
pub struct Invocation {
    /// The name of the method.
    pub target: String,
    /// The arguments.
    pub arguments: Vec<Value>,
    /// Present if the server waits for a result.
    pub reply: Option<Reply>,
}

/// Answers an [`Invocation`] for whose result the server waits. If it is dropped, the server receives an error.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Answer>);

impl Reply {
    /// Creates a reply and the receiver of its answer, for example to test the handler of an [`Invocation`].
    pub fn new() -> (Self, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        (Self(answer), receiver)
    }

    /// Sends the result, or an error. Does nothing if the connection has been lost.
    pub fn answer(self, answer: Answer) {
        let _ = self.0.send(answer);
    }
}
