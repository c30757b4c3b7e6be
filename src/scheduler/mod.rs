//! Decides when a step starts, and sees it through.
//!
//! [`machine`] says which step may start; this file runs the loop around it; [`drive`] takes one step from its
//! folder to its outcome; [`report`] claims it. A step that waits is not claimed, so that with several replicas
//! a free one wins the broadcast.

mod drive;
mod machine;
mod report;
mod secrets;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use crate::audit::Audit;
use crate::contract::requests::CancelKind;
use crate::contract::{Outcome, Task};
use crate::hub::Line;
use crate::intake::{Step, Work};
use crate::policy::{Policy, Refusal};
use crate::redact::Vault;
use crate::settings::Settings;
use crate::shipping::ShipperHandle;
use crate::step::Stage;
use drive::{Driver, Ended};
use machine::{Event, Lane, Machine, Ticket};

/// How often a directory that another process holds is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How much there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
}

/// What the scheduler works with.
#[derive(Debug, Clone)]
pub struct Tools {
    pub settings: Arc<Settings>,
    pub vault: Vault,
    pub line: Line,
    pub shipper: ShipperHandle,
    pub http: reqwest::Client,
    /// The program that is started as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub audit: Audit,
}

enum Command {
    Submit(Box<Step>),
    Adopt(Box<Step>, Stage),
    Refuse(Box<Step>, Refusal),
    ReportAgain(String),
    Cancel { job_id: Uuid, kind: CancelKind, noted: oneshot::Sender<Vec<Step>> },
    CancelAll { kind: CancelKind, noted: oneshot::Sender<Vec<Step>> },
    Drain,
}

/// Handle to the scheduler; cheap to clone.
#[derive(Debug, Clone)]
pub struct Scheduler {
    commands: mpsc::Sender<Command>,
    load: watch::Receiver<Load>,
    policy: Arc<Policy>,
    audit: Audit,
}

impl Scheduler {
    /// Starts the loop. It ends when `stop` is cancelled; scripts under supervision go on.
    pub fn start(tools: Tools, stop: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        let (commands, received) = mpsc::channel(64);
        let (load, seen) = watch::channel(Load::default());
        let (policy, audit) = (Arc::new(Policy::new(&tools.settings)), tools.audit.clone());
        let slots = tools.settings.runner.max_concurrent_steps.max(1) as usize;
        let running = Loop {
            machine: Machine::new(slots),
            steps: HashMap::new(),
            driver: Arc::new(Driver::new(tools)),
            drives: JoinSet::new(),
            load,
        };
        let task = tokio::spawn(running.run(received, stop));
        (Self { commands, load: seen, policy, audit }, task)
    }

    pub async fn submit(&self, step: Step) {
        if let Some(step) = self.admit(step).await {
            self.send(Command::Submit(Box::new(step))).await;
        }
    }

    /// Takes over a step of an earlier run of the program. One that was not begun is judged like a new one: the
    /// settings may allow less by now.
    pub async fn adopt(&self, step: Step, stage: Stage) {
        let step = if stage == Stage::Prepare {
            self.admit(step).await
        } else {
            self.audit.accepted(&step).await;
            Some(step)
        };
        if let Some(step) = step {
            self.send(Command::Adopt(Box::new(step), stage)).await;
        }
    }

    /// The local veto. A step that is refused waits for no slot and no directory, and nobody claims it.
    async fn admit(&self, step: Step) -> Option<Step> {
        let (policy, judged) = (Arc::clone(&self.policy), step.clone());
        // Pre-approved hooks are files.
        let verdict = tokio::task::spawn_blocking(move || match &judged.work {
            Work::Task(request) => policy.judge(request),
            Work::Refresh(refresh) => policy.judge_refresh(refresh),
        });
        let refusal = match verdict.await {
            Ok(Ok(())) => {
                self.audit.accepted(&step).await;
                return Some(step);
            }
            Ok(Err(refusal)) => refusal,
            // What could not be judged is not done.
            Err(error) => Refusal::failed(&error),
        };
        self.send(Command::Refuse(Box::new(step), refusal)).await;
        None
    }

    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// A task was pushed again.
    pub async fn report_again(&self, name: String) {
        self.send(Command::ReportAgain(name)).await;
    }

    /// Cancels every step of a job; returns when the cancel is noted in their folders.
    pub async fn cancel(&self, job_id: Uuid, kind: CancelKind) {
        let (noted, wait) = oneshot::channel();
        self.send(Command::Cancel { job_id, kind, noted }).await;
        self.audit_cancels(wait).await;
    }

    /// Cancels every step that runs.
    pub async fn cancel_all(&self, kind: CancelKind) {
        let (noted, wait) = oneshot::channel();
        self.send(Command::CancelAll { kind, noted }).await;
        self.audit_cancels(wait).await;
    }

    async fn audit_cancels(&self, noted: oneshot::Receiver<Vec<Step>>) {
        // The loop drops the sender only when it ends, and then there is nothing to wait for.
        for step in noted.await.unwrap_or_default() {
            self.audit.cancelled(&step).await;
        }
    }

