//! A pushed message becomes a step folder. The only reader of pushes.
//!
//! Whatever is accepted is on disk before anyone is told about it. What cannot be read is answered with that
//! task's `…Faulted` if its job is known, and that answer is a step folder too, so it is not lost either. The
//! answer to a cancel is kept in the same way, in a folder of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Fault, Outcome, Push, PushError, SourceRefresh, Task};
use hawser_signalr::{HubClient, Invocation};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::masking::{Masker, SecretStore};
use crate::scheduler::Scheduler;
use crate::shipping::{ShippedStep, ShipperHandle};
use crate::step::store::Created;
use crate::step::{CancelledBy, Step, StepFolder, StepRequest, StepStore, StepWork, StoreError};

/// How many unknown methods are warned about; a server that invents more of them is not worth the memory.
const UNKNOWN_METHODS: usize = 64;
/// As much of an unknown method's name is said. A message may hold megabytes of it.
const LONGEST_METHOD: usize = 100;

/// What a step folder found at start turns out to be.
#[derive(Debug)]
pub enum RecoveredStep {
    Step(Step),
    /// Only its outcome is left to be sent: a cancel's answer, or a refusal of a payload that cannot be read.
    Answer(ShippedStep),
    /// A cancel that was taken in and not answered: nobody knows how many of the job's steps have heard of it.
    Cancel {
        kind: CancelKind,
        job_id: Uuid,
        answer: ShippedStep,
    },
}

/// Reads a step folder's request again. A request that cannot be read gets its outcome now, if a crash came
/// before that was written.
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
                folder.set_outcome(&masker.call(refusal(*task, *job_id, &problem)))?;
            }
            Ok(RecoveredStep::Answer(ShippedStep { folder, sequence, labels: None }))
        }
    }
}

/// A folder that was damaged has been set aside, and nobody will ever know what came of its task. The server is told
/// so, in a folder of the same name: the task is not taken for a new one when it is pushed again meanwhile.
pub fn answer_for_damaged(store: &StepStore, name: &str) -> Result<Option<ShippedStep>, StoreError> {
    let Some((job_id, task)) = identity(name) else { return Ok(None) };
    let fault = Fault::new(
        "unknown outcome: the runner's record of this task was damaged and has been set aside (its log says where). It \
         was not run again, and may have been running: check the state lock and the state before the next run.",
    );
    let call = Outcome::Faulted(fault).call(task, job_id);
    let payload = json!({ "jobId": job_id });
    match store.create_with(name, task.pushed_as(), &payload, Some(&call))? {
        Created::New(folder, request) => {
            Ok(Some(ShippedStep { folder, sequence: request.sequence, labels: None }))
        }
        Created::Known(_) => Ok(None),
    }
}

/// The call that answers a cancel.
pub fn cancel_answer(kind: CancelKind, job_id: Uuid) -> Call {
    Call { method: kind.completed_method().to_owned(), arguments: vec![json!(job_id)] }
}

fn refusal(task: Task, job_id: Uuid, problem: &PushError) -> Call {
    Outcome::Faulted(Fault::new(problem.to_string())).call(task, job_id)
}

/// The job and the task that a folder of this name is for.
pub fn identity(name: &str) -> Option<(Uuid, Task)> {
    let (job_id, task) = name.split_once('.')?;
    Some((job_id.parse().ok()?, Task::from_name(task)?))
}

/// Whether a folder is that of a task of the job.
pub fn is_of_job(folder: &StepFolder, job_id: Uuid) -> bool {
    identity(&folder.name()).is_some_and(|(of, _)| of == job_id)
}

fn task_folder(job_id: Uuid, task: Task) -> String {
    format!("{job_id}.{task}")
}

/// Two requests to refresh the same revision of the same source are the same step.
fn refresh_folder(refresh: &SourceRefresh) -> String {
    let identity = json!([
        refresh.source_url,
        refresh.source_revision,
        refresh.source_type,
        refresh.source_revision_type
    ]);
    let digest = Sha256::digest(identity.to_string());
    let short: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("refresh.{short}")
}

/// How long to wait before an answer that the disk did not take is written again.
const ANSWER_AGAIN: Duration = Duration::from_secs(5);

/// The reader of pushes.
#[derive(Debug)]
pub struct Intake {
    pub store: Arc<StepStore>,
    pub scheduler: Scheduler,
    pub shipper: ShipperHandle,
    pub line: HubClient,
    secret_store: SecretStore,
    /// `Runner.CancelGraceSeconds`
    cancel_grace: Duration,
    unknown_methods: HashSet<String>,
    stop: CancellationToken,
    /// What goes on beside the taking of pushes: nothing may hold that up.
    beside: TaskTracker,
}

