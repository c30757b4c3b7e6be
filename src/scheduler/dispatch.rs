//! The loop that owns all steps from their arrival to their end: it starts those that [`machine`](super::queue) names, each
//! in a task of its own ([`drive`](crate::executor::drive)), hears of their ends, and passes cancels on.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hawser_contract::requests::CancelKind;
use hawser_contract::{Outcome, Task};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use super::Load;
use super::queue::{Event, Lane, Queue, QueuedStep};
use crate::executor::drive::{DriveEnd, Executor};
use crate::executor::{ExecutorContext, LOOK_AGAIN};
use crate::settings::Refusal;
use crate::step::{CancelledBy, RecoveryPhase, Step, StepWork};

/// What the handle asks of the loop.
pub(super) enum SchedulerCommand {
    Submit(Box<Step>),
    Adopt(Box<Step>, RecoveryPhase),
    Refuse(Box<Step>, Refusal),
    ReportAgain(String),
    Cancel { job_id: Uuid, kind: CancelKind, noted: oneshot::Sender<Noted> },
    CancelAll { kind: CancelKind, noted: oneshot::Sender<Noted> },
    Drain(oneshot::Sender<()>),
}

/// Whom a cancel was meant for, and why it could not be noted in the folder of one of them.
pub(super) struct Noted {
    pub(super) meant: Vec<Step>,
    pub(super) problem: Option<String>,
}

/// A step that waits or runs.
struct Active {
    step: Step,
    stage: RecoveryPhase,
    cancel: CancellationToken,
    report: Arc<Notify>,
    /// Not yet started: a cancel ends it at once.
    waiting: bool,
}

pub(super) struct Dispatch {
    machine: Queue,
    steps: HashMap<String, Active>,
    driver: Arc<Executor>,
    drives: JoinSet<(String, DriveEnd)>,
    load: watch::Sender<Load>,
}

