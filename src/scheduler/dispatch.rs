//! The loop that owns all steps from arrival to end: it starts the steps that the [queue](super::queue) selects, one tokio
//! task per step ([`Executor`]), handles their ends, and passes on cancels.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt as _;
use hawser_contract::Outcome;
use hawser_contract::requests::CancelKind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::Load;
use super::queue::{Event, Queue, QueuedStep};
use crate::base::retry;
use crate::executor::{DriveEnd, Executor, StepSignals};
use crate::settings::Refusal;
use crate::step::{CancelledBy, RecoveryPhase, Step};

/// A command from the handle to the loop.
pub(super) enum SchedulerCommand {
    Submit(Box<Step>, RecoveryPhase),
    Refuse(Box<Step>, Refusal),
    /// Answers whether the step is active. For a step that is being withdrawn, the answer comes when its folder is gone.
    ReportAgain(String, oneshot::Sender<bool>),
    /// Without a job: every running step, at the drain limit.
    Cancel {
        job: Option<Uuid>,
        kind: CancelKind,
        done: oneshot::Sender<CancelledSteps>,
    },
    Drain(oneshot::Sender<()>),
}

/// The steps that a cancel applies to, and the error if it could not be recorded in one of their folders.
pub(super) struct CancelledSteps {
    pub(super) steps: Vec<Step>,
    pub(super) error: Option<String>,
}

/// A waiting or running step.
struct Active {
    step: Step,
    phase: RecoveryPhase,
    signals: StepSignals,
    /// A waiting step is cancelled at once.
    waiting: bool,
    /// The claim was refused, and the folder is being removed. Holds the pushes of the task that came in the meantime.
    withdrawn: Option<Vec<oneshot::Sender<bool>>>,
    /// Whether the log says that another process uses the module directory.
    busy_logged: bool,
    panicked: bool,
}

pub(super) struct Dispatch {
    queue: Queue,
    steps: HashMap<String, Active>,
    executor: Arc<Executor>,
    drives: JoinSet<(String, DriveEnd)>,
    load: watch::Sender<Load>,
    drain: CancellationToken,
}

