//! Output: the module's outputs, with their types and without loss.

use std::collections::BTreeSet;
use std::io;

use hawser_contract::requests::Output;
use hawser_contract::{Engine, Fault, FlagLists, Success};

use super::prepare_script::{OpenModule, places, read};
use super::shape::ScriptTask;
use super::{Prepared, TaskContext, TaskError};
use crate::base::files::write_private_atomic;
use crate::engines::declarations::Declarations;
use crate::engines::{outputs, pulumi, terraform};
use crate::workspace::{PrivateFile, Workspace};

pub(super) async fn prepare(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    request: &Output,
    flags: &FlagLists,
) -> Result<Prepared, TaskError> {
    let module = OpenModule::open(context)?;
    let variables = module.workspace.load_environment()?;
    if !request.extra_file_names.is_empty() {
        // Noted now: when the task is concluded, the module's files may be those of another revision.
        let names = declared_by_extra_files(&module.workspace, request).await?;
        let path = module.places.extra_outputs();
        let written = serde_json::to_vec(&names).map_err(io::Error::from);
        let written = written.and_then(|names| write_private_atomic(path.as_ref(), &names));
        written.map_err(|error| Fault::new(format!("cannot write {path}: {error}")))?;
    }
    let work = match shape.engine {
        Engine::Pulumi => pulumi::output(flags, &module.places),
        engine => terraform::output(engine, flags, &module.places),
    };
    module.launch(shape, &variables, false, work).await
}

/// The names of the outputs that extra files declare, by the files that the module has now.
async fn declared_by_extra_files(
    workspace: &Workspace,
    request: &Output,
) -> Result<BTreeSet<String>, TaskError> {
    let (directory, tree) = (workspace.init_dir(), workspace.tree()?);
    let (engine, extra_files) = (request.engine, tree.placed_extra_files(&request.extra_file_names));
    read(move || Ok(Declarations::of_module(&directory, &tree, engine)?.outputs_of(&extra_files))).await
}

pub(super) async fn conclude(context: &TaskContext, request: &Output) -> Result<Success, TaskError> {
    let (places, engine) = (places(context)?, request.engine);
    let noted = places.open_extra_outputs();
    let from_extra_files = if request.extra_file_names.is_empty() {
        BTreeSet::new()
    } else {
        read(move || outputs::read_names(noted)).await?
    };
    let set = read(move || {
        let now = jiff::Timestamp::now().as_millisecond();
        outputs::read(engine, places.open_collected(PrivateFile::Output), &from_extra_files, now)
    })
    .await?;
    Ok(Success::Outputs(set))
}