impl Dispatch {
    pub(super) fn new(tools: ExecutorContext, load: watch::Sender<Load>) -> Self {
        let slots = tools.settings.runner.max_concurrent_steps.max(1) as usize;
        Self {
            machine: Queue::new(slots),
            steps: HashMap::new(),
            driver: Arc::new(Executor::new(tools)),
            drives: JoinSet::new(),
            load,
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<SchedulerCommand>,
        stop: CancellationToken,
    ) {
        let mut look_again = tokio::time::interval(LOOK_AGAIN);
        look_again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command).await,
                    None => break,
                },
                Some(ended) = self.drives.join_next_with_id() => self.on_ended(ended),
                _ = look_again.tick(), if self.machine.wants_to_look_again() => self.on(Event::LookAgain),
            }
            self.tell_load();
        }
        // Dropping the set aborts the drivers. Their steps are in their folders, scripts go on under their
        // supervisors, and the next start adopts both.
        self.drives.abort_all();
    }

    fn tell_load(&self) {
        let load = Load { running: self.machine.running(), waiting: self.machine.waiting() };
        self.load.send_if_modified(|seen| std::mem::replace(seen, load) != load);
    }

    /// One command after the other: none overtakes another, whatever the disk takes for it.
    async fn on_command(&mut self, command: SchedulerCommand) {
        match command {
            SchedulerCommand::Submit(step) => self.arrive(*step, RecoveryPhase::Prepare),
            SchedulerCommand::Adopt(step, stage) => self.arrive(*step, stage),
            SchedulerCommand::Refuse(step, refusal) => {
                let (driver, name) = (Arc::clone(&self.driver), step.name());
                self.drives.spawn(async move {
                    driver.refuse(&step, &refusal).await;
                    (name, DriveEnd::Concluded)
                });
            }
            // One that is no longer here has its outcome, and that is sent until it is acknowledged.
            SchedulerCommand::ReportAgain(name) => {
                if let Some(active) = self.steps.get(&name) {
                    active.report.notify_one();
                }
            }
            SchedulerCommand::Cancel { job_id, kind, noted } => {
                let is_meant = |active: &Active| active.step.job_id() == Some(job_id);
                let meant = self.cancel(kind, CancelledBy::Server, is_meant).await;
                let _ = noted.send(meant);
            }
            SchedulerCommand::CancelAll { kind, noted } => {
                let _ = noted.send(self.cancel(kind, CancelledBy::Drain, |active| !active.waiting).await);
            }
            SchedulerCommand::Drain(drained) => {
                self.on(Event::Drain);
                self.tell_load();
                let _ = drained.send(());
            }
        }
    }

    fn arrive(&mut self, step: Step, stage: RecoveryPhase) {
        let ticket = ticket(&step, &self.driver.settings().working_directory.working_directory);
        let name = step.name();
        let active = Active {
            step,
            stage,
            cancel: CancellationToken::new(),
            report: Arc::new(Notify::new()),
            waiting: true,
        };
        self.steps.insert(name.clone(), active);
        if stage == RecoveryPhase::Prepare {
            self.on(Event::Arrived(ticket));
        } else {
            self.on(Event::Adopted(ticket));
            self.begin(&name);
        }
    }

    fn on(&mut self, event: Event) {
        for name in self.machine.on(event) {
            self.begin(&name);
        }
    }

    fn begin(&mut self, name: &str) {
        let Some(active) = self.steps.get_mut(name) else { return };
        active.waiting = false;
        let driver = Arc::clone(&self.driver);
        let (step, stage) = (active.step.clone(), active.stage);
        let (cancel, report, name) = (active.cancel.clone(), Arc::clone(&active.report), name.to_owned());
        self.drives.spawn(async move {
            // A task of its own, so that a panic in it is seen here and becomes the step's outcome.
            let inner = Arc::clone(&driver);
            let handle = tokio::spawn({
                let step = step.clone();
                async move { inner.drive(&step, stage, &cancel, &report).await }
            });
            let guard = AbortOnDrop(handle.abort_handle());
            let ended = match handle.await {
                Ok(ended) => ended,
                Err(error) => {
                    // A driver that was only stopped leaves its step as it is, for the next start.
                    if error.is_panic() {
                        error!(step = step.name(), "the runner itself failed: {error}");
                        driver.internal_error(&step).await;
                    }
                    DriveEnd::Concluded
                }
            };
            drop(guard);
            (name, ended)
        });
    }

    fn on_ended(&mut self, ended: Result<(tokio::task::Id, (String, DriveEnd)), tokio::task::JoinError>) {
        let (name, ended) = match ended {
            Ok((_, ended)) => ended,
            Err(error) => {
                error!("a driver ended without saying of which step: {error}");
                return;
            }
        };
        match ended {
            DriveEnd::Concluded => {
                self.steps.remove(&name);
                self.on(Event::Ended(name));
            }
            DriveEnd::DirectoryBusy { holder } => {
                let Some(active) = self.steps.get_mut(&name) else { return };
                if !std::mem::replace(&mut active.waiting, true) {
                    debug!(step = name, "waits: its module directory is in use by {holder}");
                }
                // A cancel may have come while it was being looked at.
                if active.cancel.is_cancelled() && active.stage == RecoveryPhase::Prepare {
                    self.conclude_unstarted(name);
                } else {
                    self.on(Event::Busy(name));
                }
            }
        }
    }

    /// Returns the steps that were meant.
    async fn cancel(
        &mut self,
        kind: CancelKind,
        by: CancelledBy,
        is_meant: impl Fn(&Active) -> bool,
    ) -> Noted {
        let (mut meant, mut problem) = (Vec::new(), None);
        let names: Vec<String> =
            self.steps.iter().filter(|(_, active)| is_meant(active)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(active) = self.steps.get(&name) else { continue };
            let grace = Duration::from_secs(self.driver.settings().runner.cancel_grace_seconds);
            let folder = active.step.folder.clone();
            let noted = tokio::task::spawn_blocking(move || folder.cancel_as(kind, grace, by)).await;
            let noted = noted.map_err(|error| error.to_string());
            if let Err(error) = noted.and_then(|noted| noted.map_err(|error| error.to_string())) {
                warn!(step = name, "the cancel could not be noted in the folder: {error}");
                problem = Some(error);
            }
            active.cancel.cancel();
            meant.push(active.step.clone());
            // One whose script has run and that only waits to be concluded ends as the script did.
            if active.waiting && active.stage == RecoveryPhase::Prepare {
                info!(step = name, "cancelled before it started");
                self.conclude_unstarted(name);
            }
        }
        Noted { meant, problem }
    }

    /// Ends a step that was not started as cancelled: it leaves the queue now, and its outcome is written in a task
    /// of its own, since the disk may take its time.
    fn conclude_unstarted(&mut self, name: String) {
        let Some(active) = self.steps.get_mut(&name) else { return };
        active.waiting = false;
        let (driver, step) = (Arc::clone(&self.driver), active.step.clone());
        self.on(Event::Ended(name.clone()));
        self.drives.spawn(async move {
            driver.conclude_with(&step, &Outcome::Cancelled).await;
            (name, DriveEnd::Concluded)
        });
    }
}

/// Ends a driver with the task that waits for it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn ticket(step: &Step, working_directory: &Path) -> QueuedStep {
    let (lane, module) = match &step.work {
        StepWork::Refresh(_) => (Lane::Light, None),
        StepWork::Task(request) => {
            let metadata = &request.common.metadata;
            let module = working_directory
                .join(&metadata.stack_name)
                .join(&metadata.namespace_name)
                .join(&metadata.module_name)
                .to_string_lossy()
                .into_owned();
            match request.task.task() {
                Task::GetDefinitiveRevision => (Lane::Light, None),
                Task::Variables => (Lane::Light, Some(module)),
                _ => (Lane::Heavy, Some(module)),
            }
        }
    };
    QueuedStep { name: step.name(), lane, module }
}
