//! Turns each push into a step folder. This is the only reader of pushes.
//!
//! An accepted push is on disk before it is reported. An unreadable push is answered with the task's `…Faulted` if its job is
//! known. That answer is a step folder too, so it is not lost, and so is the answer to a cancel.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Fault, Outcome, Push, PushError, StepOutcome, Subject, Task};
use hawser_signalr::{HubClient, Invocation};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use crate::base::blocking::blocking;
use crate::base::retry;
use crate::masking::{Masker, SecretStore};
use crate::scheduler::Scheduler;
use crate::shipping::{ShippedStep, ShipperHandle};
use crate::step::store::Created;
use crate::step::{CancelledBy, Step, StepFolder, StepId, StepRequest, StepStore, StepWork, StoreError};

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
    /// A cancel without an answer: it may not have reached every step of the job.
    Cancel {
        kind: CancelKind,
        job_id: Uuid,
        answer: ShippedStep,
    },
}

/// Reads the request of a step folder again. An unreadable request gets its outcome now, if a crash prevented that.
pub fn reread(
    folder: StepFolder,
    request: &StepRequest,
    masker: &Masker,
) -> Result<RecoveredStep, crate::step::FolderError> {
    let sequence = request.sequence;
    match request.push() {
        Ok(Push::Task(task)) => {
            Ok(RecoveredStep::Step(Step { folder, sequence, work: StepWork::Task(task) }))
        }
        Ok(Push::SourceRefresh(refresh)) => {
            Ok(RecoveredStep::Step(Step { folder, sequence, work: StepWork::Refresh(refresh) }))
        }
        Ok(Push::Cancel(kind, job_id)) => {
            let answered = folder.outcome()?.is_some();
            let answer = ShippedStep { folder, sequence, labels: None };
            Ok(if answered {
                RecoveredStep::Answer(answer)
            } else {
                RecoveredStep::Cancel { kind, job_id, answer }
            })
        }
        Err(problem) => {
            if folder.outcome()?.is_none() {
                let PushError::Unreadable { answer_to: Some((task, job_id)), .. } = &problem else {
                    return Err(crate::step::FolderError::Damaged {
                        path: folder.path().to_owned(),
                        reason: problem.to_string(),
                    });
                };
                folder.set_outcome(&masker.outcome(refusal(*task, *job_id, &problem)))?;
            }
            Ok(RecoveredStep::Answer(ShippedStep { folder, sequence, labels: None }))
        }
    }
}

/// Reports an unknown outcome for a damaged folder that was set aside. The answer is in a folder of the same name, so that
/// a repeated push of the task is not mistaken for a new one.
pub fn answer_for_damaged(store: &StepStore, id: &StepId) -> Result<Option<ShippedStep>, StoreError> {
    let Some((job_id, task)) = id.job_and_task() else { return Ok(None) };
    let fault = Fault::new(
        "unknown outcome: the runner's record of this task was damaged and has been set aside (see the runner's log). The \
         task was not run again, and may have been running: check the state lock and the state before the next run.",
    );
    let outcome = Outcome::Faulted(fault).of(task, job_id);
    let payload = json!({ "jobId": job_id });
    match store.create_with(id, task.pushed_as(), &payload, Some(&outcome))? {
        Created::New(folder, request) => {
            Ok(Some(ShippedStep { folder, sequence: request.sequence, labels: None }))
        }
        Created::Known(_) => Ok(None),
    }
}

fn refusal(task: Task, job_id: Uuid, problem: &PushError) -> StepOutcome {
    Outcome::Faulted(Fault::new(problem.to_string())).of(task, job_id)
}

/// The reader of pushes.
#[derive(Debug)]
pub struct Intake {
    pub store: Arc<StepStore>,
    pub scheduler: Scheduler,
    pub shipper: ShipperHandle,
    pub hub: HubClient,
    secret_store: SecretStore,
    /// `Runner.CancelGraceSeconds`
    cancel_grace: Duration,
    unknown_methods: HashSet<String>,
    stop: CancellationToken,
    /// Background work that must not delay the next push.
    background: TaskTracker,
}

impl Intake {
    pub fn new(
        store: Arc<StepStore>,
        scheduler: Scheduler,
        shipper: ShipperHandle,
        hub: HubClient,
        secret_store: SecretStore,
        cancel_grace: Duration,
        stop: CancellationToken,
    ) -> Self {
        let (unknown_methods, background) = (HashSet::new(), TaskTracker::new());
        Self { store, scheduler, shipper, hub, secret_store, cancel_grace, unknown_methods, stop, background }
    }

