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
mod shape;
mod source;
mod variables;

use std::fs::File;
use std::sync::Arc;

use hawser_contract::{Common, Engine, Fault, Success, TaskRequest};
use tokio_util::sync::CancellationToken;

use crate::engines::terraform::Direction;
use crate::masking::JobSecrets;
use crate::settings::{Refusal, Settings};
use crate::step::{Exit, Facts, StepFolder, Stream};
use crate::supervisor::Launch;
use shape::ScriptTask;

pub use rescue::{explain_lost, to_check};
pub use source::{Refreshed, refresh};

/// What a task may use.
#[derive(Debug, Clone)]
pub struct TaskContext {
    pub settings: Arc<Settings>,
    pub common: Common,
    pub folder: StepFolder,
    /// Cancelled when somebody asks for the job to be stopped, gracefully or not.
    pub cancel: CancellationToken,
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
    let shape = match request {
        TaskRequest::GetDefinitiveRevision(source) => return source::revision(context, source).await,
        TaskRequest::GetModule(source, own) => return source::module(context, source, own).await,
        TaskRequest::Variables(own) => return variables::prepare(context, own).await,
        _ => ScriptTask::of(request).ok_or_else(|| prepare_script::no_script(request))?,
    };
    prepare_script::check_hooks(context, &shape)?;
    match request {
        TaskRequest::Init(own) => init::prepare(context, &shape, own).await,
        TaskRequest::Plan(own, flags) => {
            plan::prepare(context, &shape, Direction::Apply, &own.resolved_parameters, flags).await
        }
        TaskRequest::PlanDestroy(own, flags) => {
            plan::prepare(context, &shape, Direction::Destroy, &own.resolved_parameters, flags).await
        }
        TaskRequest::ApplyFromPlan(_, flags) => {
            apply::prepare(context, &shape, Direction::Apply, flags).await
        }
        TaskRequest::DestroyFromPlan(_, flags) => {
            apply::prepare(context, &shape, Direction::Destroy, flags).await
        }
        TaskRequest::Output(own, flags) => output::prepare(context, &shape, own, flags).await,
        _ => validate(context, &shape).await,
    }
}

async fn validate(context: &TaskContext, shape: &ScriptTask<'_>) -> Result<Prepared, TaskError> {
    let module = prepare_script::OpenModule::open(context)?;
    let variables = module.workspace.load_environment()?;
    let work = match shape.engine {
        Engine::Pulumi => crate::engines::pulumi::validate(),
        engine => crate::engines::terraform::validate(engine),
    };
    module.launch(shape, &variables, false, work).await
}

/// Reads what the script left behind. A cancel that came too late, when all parts had ended well, is none.
pub async fn conclude(
    context: &TaskContext,
    request: &TaskRequest,
    exit: &Exit,
) -> Result<Success, TaskError> {
    let shape = ScriptTask::of(request).ok_or_else(|| prepare_script::no_script(request))?;
    let judged = match exit_analysis::judge(context, &shape, exit) {
        Ok(()) => Ok(()),
        Err(error) => Err(rescue::explain(context, &shape, exit, error).await),
    };
    match request {
        TaskRequest::ApplyFromPlan(..) | TaskRequest::DestroyFromPlan(..) => match judged {
            Ok(()) => apply::conclude(context, &shape).await.map_err(|error| unread(&shape, error)),
            Err(TaskError::Faulted(mut fault)) => {
                // What the state holds after a failure is worth knowing, but not worth another failure.
                if fault.resources.is_none() {
                    fault.resources = apply::resources(context, &shape).await.ok();
                }
                Err(fault.into())
            }
            Err(cancelled) => Err(cancelled),
        },
        TaskRequest::Plan(..) => {
            judged?;
            plan::conclude(context, &shape, Direction::Apply).await.map_err(|error| unread(&shape, error))
        }
        TaskRequest::PlanDestroy(..) => {
            judged?;
            plan::conclude(context, &shape, Direction::Destroy).await.map_err(|error| unread(&shape, error))
        }
        TaskRequest::Output(own, _) => {
            judged?;
            output::conclude(context, own).await.map_err(|error| unread(&shape, error))
        }
        TaskRequest::Init(own) => {
            judged?;
            let noted = init::conclude(context, own);
            let but = "its backend settings could not be noted";
            noted.map(|()| Success::Done).map_err(|error| succeeded_but(&shape, but, error))
        }
        _ => judged.map(|()| Success::Done),
    }
}

/// The script did all that it was to do; only what came of it is not known.
fn unread(shape: &ScriptTask<'_>, error: TaskError) -> TaskError {
    succeeded_but(shape, "its result could not be read", error)
}

fn succeeded_but(shape: &ScriptTask<'_>, what: &str, error: TaskError) -> TaskError {
    match error {
        TaskError::Faulted(fault) => {
            let message = format!("{} succeeded, but {what}: {}", shape.command(), fault.message);
            Fault { message, ..fault }.into()
        }
        other => other,
    }
}
