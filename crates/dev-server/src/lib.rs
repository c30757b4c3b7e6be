//! The embedded hub: the server half of the contract, for `hawser local`, `hawser hub` and the tests.
//!
//! ```text
//! http (token, negotiate, upgrade) ──→ connection (handshake, reader, writer) ──→ reports (strict)
//!   └→ admin                                ↑ pushes                                 ↓
//!                                        shared ←── actions ── orchestrator (pure) ──→ job_record
//! ```
//!
//! It validates every argument that it receives. A runner does not need it to work with a real server.

mod admin;
mod admin_client;
mod connection;
mod data;
mod events;
mod http;
mod identity;
mod job_record;
mod job_spec;
mod orchestrator;
mod registry;
mod reports;
mod shared;
mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use hawser_contract::requests::CancelKind;
use hawser_contract::{LogEntry, SourceRefresh};
use hawser_signalr::codec::{Answer, Message};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use orchestrator::Event;
use shared::Shared;

pub use admin::{FollowAnswer, LogLine};
pub use admin_client::{AdminClient, AdminError};
pub use data::{DataError, HubData, ListeningNote, listening_url};
pub use events::{ConnectionId, Events, HubEvent, Recorded};
pub use identity::{Identity, LOG_PERIOD_SECONDS};
pub use job_record::{JobError, JobSnapshot, JobState, LogSummary, TaskSnapshot, TaskState};
pub use job_spec::{Hooks, JobKind, JobSpec};
pub use orchestrator::Refusal;
pub use reports::outcome_of;
pub use shared::{HubOptions, LogKeeping, LogObserver};

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("runner {0:?} is not connected")]
    NotConnected(String),
}

/// How long clients may take to close their connections.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// A hub that serves one runner record. Dropping it ends all its connections.
#[derive(Debug)]
pub struct EmbeddedHub {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl EmbeddedHub {
    pub async fn start(mut options: HubOptions) -> Result<Self, HubError> {
        let identity = options.identity.take().unwrap_or_else(Identity::generate);
        let failed = |source| HubError::Listen { address: options.listen, source };
        // The listener sets SO_REUSEADDR, so old connections that linger in the kernel do not block the port.
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::new(options, identity));
        let server = tokio::spawn(serve(Arc::clone(&shared), listener));
        Ok(Self { shared, address, server })
    }

    /// The `Server.Url` for runners.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Submits a job. It stays queued until an eligible runner is connected.
    pub fn submit(&self, spec: JobSpec) -> Uuid {
        self.shared.submit(spec)
    }

    pub fn approve(&self, job: Uuid) -> Result<(), Refusal> {
        self.shared.act(Event::Approved { job })
    }

    pub fn reject(&self, job: Uuid) -> Result<(), Refusal> {
        self.shared.act(Event::Rejected { job })
    }

    /// Requests a cancel. A running job ends when its runner reports it.
    pub fn cancel(&self, job: Uuid, kind: CancelKind) -> Result<(), Refusal> {
        self.shared.act(Event::CancelAsked { job, kind })
    }

    /// Asks this runner, or any, which commit a revision points to. The answer is an event.
    pub fn refresh(&self, refresh: SourceRefresh, instance: Option<&str>) -> Result<(), Refusal> {
        self.shared.act(Event::RefreshAsked { refresh, instance: instance.map(str::to_owned) })
    }

    pub fn job(&self, job: Uuid) -> Option<JobSnapshot> {
        self.shared.core().orchestrator.snapshot(job)
    }

    /// All jobs in the order of submission.
    pub fn jobs(&self) -> Vec<JobSnapshot> {
        self.shared.core().orchestrator.snapshots()
    }

    /// The job's log entries from this index on. Empty unless the hub keeps them ([`LogKeeping::All`]).
    pub fn logs(&self, job: Uuid, from: usize) -> Vec<Arc<LogEntry>> {
        self.shared.core().orchestrator.logs(job, from).unwrap_or_default()
    }

