//! Turns each push into a step folder. This is the only reader of what the server sends.
//!
//! Pushes and acknowledgements of outcomes arrive in one stream, in the order of the wire. A push behind the acknowledgement of
//! the same task is a new step; a push in front of it is a repeat.
//!
//! An accepted push is on disk before it is reported. An unreadable push is answered with the task's `…Faulted` if its job is
//! known. That answer is a step folder too, so it is not lost, and so is the answer to a cancel.

use std::collections::HashSet;
use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use hawser_contract::{Fault, Outcome, Push, PushError, StepOutcome, Task};
use hawser_signalr::{Incoming, Invocation};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use crate::base::retry;
use crate::executor::{Executor, on_disk};
use crate::masking::Masker;
use crate::scheduler::Scheduler;
use crate::shipping::ShippedStep;
use crate::step::store::Created;
use crate::step::{
    CancelledBy, FolderError, RecoveryPhase, Step, StepFolder, StepKey, StepRequest, StepStore, StepWork,
    StoreError,
};

/// How many distinct unknown methods to log.
const UNKNOWN_METHODS: usize = 64;
/// How many characters of an unknown method to log.
const LONGEST_METHOD: usize = 100;

/// The contents of a step folder found at start.
#[derive(Debug)]
pub enum RecoveredStep {
    Step(Step),
    /// Only the outcome is left to send: the answer to a cancel or to an unreadable payload.
    Answer(ShippedStep),
    Cancel(UnansweredCancel),
}

/// A cancel without an answer: it may not have reached every step of the job.
#[derive(Debug, Clone)]
pub struct UnansweredCancel {
    pub kind: CancelKind,
    pub job_id: Uuid,
    pub answer: ShippedStep,
}

/// Reads the request of a step folder again. An unreadable request gets its outcome now, if a crash prevented that.
pub fn reread(
    folder: StepFolder,
    request: &StepRequest,
    masker: &Masker,
) -> Result<RecoveredStep, FolderError> {
    let step = |folder, work| RecoveredStep::Step(Step { folder, work });
    match request.push() {
        Ok(Push::Task(task)) => Ok(step(folder, StepWork::Task(task))),
        Ok(Push::SourceRefresh(refresh)) => Ok(step(folder, StepWork::Refresh(refresh))),
        Ok(Push::Cancel(kind, job_id)) if folder.outcome()?.is_none() => {
            let answer = ShippedStep::answer(folder);
            Ok(RecoveredStep::Cancel(UnansweredCancel { kind, job_id, answer }))
        }
        Ok(Push::Cancel(..)) => Ok(RecoveredStep::Answer(ShippedStep::answer(folder))),
        Err(problem) => {
            if folder.outcome()?.is_none() {
                let PushError::Unreadable { answer_to: Some((task, job_id)), .. } = &problem else {
                    let (path, reason) = (folder.path().to_owned(), problem.to_string());
                    return Err(FolderError::Damaged { path, reason });
                };
                folder.set_outcome(&masker.outcome(refusal(*task, *job_id, &problem)))?;
            }
            Ok(RecoveredStep::Answer(ShippedStep::answer(folder)))
        }
    }
}

/// Reports an unknown outcome for a damaged folder that was set aside. Until that is acknowledged, a push of the task is a
/// repeat.
pub fn answer_for_damaged(
    store: &StepStore,
    damaged: &StepFolder,
) -> Result<Option<ShippedStep>, StoreError> {
    let Some((job_id, task)) = damaged.key().job_and_task() else {
        store.mark_reported(damaged);
        return Ok(None);
    };
    let fault = Fault::new(
        "unknown outcome: the runner's record of this task was damaged and has been set aside (see the runner's log). The \
         task was not run again, and may have been running: check the state lock and the state before the next run.",
    );
    let outcome = Outcome::Faulted(fault).of(task, job_id);
    let payload = json!({ "jobId": job_id });
    let created = store.create_report(damaged, task.pushed_as(), &payload, &outcome)?;
    Ok(created.map(ShippedStep::answer))
}

fn refusal(task: Task, job_id: Uuid, problem: &PushError) -> StepOutcome {
    Outcome::Faulted(Fault::new(problem.to_string())).of(task, job_id)
}

/// The reader of what the server sends.
#[derive(Debug)]
pub struct Intake {
    store: Arc<StepStore>,
    scheduler: Scheduler,
    executor: Arc<Executor>,
    unknown_methods: HashSet<String>,
    stop: CancellationToken,
    /// Background work that must not delay the next push.
    background: TaskTracker,
}

