//! Finds what Terraform or OpenTofu left behind in a module's directory, and has it kept ([`crate::workspace::backup`]).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::{fs, io};

use hawser_contract::{EngineName, EngineTask, Task, TerraformFlag};
use uuid::Uuid;

use super::advice;
use super::locks::{self, ERRORED_STATE, says_errored_state};
use crate::base::files::write_private_atomic;
use crate::engines::EngineError;
use crate::engines::directory::EngineDirectory;
use crate::engines::failed_step::{FailedStep, Leftovers};
use crate::engines::flags::is_on;
use crate::script::ScriptPhase;
use crate::workspace::backup::{By, keep};
use crate::workspace::{Workspace, WorkspaceError, stored_state};

pub(super) fn find(engine: &EngineName, step: &FailedStep) -> Leftovers {
    let mut found = Leftovers::default();
    if step.task.task.applies() {
        errored_state(engine, step, &mut found);
    }
    found.notes.extend(lock(engine, step));
    found
}

/// Whether the engine locks the state for this task.
fn locks_state(task: &EngineTask) -> bool {
    let flags = &task.flags.terraform_flags.known;
    let unlocked =
        flags.iter().any(|it| it.flag == TerraformFlag::Lock) && !is_on(flags, TerraformFlag::Lock);
    (task.task.applies() || matches!(task.task, Task::Plan | Task::PlanDestroy)) && !unlocked
}

fn errored_state(engine: &EngineName, step: &FailedStep, found: &mut Leftovers) {
    let directory = &step.directory;
    found.notes.extend(match rescue_errored_state(step) {
        Ok(Some((place, state))) => {
            let resources = state.map(|state| stored_state::stored_resources(&state));
            found.resources = resources.as_ref().ok().copied().flatten();
            Some(advice::errored_state(engine, directory, &place, &resources))
        }
        Ok(None) if says_errored_state(&step.stderr) => {
            Some(advice::missing_state(engine, directory, step.workspace.rescued_dir()))
        }
        Ok(None) => None,
        Err(error) => Some(advice::unkept_state(engine, directory, &error)),
    });
}

/// Moves the state that the backend did not take to the rescued ones, and returns where it is and what it holds. Once
/// it is there the note in the step folder tells, so that concluding once more says the same.
fn rescue_errored_state(step: &FailedStep) -> io::Result<Option<(PathBuf, io::Result<Vec<u8>>)>> {
    let note = step.folder.rescued_path();
    let name = format!("{}-{ERRORED_STATE}", step.job_id);
    let init = match step.workspace.tree() {
        Ok(tree) => tree.init_folder(),
        Err(WorkspaceError::NoSubdirectory { .. }) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(io::Error::other(error)),
    };
    let kept = match &init {
        Ok(init) => keep(init, ERRORED_STATE, step.workspace.rescued_dir(), &name, By::Link)?.zip(Some(init)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io::Error::other(error.to_string())),
    };
    let Some(((kept, state), init)) = kept else {
        let Ok(kept) = fs::read_to_string(&note).map(PathBuf::from) else { return Ok(None) };
        let state = fs::read(&kept);
        return Ok(Some((kept, state)));
    };
    let noted = kept.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"));
    let noted = noted.and_then(|kept| write_private_atomic(&note, kept.as_bytes()));
    // Without the note, a repeated conclusion would not find what it said. The file stays then.
    if let Err(error) = noted.and_then(|()| init.remove_file(OsStr::new(ERRORED_STATE)).map(drop)) {
        let from = step.directory.join(ERRORED_STATE);
        tracing::warn!("{} was kept in {} and stays: {error}", from.display(), kept.display());
    }
    Ok(Some((kept, Ok(state))))
}

fn lock(engine: &EngineName, step: &FailedStep) -> Option<String> {
    if let Some(trouble) = locks::lock_trouble(&step.stderr) {
        return Some(advice::lock_trouble(engine, &step.directory, &trouble));
    }
    let at = &step.directory;
    let Some(state) = stored_state::local_state(at.worked_in(), &at.data(), at.workspace()) else {
        let is_lost = step.killed && step.phase == Some(ScriptPhase::Engine) && locks_state(&step.task);
        return is_lost.then(|| advice::remote_lock(engine));
    };
    let (file, lock) = locks::local_lock(&state)?;
    Some(advice::local_lock(engine, &file, &lock))
}

/// Warns about rescued states: a plan that does not know of them creates their resources again.
pub(super) fn reminder(workspace: &Workspace) -> Option<String> {
    let folder = workspace.rescued_dir();
    let files = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(files) => files.into_iter().map(|file| file.file_name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(advice::unseen_states(folder, &error)),
    };
    let count = files.filter(|name| name.to_string_lossy().ends_with(ERRORED_STATE)).count();
    (count > 0).then(|| advice::rescued_states(count, folder))
}

/// Moves an `errored.tfstate` out of the way of an apply that would overwrite it. `warn` reports it before the file is
/// gone from where people look for it, whatever becomes of the apply.
pub(super) fn set_aside(
    engine: &EngineName,
    workspace: &Workspace,
    directory: &EngineDirectory,
    job_id: Uuid,
    warn: &dyn Fn(&str),
) -> Result<(), EngineError> {
    let path = directory.join(ERRORED_STATE);
    let name = format!("before-{job_id}-{ERRORED_STATE}");
    let init = workspace.tree()?.init_folder();
    let kept = init.and_then(|init| {
        let kept = keep(&init, ERRORED_STATE, workspace.rescued_dir(), &name, By::Link)?;
        Ok((init, kept))
    });
    let (init, kept) = kept.map_err(|source| EngineError::SetAside { path: path.clone(), source })?;
    let Some((kept, _)) = kept else { return Ok(()) };
    warn(&advice::earlier_state(engine, directory, &kept));
    let removed = init.remove_file(OsStr::new(ERRORED_STATE));
    removed.map(drop).map_err(|source| EngineError::Remove { path, source })
}
