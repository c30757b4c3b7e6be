//! Takes one step from its folder to its outcome: prepare, execute, conclude.
//!
//! A step whose claim was granted always ends with an `outcome.json`. The [phase](RecoveryPhase) that its folder is in decides
//! where the executor continues.

use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::Instant;

use hawser_contract::requests::Request;
use hawser_contract::{Fault, Outcome, Success};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::info;

use super::claim::{ClaimAnswer, StepSignals};
use super::wait::{read_exit, script_ended};
use super::{Executor, on_disk};
use crate::masking::JobSecrets;
use crate::step::{FolderError, RecoveryPhase, Step, StepFolder, StepWork};
use crate::supervisor;
use crate::tasks::secrets::watch;
use crate::tasks::{self, Prepared, TaskContext, TaskError};
use crate::workspace::{ModuleLock, WorkspaceError};

/// How driving a step ended.
#[derive(Debug)]
pub(crate) enum DriveEnd {
    /// The step has its outcome.
    Concluded,
    /// Nothing was done: another process uses the module directory.
    DirectoryBusy { holder: String },
    /// Nothing was done: the runner drains, and the claim is not answered.
    Drained,
    /// The step has no outcome yet.
    Panicked,
    /// Nothing was done: the server has refused the claim.
    ClaimRefused { reason: String },
}

impl Executor {
    /// Takes a step to its outcome from the phase that its folder is in.
    pub(crate) async fn drive(&self, step: &Step, phase: RecoveryPhase, signals: &StepSignals) -> DriveEnd {
        let since = started(step, phase).await;
        let secrets = watch::of_step(&self.secret_store, step);
        let ended = match &step.work {
            StepWork::Refresh(refresh) => {
                log_started(step, phase);
                let http = self.http.clone();
                tasks::refresh(refresh, &self.settings, &self.policy, http, &secrets, &signals.cancel).await
            }
            StepWork::Task(request) => {
                let module = match self.module_for(request, phase).await {
                    Err(WorkspaceError::Busy { holder, .. }) => return DriveEnd::DirectoryBusy { holder },
                    locked => locked.map_err(TaskError::from),
                };
                let (answer, claim) = oneshot::channel();
                let answer = (phase == RecoveryPhase::Prepare).then_some(answer);
                let ended = tokio::select! {
                    ended = self.task(step, request, phase, module, claim, signals, secrets.clone()) => ended,
                    never = self.keep_reporting(request, answer, signals) => match never {},
                };
                match ended {
                    Ok(ended) => ended,
                    Err(unclaimed) => return unclaimed,
                }
            }
        };
        let outcome = match ended {
            Ok(success) => Outcome::Completed(success),
            Err(TaskError::Cancelled) => Outcome::Cancelled,
            Err(TaskError::Faulted(fault)) => Outcome::Faulted(fault),
            Err(TaskError::Refused { refusal, fault }) => {
                self.audit.refused(step, &refusal).await;
                Outcome::Faulted(fault)
            }
        };
        self.finish(step, outcome, &secrets, since).await;
        DriveEnd::Concluded
    }