    /// Handles pushes until the connection or the runner stops.
    pub async fn run(mut self, mut pushes: mpsc::Receiver<Invocation>) {
        let stop = self.stop.clone();
        while let Some(Some(pushed)) = stop.run_until_cancelled(pushes.recv()).await {
            let Invocation { target, arguments, received, reply } = pushed;
            let answer = self.take(&target, &arguments, received).await;
            if let Some(reply) = reply {
                reply.answer(answer.map_err(|reason| self.secret_store.masker().text(&reason).into_owned()));
            }
        }
        self.background.close();
        self.background.wait().await;
    }

    /// Handles one push. Most servers do not wait for the answer.
    async fn take(&mut self, target: &str, arguments: &[Value], received: Instant) -> Result<Value, String> {
        let payload = arguments.first().cloned().unwrap_or(Value::Null);
        match Push::read(target, arguments) {
            Ok(Push::Task(request)) => {
                let id = StepId::task(request.common.job_id, request.task.task());
                let fault = |reason: &str| {
                    Outcome::Faulted(Fault::new(reason)).of(request.task.task(), request.common.job_id)
                };
                if self.is_repeat(&id, received) {
                    return Ok(Value::Null);
                }
                match self.keep(&id, target, payload).await {
                    Ok(created) => self.accept(created, StepWork::Task(request)).await,
                    Err(reason) => {
                        let (job_id, task) = (request.common.job_id, request.task.task());
                        self.scheduler.audit().not_taken(job_id, Some(task), "it could not be kept").await;
                        return self.cannot_keep(fault(&reason), reason);
                    }
                }
            }
            Ok(Push::SourceRefresh(refresh)) => {
                let id = StepId::refresh(&refresh);
                if self.is_repeat(&id, received) {
                    return Ok(Value::Null);
                }
                match self.keep(&id, target, payload).await {
                    Ok(created) => self.accept(created, StepWork::Refresh(refresh)).await,
                    Err(reason) => {
                        let outcome = Outcome::Faulted(Fault::new(&reason));
                        let subject = Subject::SourceRefresh(refresh);
                        return self.cannot_keep(StepOutcome { subject, outcome }, reason);
                    }
                }
            }
            Ok(Push::Cancel(kind, job_id)) => return self.cancel(kind, job_id, target, payload).await,
            Err(PushError::UnknownMethod { .. }) => {
                // Masked first: a truncated or quoted secret would not be recognized.
                let masked = self.secret_store.masker().text(target).into_owned();
                let method: String = masked.chars().take(LONGEST_METHOD).collect();
                let more = self.unknown_methods.len() < UNKNOWN_METHODS;
                if more && self.unknown_methods.insert(method.clone()) {
                    warn!(method, "server pushed unknown method, ignoring it");
                }
                return Err(PushError::UnknownMethod { method }.to_string());
            }
            Err(problem) => return self.refuse(&problem, target, payload).await,
        }
        Ok(Value::Null)
    }

    /// Whether the server pushed the step before it acknowledged the result, and the acknowledgement overtook the push
    /// inside the runner.
    fn is_repeat(&self, id: &StepId, received: Instant) -> bool {
        let repeat = self.store.retired_since(id, received);
        if repeat {
            debug!(step = %id, "ignoring repeated push, result already acknowledged");
        }
        repeat
    }

    async fn accept(&self, created: Created, work: StepWork) {
        match created {
            Created::New(folder, request) => {
                let step = Step { folder, sequence: request.sequence, work };
                debug!(step = step.name(), "task received");
                self.shipper.add(ShippedStep::of(&step)).await;
                self.scheduler.submit(step).await;
            }
            Created::Known(folder) => {
                debug!(step = folder.name(), "ignoring repeated push, reporting task as running");
                self.scheduler.report_again(folder.name()).await;
            }
        }
    }

