//! Reads the results of a script: the plan, the state, the outputs.
//!
//! An apply that has succeeded is completed, whether its state can be read or not. If it cannot, the count of its plan is
//! reported ([`super::planned`]). Without such a count, it is 0: the server requires a number.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, Success};

use super::planned::Planned;
use super::prepare_script::OpenModule;
use super::{TaskContext, TaskError};
use crate::base::blocking::blocking;
use crate::base::files::write_private_atomic;
use crate::engines::{EXTRA_OUTPUTS, Engine, EngineError, ResultPaths, outputs};
use crate::workspace::PrivateFile;

/// Reads files of an engine, which may be large, on a blocking thread.
pub(super) async fn read<T: Send + 'static>(
    reading: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, TaskError> {
    match blocking(reading).await {
        Ok(read) => Ok(read?),
        Err(error) => Err(Fault::new(format!("a background thread failed to read a file: {error}")).into()),
    }
}

/// The results are in the step folder. The module may have changed since the engine ran, so it is not checked.
fn paths(context: &TaskContext) -> Result<ResultPaths, TaskError> {
    Ok(ResultPaths::new(&context.workspace()?.private_dir(), context.folder.path())?)
}

/// Counts the resources in the state.
pub(super) async fn resources(context: &TaskContext, engine: &Arc<dyn Engine>) -> Result<u64, TaskError> {
    let (paths, engine) = (paths(context)?, Arc::clone(engine));
    read(move || engine.count_resources(&paths)).await
}

pub(super) async fn applied(context: &TaskContext, engine: &Arc<dyn Engine>, task: &EngineTask) -> Success {
    let counted = if engine.removes_state(task) { Ok(0) } else { resources(context, engine).await };
    let error = match counted {
        Ok(count) => {
            context.info(&match count {
                0 => "No resources in the state".to_owned(),
                1 => "1 resource in the state".to_owned(),
                count => format!("{count} resources in the state"),
            });
            return Success::Resources(count);
        }
        Err(error) => error,
    };
    let planned = Planned::of_job(context, task.task).map(|planned| planned.resources);
    let used = match planned {
        Some(count) => format!("using the count of the plan ({count})"),
        None => "reporting 0 because the count of the plan is unknown too".to_owned(),
    };
    let reason = match error {
        TaskError::Faulted(fault) | TaskError::Refused { fault, .. } => fault.message,
        TaskError::Cancelled => "cancelled".to_owned(),
    };
    context.warn(&format!("Failed to count the resources in the state, {used}: {reason}"));
    Success::Resources(planned.unwrap_or(0))
}

pub(super) async fn planned(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
) -> Result<Success, TaskError> {
    if let Some(plan) = engine.plan_files(task.task).first()
        && let Err(error) = make_private(context, *plan)
    {
        // The folder is private too.
        tracing::debug!(plan = plan.name(), %error, "failed to make the plan private");
    }
    let (paths, reader, kind) = (paths(context)?, Arc::clone(engine), task.task);
    let (data, lines) = read(move || reader.read_plan(kind, &paths)).await?;
    for line in lines {
        context.info(&line);
    }
    Planned::record(context, engine, task, data.total_count_after).await?;
    Ok(Success::Plan(Box::new(data)))
}

/// Engines create their plan with the usual mode, but it contains secrets.
fn make_private(context: &TaskContext, plan: PrivateFile) -> io::Result<()> {
    let workspace = context.workspace().map_err(io::Error::other)?;
    let folder = workspace.tree().and_then(|tree| tree.private_made()).map_err(io::Error::other)?;
    let plan = folder.open_file(OsStr::new(plan.name()))?;
    plan.set_permissions(Permissions::from_mode(0o600))
}

/// Records which outputs the extra files declare. When the task is concluded, the module may be at another revision.
pub(super) async fn record_extra_outputs(module: &OpenModule<'_>) -> Result<(), TaskError> {
    let tree = module.workspace.tree()?;
    let extra_files = tree.placed_extra_files(&module.task.extra_file_names);
    let engine = Arc::clone(&module.engine);
    let names = read(move || Ok(engine.declarations(&tree)?.outputs_of(&extra_files))).await?;
    let path = module.paths.step(EXTRA_OUTPUTS);
    let written = serde_json::to_vec(&names).map_err(io::Error::from);
    let written = written.and_then(|names| write_private_atomic(path.as_ref(), &names));
    written.map_err(|error| Fault::new(format!("failed to write {path}: {error}")).into())
}

pub(super) async fn outputs(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
) -> Result<Success, TaskError> {
    let (paths, engine) = (paths(context)?, Arc::clone(engine));
    let has_extra_files = !task.extra_file_names.is_empty();
    let set = read(move || {
        let from_extra_files =
            if has_extra_files { paths.read_json(EXTRA_OUTPUTS)? } else { BTreeSet::new() };
        let now = jiff::Timestamp::now().as_millisecond();
        outputs::read(&*engine, &paths, &from_extra_files, now)
    });
    Ok(Success::Outputs(set.await?))
}
