//! The tasks of a job. Each has up to three parts:
//!
//! * `prepare` fetches, writes inputs and creates the script; it is safe to repeat.
//! * The script runs under the supervisor; it survives the runner and runs at most once.
//! * `conclude` reads the results (plan, state, outputs); it is safe to repeat.
//!
//! Tasks without a script (revision, module, variables) are finished when they are prepared.
//!
//! The caller holds the lock of the module's directory ([`crate::workspace::Workspace::lock`]) from `prepare` to the end of
//! `conclude`, except for tasks that do not use it (revision, refresh).

mod engine_output;
mod exit_analysis;
mod fault;
mod init;
mod module_command;
mod planned;
mod plugins;
mod prepare_script;
mod rescue;
mod results;
pub(crate) mod secrets;
mod source;
mod variables;

use std::fs::File;
use std::sync::{Arc, Weak};

use hawser_contract::{Common, EngineTask, Fault, Success, Task, TaskRequest};
use tokio_util::sync::CancellationToken;

use crate::engines::{Engine, Engines};
use crate::masking::JobSecrets;
use crate::policy::Policy;
use crate::settings::{Refusal, Settings};
use crate::step::{Exit, Facts, StepFolder, Stream};
use crate::supervisor::Launch;
use crate::workspace::{Workspace, WorkspaceError};

pub use module_command::ModuleCommand;
pub use rescue::{explain_lost, to_check};
pub use source::refresh;

/// What a task may use.
#[derive(Debug, Clone)]
pub struct TaskContext {
    pub settings: Arc<Settings>,
    pub policy: Arc<Policy>,
    pub common: Common,
    pub folder: StepFolder,
    /// Cancelled when the job is cancelled, gracefully or not.
    pub cancel: CancellationToken,
    pub engines: Engines,
    /// For registries.
    pub http: reqwest::Client,
    /// The secrets of the job.
    pub secrets: JobSecrets,
    /// A share of the module's lock, for threads that may outlive the task.
    pub held: Weak<File>,
}

/// The result of `prepare`.
#[derive(Debug)]
pub enum Prepared {
    /// The task has no script and is finished.
    Finished(Success),
    /// A script for the supervisor.
    Run(Launch),
}

/// Why a task did not complete.
#[derive(Debug)]
pub enum TaskError {
    Cancelled,
    Faulted(Fault),
    /// A fault caused by the policy of this runner.
    Refused {
        refusal: Box<Refusal>,
        fault: Fault,
    },
}

impl From<Fault> for TaskError {
    fn from(fault: Fault) -> Self {
        Self::Faulted(fault)
    }
}

impl TaskContext {
    pub fn info(&self, message: &str) {
        self.say(Stream::Information, message);
    }

    pub fn warn(&self, message: &str) {
        self.say(Stream::Warning, message);
    }

    pub fn error(&self, message: &str) {
        self.say(Stream::Error, message);
    }

    fn workspace(&self) -> Result<Workspace, WorkspaceError> {
        Workspace::new(&self.settings.working_directory, &self.common.metadata)
    }

    /// Records facts for the audit log. The task continues if that fails.
    fn note_facts(&self, facts: &Facts) {
        if let Err(error) = self.folder.set_facts(facts) {
            tracing::warn!(step = self.folder.name(), %error, "failed to record facts for the audit log");
        }
    }

    /// Adds a line of the runner to the job's log.
    fn say(&self, stream: Stream, message: &str) {
        let written = self
            .folder
            .writer()
            .map_err(|error| error.to_string())
            .and_then(|mut writer| writer.say(stream, message).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::error!(step = self.folder.name(), error, "failed to write to the job's log");
        }
    }
}

/// Fetches, writes inputs and creates the script.
pub async fn prepare(context: &TaskContext, request: &TaskRequest) -> Result<Prepared, TaskError> {
    if context.cancel.is_cancelled() {
        return Err(TaskError::Cancelled);
    }
    let task = match request {
        TaskRequest::GetDefinitiveRevision(source) => return source::revision(context, source).await,
        TaskRequest::GetModule(source, own) => return source::module(context, source, own).await,
        TaskRequest::Engine(task) => task,
    };
    match task.task {
        Task::Variables => variables::prepare(context, task).await,
        _ => prepare_script::prepare(context, task).await,
    }
}

/// The engine task of a request, if it runs a script.
fn scripted(request: &TaskRequest) -> Option<&EngineTask> {
    request.engine_task().filter(|task| task.task != Task::Variables)
}

/// Reads the results of the script. A cancel after the end of the script has no effect.
pub async fn conclude(
    context: &TaskContext,
    request: &TaskRequest,
    exit: &Exit,
) -> Result<Success, TaskError> {
    let task =
        scripted(request).ok_or_else(|| Fault::new(format!("the task {} has no script", request.task())))?;
    let engine = context.engines.get(&task.engine)?;
    module_command::note_place(context, task);
    let judged = match exit_analysis::judge(context, &*engine, task, exit) {
        Ok(()) => Ok(()),
        Err(error) => Err(rescue::explain(context, &engine, task, exit, error).await),
    };
    if task.task.applies()
        && let Err(TaskError::Faulted(mut fault)) = judged
    {
        // Failing to count the resources must not hide the first failure.
        if fault.resources.is_none() {
            fault.resources = results::resources(context, &engine).await.ok();
        }
        return Err(fault.into());
    }
    judged?;
    let concluded = match task.task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => Ok(results::applied(context, &engine, task).await),
        Task::Plan | Task::PlanDestroy => results::planned(context, &engine, task).await,
        Task::Output => results::outputs(context, &engine, task).await,
        Task::Init => init::conclude(context, &*engine, task).map(|()| Success::Done),
        _ => Ok(Success::Done),
    };
    let what = match task.task {
        Task::Init => "the runner failed to save its settings",
        _ => "the runner failed to read its result",
    };
    concluded.map_err(|error| succeeded_but(&*engine, task, what, error))
}

/// The script succeeded, but its result is unknown.
fn succeeded_but(engine: &dyn Engine, task: &EngineTask, what: &str, error: TaskError) -> TaskError {
    match error {
        TaskError::Faulted(fault) => {
            let message = format!("{} succeeded, but {what}: {}", engine.command(task.task), fault.message);
            Fault { message, ..fault }.into()
        }
        other => other,
    }
}
