//! Steps that an older build began, and this one concludes.
//!
//! `conclude` reads results from the step's folder. Scripts that were written before there were such copies have put the
//! outputs, and all results of Pulumi, into the module's private folder alone. They are brought from there before anything
//! is made of the script's end. By then the module may have been another task's: a file that was written after the
//! script had ended is not taken for its result.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::base::confined_dir::{Folder, is_missing, read_limited};
use crate::hooks::quote;
use crate::step::Exit;
use crate::workspace::{PrivateFile, Workspace};
use hawser_contract::{Engine, Task, TaskRequest};

use super::Context;
use super::shape::Shape;

/// More than this is not kept in memory for a result elsewhere, either.
const LARGEST: u64 = 256 * 1024 * 1024;

/// Puts the result of a script that ended so into the step's folder, where the script is of a build that did not. What cannot be
/// brought is missing when the task is concluded, and the log says why.
pub async fn bring_result(context: &Context, request: &TaskRequest, exit: &Exit) {
    let Some(file) = Shape::of(request).and_then(|shape| result_of(&shape)) else { return };
    let (context, exit) = (context.clone(), exit.clone());
    let bringing = tokio::task::spawn_blocking(move || {
        let metadata = &context.common.metadata;
        let Ok(workspace) = Workspace::new(&context.settings.working_directory, metadata) else { return };
        if let Err(error) = bring(&context, &workspace, file, &exit) {
            context.warn(&format!(
                "The result of this task, which an older hawser began, cannot be taken from {}: {error}",
                workspace.private_path(file).display()
            ));
        }
    });
    if let Err(error) = bringing.await {
        tracing::error!("a thread that was to bring the result of an older build failed: {error}");
    }
}

/// The result that has not always been in the step's folder.
fn result_of(shape: &Shape<'_>) -> Option<PrivateFile> {
    match (shape.task, shape.engine) {
        (Task::Output, _) => Some(PrivateFile::Output),
        (Task::Plan, Engine::Pulumi) => Some(PrivateFile::PulumiPlan),
        (Task::PlanDestroy, Engine::Pulumi) => Some(PrivateFile::DestroyPreview),
        (Task::ApplyFromPlan | Task::DestroyFromPlan, Engine::Pulumi) => Some(PrivateFile::PulumiExport),
        _ => None,
    }
}

fn bring(context: &Context, workspace: &Workspace, file: PrivateFile, exit: &Exit) -> io::Result<()> {
    let (step, name) = (context.folder.path(), OsStr::new(file.name()));
    if is_written_by(&context.folder.script_path(), &step.join(name))? {
        return Ok(());
    }
    let step = Folder::open(step)?;
    if step.kind(name)?.is_some() {
        // Brought before.
        return Ok(());
    }
    let tree = workspace.tree().map_err(io::Error::other)?;
    let left = match tree.open_private(file) {
        // A script that failed may have come to none.
        Err(error) if is_missing(&error) && exit.code != Some(0) => return Ok(()),
        left => left?,
    };
    let written = jiff::Timestamp::try_from(left.metadata()?.modified()?).map_err(io::Error::other)?;
    if written > exit.finished {
        return Err(io::Error::other(format!(
            "another task has written it at {written}, after the end of this one's script at {}",
            exit.finished
        )));
    }
    step.write(name, &read_limited(left, LARGEST)?)
}

/// Whether the script puts a file there by itself, as those of this build do.
fn is_written_by(script: &Path, file: &Path) -> io::Result<bool> {
    let script = fs::read_to_string(script)?;
    Ok(file.to_str().is_some_and(|file| script.contains(&quote(file))))
}
