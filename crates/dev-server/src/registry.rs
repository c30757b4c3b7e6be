//! The runners that are connected now, one connection per instance name, and the negotiations under way.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hawser_signalr::server::PendingResults;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::Out;
use crate::events::ConnectionId;

/// How long a negotiated token waits for its WebSocket.
const NEGOTIATION_LIFETIME: Duration = Duration::from_secs(15);

/// How to reach one connection.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) id: ConnectionId,
    pub(super) out: mpsc::Sender<Out>,
    /// Ends the connection without a word.
    pub(super) cut: CancellationToken,
    pub(super) results: PendingResults,
    /// The hub was told to leave this connection hanging: it will not notice when the client goes.
    pub(super) stalled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    last: u64,
    /// By instance name; the name is taken from the upgrade on, before the handshake is through.
    connections: BTreeMap<String, Handle>,
    negotiated: HashMap<String, (String, Instant)>,
}

impl Registry {
    pub(super) fn is_taken(&self, instance: &str) -> bool {
        self.connections.contains_key(instance)
    }

    /// Remembers a negotiation; returns the connection's id and its token.
    pub(super) fn negotiate(&mut self, instance: &str) -> (String, String) {
        let now = Instant::now();
        self.negotiated.retain(|_, (_, until)| *until > now);
        let token = Uuid::new_v4().simple().to_string();
        self.negotiated.insert(token.clone(), (instance.to_owned(), now + NEGOTIATION_LIFETIME));
        (Uuid::new_v4().simple().to_string(), token)
    }

    /// Whether the token was negotiated for this instance. It is good for one connection.
    pub(super) fn redeem(&mut self, token: &str, instance: &str) -> bool {
        let known = self.negotiated.remove(token);
        known.is_some_and(|(name, until)| name == instance && until > Instant::now())
    }

    /// Takes the name for a connection, unless it is taken.
    pub(super) fn reserve(
        &mut self,
        instance: &str,
        out: mpsc::Sender<Out>,
        cut: CancellationToken,
        results: PendingResults,
    ) -> Option<ConnectionId> {
        if self.is_taken(instance) {
            return None;
        }
        self.last += 1;
        let id = ConnectionId(self.last);
        self.connections.insert(instance.to_owned(), Handle { id, out, cut, results, stalled: false });
        Some(id)
    }

    pub(super) fn mark_stalled(&mut self, instance: &str) {
        if let Some(handle) = self.connections.get_mut(instance) {
            handle.stalled = true;
        }
    }

    pub(super) fn release(&mut self, id: ConnectionId) {
        self.connections.retain(|_, handle| handle.id != id);
    }

    pub(super) fn by_id(&self, id: ConnectionId) -> Option<&Handle> {
        self.connections.values().find(|handle| handle.id == id)
    }

    pub(super) fn by_name(&self, instance: &str) -> Option<&Handle> {
        self.connections.get(instance)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Handle> {
        self.connections.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }
}
