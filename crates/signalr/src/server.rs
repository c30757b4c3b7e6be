//! The server half: the hub protocol over a WebSocket that a web server has accepted.
//!
//! [`split`] turns an accepted WebSocket into a [`ServerReader`] and a [`ServerWriter`]. The reader decodes messages and
//! enforces the size limit and the timeouts; the writer encodes messages and sends pings. How calls are dispatched,
//! and whether reader and writer run in one task or in two, is up to the application.
//!
//! Any WebSocket works that is a [`Stream`] and a [`Sink`] of messages that implement [`WebSocketMessage`]. This crate
//! implements it for tungstenite and, with the feature `axum`, for axum.
//!
//! ```no_run
//! # async fn example(socket: tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use hawser_signalr::server::{ClientMessage, ServerOptions, split};
//!
//! let (mut reader, mut writer) = split(socket, &ServerOptions::default());
//! let request = reader.handshake().await?;
//! writer.answer_handshake(request.check()).await?;
//! loop {
//!     match writer.keep_alive_while(reader.next()).await?? {
//!         ClientMessage::Invocation { invocation_id: Some(id), target, .. } => {
//!             writer.complete(id, Err(format!("unknown method {target:?}"))).await?;
//!         }
//!         ClientMessage::Close { .. } => break,
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A server also needs an endpoint `POST <hub>/negotiate`, unless its clients skip the negotiation. See the example
//! `server` of this crate.

mod pending_results;
mod websocket;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, Stream, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use crate::codec::{
    Answer, CodecError, HandshakeRequest, Message, Splitter, handshake_response, read_handshake_request,
};

pub use pending_results::PendingResults;
pub use websocket::{Payload, WebSocketMessage};

/// Timeouts and limits of a connection. The defaults are those of ASP.NET Core.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The time limit for the client's handshake request.
    pub handshake_timeout: Duration,
    /// A ping is sent after this long without sending anything.
    pub keep_alive: Duration,
    /// The connection fails after this long without receiving anything, or with a write that makes no progress.
    pub client_timeout: Duration,
    /// The largest accepted message, including its terminator.
    pub max_message_bytes: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(15),
            keep_alive: Duration::from_secs(15),
            client_timeout: Duration::from_secs(30),
            max_message_bytes: 32 * 1024,
        }
    }
}

/// The reader of a WebSocket `S`.
pub type SocketReader<S> = ServerReader<SplitStream<S>>;

/// The writer of a WebSocket `S` with messages `M`.
pub type SocketWriter<S, M> = ServerWriter<SplitSink<S, M>, M>;

/// Splits an accepted WebSocket into a reader and a writer.
pub fn split<S, M, E>(socket: S, options: &ServerOptions) -> (SocketReader<S>, SocketWriter<S, M>)
where
    S: Stream<Item = Result<M, E>> + Sink<M>,
    M: WebSocketMessage,
{
    let (sink, stream) = socket.split();
    (ServerReader::new(stream, options), ServerWriter::new(sink, options))
}

/// A message from a client. Pings are not reported.
#[derive(Debug)]
pub enum ClientMessage {
    /// Calls a method of the hub.
    Invocation {
        /// Identifies the call. `None` if the client does not wait for its completion.
        invocation_id: Option<String>,
        /// The name of the method.
        target: String,
        /// The argument list as JSON text.
        arguments: Box<RawValue>,
    },
    /// Completes a call that the server made.
    Completion {
        /// The call.
        invocation_id: String,
        /// Its result or error.
        answer: Answer,
    },
    /// The client is about to close the connection.
    Close {
        /// Why, if it is an error.
        error: Option<String>,
    },
    /// Another message, for example a request for a stream.
    Other(Message),
}

/// Why no further message can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The client sent no handshake request in time.
    #[error("handshake timed out")]
    HandshakeTimeout,
    /// The client sent nothing, not even a ping, in time.
    #[error("client was silent for too long")]
    Silence,
    /// The connection failed.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The connection ended without a close frame.
    #[error("connection closed")]
    Closed,
    /// The client sent a close frame.
    #[error("client closed the WebSocket")]
    SocketClosed,
    /// The client sent a malformed or too large message. Later messages may be misread, so close the connection.
    #[error(transparent)]
    Malformed(#[from] CodecError),
}

/// Why a message could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The connection failed.
    #[error("failed to write: {0}")]
    Lost(String),
    /// The client stopped reading.
    #[error("write timed out")]
    Stalled,
}

/// Just enough of a message to recognize a call without parsing its arguments.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallHeader<'a> {
    #[serde(rename = "type")]
    kind: u64,
    #[serde(borrow)]
    invocation_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    target: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Reads the messages of a client.
#[derive(Debug)]
pub struct ServerReader<S> {
    stream: S,
    splitter: Splitter,
    complete: VecDeque<Vec<u8>>,
    handshake_timeout: Duration,
    client_timeout: Duration,
}

