//! After a step that failed, was cancelled or was lost: what the engine left behind is kept safe, and said.
//!
//! A state that the backend did not take exists nowhere else. It leaves the checkout, where the next apply would
//! overwrite it and a clean init would drop it, for the module's folder of rescued files:
//!
//! ```text
//! {WorkingDirectory}/.hawser/rescued/{stack}/{namespace}/{module}/        (0700; files 0600)
//!   20261116T021036Z-{job id}-errored.tfstate           a step of that job could not write this state then
//!   20261116T021036Z-before-{job id}-errored.tfstate    it was there before that job's apply
//!   20261116T021036Z-{job id}-pulumi-export.json        a state with pending operations
//!   20261116T021036Z-clean-init-env-terraform.tfstate   a clean init dropped `env/terraform.tfstate`, see `workspace`
//! ```
//!
//! Nothing here removes them: whoever has pushed a state does. The time is that of the file. The order is a second name or a
//! copy (with fsync), note in the step folder (`rescued`), removal, so that a crash at any point loses neither the file nor the
//! word about it, and concluding once more says the same.
//!
//! The engine finds and describes what is there ([`Engine::leftovers`]), with commands that work where it ran
//! ([`EngineDirectory`]).

use std::error::Error;
use std::fs;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, TaskRequest};

use super::prepare_script::{OpenModule, environment};
use super::{TaskContext, TaskError, exit_analysis, has_script};
use crate::base::blocking::blocking;
use crate::engines::directory::EngineDirectory;
use crate::engines::failed_step::{FailedStep, Leftovers, began};
use crate::engines::{Engine, Engines};
use crate::script::ScriptPhase;
use crate::step::Exit;
use crate::workspace::Workspace;

/// Adds to the end of a step what the engine left behind: to the fault, or to the log of a cancelled job.
pub(super) async fn explain(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
    exit: &Exit,
    error: TaskError,
) -> TaskError {
    let ended = ScriptEnding { stopped: matches!(error, TaskError::Cancelled), killed: is_kill(exit) };
    let found = look(context, engine, task, ended).await;
    match error {
        TaskError::Cancelled => {
            for note in &found.notes {
                context.warn(note);
            }
            TaskError::Cancelled
        }
        TaskError::Faulted(fault) => TaskError::Faulted(add(fault, &found)),
        TaskError::Refused { refusal, fault } => TaskError::Refused { refusal, fault: add(fault, &found) },
    }
}

/// The same for a step that nobody saw the end of. The caller holds the lock of the module's directory.
pub async fn explain_lost(context: &TaskContext, request: &TaskRequest, fault: Fault) -> Fault {
    let Some(task) = request.engine_task().filter(|task| has_script(task)) else { return fault };
    let Ok(engine) = context.engines.get(&task.engine) else { return fault };
    let found = look(context, &engine, task, ScriptEnding { stopped: true, killed: true }).await;
    add(fault, &found)
}

/// What to check after a step that nobody saw the end of.
pub fn to_check(engines: &Engines, request: &TaskRequest) -> &'static str {
    let task = request.engine_task().filter(|task| has_script(task));
    let engine = task.and_then(|task| Some((engines.get(&task.engine).ok()?, task)));
    engine.map_or("it changes no resources", |(engine, task)| engine.to_check(task.task))
}

/// How a script ended.
#[derive(Debug, Clone, Copy)]
struct ScriptEnding {
    /// It may have ended before the part that reads the state.
    stopped: bool,
    /// Its processes could not clean up.
    killed: bool,
}

async fn look(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
    ScriptEnding { stopped, killed }: ScriptEnding,
) -> Leftovers {
    let workspace = match Workspace::new(&context.settings.working_directory, &context.common.metadata) {
        Ok(workspace) => workspace,
        Err(error) => return search_failed(&**engine, task, &error),
    };
    let variables = workspace.load_environment().unwrap_or_default();
    let environment = environment(context, &**engine, &variables);
    let directory = EngineDirectory::new(&workspace, &environment, task.hooks()[0].is_some());
    let directory = directory.noted_by(&context.folder);
    let phase = context.folder.part().and_then(|word| ScriptPhase::from_word(&word));
    if stopped && began(phase) {
        export_state(context, &**engine, task, phase).await;
    }
    let (context, task, searching) = (context.clone(), task.clone(), Arc::clone(engine));
    let described = task.clone();
    searched(&**engine, &described, move || {
        let stderr = exit_analysis::tail(&context).stderr;
        let (folder, job_id) = (context.folder, context.common.job_id);
        searching.leftovers(&FailedStep { folder, job_id, workspace, directory, task, phase, killed, stderr })
    })
    .await
}

/// Reads the state of a task that was stopped before its script did.
async fn export_state(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
    phase: Option<ScriptPhase>,
) {
    let Some(export) = engine.state_export(task) else { return };
    let is_removed = engine.removes_state(task) && phase != Some(ScriptPhase::Engine);
    // The file is created before the script starts, so that it is private, and filled at the end.
    let file = context.folder.path().join(export.file.name());
    let is_unread = fs::symlink_metadata(file).ok().is_none_or(|file| file.len() == 0);
    if is_removed || !is_unread {
        return;
    }
    let exported = match OpenModule::open(context, task) {
        Ok(module) => module.export_state(&export).await,
        Err(error) => Err(error),
    };
    if let Err(TaskError::Faulted(fault)) = exported {
        context.warn(&format!("The state of the stack could not be read: {}", fault.message));
    }
}

/// Searches on a blocking thread. A search that fails may have missed something.
async fn searched(
    engine: &dyn Engine,
    task: &EngineTask,
    search: impl FnOnce() -> Leftovers + Send + 'static,
) -> Leftovers {
    let found = blocking(search).await;
    found.unwrap_or_else(|error| search_failed(engine, task, &error))
}

fn search_failed(engine: &dyn Engine, task: &EngineTask, error: &dyn Error) -> Leftovers {
    let note = format!(
        "The search for what {} may have left behind failed ({error}), so there may be something. Before the next run: {}",
        engine.command(task.task),
        engine.to_check(task.task)
    );
    Leftovers { notes: vec![note], resources: None }
}

/// Whether the script, or the engine in it, was ended without a chance to clean up.
fn is_kill(exit: &Exit) -> bool {
    const KILL: i32 = 9;
    matches!(exit, Exit::Signal(KILL)) || *exit == Exit::Code(128 + KILL)
}

fn add(mut fault: Fault, found: &Leftovers) -> Fault {
    for note in &found.notes {
        let end = if fault.message.ends_with('.') { " " } else { ". " };
        fault.message.push_str(end);
        fault.message.push_str(note);
    }
    fault.resources = found.resources.or(fault.resources);
    fault
}

#[cfg(test)]
mod tests {
    use hawser_contract::{EngineName, Task};

    use super::*;
    use crate::engines::terraform::Terraform;

    #[tokio::test]
    async fn a_failed_search_is_not_reported_as_one_that_found_nothing() {
        let (engine, task) =
            (Terraform::hashicorp(), EngineTask::new(Task::ApplyFromPlan, EngineName::TERRAFORM));
        let found = searched(&engine, &task, || panic!("the search breaks")).await;
        let [note] = found.notes.as_slice() else { panic!("{found:?}") };
        assert!(
            note.starts_with("The search for what terraform apply may have left behind failed"),
            "{note}"
        );
        assert!(note.contains("the search breaks") && note.contains("errored.tfstate"), "{note}");
        assert!(searched(&engine, &task, Leftovers::default).await.notes.is_empty());
    }
}
