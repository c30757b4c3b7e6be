//! The embedded hub: the server half of the contract, for `hawser local`, `hawser hub` and the tests.
//!
//! ```text
//! listener ─→ http (token, negotiate, upgrade) ─→ connection (handshake, writer) ─→ reader ─→ reports (strict)
//!                        └→ admin                        ↑ pushes                        ↓
//!                                                     shared ←─ actions ── orchestrator (pure) ─→ job_record
//! ```
//!
//! It validates every argument that it gets, and can be told to misbehave ([`Rule`]). It is never needed to run
//! against a real server.

mod admin;
mod admin_client;
mod connection;
mod data;
mod events;
mod faults;
mod http;
mod identity;
mod job_record;
mod job_spec;
mod listener;
mod orchestrator;
mod reader;
mod registry;
mod reports;
mod shared;
mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use hawser_contract::{LogEntry, SourceRefresh};
use hawser_signalr::codec::Answer;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use connection::Out;
use orchestrator::Event;
use shared::Shared;

pub use admin::{FollowAnswer, LogLine};
pub use admin_client::{AdminClient, AdminError};
pub use data::{DataError, HubData, ListeningNote, listening_url};
pub use events::{ConnectionId, Events, HubEvent, Recorded};
pub use faults::{Fault, Moment, Rubbish, Rule};
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
    #[error("the hub has been shut down")]
    ShutDown,
    #[error("no runner {0:?} is connected")]
    NotConnected(String),
}

/// A hub that serves one runner record. Dropping it ends all its connections.
#[derive(Debug)]
pub struct EmbeddedHub {
    shared: Arc<Shared>,
    address: SocketAddr,
    listening: Mutex<Listening>,
    /// Cancelled at the very end; every other token is its child.
    stop: CancellationToken,
}

#[derive(Debug)]
enum Listening {
    Online {
        cut: CancellationToken,
        server: JoinHandle<()>,
    },
    /// Holds the port without listening, so that nobody else gets it and clients are refused.
    Offline(TcpSocket),
    ShutDown,
}

impl EmbeddedHub {
    pub async fn start(mut options: HubOptions) -> Result<Self, HubError> {
        let identity = options.identity.take().unwrap_or_else(Identity::generate);
        let failed = |source| HubError::Listen { address: options.listen, source };
        let listener = bind(options.listen).and_then(|socket| socket.listen(1024)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::new(options, identity));
        let stop = CancellationToken::new();
        let listening = Mutex::new(serve(&shared, listener, stop.child_token()));
        Ok(Self { shared, address, listening, stop })
    }

    /// What a runner's `Server.Url` is to be.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Takes a job. It waits until a runner that may have it is connected.
    pub fn submit(&self, spec: JobSpec) -> Uuid {
        self.shared.submit(spec)
    }

    pub fn approve(&self, job: Uuid) -> Result<(), Refusal> {
        self.shared.act(Event::Approved { job })
    }

    pub fn reject(&self, job: Uuid) -> Result<(), Refusal> {
        self.shared.act(Event::Rejected { job })
    }

    /// Asks for a cancel; one that runs ends when its runner says so.
    pub fn cancel(&self, job: Uuid, kind: CancelKind) -> Result<(), Refusal> {
        self.shared.act(Event::CancelAsked { job, kind })
    }

    /// Asks one runner (this one, if named) what a revision points at. The answer is an event.
    pub fn refresh(&self, refresh: SourceRefresh, instance: Option<&str>) {
        // Never refused: it waits for a runner like a job does.
        let _ = self.shared.act(Event::RefreshAsked { refresh, instance: instance.map(str::to_owned) });
    }

    pub fn job(&self, job: Uuid) -> Option<JobSnapshot> {
        self.shared.core().orchestrator.snapshot(job)
    }

    /// All jobs in the order of submission.
    pub fn jobs(&self) -> Vec<JobSnapshot> {
        self.shared.core().orchestrator.snapshots()
    }

