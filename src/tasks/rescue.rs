//! Finds, keeps and reports what the engine left behind in a step that failed, was cancelled or was lost.
//!
//! If the backend did not accept a state, its only copy is in the checkout, where the next apply would overwrite it and a clean
//! init would drop it. It is moved to the module's folder of rescued files:
//!
//! ```text
//! {WorkingDirectory}/.hawser/rescued/{stack}/{namespace}/{module}/        (0700; files 0600)
//!   20261116T021036Z-{job id}-errored.tfstate           a step of that job could not write this state
//!   20261116T021036Z-before-{job id}-errored.tfstate    it existed before that job's apply
//!   20261116T021036Z-{job id}-pulumi-export.json        a state with pending operations
//!   20261116T021036Z-clean-init-env-terraform.tfstate   a clean init dropped `env/terraform.tfstate`, see `workspace`
//! ```
//!
//! The runner never removes them. The time is the modification time of the file. The order is: link or copy the file (with
//! fsync), record it in the step folder (`rescued`), remove the original. So a crash at any point loses neither the file nor
//! the report, and a repeated conclusion reports the same.
//!
//! The engine finds and describes the files ([`Engine::leftovers`]), with commands that work where it ran
//! ([`EngineDirectory`]).

use std::error::Error;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, Task, TaskRequest};

use super::exit_analysis::{is_kill, plain};
use super::prepare_script::environment;
use super::{TaskContext, TaskError, engine_output, module_command, scripted};
use crate::base::blocking::blocking;
use crate::engines::directory::EngineDirectory;
use crate::engines::failed_step::{FailedStep, Leftovers};
use crate::engines::{Engine, Engines, ResultPaths};
use crate::step::{Exit, Stream};

/// Adds what the engine left behind to the fault of a step, or to the log of a cancelled job.
pub(super) async fn explain(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
    exit: &Exit,
    error: TaskError,
) -> TaskError {
    let found = look(context, engine, task, is_kill(exit)).await;
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

/// The same for a step whose outcome is unknown. The caller holds the lock of the module's directory.
pub async fn explain_lost(context: &TaskContext, request: &TaskRequest, fault: Fault) -> Fault {
    let Some(task) = scripted(request) else { return fault };
    let Ok(engine) = context.engines.get(&task.engine) else { return fault };
    module_command::note_place(context, task);
    add(fault, &look(context, &engine, task, true).await)
}

/// What to check after a step whose outcome is unknown. Continues "Before the next run: ".
pub fn to_check(engines: &Engines, request: &TaskRequest) -> &'static str {
    let engine = scripted(request).and_then(|task| Some((engines.get(&task.engine).ok()?, task)));
    engine.map_or("nothing to check, it changes no resources", |(engine, task)| engine.to_check(task.task))
}

/// `killed`: the processes of the script could not clean up.
async fn look(context: &TaskContext, engine: &Arc<dyn Engine>, task: &EngineTask, killed: bool) -> Leftovers {
    let workspace = match context.workspace() {
        Ok(workspace) => workspace,
        Err(error) => return search_failed(&**engine, task, &error),
    };
    let variables = match task.task {
        Task::Init => task.init.resolved_env_vars.clone(),
        _ => workspace.load_environment().unwrap_or_default(),
    };
    let mut environment = environment(&context.settings, &**engine, &variables);
    let paths = ResultPaths::new(&workspace.private_dir(), context.folder.path());
    for (name, value) in paths.and_then(|paths| engine.backend_variables(task, &paths)).unwrap_or_default() {
        environment.set(name, value);
    }
    let directory = EngineDirectory::new(&workspace, &environment, task.hooks()[0].is_some());
    let directory = directory.recorded_by(&context.folder);
    let phase = context.folder.part();
    let (context, searching, searched) = (context.clone(), Arc::clone(engine), task.clone());
    let found = blocking(move || {
        let output = engine_output::read(&context.folder);
        let stderr = plain(&output, Stream::Stderr, &context.secrets.masker());
        let (folder, job_id, task) = (context.folder, context.common.job_id, searched);
        searching.leftovers(&FailedStep { folder, job_id, workspace, directory, task, phase, killed, stderr })
    });
    found.await.unwrap_or_else(|error| search_failed(&**engine, task, &error))
}

/// A failed search may have missed something.
fn search_failed(engine: &dyn Engine, task: &EngineTask, error: &dyn Error) -> Leftovers {
    let note = format!(
        "The search for leftovers of {} failed ({error}). Before the next run: {}.",
        engine.command(task.task),
        engine.to_check(task.task)
    );
    Leftovers { notes: vec![note], resources: None }
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
    use hawser_contract::EngineName;

    use super::*;
    use crate::engines::terraform::Terraform;

    #[test]
    fn a_failed_search_names_what_to_check() {
        let (engine, task) =
            (Terraform::hashicorp(), EngineTask::new(Task::ApplyFromPlan, EngineName::TERRAFORM));
        let found = search_failed(&engine, &task, &std::io::Error::other("the search breaks"));
        let [note] = found.notes.as_slice() else { panic!("{found:?}") };
        assert!(note.starts_with("The search for leftovers of terraform apply failed"), "{note}");
        assert!(note.contains("the search breaks") && note.contains("errored.tfstate"), "{note}");
    }
}