    /// Continues the task from its phase, and adds the last line to its log. The error is the end of a step that was not
    /// claimed. Until the claim is answered, a failed preparation is not reported: another runner may be running the task.
    #[expect(clippy::too_many_arguments, reason = "all belong to one step")]
    async fn task(
        &self,
        step: &Step,
        request: &Request,
        phase: RecoveryPhase,
        module: Result<Option<ModuleLock>, TaskError>,
        claim: oneshot::Receiver<ClaimAnswer>,
        signals: &StepSignals,
        secrets: JobSecrets,
    ) -> Result<Result<Success, TaskError>, DriveEnd> {
        let shared = module.and_then(|module| Ok((share(module.as_ref())?.map(Arc::new), module)));
        let (held, module) = match shared {
            Ok(shared) => shared,
            Err(error) if phase == RecoveryPhase::Prepare => {
                return Ok(granted(claim).await?.and(Err(error)));
            }
            Err(error) => return Ok(Err(error)),
        };
        let context = TaskContext {
            settings: Arc::clone(&self.settings),
            policy: Arc::clone(&self.policy),
            common: request.common.clone(),
            folder: step.folder.clone(),
            cancel: signals.cancel.clone(),
            engines: self.engines.clone(),
            http: self.http.clone(),
            secrets,
            held: held.as_ref().map_or_else(Weak::new, Arc::downgrade),
        };
        let run = TaskRun { executor: self, context: &context, request, module, held };
        if phase != RecoveryPhase::Prepare {
            log_started(step, phase);
        }
        let ended = match phase {
            RecoveryPhase::Prepare => match run.lock().await {
                Ok((RecoveryPhase::Prepare, lock)) => match granted(claim).await? {
                    Ok(()) => {
                        log_started(step, phase);
                        run.begin(lock).await
                    }
                    Err(cancelled) => Err(cancelled),
                },
                Ok((RecoveryPhase::Lost, _lock)) => Err(run.lost().await.into()),
                Ok(_) => run.conclude().await,
                Err(error) => granted(claim).await?.and(Err(error)),
            },
            RecoveryPhase::Running => run.wait().await,
            RecoveryPhase::Conclude => run.conclude().await,
            RecoveryPhase::Lost => Err(run.lost().await.into()),
            RecoveryPhase::Ship => return Ok(Err(Fault::new("the step already has an outcome").into())),
        };
        match &ended {
            Ok(_) => {}
            Err(TaskError::Cancelled) => context.info("Cancelled."),
            Err(TaskError::Faulted(fault) | TaskError::Refused { fault, .. }) => {
                context.error(&fault.message);
            }
        }
        Ok(ended)
    }
}

/// A task that is being run.
pub(super) struct TaskRun<'a> {
    pub(super) executor: &'a Executor,
    pub(super) context: &'a TaskContext,
    pub(super) request: &'a Request,
    /// The lock of the module directory. A supervisor of an earlier process holds it instead.
    pub(super) module: Option<ModuleLock>,
    /// The open file of `module`, for programs that prepare the directory.
    pub(super) held: Option<Arc<File>>,
}

impl TaskRun<'_> {
    /// Takes the lock of the folder, and finds out whether the script was started.
    async fn lock(&self) -> Result<(RecoveryPhase, File), TaskError> {
        let folder = &self.context.folder;
        let lock = match in_folder(folder, StepFolder::try_lock).await? {
            Some(lock) => lock,
            // Either a supervisor that was starting when the last runner died drives the step, or a child process
            // of this one has inherited the lock for a moment. Once the lock is free, the folder shows which.
            None => script_ended(folder).await?,
        };
        Ok((in_folder(folder, StepFolder::phase_of_holder).await?, lock))
    }

    /// Prepares the task and starts a supervisor with its script. The claim is granted: from here on the task has side effects.
    /// Before it, only the locks of the module and of the folder are taken.
    async fn begin(self, lock: File) -> Result<Success, TaskError> {
        let (context, folder) = (self.context, &self.context.folder);
        check_cancel(&context.cancel, folder).await?;
        watch::learn_before(&self.executor.secret_store, context, self.request).await?;
        let launch = match tasks::prepare(context, &self.request.task).await? {
            Prepared::Finished(success) => return Ok(success),
            Prepared::Run(launch) => launch,
        };
        let script = launch.script.clone();
        in_folder(folder, move |folder| folder.set_script(&script)).await?;
        check_cancel(&context.cancel, folder).await?;
        // Both hold the lock: the supervisor's share outlives this process, and ours leaves no gap between the end of
        // the supervisor and the conclusion, in which another runner could change the directory.
        let shared = share(self.module.as_ref())?;
        supervisor::launch(&self.executor.supervisor, folder, lock, shared, &launch)
            .map_err(|error| Fault::new(error.to_string()))?;
        // The supervisor holds the task's locks from here on.
        drop(launch);
        self.wait().await
    }

    /// Waits for the supervisor, no matter which process started it.
    async fn wait(self) -> Result<Success, TaskError> {
        let _lock = tokio::select! {
            lock = script_ended(&self.context.folder) => lock?,
            never = watch::learn_meanwhile(&self.executor.secret_store, self.context, self.request) => match never {},
        };
        self.conclude().await
    }

    /// Turns the exit of the script into the result of the task.
    async fn conclude(mut self) -> Result<Success, TaskError> {
        let Some(exit) = read_exit(&self.context.folder).await? else {
            return Err(match self.context.folder.supervisor()? {
                Some(_) => self.lost().await,
                None => Fault::new("the supervisor ended before it started the script; nothing was run"),
            }
            .into());
        };
        // A supervisor of an earlier process held the lock and has just released it.
        if self.module.is_none() {
            self.module = Some(self.executor.module_lock_now(self.request).await?);
        }
        watch::learn_after(&self.executor.secret_store, self.context, self.request).await;
        tasks::conclude(self.context, &self.request.task, &exit).await
    }
}

