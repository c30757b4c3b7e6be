//! Before a step begins: what earlier ones have left behind is not overwritten, and not forgotten.

use std::ffi::OsStr;
use std::{fs, io};

use hawser_contract::{Engine, Fault};

use super::advice;
use super::place::EngineDirectory;
use crate::engines::leftovers::ERRORED_STATE;
use crate::tasks::{TaskContext, TaskError};
use crate::workspace::Workspace;
use crate::workspace::backup::{By, keep};

/// Takes an `errored.tfstate` out of the way of an apply that would overwrite it, and says so. It is said before the file is gone
/// from where people look for it, whatever becomes of the apply.
pub(in crate::tasks) fn set_aside(
    context: &TaskContext,
    workspace: &Workspace,
    directory: &EngineDirectory,
    engine: Engine,
) -> Result<(), TaskError> {
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
    let Some((kept, _)) = kept else { return Ok(()) };
    context.warn(&advice::earlier_state(engine, directory, &kept));
    init.remove_file(OsStr::new(ERRORED_STATE))
        .map_err(|error| Fault::new(format!("cannot remove {}: {error}", from.display())))?;
    Ok(())
}

/// Says that there are rescued states: a plan that does not know of them makes again what they have.
pub(in crate::tasks) fn reminder(workspace: &Workspace) -> Option<String> {
    let folder = workspace.rescued_dir();
    let files = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(files) => files.into_iter().map(|file| file.file_name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(advice::unseen_states(folder, &error)),
    };
    let count = files.filter(|name| name.to_string_lossy().ends_with(ERRORED_STATE)).count();
    (count > 0).then(|| advice::rescued_states(count, folder))
}
