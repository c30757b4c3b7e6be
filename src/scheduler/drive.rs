//! One step's way from its folder to its outcome: prepare, execute, conclude.
//!
//! Whatever happens on the way, a step that was begun ends with an `outcome.json`; where it enters the way
//! depends on what its folder says ([`Stage`]).

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::Tools;
use super::report::Reporter;
use super::secrets;
use crate::contract::requests::Request;
use crate::contract::{Call, Fault, Outcome, Success};
use crate::intake::{Step, Work};
use crate::policy::Refusal;
use crate::redact::JobSecrets;
use crate::settings::Settings;
use crate::step::{Folder, FolderError, Scratch, Stage, Stream};
use crate::supervise;
use crate::tasks::{self, Context, Prepared, Refreshed, TaskError};
use crate::workspace::{ModuleLock, Workspace, WorkspaceError};

/// Before a folder that could not be looked at is looked at again.
const PAUSE: Duration = Duration::from_secs(2);

/// How long a module's directory is waited for to see what a lost step has left in it.
const LOST_PATIENCE: Duration = Duration::from_secs(5);

/// How a drive ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The step has its outcome.
    Concluded,
    /// Nothing was done: another process works in the module's directory.
    DirectoryBusy { holder: String },
}

/// Drives steps, each in a task of its own.
#[derive(Debug)]
pub(super) struct Driver {
    tools: Tools,
    reporter: Reporter,
}

impl Driver {
    pub(super) fn new(tools: Tools) -> Self {
        let reporter = Reporter {
            line: tools.line.clone(),
            runner_id: tools.settings.runner.id,
            instance: tools.settings.runner.instance.clone(),
        };
        Self { tools, reporter }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.tools.settings
    }

    /// Takes a step to its outcome from wherever its folder says it stands.
    pub(super) async fn drive(
        &self,
        step: &Step,
        stage: Stage,
        cancel: &CancellationToken,
        report_again: &Notify,
    ) -> Ended {
        let secrets = secrets::of_step(&self.tools.vault, step);
        let outcome = match &step.work {
            Work::Refresh(refresh) => {
                let (settings, http) = (self.settings(), self.tools.http.clone());
                let call = match tasks::refresh(refresh, settings, http, &secrets, cancel).await {
                    Some(Refreshed { call, refusal: None }) => call,
                    Some(Refreshed { call, refusal: Some(refusal) }) => {
                        self.tools.audit.refused(step, &refusal).await;
                        call
                    }
                    None => refresh.faulted(&Fault::new("the refresh was stopped with the runner")),
                };
                self.finish(step, call).await;
                return Ended::Concluded;
            }
            Work::Task(request) => {
                let module = match self.lock_module(request, stage) {
                    Ok(module) => module,
                    Err(WorkspaceError::Busy { holder, .. }) => return Ended::DirectoryBusy { holder },
                    Err(problem) => {
                        let fault = Fault::new(problem.to_string());
                        self.conclude_with(step, &Outcome::Faulted(fault)).await;
                        return Ended::Concluded;
                    }
                };
                info!(step = step.name(), ?stage, "started");
                tokio::select! {
                    outcome = self.task(step, request, stage, module, cancel, secrets.clone()) => outcome,
                    () = self.reporter.keep_reporting(request, report_again) => return Ended::Concluded,
                }
            }
        };
        self.conclude_with(step, &outcome).await;
        Ended::Concluded
    }

    /// The lock of the module's directory, for tasks that work in one. A supervisor that is still running
    /// holds it already, and to say that one is gone the directory is not needed.
    fn lock_module(&self, request: &Request, stage: Stage) -> Result<Option<ModuleLock>, WorkspaceError> {
        let works_in_directory =
            !matches!(request.task, crate::contract::TaskRequest::GetDefinitiveRevision(_));
        if !works_in_directory || matches!(stage, Stage::Running | Stage::Lost) {
            return Ok(None);
        }
        let workspace = Workspace::new(&self.settings().working_directory, &request.common.metadata)?;
        workspace.lock().map(Some)
    }

