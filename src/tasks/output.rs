//! Output: the module's outputs, with their types and without loss.

use std::collections::BTreeSet;

use crate::contract::requests::Output;
use crate::contract::{Engine, FlagLists, Success};
use crate::engine::declarations::Declarations;
use crate::engine::{outputs, pulumi, terraform};
use crate::workspace::PrivateFile;

use super::script::{Module, read};
use super::shape::Shape;
use super::{Context, Prepared, TaskError};

pub(super) async fn prepare(
    context: &Context,
    shape: &Shape<'_>,
    flags: &FlagLists,
) -> Result<Prepared, TaskError> {
    let module = Module::open(context)?;
    let variables = module.workspace.load_environment()?;
    let work = match shape.engine {
        Engine::Pulumi => pulumi::output(flags, &module.places),
        engine => terraform::output(engine, flags, &module.places),
    };
    module.launch(shape, &variables, false, work).await
}

pub(super) async fn conclude(context: &Context, request: &Output) -> Result<Success, TaskError> {
    let Module { places, directory, workspace, .. } = Module::open(context)?;
    let tree = workspace.tree()?;
    let (engine, extra_files) = (request.engine, tree.placed_extra_files(&request.extra_file_names));
    let set = read(move || {
        let from_extra_files = match extra_files.is_empty() {
            true => BTreeSet::new(),
            false => Declarations::of_module(&directory, &tree, engine)?.outputs_of(&extra_files),
        };
        let now = jiff::Timestamp::now().as_millisecond();
        outputs::read(engine, places.open_collected(PrivateFile::Output), &from_extra_files, now)
    })
    .await?;
    Ok(Success::Outputs(set))
}