impl Dispatch {
    pub(super) fn new(executor: Arc<Executor>, load: watch::Sender<Load>) -> Self {
        let slots = executor.settings.runner.max_concurrent_steps.max(1) as usize;
        Self {
            queue: Queue::new(slots),
            steps: HashMap::new(),
            executor,
            drives: JoinSet::new(),
            load,
            drain: CancellationToken::new(),
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<SchedulerCommand>,
        stop: CancellationToken,
    ) {
        let mut retry_locks = tokio::time::interval(retry::MODULE_DIRECTORY);
        retry_locks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => self.on_command(command).await,
                    None => break,
                },
                Some(ended) = self.drives.join_next() => self.on_ended(ended),
                _ = retry_locks.tick(), if self.queue.has_busy_directories() => self.on(Event::RetryBusy),
            }
            self.publish_load();
        }
        // Scripts continue under their supervisors, and the next start adopts their steps.
        self.drives.abort_all();
    }

    fn publish_load(&self) {
        let load = self.queue.load();
        self.load.send_if_modified(|current| std::mem::replace(current, load) != load);
    }

    /// Commands are handled in order, however slow the disk is.
    async fn on_command(&mut self, command: SchedulerCommand) {
        match command {
            SchedulerCommand::Submit(step, phase) => self.arrive(*step, phase),
            SchedulerCommand::Refuse(step, refusal) => {
                let (executor, name) = (Arc::clone(&self.executor), step.name());
                self.spawn(name, async move {
                    executor.refuse(&step, &refusal).await;
                    DriveEnd::Concluded
                });
            }
            SchedulerCommand::ReportAgain(name, known) => {
                let active = self.steps.get_mut(&name);
                match active.map(|active| (&active.signals.report_again, &mut active.withdrawn)) {
                    Some((_, Some(pushes))) => pushes.push(known),
                    Some((report_again, None)) => {
                        report_again.notify_one();
                        let _ = known.send(true);
                    }
                    None => _ = known.send(false),
                }
            }
            SchedulerCommand::Cancel { job, kind, done } => {
                let _ = done.send(self.cancel(job, kind).await);
            }
            SchedulerCommand::Drain(drained) => {
                self.on(Event::Drain);
                self.drain.cancel();
                self.publish_load();
                let _ = drained.send(());
            }
        }
    }

    fn arrive(&mut self, step: Step, phase: RecoveryPhase) {
        let (queued, name) = (QueuedStep::of(&step), step.name());
        let active = Active {
            step,
            phase,
            signals: StepSignals { drain: self.drain.clone(), ..StepSignals::default() },
            waiting: true,
            withdrawn: None,
            busy_logged: false,
            panicked: false,
        };
        self.steps.insert(name.clone(), active);
        if phase == RecoveryPhase::Prepare {
            self.on(Event::Arrived(queued));
        } else {
            self.on(Event::Adopted(queued));
            self.begin(&name);
        }
    }

    fn on(&mut self, event: Event) {
        for name in self.queue.on(event) {
            self.begin(&name);
        }
    }

    fn begin(&mut self, name: &str) {
        let Some(active) = self.steps.get_mut(name) else { return };
        active.waiting = false;
        let executor = Arc::clone(&self.executor);
        let (step, phase) = (active.step.clone(), active.phase);
        let signals = active.signals.clone();
        self.spawn(name.to_owned(), async move { executor.drive(&step, phase, &signals).await });
    }

    /// Starts a part of a step's life in a tokio task. A panic in it is an end like any other.
    fn spawn(&mut self, name: String, life: impl Future<Output = DriveEnd> + Send + 'static) {
        self.drives.spawn(async move {
            let ended = AssertUnwindSafe(life).catch_unwind().await;
            (name, ended.unwrap_or(DriveEnd::Panicked))
        });
    }

    fn on_ended(&mut self, ended: Result<(String, DriveEnd), JoinError>) {
        let (name, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => return error!(%error, "executor task failed"),
        };
        match ended {
            DriveEnd::Concluded => self.remove(name),
            DriveEnd::Panicked => self.recover_from_panic(name),
            DriveEnd::ClaimRefused { reason } => self.withdraw(name, reason),
            DriveEnd::Drained => self.wait_again(name),
            DriveEnd::DirectoryBusy { holder } => {
                let Some(active) = self.steps.get_mut(&name) else { return };
                if !std::mem::replace(&mut active.busy_logged, true) {
                    let step = &active.step;
                    let (module, job) = (step.work.module(), step.job_id().map(display));
                    info!(module, job, task = step.work.name(), holder, "waiting for module directory");
                }
                self.wait_again(name);
            }
        }
    }

    /// The server still gets an outcome. If recording it panics too, the slot is free nevertheless.
    fn recover_from_panic(&mut self, name: String) {
        error!(step = name, "executor panicked");
        let executor = Arc::clone(&self.executor);
        match self.steps.get_mut(&name) {
            Some(active) if !active.panicked => {
                active.panicked = true;
                let step = active.step.clone();
                self.spawn(name, async move {
                    executor.internal_error(&step, Instant::now()).await;
                    DriveEnd::Concluded
                });
            }
            _ => self.remove(name),
        }
    }

    fn remove(&mut self, name: String) {
        let removed = self.steps.remove(&name);
        for push in removed.and_then(|active| active.withdrawn).into_iter().flatten() {
            let _ = push.send(false);
        }
        self.on(Event::Ended(name));
    }

    /// Nothing of the step was done: it returns to the queue.
    fn wait_again(&mut self, name: String) {
        let Some(active) = self.steps.get_mut(&name) else { return };
        active.waiting = true;
        // A cancel may have arrived in the meantime.
        if active.signals.cancel.is_cancelled() && active.phase == RecoveryPhase::Prepare {
            self.conclude_unstarted(name);
        } else {
            self.on(Event::Busy(name));
        }
    }

    /// Ends a step whose claim was refused, unless its task was pushed again in the meantime. From here on, a push of the task
    /// waits until the folder is gone, and is a new step.
    fn withdraw(&mut self, name: String, reason: String) {
        let Some(active) = self.steps.get_mut(&name) else { return };
        if active.signals.report_again.notified().now_or_never().is_some() {
            return self.begin(&name);
        }
        let (executor, step) = (Arc::clone(&self.executor), active.step.clone());
        active.withdrawn = Some(Vec::new());
        self.spawn(name, async move {
            executor.withdraw(&step, &reason).await;
            DriveEnd::Concluded
        });
    }

    /// Records the cancel in the folders of the job's steps, or of all running steps; a waiting step ends at once.
    async fn cancel(&mut self, job: Option<Uuid>, kind: CancelKind) -> CancelledSteps {
        let by = if job.is_some() { CancelledBy::Server } else { CancelledBy::Drain };
        let applies = |active: &Active| match job {
            _ if active.withdrawn.is_some() => false,
            Some(_) => active.step.job_id() == job,
            None => !active.waiting,
        };
        let steps = self.steps.iter().filter(|(_, active)| applies(active));
        let names: Vec<String> = steps.map(|(name, _)| name.clone()).collect();
        let mut cancelled = CancelledSteps { steps: Vec::new(), error: None };
        for name in names {
            let Some(active) = self.steps.get(&name) else { continue };
            let folders = vec![active.step.folder.clone()];
            if let Err(error) = self.executor.record_cancel(folders, kind, by).await {
                warn!(step = name, error, "failed to record cancel in step folder");
                cancelled.error = Some(error);
            }
            active.signals.cancel.cancel();
            cancelled.steps.push(active.step.clone());
            // A step that waits for its conclusion has run its script, and ends as the script did.
            if active.waiting && active.phase == RecoveryPhase::Prepare {
                self.conclude_unstarted(name);
            }
        }
        cancelled
    }

    /// Ends an unstarted step as cancelled. It leaves the queue now; its outcome is written in a separate tokio task,
    /// since the disk may be slow.
    fn conclude_unstarted(&mut self, name: String) {
        let Some(active) = self.steps.get_mut(&name) else { return };
        active.waiting = false;
        let (executor, step) = (Arc::clone(&self.executor), active.step.clone());
        self.on(Event::Ended(name.clone()));
        self.spawn(name, async move {
            let secrets = executor.secret_store.job(step.job_id());
            executor.finish(&step, Outcome::Cancelled, &secrets, Instant::now()).await;
            DriveEnd::Concluded
        });
    }
}

#[cfg(test)]
mod tests;
