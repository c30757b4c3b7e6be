//! A command that a user runs in a module, with what its tasks use: `hawser exec` and `hawser shell`.

use std::ffi::OsStr;
use std::path::PathBuf;

use hawser_contract::{EngineName, EngineTask, Fault};

use super::prepare_script::environment;
use super::{TaskContext, TaskError};
use crate::engines::Engines;
use crate::engines::directory::recorded_place;
use crate::engines::environment::Environment;
use crate::policy::Policy;
use crate::script::bash_script::PLACE_VARIABLES;
use crate::settings::Settings;
use crate::workspace::{EnginePlace, LastTask, Workspace};

/// Where and how a user's command runs.
#[derive(Debug)]
pub struct ModuleCommand {
    pub engine: EngineName,
    pub directory: PathBuf,
    pub environment: Environment,
    /// Whether the last task had a hook, which may have set more variables.
    pub has_hook: bool,
}

impl ModuleCommand {
    /// As the module's last task ran, without its hooks. The caller holds the module's lock. `can_answer` is set if a user can
    /// answer the engine's questions.
    pub fn new(
        settings: &Settings,
        engines: &Engines,
        workspace: &Workspace,
        can_answer: bool,
    ) -> Result<Self, TaskError> {
        let last = workspace.last_task()?;
        let last = last.ok_or_else(|| {
            let module = workspace.module();
            Fault::new(format!("no task has run an engine in the module {module} yet: run Init first"))
        })?;
        let init_variables = workspace.init_variables(&last);
        let LastTask { engine: name, has_hook, variables, place, .. } = last;
        let engine = engines.get(&name)?;
        // As for a task: the policy may be stricter now than when Init ran.
        let policy = Policy::new(settings);
        policy.check_variables(variables.keys().map(String::as_str))?;
        policy.check_saved_backend(workspace.load_backend_note()?.settings.as_deref())?;
        let mut environment = environment(settings, &*engine, &variables);
        if can_answer {
            let own = engine.prompt_variables().iter().filter(|name| !variables.contains_key(**name));
            own.for_each(|name| environment.remove(name));
        }
        let EnginePlace { directory, variables } = place;
        for name in PLACE_VARIABLES {
            match variables.get(name).filter(|value| !value.is_empty()) {
                Some(value) => environment.set(name, value),
                // The user's own would lead to another state.
                None => environment.remove(name),
            }
        }
        for (name, value) in engine.command_variables(&init_variables) {
            let value = match environment.get(&name).and_then(OsStr::to_str) {
                Some(own) => format!("{own} {value}"),
                None => value,
            };
            environment.set(&name, value);
        }
        if !directory.is_dir() {
            let directory = directory.display();
            let message =
                format!("{directory}, where the engine of the last task ran, is no longer a directory");
            return Err(Fault::new(message).into());
        }
        // Without the trailing slash of an empty subdirectory.
        Ok(Self { engine: name, directory: directory.components().collect(), environment, has_hook })
    }
}

/// Keeps the place in which the engine of a task ran, for later commands. The task continues if that fails.
pub(super) fn note_place(context: &TaskContext, task: &EngineTask) {
    let Some(place) = recorded_place(&context.folder) else { return };
    let noted = context.workspace().and_then(|it| it.note_place(context.common.job_id, task.task, place));
    if let Err(error) = noted {
        let step = context.folder.name();
        tracing::warn!(step, %error, "failed to record where the engine ran, `hawser exec` may use another place");
    }
}