    /// Stores the cancel, records it in every folder of the job (from where it reaches the supervisor even if this process
    /// dies), then answers. A start that finds a cancel without an answer repeats the rest.
    async fn cancel(
        &self,
        kind: CancelKind,
        job_id: Uuid,
        target: &str,
        payload: Value,
    ) -> Result<Value, String> {
        info!(job = %job_id, ?kind, "cancel received");
        let id = StepId::cancel(kind, job_id);
        let answer = StepOutcome::of_cancel(kind, job_id);
        let kept = self.keep(&id, target, payload).await;
        // Even if storing failed. Unrecovered folders first: they may move to the scheduler in the meantime.
        let recorded = self.record_in_unrecovered(kind, job_id).await;
        let recorded = recorded.and(self.scheduler.cancel(job_id, kind).await);
        match kept {
            Ok(Created::New(folder, request)) => {
                if let Err(error) = recorded {
                    warn!(job = %job_id, error, "failed to record cancel, retrying");
                    self.store.leave(&folder);
                    return Ok(Value::Null);
                }
                self.keep_outcome(&folder, answer).await;
                self.shipper.add(ShippedStep { folder, sequence: request.sequence, labels: None }).await;
                Ok(Value::Null)
            }
            Ok(Created::Known(_)) => Ok(Value::Null),
            // Not answered if it is neither stored nor recorded.
            Err(reason) => match recorded {
                Ok(()) => self.cannot_keep(answer, reason),
                Err(_) => Err(reason),
            },
        }
    }

    /// Records a cancel in the folders of the job that could not be recovered so far.
    async fn record_in_unrecovered(&self, kind: CancelKind, job_id: Uuid) -> Result<(), String> {
        let left: Vec<_> =
            self.store.left().into_iter().filter(|folder| folder.id().is_task_of(job_id)).collect();
        let grace = self.cancel_grace;
        let noting =
            move || left.iter().try_for_each(|folder| folder.cancel_as(kind, grace, CancelledBy::Server));
        match blocking(noting).await {
            Ok(noted) => noted.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn refuse(&self, problem: &PushError, target: &str, payload: Value) -> Result<Value, String> {
        warn!(error = %problem, "failed to read push");
        let PushError::Unreadable { answer_to: Some((task, job_id)), .. } = problem else {
            return Err(problem.to_string());
        };
        let answer = refusal(*task, *job_id, problem);
        match self.keep(&StepId::task(*job_id, *task), target, payload).await {
            Ok(Created::New(folder, request)) => {
                self.scheduler.audit().not_taken(*job_id, Some(*task), "its payload cannot be read").await;
                self.keep_outcome(&folder, answer).await;
                self.shipper.add(ShippedStep { folder, sequence: request.sequence, labels: None }).await;
            }
            Ok(Created::Known(folder)) => {
                warn!(step = folder.name(), "ignoring unreadable push of a known task");
            }
            Err(reason) => {
                self.scheduler.audit().not_taken(*job_id, Some(*task), "its payload cannot be read").await;
                return self.cannot_keep(answer, reason);
            }
        }
        Err(problem.to_string())
    }

    async fn keep(&self, id: &StepId, method: &str, payload: Value) -> Result<Created, String> {
        let (store, id, method) = (Arc::clone(&self.store), id.clone(), method.to_owned());
        let kept = blocking(move || store.create(&id, &method, &payload)).await;
        kept.map_err(|error| error.to_string())?
            .map_err(|error: StoreError| format!("failed to store the task: {error}"))
    }

    async fn keep_outcome(&self, folder: &StepFolder, outcome: StepOutcome) {
        let outcome = self.secret_store.masker().outcome(outcome);
        let Err(error) = write_outcome(folder, &outcome).await else { return };
        error!(step = folder.name(), error, "failed to write answer, retrying");
        let (folder, stop) = (folder.clone(), self.stop.clone());
        self.background.spawn(async move {
            // If the runner stops first, the next start writes the answer.
            while stop.run_until_cancelled(tokio::time::sleep(retry::ANSWER)).await.is_some() {
                if write_outcome(&folder, &outcome).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// The disk failed: sends the outcome directly, once. In the background, because the answer arrives on the same
    /// connection as the next pushes.
    fn cannot_keep(&self, answer: StepOutcome, reason: String) -> Result<Value, String> {
        error!(reason, "push not accepted");
        let answer = self.secret_store.masker().outcome(answer).call();
        let (hub, stop) = (self.hub.clone(), self.stop.clone());
        self.background.spawn(async move {
            let sent = stop.run_until_cancelled(hub.invoke(&answer.method, &answer.arguments)).await;
            if let Some(Err(error)) = sent {
                error!(method = answer.method, %error, "failed to report rejected push");
            }
        });
        Err(reason)
    }
}

async fn write_outcome(folder: &StepFolder, outcome: &StepOutcome) -> Result<(), String> {
    let (folder, outcome) = (folder.clone(), outcome.clone());
    let written = blocking(move || folder.set_outcome(&outcome)).await;
    written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