    /// The job's log entries from this index on; none unless they are kept ([`LogKeeping::All`]).
    pub fn logs(&self, job: Uuid, from: usize) -> Vec<Arc<LogEntry<'static>>> {
        self.shared.core().orchestrator.logs(job, from).unwrap_or_default()
    }

    /// Waits until the job satisfies the condition. Waits as long as it takes: put a deadline around it.
    async fn job_until(&self, job: Uuid, mut condition: impl FnMut(&JobSnapshot) -> bool) -> JobSnapshot {
        self.shared.wait_for(|core| core.orchestrator.snapshot(job).filter(|it| condition(it))).await
    }

    /// Waits for the job's end.
    pub async fn ended(&self, job: Uuid) -> JobSnapshot {
        self.job_until(job, |snapshot| snapshot.state.is_ended()).await
    }

    /// Instance names of the runners that are connected.
    pub fn runners(&self) -> Vec<String> {
        self.shared.core().orchestrator.runners()
    }

    /// Waits until exactly this many runners are connected.
    pub async fn runners_until(&self, count: usize) {
        self.shared.wait_for(|core| (core.orchestrator.runners().len() == count).then_some(())).await;
    }

    /// A reader of all events from the first on. Each reader has a place of its own.
    pub fn events(&self) -> Events {
        Events::new(&self.shared.events, false)
    }

    /// A reader of all events that nobody has taken yet, which takes them off the list: nobody else will see them, and
    /// they need no memory any more.
    pub fn take_events(&self) -> Events {
        Events::new(&self.shared.events, true)
    }

    pub fn all_events(&self) -> Vec<Recorded> {
        self.shared.events.all()
    }

    /// Every breach of the contract so far, in words. A test of a runner asserts that there is none.
    pub fn violations(&self) -> Vec<String> {
        self.shared.events.select(|recorded| match &recorded.event {
            violation @ HubEvent::Violation { .. } => Some(violation.to_string()),
            _ => None,
        })
    }

    pub fn misbehave(&self, rule: Rule) {
        self.shared.faults().add(rule);
    }

    /// Forgets all rules of misbehaviour.
    pub fn behave(&self) {
        self.shared.faults().clear();
    }

    /// No token that was issued so far is good any more, as after a restart of a server.
    pub fn forget_tokens(&self) {
        self.shared.tokens.forget();
    }

    /// Cuts all connections without a word; new ones are welcome.
    pub fn drop_connections(&self) {
        self.shared.core().registry.all().for_each(|handle| handle.cut.cancel());
    }

    /// Ends all connections with a Close message.
    pub fn close_connections(&self, error: Option<&str>, allow_reconnect: bool) {
        for handle in self.shared.core().registry.all() {
            let close = Out::Close { error: error.map(str::to_owned), allow_reconnect };
            if handle.out.try_send(close).is_err() {
                handle.cut.cancel();
            }
        }
    }

    /// Sends rubbish to a runner now.
    pub fn send_rubbish(&self, instance: &str, rubbish: Rubbish) -> Result<(), HubError> {
        self.send(instance, Out::Rubbish(rubbish))
    }

    /// Pushes any method with any arguments to a runner, without waiting for an answer.
    pub fn push(&self, instance: &str, method: &str, arguments: Vec<Value>) -> Result<(), HubError> {
        self.send(instance, Out::Push { invocation_id: None, method: method.to_owned(), arguments })
    }

    /// Invokes any method of a runner and waits for its answer; the error says that the runner is gone.
    pub async fn invoke(
        &self,
        instance: &str,
        method: &str,
        arguments: Vec<Value>,
    ) -> Result<Answer, HubError> {
        let gone = || HubError::NotConnected(instance.to_owned());
        let id = Uuid::new_v4().simple().to_string();
        let answer = {
            let core = self.shared.core();
            let handle = core.registry.by_name(instance).ok_or_else(gone)?;
            let answer = handle.results.expect(&id);
            let push = Out::Push { invocation_id: Some(id), method: method.to_owned(), arguments };
            handle.out.try_send(push).map_err(|_| gone())?;
            answer
        };
        answer.await.map_err(|_| gone())
    }

    fn send(&self, instance: &str, out: Out) -> Result<(), HubError> {
        let core = self.shared.core();
        let sent = core.registry.by_name(instance).and_then(|handle| handle.out.try_send(out).ok());
        sent.ok_or_else(|| HubError::NotConnected(instance.to_owned()))
    }

    /// Cuts everything and refuses new connections until [`go_online`](Self::go_online). Jobs keep their state.
    pub async fn go_offline(&self) -> Result<(), HubError> {
        let mut listening = self.listening.lock().await;
        match std::mem::replace(&mut *listening, Listening::ShutDown) {
            Listening::Online { cut, server } => {
                self.end(&cut, server).await;
                let failed = |source| HubError::Listen { address: self.address, source };
                *listening = Listening::Offline(bind_again(self.address).await.map_err(failed)?);
                self.shared.note(HubEvent::Offline);
                Ok(())
            }
            offline @ Listening::Offline(_) => {
                *listening = offline;
                Ok(())
            }
            Listening::ShutDown => Err(HubError::ShutDown),
        }
    }

    /// Listens again on the same port.
    pub async fn go_online(&self) -> Result<(), HubError> {
        let mut listening = self.listening.lock().await;
        match std::mem::replace(&mut *listening, Listening::ShutDown) {
            Listening::Offline(socket) => {
                let failed = |source| HubError::Listen { address: self.address, source };
                let listener = socket.listen(1024).map_err(failed)?;
                self.shared.note(HubEvent::Online);
                *listening = serve(&self.shared, listener, self.stop.child_token());
                Ok(())
            }
            online @ Listening::Online { .. } => {
                *listening = online;
                Ok(())
            }
            Listening::ShutDown => Err(HubError::ShutDown),
        }
    }

    /// Says good-bye to all runners (they may come back) and ends.
    pub async fn shutdown(self) {
        let mut listening = self.listening.lock().await;
        if let Listening::Online { cut, server } = std::mem::replace(&mut *listening, Listening::ShutDown) {
            self.close_connections(None, true);
            let farewell = self.shared.wait_for(|core| core.registry.is_empty().then_some(()));
            // A runner that does not listen to the good-bye is cut off.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(2), farewell).await;
            self.end(&cut, server).await;
        }
    }

    async fn end(&self, cut: &CancellationToken, server: JoinHandle<()>) {
        cut.cancel();
        // The server only ends by the token; if it panicked, it has ended as well.
        let _ = server.await;
        self.shared.wait_for(|core| core.registry.is_empty().then_some(())).await;
    }
}

impl Drop for EmbeddedHub {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A bound socket that does not listen yet.
fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of the last hub that linger in the kernel do not keep the next one from the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// So long a port may still be taken after its listener was closed.
const LAST_LISTENER: std::time::Duration = std::time::Duration::from_secs(10);

/// Takes the port of a listener that was closed just now. A program that this process is starting has a copy of it until it is that
/// program.
async fn bind_again(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let since = std::time::Instant::now();
    loop {
        match bind(address) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && since.elapsed() < LAST_LISTENER =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            bound => return bound,
        }
    }
}

fn serve(shared: &Arc<Shared>, inner: TcpListener, cut: CancellationToken) -> Listening {
    let router = http::router(shared, &cut);
    let service = router.into_make_service_with_connect_info::<listener::Peer>();
    let listener = listener::CutListener { inner, cut: cut.clone() };
    let ended = cut.clone();
    let server = tokio::spawn(async move {
        tokio::select! {
            () = ended.cancelled() => {}
            // Serving never ends by itself.
            _ = axum::serve(listener, service) => {}
        }
    });
    Listening::Online { cut, server }
}
