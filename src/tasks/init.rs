//! Init: keeps the module's environment variables and backend settings for the tasks that follow, and lets the engine initialise.

use hawser_contract::requests::Init;
use hawser_contract::{Engine, Fault};

use super::prepare_script::{OpenModule, judge_kept_settings};
use super::shape::ScriptTask;
use super::{Prepared, TaskContext, TaskError};
use crate::base::files::write_private_atomic;
use crate::engines::{flags, pulumi, terraform};
use crate::workspace::{BackendNote, Workspace};

pub(super) async fn prepare(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    request: &Init,
) -> Result<Prepared, TaskError> {
    let lists = request.backend_configuration.flag_lists();
    flags::check_values(request.engine, &lists)?;
    let module = OpenModule::open(context)?;
    if request.engine != Engine::Pulumi {
        keep_backend_settings(&module, request)?;
    }
    module.workspace.save_environment(&request.resolved_env_vars)?;
    let mut work = match request.engine {
        Engine::Pulumi => {
            pulumi::check_init(request)?;
            if let Some(token) = pulumi::oidc_token(request) {
                let path = module.places.oidc_token();
                write_private_atomic(path.as_ref(), token.as_bytes())
                    .map_err(|error| Fault::new(format!("cannot write {path}: {error}")))?;
            }
            pulumi::init(request, &module.places)
        }
        _ => terraform::init(request),
    };
    work.warnings.extend(flags::unknown_flags(&lists));
    let may_ask = request.engine != Engine::Pulumi && terraform::answers_no(request);
    module.launch(shape, &request.resolved_env_vars, may_ask, work).await
}

/// Until the engine has said that it took the new settings, it may be using the old ones as well.
fn keep_backend_settings(module: &OpenModule<'_>, request: &Init) -> Result<(), TaskError> {
    let mut note = module.workspace.load_backend_note()?;
    // With Reconfigure it does not even look at what it had.
    if !terraform::answers_no(request) {
        judge_kept_settings(module, &note)?;
    }
    if let Some(all) = &mut note.settings {
        for setting in terraform::backend_settings(&request.backend_configuration) {
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
    }
    note.job = Some(module.context.common.job_id);
    Ok(module.workspace.save_backend_note(&note)?)
}

/// The engine has taken the settings. Without any it has kept the ones it had, unless it was told to begin anew.
pub(super) fn conclude(context: &TaskContext, request: &Init) -> Result<(), TaskError> {
    let settings = terraform::backend_settings(&request.backend_configuration);
    if request.engine == Engine::Pulumi || settings.is_empty() && !terraform::answers_no(request) {
        return Ok(());
    }
    let workspace = Workspace::new(&context.settings.working_directory, &context.common.metadata)?;
    let job = Some(context.common.job_id);
    // After a restart of the runner, another job may have been here in the meantime.
    if workspace.load_backend_note()?.job != job {
        return Ok(());
    }
    Ok(workspace.save_backend_note(&BackendNote { job, settings: Some(settings) })?)
}
