//! What all parts of the hub hold in common, and the one place that carries out the orchestrator's actions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_contract::LogEntry;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::connection::Out;
use crate::events::{EventLog, HubEvent};
use crate::faults::{Fault, Faults, Moment};
use crate::identity::Identity;
use crate::orchestrator::{Action, Event, Orchestrator, Policy, Refusal};
use crate::registry::Registry;
use crate::tokens::Tokens;

/// Is called with every log entry, in the order of arrival per connection, before its batch is answered.
pub type LogObserver = Arc<dyn Fn(&LogEntry<'static>) + Send + Sync>;

/// What becomes of log entries. Count and digest are always kept.
#[derive(Clone, Default)]
pub enum LogKeeping {
    /// In memory, with the job and as events.
    #[default]
    All,
    /// As events only, for a reader that takes them.
    Events,
    /// Nothing but count and digest.
    Digest,
    /// As `Digest`, and each entry is shown to the observer.
    Observe(LogObserver),
}

impl fmt::Debug for LogKeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "All",
            Self::Events => "Events",
            Self::Digest => "Digest",
            Self::Observe(_) => "Observe",
        })
    }
}

/// How a hub is to be.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: std::net::SocketAddr,
    /// Who its runner is; generated when not given.
    pub identity: Option<Identity>,
    /// Switches the admin API on, for those who know this token.
    pub admin_token: Option<String>,
    pub token_lifetime: Duration,
    /// Close a connection when the token that it was opened with runs out.
    pub close_on_token_expiry: bool,
    /// A ping goes out when nothing else did for this long.
    pub keep_alive: Duration,
    /// A client that says nothing for this long is given up.
    pub client_timeout: Duration,
    pub handshake_timeout: Duration,
    /// The largest message that is accepted, end mark included.
    pub max_message_bytes: usize,
    /// Push the outstanding task again when its runner comes back, though it is known to run.
    pub redispatch_on_reconnect: bool,
    /// Acknowledge reports on jobs that this hub does not know, in place of refusing them.
    pub acknowledge_unknown_jobs: bool,
    pub logs: LogKeeping,
    /// How many events are kept; the oldest give way.
    pub keep_events: usize,
    /// How long a second connection with a taken name waits for the first to go, before it is refused.
    pub conflict_grace: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            listen: std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0)),
            identity: None,
            admin_token: None,
            token_lifetime: Duration::from_secs(3600),
            close_on_token_expiry: false,
            keep_alive: Duration::from_secs(15),
            client_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(15),
            max_message_bytes: 32 * 1024,
            redispatch_on_reconnect: false,
            acknowledge_unknown_jobs: false,
            logs: LogKeeping::All,
            keep_events: usize::MAX,
            conflict_grace: Duration::from_secs(1),
        }
    }
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) orchestrator: Orchestrator,
    pub(super) registry: Registry,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: HubOptions,
    pub(super) identity: Identity,
    pub(super) events: Arc<EventLog>,
    pub(super) tokens: Tokens,
    core: Mutex<Core>,
    faults: Mutex<Faults>,
    /// Ticks whenever a job or the set of connections may have changed.
    changed: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(options: HubOptions, identity: Identity) -> Self {
        let policy = Policy {
            organization_id: identity.organization_id,
            runner_id: identity.runner_id,
            redispatch_on_reconnect: options.redispatch_on_reconnect,
            acknowledge_unknown_jobs: options.acknowledge_unknown_jobs,
            keep_logs: matches!(options.logs, LogKeeping::All),
        };
        Self {
            events: Arc::new(EventLog::new(options.keep_events)),
            tokens: Tokens::new(options.token_lifetime),
            core: Mutex::new(Core { orchestrator: Orchestrator::new(policy), registry: Registry::default() }),
            faults: Mutex::default(),
            changed: watch::Sender::new(()),
            options,
            identity,
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to go wrong at this moment, noted as an event.
    pub(super) fn fault(&self, moment: &Moment, instance: Option<&str>) -> Option<Fault> {
        let fault = self.faults().on(moment, instance)?;
        let what = format!("{fault:?} at {moment:?}");
        self.note(HubEvent::Misbehaved { instance: instance.map(str::to_owned), what });
        Some(fault)
    }

    pub(super) fn note(&self, event: HubEvent) {
        self.events.record(Timestamp::now(), event);
    }

    pub(super) fn refused(&self, instance: Option<&str>, reason: impl Into<String>) {
        self.note(HubEvent::Refused { instance: instance.map(str::to_owned), reason: reason.into() });
    }

    pub(super) fn violation(&self, instance: &str, method: &str, reason: impl Into<String>) {
        self.note(HubEvent::Violation {
            instance: instance.to_owned(),
            method: method.to_owned(),
            reason: reason.into(),
        });
    }

    /// Hands an event to the orchestrator and carries out what it says.
    pub(super) fn act(&self, event: Event) -> Result<(), Refusal> {
        let now = Timestamp::now();
        let mut seen = Vec::new();
        {
            // Events are recorded and pushes queued under the lock, so that their order is that of the decisions.
            let mut core = self.core();
            for action in core.orchestrator.on(now, event)? {
                match action {
                    Action::Note(event) => self.events.record(now, event),
                    Action::Push { connection, method, payload } => {
                        if let Some(handle) = core.registry.by_id(connection) {
                            push(handle, method, payload);
                        }
                    }
                    Action::Logs(entries)
                        if matches!(self.options.logs, LogKeeping::All | LogKeeping::Events) =>
                    {
                        for entry in entries {
                            self.events.record(now, HubEvent::Log(entry));
                        }
                    }
                    Action::Logs(entries) => seen.extend(entries),
                }
            }
        }
        if let LogKeeping::Observe(observer) = &self.options.logs {
            seen.iter().for_each(|entry| observer(entry));
        }
        self.changed.send_replace(());
        Ok(())
    }

    pub(super) fn changed(&self) {
        self.changed.send_replace(());
    }

    /// Waits until `look` finds what it looks for.
    pub(super) async fn wait_for<T>(&self, mut look: impl FnMut(&Core) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(found) = look(&self.core()) {
                return found;
            }
            if changes.changed().await.is_err() {
                // The sender lives in `self`, which this future borrows.
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) fn submit(&self, spec: crate::JobSpec) -> Uuid {
        let job = Uuid::new_v4();
        // A submission is never refused.
        let _ = self.act(Event::Submitted { job, spec: Box::new(spec) });
        job
    }
}

/// Queues a push. A client that has let so many pile up unread is given up, as a real server would.
pub(super) fn push(handle: &crate::registry::Handle, method: &str, payload: Value) {
    let push = Out::Push { invocation_id: None, method: method.to_owned(), arguments: vec![payload] };
    if let Err(mpsc::error::TrySendError::Full(_)) = handle.out.try_send(push) {
        handle.cut.cancel();
    }
}