/// When the step started. Only the wall clock survives a restart of the runner.
async fn started(step: &Step, phase: RecoveryPhase) -> Instant {
    let now = Instant::now();
    if phase == RecoveryPhase::Prepare {
        return now;
    }
    let note = in_folder(&step.folder, StepFolder::supervisor).await.ok().flatten();
    let elapsed = note.and_then(|note| Timestamp::now().duration_since(note.started).try_into().ok());
    elapsed.and_then(|elapsed| now.checked_sub(elapsed)).unwrap_or(now)
}

/// A task that an earlier process started is not started again.
fn log_started(step: &Step, phase: RecoveryPhase) {
    let (module, job, task) = (step.work.module(), step.job_id().map(display), step.work.name());
    let step = step.name_without_job();
    match phase {
        RecoveryPhase::Prepare => info!(module, job, task, step, "task started"),
        _ => info!(module, job, task, step, ?phase, "task resumed"),
    }
}

fn share(module: Option<&ModuleLock>) -> Result<Option<File>, Fault> {
    let shared = module.map(ModuleLock::share).transpose();
    shared.map_err(|error| Fault::new(format!("failed to share the module lock: {error}")))
}

/// Waits for the answer to the claim. The outer error is the end of a step that was not claimed.
async fn granted(claim: oneshot::Receiver<ClaimAnswer>) -> Result<Result<(), TaskError>, DriveEnd> {
    match claim.await {
        Ok(ClaimAnswer::Granted) => Ok(Ok(())),
        Ok(ClaimAnswer::Cancelled) => Ok(Err(TaskError::Cancelled)),
        Ok(ClaimAnswer::Refused { reason }) => Err(DriveEnd::ClaimRefused { reason }),
        Ok(ClaimAnswer::Drained) | Err(_) => Err(DriveEnd::Drained),
    }
}

/// Fails if the step was cancelled before its script started. An earlier process may have recorded the cancel, and a cancel of
/// this process may lack its record if the disk is full.
async fn check_cancel(cancel: &CancellationToken, folder: &StepFolder) -> Result<(), TaskError> {
    match in_folder(folder, StepFolder::cancel).await? {
        None if !cancel.is_cancelled() => Ok(()),
        _ => Err(TaskError::Cancelled),
    }
}

async fn in_folder<T: Send + 'static>(
    folder: &StepFolder,
    work: impl FnOnce(&StepFolder) -> Result<T, FolderError> + Send + 'static,
) -> Result<T, Fault> {
    let folder = folder.clone();
    on_disk(move || work(&folder)).await.map_err(Fault::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancel_without_a_record_keeps_the_script_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let folder = StepFolder::at(directory.path());
        let cancel = CancellationToken::new();
        check_cancel(&cancel, &folder).await.unwrap();
        cancel.cancel();
        assert!(matches!(check_cancel(&cancel, &folder).await, Err(TaskError::Cancelled)));
    }
}
