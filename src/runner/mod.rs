//! The runner as a whole: read the step folders, connect, recover, work, drain, exit.

mod drain;
pub(crate) mod own_secrets;
mod recover;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hawser_signalr::ConnectionStatus;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use crate::audit::Audit;
use crate::engines::Engines;
use crate::executor::Executor;
use crate::intake::Intake;
use crate::masking::SecretStore;
use crate::policy::Policy;
use crate::scheduler::{Load, Scheduler};
use crate::settings::Settings;
use crate::shipping::Shipper;
use crate::step::{StepStore, StoreError};
use crate::{connect, supervisor};
use recover::{InspectedStep, Recovery};

/// How long the parts of the runner get to stop. A part that hangs on its disk is not waited for.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_NOW_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Setup(#[from] connect::SetupError),
    #[error("the runner's {0} failed; see the log for details")]
    Part(&'static str),
}

/// The stage that a shutdown has reached. It only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    No,
    /// Finish running steps, ship everything, exit.
    Drain,
    /// Exit now. Supervisors continue, and the next start adopts them.
    Now,
}

/// What differs between the program and a test.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program to start as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub timing: connect::Timing,
    pub engines: Engines,
}

impl Options {
    pub fn of_this_program() -> Self {
        Self {
            supervisor: supervisor::program(),
            timing: connect::Timing::default(),
            engines: Engines::default(),
        }
    }
}

/// Runs until `shutdown` asks for the end. `status` gets a line of text whenever the status changes.
pub async fn run(
    settings: Settings,
    secret_store: SecretStore,
    options: Options,
    mut shutdown: watch::Receiver<Shutdown>,
    status: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), RunnerError> {
    let settings = Arc::new(settings);
    let audit = Audit::new(&settings);
    let open = async {
        let opened = recover::open(&settings, &secret_store).await?;
        audit.open().await;
        Ok::<_, RunnerError>(opened)
    };
    // Nothing starts before every step folder has been read, so a shutdown can exit at once even if the disk hangs.
    let (store, inspected) = tokio::select! {
        biased;
        () = requested(&mut shutdown, Shutdown::Drain) => {
            info!("shutting down before start, steps stay in their folders");
            return Ok(());
        }
        opened = open => opened?,
    };
    let Some(mut parts) =
        Parts::start(settings, secret_store, options, audit, store, inspected, &mut shutdown).await?
    else {
        return Ok(());
    };
    let (connection, load) = (parts.executor.hub.status(), parts.scheduler.load());
    tokio::select! {
        failed = parts.failed() => return Err(failed),
        () = publish_status("", connection.clone(), load.clone(), &status) => return Err(RunnerError::Part("connection")),
        () = requested(&mut shutdown, Shutdown::Drain) => {}
    }
    let timeout = tokio::select! {
        () = drain::drain(&parts.executor, &parts.scheduler) => STOP_TIMEOUT,
        () = publish_status("shutting down; ", connection, load, &status) => return Err(RunnerError::Part("connection")),
        () = requested(&mut shutdown, Shutdown::Now) => {
            log_exiting();
            STOP_NOW_TIMEOUT
        }
    };
    parts.stop(timeout).await;
    Ok(())
}

/// The running parts. Dropping them stops them all.
struct Parts {
    executor: Arc<Executor>,
    scheduler: Scheduler,
    session: JoinHandle<()>,
    intake: JoinHandle<()>,
    scheduling: JoinHandle<()>,
    recovery: JoinHandle<()>,
    stop: DropGuard,
}