impl Intake {
    pub fn new(
        store: Arc<StepStore>,
        scheduler: Scheduler,
        executor: Arc<Executor>,
        stop: CancellationToken,
    ) -> Self {
        let (unknown_methods, background) = (HashSet::new(), TaskTracker::new());
        Self { store, scheduler, executor, unknown_methods, stop, background }
    }

    fn masker(&self) -> Arc<Masker> {
        self.executor.secret_store.masker()
    }

    /// Handles what the server sends until the connection or the runner stops.
    pub async fn run(mut self, mut incoming: mpsc::Receiver<Incoming>) {
        let stop = self.stop.clone();
        while let Some(Some(message)) = stop.run_until_cancelled(incoming.recv()).await {
            match message {
                Incoming::Invocation(push) => self.push(push).await,
                Incoming::Completion(completion) => {
                    if completion.result.is_ok() {
                        self.store.acknowledged(completion.tag);
                    }
                    completion.deliver();
                }
            }
        }
        self.background.close();
        self.background.wait().await;
    }

    /// Handles one push. Most servers do not wait for the answer.
    async fn push(&mut self, Invocation { target, arguments, reply }: Invocation) {
        let answer = self.take(&target, &arguments).await;
        if let Some(reply) = reply {
            let answer = answer.map(|()| Value::Null);
            reply.answer(answer.map_err(|reason| self.masker().text(&reason).into_owned()));
        }
    }

    async fn take(&mut self, target: &str, arguments: &[Value]) -> Result<(), String> {
        let payload = arguments.first().cloned().unwrap_or(Value::Null);
        let (key, work) = match Push::read(target, arguments) {
            Ok(Push::Task(request)) => {
                (StepKey::task(request.common.job_id, request.task.task()), StepWork::Task(request))
            }
            Ok(Push::SourceRefresh(refresh)) => (StepKey::refresh(&refresh), StepWork::Refresh(refresh)),
            Ok(Push::Cancel(kind, job_id)) => return self.cancel(kind, job_id, target, payload).await,
            Err(PushError::UnknownMethod { .. }) => return self.ignore(target),
            Err(problem) => return self.refuse(&problem, target, payload).await,
        };
        let mut kept = self.keep(&key, target, payload.clone()).await;
        if let Ok(Created::Known(folder)) = &kept {
            debug!(step = folder.name(), "ignoring repeated push, reporting task as running");
            if self.scheduler.report_again(folder.name()).await {
                return Ok(());
            }
            // Its claim may have been refused in between. Otherwise it has its outcome, which is sent until it is acknowledged.
            kept = self.keep(&key, target, payload).await;
        }
        match kept {
            Ok(Created::New(folder)) => {
                let step = Step { folder, work };
                debug!(step = step.name(), "task received");
                self.executor.shipper.add(ShippedStep::of(&step)).await;
                self.scheduler.submit(step, RecoveryPhase::Prepare).await;
                Ok(())
            }
            Ok(Created::Known(_)) => Ok(()),
            Err(reason) => {
                if let Some((job_id, task)) = key.job_and_task() {
                    self.executor.audit.not_taken(job_id, Some(task), "it could not be stored").await;
                }
                self.report_unstored(work.ended(Outcome::Faulted(Fault::new(&reason))), reason)
            }
        }
    }

    fn ignore(&mut self, target: &str) -> Result<(), String> {
        // Masked first: a truncated or quoted secret would not be recognized.
        let masked = self.masker().text(target).into_owned();
        let method: String = masked.chars().take(LONGEST_METHOD).collect();
        if self.unknown_methods.len() < UNKNOWN_METHODS && self.unknown_methods.insert(method.clone()) {
            warn!(method, "server pushed unknown method, ignoring it");
        }
        Err(PushError::UnknownMethod { method }.to_string())
    }

    /// Stores the cancel, signals the job's supervisors and records it in every folder of the job, then answers. A start that finds a cancel without an answer repeats the rest.
    async fn cancel(
        &self,
        kind: CancelKind,
        job_id: Uuid,
        target: &str,
        payload: Value,
    ) -> Result<(), String> {
        info!(job = %job_id, ?kind, "cancel received");
        let answer = StepOutcome::of_cancel(kind, job_id);
        let kept = self.keep(&StepKey::cancel(kind, job_id), target, payload).await;
        // Even if storing failed. Unrecovered folders first: they may move to the scheduler in the meantime.
        let recorded = self.record_in_unrecovered(kind, job_id).await;
        let recorded = recorded.and(self.scheduler.cancel(Some(job_id), kind).await);
        match (kept, recorded) {
            (Ok(Created::New(folder)), Ok(())) => self.answer(folder, answer).await,
            (Ok(Created::New(folder)), Err(error)) => {
                warn!(job = %job_id, error, "failed to record cancel, retrying");
                self.store.leave(&folder);
            }
            (Ok(Created::Known(_)), _) => {}
            // It has reached the steps, even if it could not be recorded in their folders.
            (Err(reason), _) => return self.answer_unstored(answer, reason),
        }
        Ok(())
    }

