//! The tasks of a job. Each has up to three parts:
//!
//! * `prepare` fetches, writes inputs and makes the script; it is safe to repeat.
//! * `execute` is the script, under the supervisor; it survives the runner and runs at most once.
//! * `conclude` reads what the engine left behind (plan, state, outputs); it is safe to repeat.
//!
//! Tasks that need no script (revision, module, variables) are finished when they are prepared.
//!
//! Whoever calls these holds the lock of the module's directory ([`crate::workspace::Workspace::lock`]) from
//! `prepare` to the end of `conclude`, but for the tasks that do not touch it (revision, refresh).

mod apply;
mod exit_analysis;
mod fault;
mod init;
mod output;
mod plan;
mod plugins;
mod prepare_script;
mod rescue;
pub(crate) mod secrets;
mod source;
mod variables;

use std::fs::File;
use std::sync::Arc;

use hawser_contract::{Common, EngineTask, Fault, Success, Task, TaskRequest};
use tokio_util::sync::CancellationToken;

use crate::engines::{Engine, Engines};
use crate::masking::JobSecrets;
use crate::policy::Policy;
use crate::settings::{Refusal, Settings};
use crate::step::{Exit, Facts, StepFolder, Stream};
use crate::supervisor::Launch;
use prepare_script::OpenModule;

pub use rescue::{explain_lost, to_check};
pub use source::refresh;

/// What a task may use.
#[derive(Debug, Clone)]
pub struct TaskContext {
    pub settings: Arc<Settings>,
    pub policy: Arc<Policy>,
    pub common: Common,
    pub folder: StepFolder,
    /// Cancelled when somebody asks for the job to be stopped, gracefully or not.
    pub cancel: CancellationToken,
    pub engines: Engines,
    /// For registries.
    pub http: reqwest::Client,
    /// What must not be said of the job.
    pub secrets: JobSecrets,
    /// A share of the module's lock, for threads that may outlive the task.
    pub held: Option<Arc<File>>,
}

/// What `prepare` comes to.
#[derive(Debug)]
pub enum Prepared {
    /// The task needs no script and is done.
    Finished(Success),
    /// This is to be run under the supervisor.
    Run(Launch),
}

/// Why a task did not complete.
#[derive(Debug)]
pub enum TaskError {
    Cancelled,
    Faulted(Fault),
    /// A fault too; the settings of this runner do not allow what came up on the way.
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

    /// Keeps what an auditor wants to know; without it the task goes on.
    fn note_facts(&self, facts: &Facts) {
        if let Err(error) = self.folder.set_facts(facts) {
            tracing::warn!(step = self.folder.name(), "the audit log will say less of this step: {error}");
        }
    }

    /// Adds a line of the runner's own to the job's log.
    fn say(&self, stream: Stream, message: &str) {
        let said = self
            .folder
            .writer()
            .map_err(|error| error.to_string())
            .and_then(|mut writer| writer.say(stream, message).map_err(|error| error.to_string()));
        if let Err(error) = said {
            tracing::error!(step = self.folder.name(), "a line for the job's log could not be kept: {error}");
        }
    }
}

/// Fetches, writes inputs and makes the script.
pub async fn prepare(context: &TaskContext, request: &TaskRequest) -> Result<Prepared, TaskError> {
    if context.cancel.is_cancelled() {
        return Err(TaskError::Cancelled);
    }
    let task = match request {
        TaskRequest::GetDefinitiveRevision(source) => return source::revision(context, source).await,
        TaskRequest::GetModule(source, own) => return source::module(context, source, own).await,
        TaskRequest::Engine(task) => task,
    };
    // The pre-approved hooks are files, and may have changed while the step waited.
    context.policy.check_hooks(task.hooks().into_iter().flatten())?;
    match task.task {
        Task::Variables => variables::prepare(context, task).await,
        Task::Init => init::prepare(context, task).await,
        Task::Plan | Task::PlanDestroy => plan::prepare(context, task).await,
        Task::ApplyFromPlan | Task::DestroyFromPlan => apply::prepare(context, task).await,
        Task::Output => output::prepare(context, task).await,
        _ => {
            let module = OpenModule::open(context, task)?;
            module.launch(&module.workspace.load_environment()?, Vec::new()).await
        }
    }
}

/// Whether the task runs a script.
fn has_script(task: &EngineTask) -> bool {
    task.task != Task::Variables
}

/// Reads the results of the script. A cancel that came after every part had succeeded does not count.
pub async fn conclude(
    context: &TaskContext,
    request: &TaskRequest,
    exit: &Exit,
) -> Result<Success, TaskError> {
    let task = request.engine_task().filter(|task| has_script(task));
    let task = task.ok_or_else(|| prepare_script::no_script(request))?;
    let engine = context.engines.get(&task.engine)?;
    let judged = match exit_analysis::judge(context, &*engine, task, exit) {
        Ok(()) => Ok(()),
        Err(error) => Err(rescue::explain(context, &engine, task, exit, error).await),
    };
    if task.task.applies()
        && let Err(TaskError::Faulted(mut fault)) = judged
    {
        // The state after a failure is worth reporting, but not worth another failure.
        if fault.resources.is_none() {
            fault.resources = apply::resources(context, &engine).await.ok();
        }
        return Err(fault.into());
    }
    judged?;
    let concluded = match task.task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => apply::conclude(context, &engine, task).await,
        Task::Plan | Task::PlanDestroy => plan::conclude(context, &engine, task).await,
        Task::Output => output::conclude(context, &engine, task).await,
        Task::Init => init::conclude(context, &*engine, task).map(|()| Success::Done),
        _ => Ok(Success::Done),
    };
    let what = match task.task {
        Task::Init => "its backend settings could not be noted",
        _ => "its result could not be read",
    };
    concluded.map_err(|error| succeeded_but(&*engine, task, what, error))
}

/// The script succeeded, and only its result is unknown.
fn succeeded_but(engine: &dyn Engine, task: &EngineTask, what: &str, error: TaskError) -> TaskError {
    match error {
        TaskError::Faulted(fault) => {
            let message = format!("{} succeeded, but {what}: {}", engine.command(task.task), fault.message);
            Fault { message, ..fault }.into()
        }
        other => other,
    }
}
