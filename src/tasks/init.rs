//! Init: saves environment variables and backend settings of the module for later tasks, and initializes the engine.

use hawser_contract::EngineTask;

use super::prepare_script::OpenModule;
use super::{Prepared, TaskContext, TaskError};
use crate::engines::Engine;
use crate::workspace::{BackendNote, Workspace};

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context, task)?;
    module.engine.check_flags(&task.flags)?;
    if module.engine.remembers_backend() {
        keep_backend_settings(&module)?;
    }
    module.workspace.save_environment(&task.init.resolved_env_vars)?;
    module.launch(&task.init.resolved_env_vars, Vec::new()).await
}

/// Until Init has succeeded, the engine may use the old settings as well as the new ones.
fn keep_backend_settings(module: &OpenModule<'_>) -> Result<(), TaskError> {
    let mut note = module.workspace.load_backend_note()?;
    if !module.engine.forgets_backend(module.task) {
        module.context.policy.check_saved_backend(note.settings.as_deref())?;
    }
    if let Some(all) = &mut note.settings {
        for setting in module.engine.backend_settings(module.task) {
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
    }
    note.job = Some(module.context.common.job_id);
    Ok(module.workspace.save_backend_note(&note)?)
}

/// The engine has accepted the settings. An Init without any keeps the old ones, unless it makes the engine forget them.
pub(super) fn conclude(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
) -> Result<(), TaskError> {
    let settings = engine.backend_settings(task);
    if !engine.remembers_backend() || settings.is_empty() && !engine.forgets_backend(task) {
        return Ok(());
    }
    let workspace = Workspace::new(&context.settings.working_directory, &context.common.metadata)?;
    let job = Some(context.common.job_id);
    // After a restart of the runner, another job may have used the module in the meantime.
    if workspace.load_backend_note()?.job != job {
        return Ok(());
    }
    Ok(workspace.save_backend_note(&BackendNote { job, settings: Some(settings) })?)
}