impl Intake {
    pub fn new(
        store: Arc<StepStore>,
        scheduler: Scheduler,
        shipper: ShipperHandle,
        line: HubClient,
        secret_store: SecretStore,
        cancel_grace: Duration,
        stop: CancellationToken,
    ) -> Self {
        let (unknown_methods, beside) = (HashSet::new(), TaskTracker::new());
        Self { store, scheduler, shipper, line, secret_store, cancel_grace, unknown_methods, stop, beside }
    }

    /// Takes pushes until there are no more or the runner stops.
    pub async fn run(mut self, mut pushes: mpsc::Receiver<Invocation>) {
        let stop = self.stop.clone();
        while let Some(Some(pushed)) = stop.run_until_cancelled(pushes.recv()).await {
            let Invocation { target, arguments, received, reply } = pushed;
            let answer = self.take(&target, &arguments, received).await;
            if let Some(reply) = reply {
                reply.answer(answer.map_err(|reason| self.secret_store.masker().text(&reason).into_owned()));
            }
        }
        self.beside.close();
        self.beside.wait().await;
    }

    /// Takes one push. The answer is for a server that waits for one; most do not.
    async fn take(&mut self, target: &str, arguments: &[Value], received: Instant) -> Result<Value, String> {
        let payload = arguments.first().cloned().unwrap_or(Value::Null);
        match Push::read(target, arguments) {
            Ok(Push::Task(request)) => {
                let name = task_folder(request.common.job_id, request.task.task());
                let fault = |reason: &str| {
                    Outcome::Faulted(Fault::new(reason)).call(request.task.task(), request.common.job_id)
                };
                if self.is_repeat(&name, received) {
                    return Ok(Value::Null);
                }
                match self.keep(&name, target, payload).await {
                    Ok(created) => self.accept(created, StepWork::Task(request)).await,
                    Err(reason) => {
                        let (job_id, task) = (request.common.job_id, request.task.task());
                        self.scheduler.audit().not_taken(job_id, Some(task), "it could not be kept").await;
                        return self.cannot_keep(fault(&reason), reason);
                    }
                }
            }
            Ok(Push::SourceRefresh(refresh)) => {
                let name = refresh_folder(&refresh);
                if self.is_repeat(&name, received) {
                    return Ok(Value::Null);
                }
                match self.keep(&name, target, payload).await {
                    Ok(created) => self.accept(created, StepWork::Refresh(refresh)).await,
                    Err(reason) => {
                        return self.cannot_keep(refresh.faulted(&Fault::new(&reason)), reason);
                    }
                }
            }
            Ok(Push::Cancel(kind, job_id)) => return self.cancel(kind, job_id, target, payload).await,
            Err(PushError::UnknownMethod { .. }) => {
                // Masked before it is cut or quoted: half of a secret, or a quoted one, would not be known for it.
                let masked = self.secret_store.masker().text(target).into_owned();
                let method: String = masked.chars().take(LONGEST_METHOD).collect();
                let more = self.unknown_methods.len() < UNKNOWN_METHODS;
                if more && self.unknown_methods.insert(method.clone()) {
                    warn!("the server pushed a method that this runner does not know: {method} (said once)");
                }
                return Err(PushError::UnknownMethod { method }.to_string());
            }
            Err(problem) => return self.refuse(&problem, target, payload).await,
        }
        Ok(Value::Null)
    }

    /// The server had pushed the step again before it acknowledged the result, and the acknowledgement overtook
    /// the push on its way through the runner.
    fn is_repeat(&self, name: &str, received: Instant) -> bool {
        let repeat = self.store.retired_since(name, received);
        if repeat {
            info!(step = name, "pushed again before its result was acknowledged; it is not run twice");
        }
        repeat
    }

    async fn accept(&self, created: Created, work: StepWork) {
        match created {
            Created::New(folder, request) => {
                let step = Step { folder, sequence: request.sequence, work };
                info!(step = step.name(), "received");
                self.shipper.add(ShippedStep::of(&step)).await;
                self.scheduler.submit(step).await;
            }
            Created::Known(folder) => {
                info!(step = folder.name(), "pushed again; it is not run twice");
                self.scheduler.report_again(folder.name()).await;
            }
        }
    }