    /// The disk failed: answers a cancel directly, and repeats that until the server acknowledges it or the runner stops.
    fn answer_unstored(&self, answer: StepOutcome, reason: String) -> Result<(), String> {
        error!(reason, "failed to store cancel, answering it without");
        let call = self.masker().outcome(answer).call();
        let (hub, stop) = (self.executor.hub.clone(), self.stop.clone());
        self.background.spawn(stop.run_until_cancelled_owned(async move {
            while let Err(error) = hub.invoke(&call.method, &call.arguments).await {
                debug!(method = call.method, %error, "failed to answer cancel, retrying");
                tokio::time::sleep(retry::ANSWER).await;
            }
        }));
        Err(reason)
    }

    /// Records a cancel in the folders of the job that could not be recovered so far.
    async fn record_in_unrecovered(&self, kind: CancelKind, job_id: Uuid) -> Result<(), String> {
        let left: Vec<_> =
            self.store.left().into_iter().filter(|folder| folder.key().is_task_of(job_id)).collect();
        self.executor.record_cancel(left, kind, CancelledBy::Server).await
    }

    async fn refuse(&self, problem: &PushError, target: &str, payload: Value) -> Result<(), String> {
        warn!(error = %problem, "failed to read push");
        let PushError::Unreadable { answer_to: Some((task, job_id)), .. } = problem else {
            return Err(problem.to_string());
        };
        let kept = self.keep(&StepKey::task(*job_id, *task), target, payload).await;
        if let Ok(Created::Known(folder)) = kept {
            warn!(step = folder.name(), "ignoring unreadable push of a known task");
            return Err(problem.to_string());
        }
        self.executor.audit.not_taken(*job_id, Some(*task), "its payload cannot be read").await;
        let answer = refusal(*task, *job_id, problem);
        match kept {
            Ok(Created::New(folder)) => self.answer(folder, answer).await,
            Ok(Created::Known(_)) => {}
            Err(reason) => return self.report_unstored(answer, reason),
        }
        Err(problem.to_string())
    }

    async fn keep(&self, key: &StepKey, method: &str, payload: Value) -> Result<Created, String> {
        let (store, key, method) = (Arc::clone(&self.store), key.clone(), method.to_owned());
        let kept = on_disk(move || store.create(&key, &method, &payload)).await;
        kept.map_err(|error| format!("failed to store the task: {error}"))
    }

    /// Writes and ships an answer.
    async fn answer(&self, folder: StepFolder, outcome: StepOutcome) {
        let outcome = self.masker().outcome(outcome);
        let (answer, stop) = (ShippedStep::answer(folder.clone()), self.stop.clone());
        let write = move || {
            let (folder, outcome) = (folder.clone(), outcome.clone());
            on_disk(move || folder.set_outcome(&outcome))
        };
        if let Err(error) = write().await {
            error!(step = answer.folder.name(), error, "failed to write answer, retrying");
            self.background.spawn(async move {
                // If the runner stops first, the next start writes the answer.
                while stop.run_until_cancelled(tokio::time::sleep(retry::ANSWER)).await.is_some() {
                    if write().await.is_ok() {
                        return;
                    }
                }
            });
        }
        self.executor.shipper.add(answer).await;
    }

    /// The disk failed: sends the outcome directly, once. In the background, because the answer arrives on the same
    /// connection as the next pushes.
    fn report_unstored(&self, outcome: StepOutcome, reason: String) -> Result<(), String> {
        error!(reason, "push not accepted");
        let call = self.masker().outcome(outcome).call();
        let (hub, stop) = (self.executor.hub.clone(), self.stop.clone());
        self.background.spawn(async move {
            let sent = stop.run_until_cancelled(hub.invoke(&call.method, &call.arguments)).await;
            if let Some(Err(error)) = sent {
                error!(method = call.method, %error, "failed to report rejected push");
            }
        });
        Err(reason)
    }
}
