//! One step's way from its folder to its outcome: prepare, execute, conclude.
//!
//! Whatever happens on the way, a step that was begun ends with an `outcome.json`; where it enters the way
//! depends on what its folder says ([`RecoveryPhase`]).

use std::sync::Arc;

use hawser_contract::requests::{Request, SourceRefresh};
use hawser_contract::{Call, Fault, Outcome, Success};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::ExecutorContext;
use super::claim::Claimer;
use super::wait::{read_exit, script_ended};
use crate::masking::JobSecrets;
use crate::settings::Settings;
use crate::step::{FolderError, RecoveryPhase, Step, StepFolder, StepWork};
use crate::supervisor;
use crate::tasks::secrets::watch;
use crate::tasks::{self, Prepared, Refreshed, TaskContext, TaskError};
use crate::workspace::{ModuleLock, WorkspaceError};

/// How a drive ended.
#[derive(Debug)]
pub(crate) enum DriveEnd {
    /// The step has its outcome.
    Concluded,
    /// Nothing was done: another process works in the module's directory.
    DirectoryBusy { holder: String },
}

/// Drives steps, each in a task of its own.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(super) tools: ExecutorContext,
    reporter: Claimer,
}

impl Executor {
    pub(crate) fn new(tools: ExecutorContext) -> Self {
        let reporter = Claimer {
            line: tools.line.clone(),
            runner_id: tools.settings.runner.id,
            instance: tools.settings.runner.instance.clone(),
        };
        Self { tools, reporter }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.tools.settings
    }

    /// Takes a step to its outcome from wherever its folder says it stands.
    pub(crate) async fn drive(
        &self,
        step: &Step,
        stage: RecoveryPhase,
        cancel: &CancellationToken,
        report_again: &Notify,
    ) -> DriveEnd {
        let secrets = watch::of_step(&self.tools.secret_store, step);
        let request = match &step.work {
            StepWork::Task(request) => request,
            StepWork::Refresh(refresh) => {
                let call = self.refresh(step, refresh, &secrets, cancel).await;
                self.finish(step, call).await;
                return DriveEnd::Concluded;
            }
        };
        let module = match self.lock_module(request, stage).await {
            Ok(module) => module,
            Err(WorkspaceError::Busy { holder, .. }) => return DriveEnd::DirectoryBusy { holder },
            Err(problem) => {
                let fault = Fault::new(problem.to_string());
                self.conclude_with(step, &Outcome::Faulted(fault)).await;
                return DriveEnd::Concluded;
            }
        };
        info!(step = step.name(), ?stage, "started");
        let outcome = tokio::select! {
            outcome = self.task(step, request, stage, module, cancel, secrets.clone()) => outcome,
            never = self.reporter.keep_reporting(request, report_again) => match never {},
        };
        self.conclude_with(step, &outcome).await;
        DriveEnd::Concluded
    }

    async fn refresh(
        &self,
        step: &Step,
        refresh: &SourceRefresh,
        secrets: &JobSecrets,
        cancel: &CancellationToken,
    ) -> Call {
        let http = self.tools.http.clone();
        match tasks::refresh(refresh, self.settings(), http, secrets, cancel).await {
            Some(Refreshed { call, refusal }) => {
                if let Some(refusal) = refusal {
                    self.tools.audit.refused(step, &refusal).await;
                }
                call
            }
            None => refresh.faulted(&Fault::new("the refresh was stopped with the runner")),
        }
    }

