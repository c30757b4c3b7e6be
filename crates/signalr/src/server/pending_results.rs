//! Calls from the server to a client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::codec::Answer;

/// The server's calls that wait for a completion from the client. Clones share the same calls.
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