impl Parts {
    /// Connects, recovers the steps of earlier processes, and starts to accept pushes. None if a shutdown came first.
    async fn start(
        settings: Arc<Settings>,
        secret_store: SecretStore,
        options: Options,
        audit: Audit,
        store: Arc<StepStore>,
        inspected: Vec<InspectedStep>,
        shutdown: &mut watch::Receiver<Shutdown>,
    ) -> Result<Option<Self>, RunnerError> {
        let token = CancellationToken::new();
        let stop = token.clone().drop_guard();
        let endpoint = connect::Endpoint::from(&*settings);
        let http = connect::http_client(&endpoint, &options.timing)?;
        let (hub, incoming, session) =
            connect::connect(endpoint, options.timing, secret_store.clone(), token.clone())?;
        let shipper = Shipper::start(
            hub.clone(),
            Arc::clone(&store),
            &settings.job_log_stream,
            settings.server.max_message_bytes,
            secret_store.clone(),
            token.clone(),
        );
        let executor = Arc::new(Executor {
            engines: options.engines,
            secret_store,
            hub,
            store: Arc::clone(&store),
            shipper,
            http,
            supervisor: options.supervisor,
            audit,
            policy: Arc::new(Policy::new(&settings)),
            settings,
        });
        let (scheduler, scheduling) = Scheduler::start(Arc::clone(&executor), token.clone());

        // The connection may be up by now, but no push is read before recovery is done.
        let recovery = Recovery {
            store: Arc::clone(&store),
            scheduler: scheduler.clone(),
            executor: Arc::clone(&executor),
        };
        tokio::select! {
            () = recovery.at_start(inspected) => {}
            () = shutdown_during_recovery(&scheduler, shutdown) => return Ok(None),
        }
        let recovery = tokio::spawn(recovery.keep_trying(token.clone()));
        let intake = Intake::new(store, scheduler.clone(), Arc::clone(&executor), token);
        let intake = tokio::spawn(intake.run(incoming));
        Ok(Some(Self { executor, scheduler, session, intake, scheduling, recovery, stop }))
    }

    /// Waits for a part that ends by itself. Then a fresh start is better than half a runner; running steps continue.
    async fn failed(&mut self) -> RunnerError {
        RunnerError::Part(tokio::select! {
            _ = &mut self.intake => "intake",
            _ = &mut self.scheduling => "scheduler",
            _ = &mut self.session => "session",
            () = self.executor.shipper.stopped() => "shipper",
        })
    }

    async fn stop(self, timeout: Duration) {
        drop(self.stop);
        let stopped = async {
            for part in [self.intake, self.recovery, self.scheduling, self.session] {
                if let Err(error) = part.await
                    && error.is_panic()
                {
                    warn!(%error, "part of the runner failed while stopping");
                }
            }
        };
        if tokio::time::timeout(timeout, stopped).await.is_err() {
            warn!(?timeout, "part of the runner did not stop in time");
        }
    }
}

/// Waits until a shutdown has reached this stage. If the sender is gone, that counts as a request to drain.
async fn requested(shutdown: &mut watch::Receiver<Shutdown>, stage: Shutdown) {
    if shutdown.wait_for(|requested| *requested >= stage).await.is_err() && stage == Shutdown::Now {
        std::future::pending::<()>().await;
    }
}

/// A drain during recovery starts no more steps; only a second request ends the recovery.
async fn shutdown_during_recovery(scheduler: &Scheduler, shutdown: &mut watch::Receiver<Shutdown>) {
    requested(shutdown, Shutdown::Drain).await;
    info!("draining, finishing recovery first");
    tokio::select! {
        () = async { scheduler.drain().await; std::future::pending().await } => {}
        () = requested(shutdown, Shutdown::Now) => {}
    }
    log_exiting();
}

fn log_exiting() {
    warn!("exiting now, running steps continue and the next start adopts them");
}

/// Publishes the status whenever it changes. Returns only when the connection or the scheduler is gone.
async fn publish_status(
    prefix: &str,
    mut connection: watch::Receiver<ConnectionStatus>,
    mut load: watch::Receiver<Load>,
    publish: &impl Fn(&str),
) {
    loop {
        let connected = match &*connection.borrow_and_update() {
            ConnectionStatus::Connected { .. } => "connected".to_owned(),
            ConnectionStatus::Connecting { problem: None } => "connecting".to_owned(),
            ConnectionStatus::Connecting { problem: Some(problem) } => format!("not connected: {problem}"),
            ConnectionStatus::Stopped => "stopped".to_owned(),
        };
        let steps = *load.borrow_and_update();
        publish(&format!("{prefix}{connected}; {} running, {} waiting", steps.running, steps.waiting));
        tokio::select! {
            changed = connection.changed() => if changed.is_err() { return },
            changed = load.changed() => if changed.is_err() { return },
        }
    }
}