    /// Starts nothing any more. What waits stays in its folder for the next start.
    pub async fn drain(&self) {
        self.send(Command::Drain).await;
    }

    pub fn load(&self) -> watch::Receiver<Load> {
        self.load.clone()
    }

    /// Returns when no step runs any more.
    pub async fn idle(&self) {
        let mut load = self.load.clone();
        let _ = load.wait_for(|load| load.running == 0).await;
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            debug!("the scheduler has stopped; what was accepted stays in its folder");
        }
    }
}

/// A step that waits or runs.
struct Active {
    step: Step,
    stage: Stage,
    cancel: CancellationToken,
    report: Arc<Notify>,
    /// Not yet started: a cancel ends it at once.
    waiting: bool,
}

struct Loop {
    machine: Machine,
    steps: HashMap<String, Active>,
    driver: Arc<Driver>,
    drives: JoinSet<(String, Ended)>,
    load: watch::Sender<Load>,
}

impl Loop {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, stop: CancellationToken) {
        let mut look_again = tokio::time::interval(LOOK_AGAIN);
        look_again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                Some(ended) = self.drives.join_next_with_id() => self.on_ended(ended),
                _ = look_again.tick(), if self.machine.wants_to_look_again() => self.on(Event::LookAgain),
            }
            let load = Load { running: self.machine.running(), waiting: self.machine.waiting() };
            self.load.send_if_modified(|seen| std::mem::replace(seen, load) != load);
        }
        // Dropping the set aborts the drivers. Their steps are in their folders, scripts go on under their
        // supervisors, and the next start adopts both.
        self.drives.abort_all();
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Submit(step) => self.arrive(*step, Stage::Prepare),
            Command::Adopt(step, stage) => self.arrive(*step, stage),
            Command::Refuse(step, refusal) => {
                let (driver, name) = (Arc::clone(&self.driver), step.name());
                self.drives.spawn(async move {
                    driver.refuse(&step, &refusal).await;
                    (name, Ended::Concluded)
                });
            }
            // One that is no longer here has its outcome, and that is sent until it is acknowledged.
            Command::ReportAgain(name) => {
                if let Some(active) = self.steps.get(&name) {
                    active.report.notify_one();
                }
            }
            Command::Cancel { job_id, kind, noted } => {
                let _ = noted.send(self.cancel(kind, |active| active.step.job_id() == Some(job_id)));
            }
            Command::CancelAll { kind, noted } => {
                let _ = noted.send(self.cancel(kind, |active| !active.waiting));
            }
            Command::Drain => self.on(Event::Drain),
        }
    }

    fn arrive(&mut self, step: Step, stage: Stage) {
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
        if stage == Stage::Prepare {
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
                    Ended::Concluded
                }
            };
            drop(guard);
            (name, ended)
        });
    }

    fn on_ended(&mut self, ended: Result<(tokio::task::Id, (String, Ended)), tokio::task::JoinError>) {
        let (name, ended) = match ended {
            Ok((_, ended)) => ended,
            Err(error) => {
                error!("a driver ended without saying of which step: {error}");
                return;
            }
        };
        match ended {
            Ended::Concluded => {
                self.steps.remove(&name);
                self.on(Event::Ended(name));
            }
            Ended::DirectoryBusy { holder } => {
                let Some(active) = self.steps.get_mut(&name) else { return };
                if !std::mem::replace(&mut active.waiting, true) {
                    debug!(step = name, "waits: its module directory is in use by {holder}");
                }
                // A cancel may have come while it was being looked at.
                if active.cancel.is_cancelled() && active.stage == Stage::Prepare {
                    self.conclude_unstarted(name);
                } else {
                    self.on(Event::Busy(name));
                }
            }
        }
    }

    /// Returns the steps that were meant.
    fn cancel(&mut self, kind: CancelKind, is_meant: impl Fn(&Active) -> bool) -> Vec<Step> {
        let mut meant = Vec::new();
        let names: Vec<String> =
            self.steps.iter().filter(|(_, active)| is_meant(active)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(active) = self.steps.get(&name) else { continue };
            let grace = Duration::from_secs(self.driver.settings().runner.cancel_grace_seconds);
            let noted = match kind {
                CancelKind::Graceful => active.step.folder.request_cancel_within(grace),
                CancelKind::Kill => active.step.folder.request_cancel(kind),
            };
            if let Err(error) = noted {
                warn!(step = name, "the cancel could not be noted in the folder: {error}");
            }
            active.cancel.cancel();
            meant.push(active.step.clone());
            // One whose script has run and that only waits to be concluded ends as the script did.
            if active.waiting && active.stage == Stage::Prepare {
                info!(step = name, "cancelled before it started");
                self.conclude_unstarted(name);
            }
        }
        meant
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
            (name, Ended::Concluded)
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

fn ticket(step: &Step, working_directory: &std::path::Path) -> Ticket {
    let (lane, module) = match &step.work {
        Work::Refresh(_) => (Lane::Light, None),
        Work::Task(request) => {
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
    Ticket { name: step.name(), lane, module }
}
