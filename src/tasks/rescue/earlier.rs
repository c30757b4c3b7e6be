//! Before a step begins: what earlier ones have left behind is not overwritten, and not forgotten.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::contract::{Engine, Fault};
use crate::engine::leftovers::ERRORED_STATE;
use crate::workspace::Workspace;
use crate::workspace::keep::{By, keep};

use super::advice;
use crate::tasks::{Context, TaskError};

/// Takes an `errored.tfstate` out of the way of an apply that would overwrite it, and returns what to say about it.
pub(in crate::tasks) fn set_aside(
    context: &Context,
    workspace: &Workspace,
    directory: &Path,
    engine: Engine,
) -> Result<Option<String>, TaskError> {
    let from = directory.join(ERRORED_STATE);
    let name = format!("before-{}-{ERRORED_STATE}", context.common.job_id);
    let init = workspace.tree()?.init_folder();
    let kept = init.and_then(|init| {
        let kept = keep(&init, ERRORED_STATE, workspace.rescued_dir(), &name, By::Link)?;
        Ok((init, kept))
    });
    let (init, kept) = kept.map_err(|error| {
        let from = from.display();
        Fault::new(format!(
            "{from} is from an earlier apply and would be overwritten, but cannot be kept safe: {error}"
        ))
    })?;
    let Some((kept, _)) = kept else { return Ok(None) };
    init.remove_file(OsStr::new(ERRORED_STATE))
        .map_err(|error| Fault::new(format!("cannot remove {}: {error}", from.display())))?;
    Ok(Some(advice::earlier_state(engine, directory, &kept)))
}

/// Says that there are rescued states: a plan that does not know of them makes again what they have.
pub(in crate::tasks) fn reminder(workspace: &Workspace) -> Option<String> {
    let folder = workspace.rescued_dir();
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.file_name());
    let count = files.filter(|name| name.to_string_lossy().ends_with(ERRORED_STATE)).count();
    (count > 0).then(|| advice::rescued_states(count, folder))
}
