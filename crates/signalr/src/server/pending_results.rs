//! Calls from the server to a client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::codec::Answer;

/// The server's calls that wait for a completion from the client. Clones share the same calls.
///
/// To call a method of a client and wait for its result:
///
/// 1. Choose an id that no other pending call of this connection has, and register it with [`expect`](Self::expect).
/// 2. Send a [`Message::Invocation`](crate::codec::Message::Invocation) with this id.
/// 3. Pass each [`ClientMessage::Completion`](super::ClientMessage::Completion) to [`complete`](Self::complete).
/// 4. Await the receiver in another task than the one that reads messages. Otherwise the completion is never read.
/// 5. Call [`clear`](Self::clear) when the connection has ended.
///
/// ```no_run
/// use hawser_signalr::codec::Message;
/// use hawser_signalr::server::{ClientMessage, PendingResults, ServerOptions, split};
/// use tokio::net::TcpStream;
/// use tokio_tungstenite::WebSocketStream;
///
/// async fn ask_name(socket: WebSocketStream<TcpStream>) -> Result<(), Box<dyn std::error::Error>> {
///     let (mut reader, mut writer) = split(socket, &ServerOptions::default());
///     let request = reader.handshake().await?;
///     writer.answer_handshake(request.check()).await?;
///
///     let results = PendingResults::default();
///     let (id, target) = ("1".to_owned(), "GetName".to_owned());
///     let answer = results.expect(&id);
///     writer.send(&Message::Invocation { invocation_id: Some(id), target, arguments: Vec::new() }).await?;
///     tokio::spawn(async move {
///         match answer.await {
///             Ok(answer) => println!("GetName returned {answer:?}"),
///             Err(_) => println!("the connection ended before GetName returned"),
///         }
///     });
///
///     loop {
///         match writer.keep_alive_while(reader.next()).await? {
///             Ok(ClientMessage::Completion { invocation_id, answer }) => {
///                 results.complete(&invocation_id, answer);
///             }
///             Ok(ClientMessage::Close { .. }) | Err(_) => break,
///             Ok(_) => {}
///         }
///     }
///     results.clear();
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct PendingResults(Arc<Mutex<HashMap<String, oneshot::Sender<Answer>>>>);

impl PendingResults {
    /// Registers a call before it is sent. The receiver fails if the connection ends first.
    pub fn expect(&self, invocation_id: &str) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(invocation_id.to_owned(), sender);
        receiver
    }

    /// Passes on a completion. Returns whether the call was pending.
    pub fn complete(&self, invocation_id: &str, answer: Answer) -> bool {
        let waiting = self.lock().remove(invocation_id);
        waiting.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// Fails all pending calls. Call this when the connection has ended.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
