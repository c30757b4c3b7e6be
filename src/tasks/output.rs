//! Output: the module's outputs, with their types and without loss.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, Success};

use super::prepare_script::{OpenModule, places, read};
use super::{Prepared, TaskContext, TaskError};
use crate::base::files::write_private_atomic;
use crate::engines::{Engine, outputs};
use crate::workspace::PrivateFile;

pub(super) async fn prepare(context: &TaskContext, task: &EngineTask) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context, task)?;
    let variables = module.workspace.load_environment()?;
    if !task.extra_file_names.is_empty() {
        // Noted now: when the task is concluded, the module's files may be those of another revision.
        let names = declared_by_extra_files(&module).await?;
        let path = module.places.extra_outputs();
        let written = serde_json::to_vec(&names).map_err(io::Error::from);
        let written = written.and_then(|names| write_private_atomic(path.as_ref(), &names));
        written.map_err(|error| Fault::new(format!("cannot write {path}: {error}")))?;
    }
    module.launch(&variables, Vec::new()).await
}

/// The names of the outputs that extra files declare, by the files that the module has now.
async fn declared_by_extra_files(module: &OpenModule<'_>) -> Result<BTreeSet<String>, TaskError> {
    let (directory, tree) = (module.workspace.init_dir(), module.workspace.tree()?);
    let extra_files = tree.placed_extra_files(&module.task.extra_file_names);
    let engine = Arc::clone(&module.engine);
    read(move || Ok(engine.declarations(&directory, &tree)?.outputs_of(&extra_files))).await
}

pub(super) async fn conclude(
    context: &TaskContext,
    engine: &Arc<dyn Engine>,
    task: &EngineTask,
) -> Result<Success, TaskError> {
    let (places, engine) = (places(context)?, Arc::clone(engine));
    let noted = places.open_extra_outputs();
    let from_extra_files = if task.extra_file_names.is_empty() {
        BTreeSet::new()
    } else {
        read(move || outputs::read_names(noted)).await?
    };
    let set = read(move || {
        let now = jiff::Timestamp::now().as_millisecond();
        outputs::read(&*engine, places.open_collected(PrivateFile::Output), &from_extra_files, now)
    })
    .await?;
    Ok(Success::Outputs(set))
}