    /// Keeps the cancel, then notes it in every folder of the job, from where it reaches the supervisor even when this
    /// process dies, then answers. A start that finds it without its answer does the rest again.
    async fn cancel(
        &self,
        kind: CancelKind,
        job_id: Uuid,
        target: &str,
        payload: Value,
    ) -> Result<Value, String> {
        info!(%job_id, ?kind, "cancel");
        // A name of its own: each cancel is answered, even when the answer to an earlier one is still on its way
        // or is just being acknowledged.
        let name = format!("{job_id}.{}.{}", kind.pushed_as(), Uuid::new_v4().simple());
        let answer = cancel_answer(kind, job_id);
        let kept = self.keep(&name, target, payload).await;
        // Whether it could be kept or not. A step that could not be looked at yet is not the scheduler's, but may become it
        // meanwhile: so this first.
        let noted = self.note_left(kind, job_id).await;
        let passed_on = self.scheduler.cancel(job_id, kind).await;
        let noted = noted.and(passed_on);
        match kept {
            Ok(Created::New(folder, request)) => {
                if let Err(problem) = noted {
                    warn!(%job_id, "a cancel could not be carried out, and is tried again: {problem}");
                    self.store.leave(&folder);
                    return Ok(Value::Null);
                }
                self.keep_outcome(&folder, answer).await;
                self.shipper.add(ShippedStep { folder, sequence: request.sequence, labels: None }).await;
                Ok(Value::Null)
            }
            Ok(Created::Known(_)) => Ok(Value::Null),
            // Neither on disk nor carried out: the server must not hear that it was.
            Err(reason) => match noted {
                Ok(()) => self.cannot_keep(answer, reason),
                Err(_) => Err(reason),
            },
        }
    }

    /// Notes a cancel in those folders of the job that nobody could take up so far.
    async fn note_left(&self, kind: CancelKind, job_id: Uuid) -> Result<(), String> {
        let left: Vec<_> = self.store.left().into_iter().filter(|folder| is_of_job(folder, job_id)).collect();
        let grace = self.cancel_grace;
        let noting =
            move || left.iter().try_for_each(|folder| folder.cancel_as(kind, grace, CancelledBy::Server));
        match tokio::task::spawn_blocking(noting).await {
            Ok(noted) => noted.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn refuse(&self, problem: &PushError, target: &str, payload: Value) -> Result<Value, String> {
        warn!("{problem}");
        let PushError::Unreadable { answer_to: Some((task, job_id)), .. } = problem else {
            return Err(problem.to_string());
        };
        let answer = refusal(*task, *job_id, problem);
        match self.keep(&task_folder(*job_id, *task), target, payload).await {
            Ok(Created::New(folder, request)) => {
                self.scheduler.audit().not_taken(*job_id, Some(*task), "its payload cannot be read").await;
                self.keep_outcome(&folder, answer).await;
                self.shipper.add(ShippedStep { folder, sequence: request.sequence, labels: None }).await;
            }
            Ok(Created::Known(folder)) => {
                warn!(step = folder.name(), "the task is here already; the unreadable push of it is ignored");
            }
            Err(reason) => {
                self.scheduler.audit().not_taken(*job_id, Some(*task), "its payload cannot be read").await;
                return self.cannot_keep(answer, reason);
            }
        }
        Err(problem.to_string())
    }

    async fn keep(&self, name: &str, method: &str, payload: Value) -> Result<Created, String> {
        let (store, name, method) = (Arc::clone(&self.store), name.to_owned(), method.to_owned());
        let kept = tokio::task::spawn_blocking(move || store.create(&name, &method, &payload)).await;
        kept.map_err(|error| error.to_string())?
            .map_err(|error: StoreError| format!("this runner cannot keep the task: {error}"))
    }

    async fn keep_outcome(&self, folder: &StepFolder, call: Call) {
        let call = self.secret_store.masker().call(call);
        let Err(error) = write_outcome(folder, &call).await else { return };
        error!(step = folder.name(), "an answer cannot be kept and is tried again: {error}");
        let (folder, stop) = (folder.clone(), self.stop.clone());
        self.beside.spawn(async move {
            // A runner that leaves before it works out makes the answer again at its next start.
            while stop.run_until_cancelled(tokio::time::sleep(ANSWER_AGAIN)).await.is_some() {
                if write_outcome(&folder, &call).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// The disk refuses: the server is told directly, once, which is better than silence. Nobody waits for that
    /// here, since the answer comes by the same way as the next pushes.
    fn cannot_keep(&self, answer: Call, reason: String) -> Result<Value, String> {
        error!("{reason}");
        let answer = self.secret_store.masker().call(answer);
        let (line, stop) = (self.line.clone(), self.stop.clone());
        self.beside.spawn(async move {
            let told = stop.run_until_cancelled(line.invoke(&answer.method, &answer.arguments)).await;
            if let Some(Err(error)) = told {
                error!("and the server could not be told ({}): {error}", answer.method);
            }
        });
        Err(reason)
    }
}

async fn write_outcome(folder: &StepFolder, call: &Call) -> Result<(), String> {
    let (folder, call) = (folder.clone(), call.clone());
    let written = tokio::task::spawn_blocking(move || folder.set_outcome(&call)).await;
    written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
