//! The runner as a whole: look at the step folders, connect, recover, work, drain, leave.

pub(crate) mod own_secrets;
mod recover;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use hawser_signalr::ConnectionStatus;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::audit::Audit;
use crate::executor::ExecutorContext;
use crate::intake::Intake;
use crate::masking::SecretStore;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::shipping::{Shipper, ShipperHandle, ShippingSettings};
use crate::step::StoreError;
use crate::{connect, supervisor};
use recover::Recovery;

/// How long interrupted steps get to end by themselves at the drain limit, before they are killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(30);

/// How long the parts of the runner get to end when they are told to. One that waits for a thread which hangs with its disk
/// is left behind.
const ENDING: Duration = Duration::from_secs(10);
const ENDING_AT_ONCE: Duration = Duration::from_secs(1);

/// How long shipping may take beyond the drain limit.
const SHIPPING_GRACE: Duration = Duration::from_secs(10);

const LEAVING_AT_ONCE: &str = "leaving at once; steps that run go on, and the next start picks them up";

#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Setup(#[from] connect::SetupError),
    #[error("the {0} of the runner has failed; its log has the details")]
    Part(&'static str),
}

/// How far a shutdown has got. It only ever goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    No,
    /// Finish what runs, ship everything, leave.
    Drain,
    /// Leave now. Supervisors go on, and the next start adopts them.
    Now,
}

/// What differs between the program and a test.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that is started as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub timing: connect::Timing,
}

impl Options {
    pub fn of_this_program() -> Self {
        Self { supervisor: supervisor::program(), timing: connect::Timing::default() }
    }
}

/// Runs until `shutdown` says so. `status` gets a line for people whenever something changes.
pub async fn run(
    settings: Settings,
    secret_store: SecretStore,
    options: Options,
    mut shutdown: watch::Receiver<Shutdown>,
    status: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), RunnerError> {
    let settings = Arc::new(settings);
    let stop = CancellationToken::new();
    // Whatever way this function ends, nothing that it started outlives it.
    let _stop_all = stop.clone().drop_guard();

    // What was here before comes first. Nothing is begun and nobody connected to until all of it has been looked at, so
    // whoever is asked to stop meanwhile can simply leave, though the disk may hang.
    let audit = Audit::new(&settings);
    let opening = async {
        let opened = recover::open(&settings, &secret_store).await?;
        audit.open().await;
        Ok::<_, RunnerError>(opened)
    };
    let (store, found) = tokio::select! {
        biased;
        () = asked(&mut shutdown, Shutdown::Drain) => {
            info!("shutting down before anything was begun; what is in the step folders stays for the next start");
            return Ok(());
        }
        opened = opening => opened?,
    };
    let endpoint = connect::Endpoint::from(&*settings);
    let http = connect::http_client(&endpoint, &options.timing)?;
    let line_stop = CancellationToken::new();
    let _line_stop = line_stop.clone().drop_guard();
    let (line, pushes, mut session) =
        connect::connect(endpoint, options.timing, secret_store.clone(), line_stop.clone())?;
    let shipping = ShippingSettings::from(&*settings);
    let shipper =
        Shipper::start(line.clone(), Arc::clone(&store), &shipping, secret_store.clone(), stop.clone());
    let tools = ExecutorContext {
        settings: Arc::clone(&settings),
        secret_store: secret_store.clone(),
        line: line.clone(),
        shipper: shipper.clone(),
        http,
        supervisor: options.supervisor,
        audit,
    };
    let (scheduler, mut scheduling) = Scheduler::start(tools, stop.clone());

    // The socket may be up by now, but nobody looks at the pushes before this is done.
    let recovery = Recovery {
        store: Arc::clone(&store),
        settings: Arc::clone(&settings),
        secret_store: secret_store.clone(),
        scheduler: scheduler.clone(),
        shipper: shipper.clone(),
    };
    let leaving = async {
        asked(&mut shutdown, Shutdown::Drain).await;
        info!("shutting down: no new work is started; what an earlier run left is still being taken up");
        tokio::select! {
            () = async { scheduler.drain().await; std::future::pending().await } => {}
            () = asked(&mut shutdown, Shutdown::Now) => {}
        }
    };
    tokio::select! {
        () = recovery.at_start(found) => {}
        () = leaving => {
            warn!("{LEAVING_AT_ONCE}");
            return Ok(());
        }
    }
    let recovering = tokio::spawn(recovery.keep_trying(stop.clone()));
    let intake = Intake::new(
        Arc::clone(&store),
        scheduler.clone(),
        shipper.clone(),
        line.clone(),
        secret_store,
        Duration::from_secs(settings.runner.cancel_grace_seconds),
        stop.clone(),
    );
    let mut taking = tokio::spawn(intake.run(pushes));

    // None of these ends before it is told to, unless it fails: then a fresh start is better than half a runner, and
    // steps that run go on meanwhile.
    let failed = |part| Err(RunnerError::Part(part));
    tokio::select! {
        () = tell_status("", line.status(), scheduler.load(), &status) => return failed("line to the server"),
        _ = &mut taking => return failed("intake"),
        _ = &mut scheduling => return failed("scheduler"),
        _ = &mut session => return failed("session with the server"),
        () = shipper.stopped() => return failed("shipper"),
        () = asked(&mut shutdown, Shutdown::Drain) => {}
    }

    info!("shutting down: no new work is started, running steps are finished and everything is shipped");
    let drained = async {
        scheduler.drain().await;
        let limit = settings.runner.drain_timeout_seconds.map(Duration::from_secs);
        let since = Instant::now();
        finish_running(&scheduler, limit).await;
        // With a limit, a server that is away does not keep the runner: what is not shipped is on the disk.
        let patience = limit.map(|limit| limit.saturating_sub(since.elapsed()) + SHIPPING_GRACE);
        shipper.drain().await;
        let shipped = everything_shipped(&shipper, &scheduler);
        let all = match patience {
            None => shipped.await,
            Some(patience) => tokio::time::timeout(patience, shipped).await.unwrap_or(false),
        };
        if !all {
            warn!("not everything could be shipped: {}", &*shipper.status().borrow());
        }
        all
    };
    let ending = tokio::select! {
        all = drained => {
            match (all, scheduler.load().borrow().waiting) {
                (true, 0) => info!("everything is finished and shipped"),
                (true, waiting) => info!(
                    "everything that was begun is finished and shipped; {waiting} tasks that wait stay for the next start"
                ),
                (false, _) => warn!("leaving; the next start ships the rest"),
            }
            ENDING
        }
        () = tell_status("shutting down; ", line.status(), scheduler.load(), &status) => {
            return failed("line to the server");
        }
        () = asked(&mut shutdown, Shutdown::Now) => {
            warn!("{LEAVING_AT_ONCE}");
            ENDING_AT_ONCE
        }
    };
    stop.cancel();
    line_stop.cancel();
    let ended = async {
        for task in [taking, recovering, scheduling, session] {
            if let Err(error) = task.await
                && error.is_panic()
            {
                warn!("a part of the runner failed while it was stopping: {error}");
            }
        }
    };
    if tokio::time::timeout(ending, ended).await.is_err() {
        warn!("a part of the runner has not ended within {} s and is left behind", ending.as_secs());
    }
    Ok(())
}