    /// Enters the way where the folder says, and makes an outcome of its end.
    async fn task(
        &self,
        step: &Step,
        request: &Request,
        stage: RecoveryPhase,
        module: Option<ModuleLock>,
        cancel: &CancellationToken,
        secrets: JobSecrets,
    ) -> Outcome {
        let held = match module.as_ref().map(ModuleLock::share).transpose() {
            Ok(held) => held.map(Arc::new),
            Err(error) => {
                return Outcome::Faulted(Fault::new(format!("cannot share the module's lock: {error}")));
            }
        };
        let context = TaskContext {
            settings: Arc::clone(&self.tools.settings),
            common: request.common.clone(),
            folder: step.folder.clone(),
            cancel: cancel.clone(),
            http: self.tools.http.clone(),
            secrets,
            held,
        };
        let ended = match stage {
            RecoveryPhase::Prepare => self.begin(&context, request, module).await,
            RecoveryPhase::Running => self.execution(&context, request, None).await,
            RecoveryPhase::Conclude => self.conclusion(&context, request, module).await,
            RecoveryPhase::Lost => Err(self.lost(&context, request, module).await.into()),
            RecoveryPhase::Ship => return Outcome::Faulted(Fault::new("the step already has an outcome")),
        };
        match ended {
            Ok(success) => Outcome::Completed(success),
            Err(TaskError::Cancelled) => {
                context.info("Cancelled.");
                Outcome::Cancelled
            }
            Err(TaskError::Faulted(fault)) => {
                context.error(&fault.message);
                Outcome::Faulted(fault)
            }
            Err(TaskError::Refused { refusal, fault }) => {
                context.error(&fault.message);
                self.tools.audit.refused(step, &refusal).await;
                Outcome::Faulted(fault)
            }
        }
    }

    /// From the start: prepares the task and hands its script to a supervisor.
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
                // Either somebody drives the step after all, a supervisor that was just being started when the last
                // runner died; or a process that this one is starting has its open files for a moment. When the lock is
                // free, the folder tells which.
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
        is_wanted(folder).await?;
        watch::learn_before(&self.tools.secret_store, context, request).await?;
        let launch = match tasks::prepare(context, &request.task).await? {
            Prepared::Finished(success) => return Ok(success),
            Prepared::Run(launch) => launch,
        };
        let script = launch.script.clone();
        on_disk(folder, move |folder| folder.set_script(&script)).await?;
        is_wanted(folder).await?;
        // One lock, held by both: the supervisor's share outlives this process, and ours leaves no gap between the
        // end of the supervisor and the conclusion, in which another runner could change what is read there.
        let shared = module.as_ref().map(ModuleLock::share).transpose();
        let shared =
            shared.map_err(|error| Fault::new(format!("cannot share the module's lock: {error}")))?;
        supervisor::launch(&self.tools.supervisor, folder, lock, shared, &launch)
            .map_err(|error| Fault::new(error.to_string()))?;
        // From here on the supervisor holds what the task wanted held.
        drop(launch);
        self.execution(context, request, module).await
    }

    /// Waits for the supervisor, whoever started it.
    async fn execution(
        &self,
        context: &TaskContext,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let ended = tokio::select! {
            ended = script_ended(&context.folder) => ended,
            never = watch::learn_meanwhile(&self.tools.secret_store, context, request) => match never {},
        };
        let _lock = ended.map_err(|error| broken(&error))?;
        self.conclusion(context, request, module).await
    }

    /// Makes of the script's end what it means for the task.
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
                    Err(Fault::new("the supervisor ended before it could start anything; nothing was run")
                        .into())
                }
            };
        };
        // Without a share of the lock the supervisor was adopted, and has let go of the directory just now.
        let _module = match module {
            Some(module) => Some(module),
            None => Some(self.module_lock_now(request).await?),
        };
        watch::learn_after(&self.tools.secret_store, context, request).await;
        tasks::conclude(context, &request.task, &exit).await
    }
}

/// A step whose cancel was asked for before anything was started is not started.
async fn is_wanted(folder: &StepFolder) -> Result<(), TaskError> {
    match on_disk(folder, StepFolder::cancel).await? {
        None => Ok(()),
        Some(_) => Err(TaskError::Cancelled),
    }
}

/// Does something with the folder that the disk may take its time for, so not on a thread of the runtime.
async fn on_disk<T: Send + 'static>(
    folder: &StepFolder,
    work: impl FnOnce(&StepFolder) -> Result<T, FolderError> + Send + 'static,
) -> Result<T, Fault> {
    let folder = folder.clone();
    match tokio::task::spawn_blocking(move || work(&folder)).await {
        Ok(done) => done.map_err(|error| broken(&error)),
        Err(error) => Err(Fault::new(format!("a thread that was to use the step's folder failed: {error}"))),
    }
}

fn broken(error: &FolderError) -> Fault {
    Fault::new(format!("the step's folder is not usable: {error}"))
}
