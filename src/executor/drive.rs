//! Takes one step from its folder to its outcome: prepare, execute, conclude.
//!
//! A step that was started always ends with an `outcome.json`. The [phase](RecoveryPhase) that its folder is in decides
//! where the executor continues.

use std::sync::Arc;
use std::time::Instant;

use hawser_contract::requests::Request;
use hawser_contract::{Fault, Outcome, Success};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::ExecutorContext;
use super::claim::Claimer;
use super::events::log_started;
use super::wait::{read_exit, script_ended};
use crate::base::blocking::blocking;
use crate::masking::JobSecrets;
use crate::settings::Settings;
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
}

/// Drives steps, one tokio task per step.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(super) context: ExecutorContext,
    claimer: Claimer,
}

impl Executor {
    pub(crate) fn new(context: ExecutorContext) -> Self {
        let claimer = Claimer {
            hub: context.hub.clone(),
            runner_id: context.settings.runner.id,
            instance: context.settings.runner.instance.clone(),
        };
        Self { context, claimer }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.context.settings
    }

    /// Takes a step to its outcome from the phase that its folder is in.
    pub(crate) async fn drive(
        &self,
        step: &Step,
        phase: RecoveryPhase,
        cancel: &CancellationToken,
        report_again: &Notify,
    ) -> DriveEnd {
        let since = Instant::now();
        let secrets = watch::of_step(&self.context.secret_store, step);
        let ended = match &step.work {
            StepWork::Refresh(refresh) => {
                log_started(step, phase);
                let http = self.context.http.clone();
                tasks::refresh(refresh, self.settings(), &self.context.policy, http, &secrets, cancel).await
            }
            StepWork::Task(request) => match self.lock_module(request, phase).await {
                Ok(module) => {
                    log_started(step, phase);
                    tokio::select! {
                        ended = self.task(step, request, phase, module, cancel, secrets) => ended,
                        never = self.claimer.keep_reporting(request, report_again) => match never {},
                    }
                }
                Err(WorkspaceError::Busy { holder, .. }) => return DriveEnd::DirectoryBusy { holder },
                Err(error) => Err(Fault::new(error.to_string()).into()),
            },
        };
        let outcome = match ended {
            Ok(success) => Outcome::Completed(success),
            Err(TaskError::Cancelled) => Outcome::Cancelled,
            Err(TaskError::Faulted(fault)) => Outcome::Faulted(fault),
            Err(TaskError::Refused { refusal, fault }) => {
                self.context.audit.refused(step, &refusal).await;
                Outcome::Faulted(fault)
            }
        };
        self.finish(step, outcome, since).await;
        DriveEnd::Concluded
    }

    /// Continues the task from its phase, and adds the last line to its log.
    async fn task(
        &self,
        step: &Step,
        request: &Request,
        phase: RecoveryPhase,
        module: Option<ModuleLock>,
        cancel: &CancellationToken,
        secrets: JobSecrets,
    ) -> Result<Success, TaskError> {
        let context = TaskContext {
            settings: Arc::clone(&self.context.settings),
            policy: Arc::clone(&self.context.policy),
            common: request.common.clone(),
            folder: step.folder.clone(),
            cancel: cancel.clone(),
            engines: self.context.engines.clone(),
            http: self.context.http.clone(),
            secrets,
            held: share(module.as_ref())?.map(Arc::new),
        };
        let ended = match phase {
            RecoveryPhase::Prepare => self.begin(&context, request, module).await,
            RecoveryPhase::Running => self.execution(&context, request, None).await,
            RecoveryPhase::Conclude => self.conclusion(&context, request, module).await,
            RecoveryPhase::Lost => Err(self.lost(&context, request, module).await.into()),
            RecoveryPhase::Ship => return Err(Fault::new("the step already has an outcome").into()),
        };
        match &ended {
            Ok(_) => {}
            Err(TaskError::Cancelled) => context.info("Cancelled."),
            Err(TaskError::Faulted(fault) | TaskError::Refused { fault, .. }) => {
                context.error(&fault.message);
            }
        }
        ended
    }