    /// Waits until the job has ended, without a time limit.
    pub async fn ended(&self, job: Uuid) -> JobSnapshot {
        let ended = |job: &JobSnapshot| job.state.is_ended();
        self.shared.wait_for(|core| core.orchestrator.snapshot(job).filter(ended)).await
    }

    /// Instance names of the connected runners.
    pub fn runners(&self) -> Vec<String> {
        self.shared.core().orchestrator.runners()
    }

    /// Waits until exactly this many runners are connected.
    pub async fn runners_until(&self, count: usize) {
        self.shared.wait_for(|core| (core.orchestrator.runners().len() == count).then_some(())).await;
    }

    /// Reads all events from the first one on. Each reader has its own position.
    pub fn events(&self) -> Events {
        Events::new(&self.shared.events, false)
    }

    /// Reads all events that are left and removes them from memory. Other readers do not see them.
    pub fn take_events(&self) -> Events {
        Events::new(&self.shared.events, true)
    }

    pub fn all_events(&self) -> Vec<Recorded> {
        self.shared.events.all()
    }

    /// Every violation of the contract so far. Tests of a runner assert that there are none.
    pub fn violations(&self) -> Vec<String> {
        self.shared.events.select(|recorded| match &recorded.event {
            violation @ HubEvent::Violation { .. } => Some(violation.to_string()),
            _ => None,
        })
    }

    /// Ends all connections with a Close message.
    pub fn close_connections(&self, error: Option<&str>, allow_reconnect: bool) {
        for handle in self.shared.core().registry.all() {
            let close = Message::Close { error: error.map(str::to_owned), allow_reconnect };
            if handle.outgoing.try_send(close).is_err() {
                handle.cut.cancel();
            }
        }
    }

    /// Pushes any method with any arguments to a runner, without waiting for an answer.
    pub fn push(&self, instance: &str, method: &str, arguments: Vec<Value>) -> Result<(), HubError> {
        let target = method.to_owned();
        self.send(instance, Message::Invocation { invocation_id: None, target, arguments })
    }

    /// Invokes any method of a runner and waits for the answer. Fails if the runner disconnects.
    pub async fn invoke(
        &self,
        instance: &str,
        method: &str,
        arguments: Vec<Value>,
    ) -> Result<Answer, HubError> {
        let disconnected = || HubError::NotConnected(instance.to_owned());
        let id = Uuid::new_v4().simple().to_string();
        let answer = {
            let core = self.shared.core();
            core.registry.by_name(instance).ok_or_else(disconnected)?.results.expect(&id)
        };
        let target = method.to_owned();
        let push = Message::Invocation { invocation_id: Some(id), target, arguments };
        self.send(instance, push)?;
        answer.await.map_err(|_| disconnected())
    }

    fn send(&self, instance: &str, message: Message) -> Result<(), HubError> {
        let core = self.shared.core();
        let sent = core.registry.by_name(instance).and_then(|handle| handle.outgoing.try_send(message).ok());
        sent.ok_or_else(|| HubError::NotConnected(instance.to_owned()))
    }

    /// Closes all connections and stops. Runners may reconnect to the next hub.
    pub async fn shutdown(mut self) {
        self.close_connections(None, true);
        let closed = self.shared.wait_for(|core| core.registry.is_empty().then_some(()));
        // Runners that do not react to the Close message are cut off.
        let _ = tokio::time::timeout(CLOSE_GRACE, closed).await;
        self.shared.cut.cancel();
        // If the server panicked, it has ended as well.
        let _ = (&mut self.server).await;
        self.shared.wait_for(|core| core.registry.is_empty().then_some(())).await;
    }
}

impl Drop for EmbeddedHub {
    fn drop(&mut self) {
        self.shared.cut.cancel();
    }
}

/// Serves HTTP until the hub is cut off.
async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    // Most answers are small. Without this option they are only slower.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let service = http::router(&shared).into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, service).with_graceful_shutdown(shared.cut.clone().cancelled_owned());
    let grace = async {
        shared.cut.cancelled().await;
        tokio::time::sleep(CLOSE_GRACE).await;
    };
    tokio::select! {
        _ = server => {}
        // A client has sent half a request.
        () = grace => {}
    }
}
