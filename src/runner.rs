//! The runner as a whole: recover, connect, work, drain, leave.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::contract::requests::CancelKind;
use crate::hub::{self, LineStatus};
use crate::intake::{self, Found, Intake};
use crate::scheduler::{Scheduler, Tools};
use crate::settings::Settings;
use crate::shipping::{Shipper, ShipperHandle, ShippingSettings};
use crate::step::{Stage, Store, StoreError};
use crate::supervise;

/// How long interrupted steps get to end by themselves at the drain limit, before they are killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Setup(#[from] hub::SetupError),
    #[error("cannot find this program to start supervisors with: {0}")]
    Program(std::io::Error),
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
    pub timing: hub::Timing,
}

impl Options {
    pub fn of_this_program() -> Result<Self, RunnerError> {
        let supervisor = supervise::program().map_err(RunnerError::Program)?;
        Ok(Self { supervisor, timing: hub::Timing::default() })
    }
}

/// Runs until `shutdown` says so. `status` gets a line for people whenever something changes.
pub async fn run(
    settings: Settings,
    options: Options,
    mut shutdown: watch::Receiver<Shutdown>,
    status: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), RunnerError> {
    let settings = Arc::new(settings);
    let stop = CancellationToken::new();
    // Whatever way this function ends, nothing that it started outlives it.
    let _stop_all = stop.clone().drop_guard();

    let store = Arc::new(Store::open(
        &settings.working_directory.working_directory,
        settings.runner.id,
        &settings.runner.instance,
    )?);
    let endpoint = hub::Endpoint::from(&*settings);
    let http = hub::http_client(&endpoint, &options.timing)?;
    let line_stop = CancellationToken::new();
    let _line_stop = line_stop.clone().drop_guard();
    let (line, pushes, session) = hub::connect(endpoint, options.timing, line_stop.clone())?;
    let shipper =
        Shipper::start(line.clone(), Arc::clone(&store), ShippingSettings::from(&*settings), stop.clone());
    let tools = Tools {
        settings: Arc::clone(&settings),
        line: line.clone(),
        shipper: shipper.clone(),
        http,
        supervisor: options.supervisor,
    };
    let (scheduler, scheduling) = Scheduler::start(tools, stop.clone());

    // The socket may be up by now, but nobody has looked at the pushes yet: what was here before comes first.
    recover(&store, &scheduler, &shipper).await?;
    let intake = Intake::new(Arc::clone(&store), scheduler.clone(), shipper.clone(), line.clone(), stop.clone());
    let taking = tokio::spawn(intake.run(pushes));

    tokio::select! {
        () = tell_status(line.status(), scheduler.load(), status) => {}
        _ = shutdown.wait_for(|asked| *asked > Shutdown::No) => {}
    }

    info!("shutting down: no new work is started, running steps are finished and everything is shipped");
    scheduler.drain().await;
    let drained = async {
        finish_running(&scheduler, settings.runner.drain_timeout_seconds).await;
        everything_shipped(&shipper, &scheduler).await;
    };
    let leave_now = async {
        // An error means that nobody can ask any more; then the drain goes on.
        if shutdown.wait_for(|asked| *asked == Shutdown::Now).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = drained => info!("everything is finished and shipped"),
        () = leave_now => warn!("leaving at once; steps that run go on, and the next start picks them up"),
    }
    stop.cancel();
    line_stop.cancel();
    for task in [taking, scheduling, session] {
        if let Err(error) = task.await
            && error.is_panic()
        {
            warn!("a part of the runner failed while it was stopping: {error}");
        }
    }
    Ok(())
}

/// Goes on with every step that an earlier run of the program left behind.
async fn recover(store: &Store, scheduler: &Scheduler, shipper: &ShipperHandle) -> Result<(), StoreError> {
    for (folder, request) in store.list()? {
        let found = folder.stage().and_then(|stage| Ok((stage, intake::reread(folder.clone(), &request)?)));
        match found {
            Ok((_, Found::Answer(answer))) => drop(shipper.add(answer).await),
            Ok((stage, Found::Step(step))) => {
                info!(step = step.name(), ?stage, "left by an earlier run of this runner");
                shipper.add(step.shipped()).await;
                if stage != Stage::Ship {
                    scheduler.adopt(step, stage).await;
                }
            }
            Err(problem) => store.set_aside(&folder, &problem.to_string()),
        }
    }
    Ok(())
}

/// Waits for running steps; at the limit they are interrupted, and later killed.
async fn finish_running(scheduler: &Scheduler, limit: Option<u64>) {
    let Some(limit) = limit else { return scheduler.idle().await };
    if tokio::time::timeout(Duration::from_secs(limit), scheduler.idle()).await.is_ok() {
        return;
    }
    warn!("Runner.DrainTimeoutSeconds ({limit}) is over: running steps are interrupted");
    scheduler.cancel_all(CancelKind::Graceful).await;
    if tokio::time::timeout(INTERRUPT_GRACE, scheduler.idle()).await.is_ok() {
        return;
    }
    warn!("interrupted steps have not ended within {} s and are killed", INTERRUPT_GRACE.as_secs());
    scheduler.cancel_all(CancelKind::Kill).await;
    scheduler.idle().await;
}

/// Waits until nothing is left to ship but the steps that were never started: those stay for the next start.
async fn everything_shipped(shipper: &ShipperHandle, scheduler: &Scheduler) {
    let (mut shipping, mut load) = (shipper.status(), scheduler.load());
    loop {
        let waiting = load.borrow_and_update().waiting;
        if shipping.borrow_and_update().steps <= waiting {
            return;
        }
        tokio::select! {
            changed = shipping.changed() => if changed.is_err() { return },
            changed = load.changed() => if changed.is_err() { return },
        }
    }
}

async fn tell_status(
    mut line: watch::Receiver<LineStatus>,
    mut load: watch::Receiver<crate::scheduler::Load>,
    tell: impl Fn(&str),
) {
    loop {
        let link = match &*line.borrow_and_update() {
            LineStatus::Connected { .. } => "connected".to_owned(),
            LineStatus::Connecting { problem: None } => "connecting".to_owned(),
            LineStatus::Connecting { problem: Some(problem) } => format!("not connected: {problem}"),
            LineStatus::Stopped => "stopped".to_owned(),
        };
        let now = *load.borrow_and_update();
        tell(&format!("{link}; {} running, {} waiting", now.running, now.waiting));
        tokio::select! {
            changed = line.changed() => if changed.is_err() { return },
            changed = load.changed() => if changed.is_err() { return },
        }
    }
}
