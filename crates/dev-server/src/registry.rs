//! The connected runners, one connection per instance name, and pending negotiations.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hawser_signalr::codec::Message;
use hawser_signalr::server::PendingResults;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::events::ConnectionId;

/// How long a negotiated connection token is valid.
const NEGOTIATION_LIFETIME: Duration = Duration::from_secs(15);

/// Reaches one connection.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) id: ConnectionId,
    pub(super) outgoing: mpsc::Sender<Message>,
    /// Ends the connection without a Close message.
    pub(super) cut: CancellationToken,
    pub(super) results: PendingResults,
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    last: u64,
    /// By instance name. A name is reserved by the upgrade, before the handshake.
    connections: BTreeMap<String, Handle>,
    negotiated: HashMap<String, (String, Instant)>,
}

impl Registry {
    pub(super) fn is_taken(&self, instance: &str) -> bool {
        self.connections.contains_key(instance)
    }

    /// Starts a negotiation and returns the connection's ID and token.
    pub(super) fn negotiate(&mut self, instance: &str) -> (String, String) {
        let now = Instant::now();
        self.negotiated.retain(|_, (_, until)| *until > now);
        let token = Uuid::new_v4().simple().to_string();
        self.negotiated.insert(token.clone(), (instance.to_owned(), now + NEGOTIATION_LIFETIME));
        (Uuid::new_v4().simple().to_string(), token)
    }

    /// Uses up the token of a negotiation. Returns whether it was valid for this instance.
    pub(super) fn redeem(&mut self, token: &str, instance: &str) -> bool {
        let negotiated = self.negotiated.remove(token);
        negotiated.is_some_and(|(name, until)| name == instance && until > Instant::now())
    }

    /// Reserves the name for a connection, unless it is in use.
    pub(super) fn reserve(
        &mut self,
        instance: &str,
        outgoing: mpsc::Sender<Message>,
        cut: CancellationToken,
        results: PendingResults,
    ) -> Option<ConnectionId> {
        if self.is_taken(instance) {
            return None;
        }
        self.last += 1;
        let id = ConnectionId(self.last);
        self.connections.insert(instance.to_owned(), Handle { id, outgoing, cut, results });
        Some(id)
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