    /// Prepares the task and starts a supervisor with its script.
    async fn begin(
        &self,
        context: &TaskContext,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let folder = &context.folder;
        let lock = match on_disk(folder, StepFolder::try_lock).await? {
            Some(lock) => lock,
            None => {
                // Either a supervisor that was starting when the last runner died drives the step, or a child process
                // of this one has inherited the lock for a moment. Once the lock is free, the folder shows which.
                let lock = script_ended(folder).await.map_err(|error| broken(&error))?;
                if on_disk(folder, StepFolder::stage_of_holder).await? != RecoveryPhase::Prepare {
                    return self.conclusion(context, request, module).await;
                }
                lock
            }
        };
        if on_disk(folder, StepFolder::supervisor).await?.is_some() {
            return Err(self.lost(context, request, module).await.into());
        }
        check_cancel(folder).await?;
        watch::learn_before(&self.context.secret_store, context, request).await?;
        let launch = match tasks::prepare(context, &request.task).await? {
            Prepared::Finished(success) => return Ok(success),
            Prepared::Run(launch) => launch,
        };
        let script = launch.script.clone();
        on_disk(folder, move |folder| folder.set_script(&script)).await?;
        check_cancel(folder).await?;
        // Both hold the lock: the supervisor's share outlives this process, and ours leaves no gap between the end of
        // the supervisor and the conclusion, in which another runner could change the directory.
        let shared = share(module.as_ref())?;
        supervisor::launch(&self.context.supervisor, folder, lock, shared, &launch)
            .map_err(|error| Fault::new(error.to_string()))?;
        // The supervisor holds the task's locks from here on.
        drop(launch);
        self.execution(context, request, module).await
    }

    /// Waits for the supervisor, no matter which process started it.
    async fn execution(
        &self,
        context: &TaskContext,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let ended = tokio::select! {
            ended = script_ended(&context.folder) => ended,
            never = watch::learn_meanwhile(&self.context.secret_store, context, request) => match never {},
        };
        let _lock = ended.map_err(|error| broken(&error))?;
        self.conclusion(context, request, module).await
    }

    /// Turns the exit of the script into the result of the task.
    async fn conclusion(
        &self,
        context: &TaskContext,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let Some(exit) = read_exit(&context.folder).await.map_err(|error| broken(&error))? else {
            return match context.folder.supervisor().map_err(|error| broken(&error))? {
                Some(_) => Err(self.lost(context, request, module).await.into()),
                None => {
                    Err(Fault::new("the supervisor ended before it started the script; nothing was run")
                        .into())
                }
            };
        };
        // An adopted supervisor held the only share of the lock and has just released it.
        let _module = match module {
            Some(module) => Some(module),
            None => Some(self.module_lock_now(request).await?),
        };
        watch::learn_after(&self.context.secret_store, context, request).await;
        tasks::conclude(context, &request.task, &exit).await
    }
}

fn share(module: Option<&ModuleLock>) -> Result<Option<std::fs::File>, Fault> {
    let shared = module.map(ModuleLock::share).transpose();
    shared.map_err(|error| Fault::new(format!("failed to share the module lock: {error}")))
}

/// Fails if the step was cancelled before its script started.
async fn check_cancel(folder: &StepFolder) -> Result<(), TaskError> {
    match on_disk(folder, StepFolder::cancel).await? {
        None => Ok(()),
        Some(_) => Err(TaskError::Cancelled),
    }
}

/// Reads or writes the folder on a blocking thread: the disk may be slow.
async fn on_disk<T: Send + 'static>(
    folder: &StepFolder,
    work: impl FnOnce(&StepFolder) -> Result<T, FolderError> + Send + 'static,
) -> Result<T, Fault> {
    let folder = folder.clone();
    match blocking(move || work(&folder)).await {
        Ok(done) => done.map_err(|error| broken(&error)),
        Err(error) => Err(Fault::new(format!("failed to use the step folder: {error}"))),
    }
}

fn broken(error: &FolderError) -> Fault {
    Fault::new(format!("failed to use the step folder: {error}"))
}