    async fn task(
        &self,
        step: &Step,
        request: &Request,
        stage: Stage,
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
        let context = Context {
            settings: Arc::clone(&self.tools.settings),
            common: request.common.clone(),
            folder: step.folder.clone(),
            cancel: cancel.clone(),
            http: self.tools.http.clone(),
            secrets,
            held,
        };
        let ended = match stage {
            Stage::Prepare => self.begin(&context, request, module).await,
            Stage::Running => self.execution(&context, request, None).await,
            Stage::Conclude => self.conclusion(&context, request, module).await,
            Stage::Lost => Err(self.lost(&context, request, module).await.into()),
            Stage::Ship => return Outcome::Faulted(Fault::new("the step already has an outcome")),
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

    /// Ends a step that the settings do not allow, with nothing done but this.
    pub(super) async fn refuse(&self, step: &Step, refusal: &Refusal) {
        let message = refusal.to_string();
        let _secrets = secrets::learn_of_refused(&self.tools.vault, self.settings(), step).await;
        warn!(step = step.name(), "{message}");
        self.tools.audit.refused(step, refusal).await;
        if matches!(step.work, Work::Task(_)) {
            let (folder, line) = (step.folder.clone(), message.clone());
            let said = tokio::task::spawn_blocking(move || -> Result<(), FolderError> {
                let path = folder.output_path();
                let kept = folder.writer()?.say(Stream::Error, &line);
                kept.map_err(|source| FolderError::Io { action: "write", path, source })
            });
            if let Ok(Err(error)) = said.await {
                warn!(step = step.name(), "a line for the job's log could not be kept: {error}");
            }
        }
        self.keep(step, step.call(&Outcome::Faulted(Fault::new(message)))).await;
    }

    async fn begin(
        &self,
        context: &Context,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let folder = &context.folder;
        let lock = match folder.try_lock().map_err(|error| broken(&error))? {
            Some(lock) => lock,
            None => {
                // Either somebody drives the step after all, a supervisor that was just being started when the last
                // runner died; or a process that this one is starting has its open files for a moment. When the lock is
                // free, the folder tells which.
                let lock = script_ended(folder).await.map_err(|error| broken(&error))?;
                if folder.stage_of_holder().map_err(|error| broken(&error))? != Stage::Prepare {
                    return self.conclusion(context, request, module).await;
                }
                lock
            }
        };
        if folder.supervisor().map_err(|error| broken(&error))?.is_some() {
            return Err(self.lost(context, request, module).await.into());
        }
        is_wanted(folder)?;
        secrets::learn_before(&self.tools.vault, context, request).await?;
        let launch = match tasks::prepare(context, &request.task).await? {
            Prepared::Finished(success) => return Ok(success),
            Prepared::Run(launch) => launch,
        };
        folder.set_script(&launch.script).map_err(|error| broken(&error))?;
        is_wanted(folder)?;
        // One lock, held by both: the supervisor's share outlives this process, and ours leaves no gap between the
        // end of the supervisor and the conclusion, in which another runner could change what is read there.
        let shared = module.as_ref().map(ModuleLock::share).transpose();
        let shared =
            shared.map_err(|error| Fault::new(format!("cannot share the module's lock: {error}")))?;
        supervise::launch(&self.tools.supervisor, folder, lock, shared, &launch)
            .map_err(|error| Fault::new(error.to_string()))?;
        // From here on the supervisor holds what the task wanted held.
        drop(launch);
        self.execution(context, request, module).await
    }

    /// Waits for the supervisor, whoever started it.
    async fn execution(
        &self,
        context: &Context,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Result<Success, TaskError> {
        let ended = tokio::select! {
            ended = script_ended(&context.folder) => ended,
            never = secrets::learn_meanwhile(&self.tools.vault, context, request) => match never {},
        };
        let _lock = ended.map_err(|error| broken(&error))?;
        self.conclusion(context, request, module).await
    }

    async fn conclusion(
        &self,
        context: &Context,
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
        secrets::learn_after(&self.tools.vault, context, request).await;
        tasks::conclude(context, &request.task, &exit).await
    }

    /// Waits for the module's directory: another process may have been quicker when the supervisor let go.
    async fn module_lock_now(&self, request: &Request) -> Result<ModuleLock, TaskError> {
        let mut said = false;
        loop {
            match self.lock_module(request, Stage::Conclude) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => return Err(Fault::new("the task has no module directory to conclude in").into()),
                Err(WorkspaceError::Busy { holder, .. }) => {
                    if !std::mem::replace(&mut said, true) {
                        info!("waits to conclude a step: its module directory is in use by {holder}");
                    }
                    tokio::time::sleep(super::LOOK_AGAIN).await;
                }
                Err(problem) => return Err(Fault::new(problem.to_string()).into()),
            }
        }
    }

    /// What there is to say about a step that nobody saw the end of. What it left behind is only looked for, and moved,
    /// with the module's lock held: whoever else works there by now may be writing the same files. That one is waited
    /// for briefly and not to its end, which may be hours away.
    async fn lost(&self, context: &Context, request: &Request, module: Option<ModuleLock>) -> Fault {
        let mut fault = unknown_outcome(&context.folder, request);
        let lock = match module {
            Some(module) => Some(module),
            None => {
                let lock = tokio::time::timeout(LOST_PATIENCE, self.module_lock_now(request)).await;
                lock.ok().and_then(Result::ok)
            }
        };
        if lock.is_some() {
            return tasks::explain_lost(context, &request.task, fault).await;
        }
        fault.message.push_str(
            " The module's directory is in use or cannot be locked, so what this task left in it was not looked for.",
        );
        fault
    }

    /// Removes the step's scratch space: nothing of it runs any more.
    async fn clear_scratch(&self, step: &Step) {
        let scratch = Scratch::of(&self.settings().working_directory.temp_directory, &step.folder);
        // It may be large. A panic in it would be no reason to lose an outcome.
        let _ = tokio::task::spawn_blocking(move || scratch.remove_or_warn()).await;
    }

    pub(super) async fn conclude_with(&self, step: &Step, outcome: &Outcome) {
        self.clear_scratch(step).await;
        self.finish(step, step.call(outcome)).await;
    }

    /// The audit log first: when the outcome is on the disk the step may be shipped and gone at any moment.
    async fn finish(&self, step: &Step, call: Call) {
        self.tools.audit.finished(step, &call).await;
        self.keep(step, call).await;
    }

    /// Writes the outcome, however long the disk takes to accept it, and tells the shipper. Every fault passes here.
    async fn keep(&self, step: &Step, call: Call) {
        let call = call.masked(&self.tools.vault.job(step.job_id()).redactor());
        let mut delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(30))
            .without_max_times()
            .with_jitter()
            .build();
        let mut said = false;
        loop {
            let (folder, call) = (step.folder.clone(), call.clone());
            let written = tokio::task::spawn_blocking(move || folder.set_outcome(&call)).await;
            match written {
                Ok(Ok(())) => break,
                Ok(Err(problem)) if !said => {
                    error!(step = step.name(), "the outcome cannot be kept and is tried again: {problem}");
                    said = true;
                }
                Ok(Err(_)) => {}
                Err(stopped) => {
                    warn!(step = step.name(), "the outcome was not kept, the runner is stopping: {stopped}");
                    return;
                }
            }
            tokio::time::sleep(delays.next().unwrap_or(Duration::from_secs(30))).await;
        }
        info!(step = step.name(), "ended: {}", call.method);
        self.tools.shipper.concluded(&step.folder).await;
    }

    /// The driver itself broke: the server must still be told something.
    pub(super) async fn internal_error(&self, step: &Step) {
        // Nothing is said to have ended while a script of it runs.
        if let Err(error) = script_ended(&step.folder).await {
            warn!(step = step.name(), "cannot tell whether a script still runs: {error}");
        }
        let mut message =
            "the runner failed while it worked on this task; its own log has the details".to_owned();
        if !matches!(step.folder.supervisor(), Ok(None)) {
            message.push_str(". Its script may have been run: check what it changed before the next run");
        }
        self.conclude_with(step, &Outcome::Faulted(Fault::new(message))).await;
    }
}

/// Waits for the end of the step's supervisor, whoever started it. A cancel reaches that through the folder, so
/// waiting for its end is right in any case; and a machine that has run out of something for the moment (open files,
/// say) says nothing about the script.
async fn script_ended(folder: &Folder) -> Result<File, FolderError> {
    loop {
        match supervise::wait(folder, &CancellationToken::new()).await {
            Ok(Some(lock)) => return Ok(lock),
            // Only a cancelled token makes it give up, and nobody cancels this one.
            Ok(None) => {}
            Err(error) if !error.is_damage() => pause(folder, &error).await,
            Err(error) => return Err(error),
        }
    }
}

async fn read_exit(folder: &Folder) -> Result<Option<crate::step::Exit>, FolderError> {
    loop {
        match folder.exit() {
            Err(error) if !error.is_damage() => pause(folder, &error).await,
            read => return read,
        }
    }
}

async fn pause(folder: &Folder, error: &FolderError) {
    warn!(step = folder.name(), "{error}; looking again");
    tokio::time::sleep(PAUSE).await;
}

/// A step whose cancel was asked for before anything was started is not started.
fn is_wanted(folder: &Folder) -> Result<(), TaskError> {
    match folder.cancel() {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(TaskError::Cancelled),
        Err(error) => Err(broken(&error).into()),
    }
}

fn broken(error: &FolderError) -> Fault {
    Fault::new(format!("the step's folder is not usable: {error}"))
}

/// The script was started, and there is nobody left who could say how it ended.
fn unknown_outcome(folder: &Folder, request: &Request) -> Fault {
    let note = folder.supervisor().ok().flatten();
    let rebooted = note
        .as_ref()
        .and_then(|note| note.boot_id.clone())
        .zip(supervise::boot_id())
        .is_some_and(|(then, now)| then != now);
    let why = if rebooted {
        "the machine was restarted while it ran"
    } else {
        "the process that watched it is gone (the container was stopped, or it was killed), and what it started \
         may still be running"
    };
    let started = note.map_or_else(String::new, |note| format!(" It was started at {}.", note.started));
    let check = tasks::to_check(&request.task);
    Fault::new(format!(
        "unknown outcome: {why}.{started} It was not run again. Before the next run, check what it changed: {check}."
    ))
}