impl<S, M, E> ServerReader<S>
where
    S: Stream<Item = Result<M, E>> + Unpin,
    M: WebSocketMessage,
{
    /// Reads from the receiving half of a WebSocket.
    pub fn new(stream: S, options: &ServerOptions) -> Self {
        Self {
            stream,
            // The splitter does not count the terminator.
            splitter: Splitter::new(options.max_message_bytes.saturating_sub(1)),
            complete: VecDeque::new(),
            handshake_timeout: options.handshake_timeout,
            client_timeout: options.client_timeout,
        }
    }
}

impl<S, M, E> ServerReader<S>
where
    S: Stream<Item = Result<M, E>> + Unpin,
    M: WebSocketMessage,
    E: Display,
{
    /// Reads the handshake request, which is the first message.
    pub async fn handshake(&mut self) -> Result<HandshakeRequest, ReadError> {
        let first = timeout(self.handshake_timeout, self.record()).await;
        let first = first.map_err(|_| ReadError::HandshakeTimeout)??;
        Ok(read_handshake_request(&first)?)
    }

    /// Reads the next message. The timeout for a silent client starts with each call.
    ///
    /// Cancellation-safe: no message is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<ClientMessage, ReadError> {
        loop {
            let record =
                timeout(self.client_timeout, self.record()).await.map_err(|_| ReadError::Silence)??;
            if let Ok(CallHeader { kind: 1, invocation_id, target: Some(target), arguments }) =
                serde_json::from_slice(&record)
            {
                return Ok(ClientMessage::Invocation {
                    invocation_id: invocation_id.map(Cow::into_owned),
                    target: target.into_owned(),
                    arguments: arguments.unwrap_or(RawValue::NULL).to_owned(),
                });
            }
            return Ok(match Message::read(&record)? {
                Message::Ping => continue,
                Message::Completion { invocation_id, answer } => {
                    ClientMessage::Completion { invocation_id, answer }
                }
                Message::Close { error, .. } => ClientMessage::Close { error },
                other => ClientMessage::Other(other),
            });
        }
    }

    /// The next message without its terminator.
    async fn record(&mut self) -> Result<Vec<u8>, ReadError> {
        loop {
            if let Some(record) = self.complete.pop_front() {
                return Ok(record);
            }
            let message = match self.stream.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(ReadError::Lost(error.to_string())),
                None => return Err(ReadError::Closed),
            };
            match message.payload() {
                Payload::Data(bytes) => self.complete.extend(self.splitter.push(bytes)?),
                Payload::Control => {}
                Payload::Close => return Err(ReadError::SocketClosed),
            }
        }
    }
}

/// Writes messages to a client. `M` is the message type of the WebSocket library.
#[derive(Debug)]
pub struct ServerWriter<S, M> {
    sink: S,
    keep_alive: Duration,
    client_timeout: Duration,
    message: PhantomData<fn(M)>,
}

impl<S, M> ServerWriter<S, M>
where
    S: Sink<M> + Unpin,
    M: WebSocketMessage,
{
    /// Writes to the sending half of a WebSocket.
    pub fn new(sink: S, options: &ServerOptions) -> Self {
        Self {
            sink,
            keep_alive: options.keep_alive,
            client_timeout: options.client_timeout,
            message: PhantomData,
        }
    }
}

impl<S, M> ServerWriter<S, M>
where
    S: Sink<M> + Unpin,
    S::Error: Display,
    M: WebSocketMessage,
{
    /// Accepts the handshake, or refuses it with an error. After a refusal, drop the connection.
    pub async fn answer_handshake(&mut self, answer: Result<(), String>) -> Result<(), WriteError> {
        self.send_frame(M::text(handshake_response(answer.err().as_deref()))).await
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &Message) -> Result<(), WriteError> {
        self.send_frame(M::text(message.write())).await
    }

    /// Calls a method of the client without waiting for its result. To wait for it, see [`PendingResults`].
    pub async fn invoke(&mut self, target: &str, arguments: Vec<Value>) -> Result<(), WriteError> {
        let target = target.to_owned();
        self.send(&Message::Invocation { invocation_id: None, target, arguments }).await
    }

    /// Completes a call of the client.
    pub async fn complete(&mut self, invocation_id: String, answer: Answer) -> Result<(), WriteError> {
        self.send(&Message::Completion { invocation_id, answer }).await
    }

    /// Sends a close message and closes the WebSocket.
    pub async fn close(mut self, error: Option<String>, allow_reconnect: bool) -> Result<(), WriteError> {
        self.send(&Message::Close { error, allow_reconnect }).await?;
        self.send_frame(M::close()).await
    }

    async fn send_frame(&mut self, message: M) -> Result<(), WriteError> {
        match timeout(self.client_timeout, self.sink.send(message)).await {
            Ok(sent) => sent.map_err(|error| WriteError::Lost(error.to_string())),
            Err(_) => Err(WriteError::Stalled),
        }
    }

    /// Awaits `work`, for example the next message to send, and sends pings meanwhile.
    pub async fn keep_alive_while<T>(&mut self, work: impl Future<Output = T>) -> Result<T, WriteError> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = sleep(self.keep_alive) => self.send(&Message::Ping).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests;