/// Waits until that much is asked for. When nobody can ask any more, that is a wish to drain and nothing beyond it.
async fn asked(shutdown: &mut watch::Receiver<Shutdown>, wish: Shutdown) {
    if shutdown.wait_for(|asked| *asked >= wish).await.is_err() && wish == Shutdown::Now {
        std::future::pending::<()>().await;
    }
}

/// Waits for running steps; at the limit they are interrupted, and later killed.
async fn finish_running(scheduler: &Scheduler, limit: Option<Duration>) {
    let Some(limit) = limit else { return scheduler.idle().await };
    if tokio::time::timeout(limit, scheduler.idle()).await.is_ok() {
        return;
    }
    warn!("Runner.DrainTimeoutSeconds ({}) is over: running steps are interrupted", limit.as_secs());
    scheduler.cancel_all(CancelKind::Graceful).await;
    if tokio::time::timeout(INTERRUPT_GRACE, scheduler.idle()).await.is_ok() {
        return;
    }
    warn!("interrupted steps have not ended within {} s and are killed", INTERRUPT_GRACE.as_secs());
    scheduler.cancel_all(CancelKind::Kill).await;
    scheduler.idle().await;
}

/// Waits until nothing is left to ship but the steps that were never started: those stay for the next start. So does, in the
/// end, what cannot be shipped (false).
async fn everything_shipped(shipper: &ShipperHandle, scheduler: &Scheduler) -> bool {
    let (mut shipping, mut load) = (shipper.status(), scheduler.load());
    loop {
        let waiting = load.borrow_and_update().waiting;
        {
            let shipping = shipping.borrow_and_update();
            if shipping.steps <= waiting {
                return true;
            }
            if shipping.steps <= waiting + shipping.stuck {
                return false;
            }
        }
        tokio::select! {
            changed = shipping.changed() => if changed.is_err() { return false },
            changed = load.changed() => if changed.is_err() { return false },
        }
    }
}

/// Tells how things are whenever that changes. Ends only when a part that it looks at is gone.
async fn tell_status(
    stage: &str,
    mut line: watch::Receiver<ConnectionStatus>,
    mut load: watch::Receiver<crate::scheduler::Load>,
    tell: &impl Fn(&str),
) {
    loop {
        let link = match &*line.borrow_and_update() {
            ConnectionStatus::Connected { .. } => "connected".to_owned(),
            ConnectionStatus::Connecting { problem: None } => "connecting".to_owned(),
            ConnectionStatus::Connecting { problem: Some(problem) } => format!("not connected: {problem}"),
            ConnectionStatus::Stopped => "stopped".to_owned(),
        };
        let now = *load.borrow_and_update();
        tell(&format!("{stage}{link}; {} running, {} waiting", now.running, now.waiting));
        tokio::select! {
            changed = line.changed() => if changed.is_err() { return },
            changed = load.changed() => if changed.is_err() { return },
        }
    }
}
