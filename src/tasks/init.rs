//! Init: saves the environment variables and backend settings of the module for later tasks, when it has succeeded.

use hawser_contract::{EngineTask, Fault};

use super::prepare_script::OpenModule;
use super::{TaskContext, TaskError};
use crate::engines::Engine;
use crate::workspace::{BackendNote, check_variables};

/// Until Init has succeeded, the engine may use the old backend settings as well as the new ones.
pub(super) fn save_settings(module: &OpenModule<'_>) -> Result<(), TaskError> {
    let mut note = module.workspace.load_backend_note()?;
    let change = module.engine.backend_change(module.task);
    if !change.replaces {
        module.context.policy.check_saved_backend(note.settings.as_deref())?;
    }
    if let Some(all) = &mut note.settings {
        for setting in change.settings {
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
    }
    note.job = Some(module.context.common.job_id);
    check_variables(&module.task.init.resolved_env_vars)?;
    module.workspace.save_backend_note(&note)?;
    Ok(module.workspace.clear_staged()?)
}

/// The engine has accepted the settings. An Init without backend settings keeps the old ones, unless it replaces them.
pub(super) fn conclude(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
) -> Result<(), TaskError> {
    let workspace = context.workspace()?;
    let job = Some(context.common.job_id);
    // After a restart of the runner, another job may have used the module in the meantime.
    let is_last = workspace.load_backend_note()?.job == job;
    if !is_last || !workspace.promote_staged()? {
        let message = "another job used the module before this Init was concluded: run Init again";
        return Err(Fault::new(message).into());
    }
    workspace.save_environment(&task.init.resolved_env_vars)?;
    let change = engine.backend_change(task);
    if !change.settings.is_empty() || change.replaces {
        workspace.save_backend_note(&BackendNote { job, settings: Some(change.settings) })?;
    }
    Ok(())
}
