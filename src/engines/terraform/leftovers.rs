//! Finds what Terraform or OpenTofu left behind in a module's directory, keeps it ([`crate::workspace::backup`]), and says
//! what to do about it. The notes are sentences without the final period.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::{EngineTask, Task, TerraformFlag};
use uuid::Uuid;

use super::Terraform;
use super::creations::Creations;
use super::locks::{self, ERRORED_STATE, LockTrouble, says_errored_state};
use crate::base::files::write_private_atomic;
use crate::engines::EngineError;
use crate::engines::HOOKS_TO_CHECK;
use crate::engines::directory::EngineDirectory;
use crate::engines::failed_step::{FailedStep, Leftovers};
use crate::engines::flags::is_on;
use crate::script::{ScriptPhase, quote};
use crate::workspace::backup::keep;
use crate::workspace::{Workspace, WorkspaceError, stored_state};

/// What to check after a task whose outcome is unknown.
pub(super) fn to_check(task: Task) -> &'static str {
    match task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => {
            "check for a state lock that was left behind, for an errored.tfstate in the module's directory, and for \
             resources that are not in the state"
        }
        Task::Plan | Task::PlanDestroy => {
            "check for a state lock that was left behind, and check what its hooks changed"
        }
        Task::Init => {
            "if the state was to be migrated to another backend, check where it is; otherwise check what its hooks changed"
        }
        _ => HOOKS_TO_CHECK,
    }
}

impl Terraform {
    pub(super) fn find_leftovers(&self, step: &FailedStep) -> Leftovers {
        let mut found = Leftovers::default();
        if step.task.task.applies() {
            self.find_errored_state(step, &mut found);
        }
        if step.task.task.applies() && step.killed && step.phase == Some(ScriptPhase::Engine) {
            found.notes.extend(Creations::of(&step.folder).note(self.name.as_str()));
        }
        found.notes.extend(self.find_lock(step));
        found
    }

    fn push_command(&self, directory: &EngineDirectory, state: &Path) -> String {
        directory.command(&format!("{} state push {}", self.name, quote(&state.to_string_lossy())))
    }

    /// What to do with a rescued state before the next run. The engine refuses to push an encrypted one.
    fn push_advice(&self, directory: &EngineDirectory, state: &Path, encrypted: bool) -> String {
        if !encrypted {
            return self.push_command(directory, state);
        }
        let folder = state.with_extension("decrypted");
        let plain = folder.join("plain.tfstate");
        let [quoted_folder, from] = [&folder, state].map(|path| quote(&path.to_string_lossy()));
        // In another folder, without the variables that would lead back to the module's own state.
        let pull = format!(
            "mkdir -p {quoted_folder} && cd {quoted_folder} && cp {from} terraform.tfstate && env -u TF_WORKSPACE -u TF_DATA_DIR \
             {} state pull >plain.tfstate",
            self.name
        );
        format!(
            "decrypt it, because state push refuses an encrypted state: {}. If the module configures the encryption itself, \
             and not TF_ENCRYPTION, first copy its encryption block to a .tf file in {folder}. Then push it: {}, and remove \
             {folder}, where the state is in plain text",
            directory.command(&format!("sh -c {}", quote(&pull))),
            self.push_command(directory, &plain),
            folder = folder.display()
        )
    }

    fn find_errored_state(&self, step: &FailedStep, found: &mut Leftovers) {
        let (engine, directory) = (&self.name, &step.directory);
        found.notes.extend(match rescue_errored_state(step) {
            Ok(Some((kept, state))) => {
                let encrypted = state.as_ref().is_ok_and(|state| stored_state::is_encrypted(state));
                let resources = state.map(|state| stored_state::stored_resources(&state));
                found.resources = resources.as_ref().ok().copied().flatten();
                let contents = match resources {
                    Ok(Some(count)) => format!("{count} resources"),
                    Ok(None) if encrypted => "encrypted".to_owned(),
                    Ok(None) => "damaged".to_owned(),
                    Err(error) => format!("unreadable: {error}"),
                };
                let push = self.push_advice(directory, &kept, encrypted);
                let kept = kept.display();
                Some(format!(
                    "The backend did not accept the new state. The only copy is {kept} ({contents}). Before the next run: {push}"
                ))
            }
            Ok(None) if says_errored_state(&step.stderr) => Some(format!(
                "{engine} has written an {ERRORED_STATE}, the only copy of the new state, but it is not in {}. Check the \
                 directories that hooks change to, and {}, where the next apply moves it",
                directory.init.display(),
                step.workspace.rescued_dir().display()
            )),
            Ok(None) => None,
            Err(error) => {
                let path = directory.init.join(ERRORED_STATE);
                let push = self.push_command(directory, &path);
                let path = path.display();
                Some(format!(
                    "Failed to look for an {ERRORED_STATE} or to keep a copy of it ({error}). If {path} exists, the backend \
                     did not accept the new state, and this is the only copy. In that case, before the next run: {push}"
                ))
            }
        });
    }

    fn find_lock(&self, step: &FailedStep) -> Option<String> {
        let engine = &self.name;
        match locks::lock_trouble(&step.stderr) {
            Some(LockTrouble::HeldByProcess(lock)) => {
                return Some(format!(
                    "The state {} is locked by a process that is still running, lock id {}{}. The lock ends with that process \
                     and cannot be forced",
                    lock.path,
                    lock.id,
                    lock.about()
                ));
            }
            Some(LockTrouble::Held(lock)) => {
                return Some(format!(
                    "The state is locked, lock id {}{}. Only if you are certain that nothing else is using it: {}",
                    lock.id,
                    lock.about(),
                    step.directory.command(&format!("{engine} force-unlock {}", quote(&lock.id)))
                ));
            }
            Some(LockTrouble::NotReleased) => {
                return Some(format!(
                    "{engine} could not release its state lock. If the lock is still there, the next Plan fails and names it"
                ));
            }
            None => {}
        }
        let at = &step.directory;
        let Some(state) = stored_state::local_state(at.worked_in(), &at.data(), at.workspace()) else {
            let is_lost = step.killed && step.phase == Some(ScriptPhase::Engine) && locks_state(&step.task);
            return is_lost.then(|| {
                format!(
                    "{engine} may have ended before it released its state lock. If the lock is still held in the backend, the \
                     next Plan fails, names it, and prints the command that unlocks it"
                )
            });
        };
        let (file, lock) = locks::local_lock(&state)?;
        Some(format!(
            "The state lock {}{} was left behind in {}. The lock of a local state ends with its process, so there is nothing \
             to unlock; make sure that no {engine} is running there",
            lock.id,
            lock.about(),
            file.display()
        ))
    }

    /// Moves an `errored.tfstate` out of the way of an apply that would overwrite it. `warn` reports it before the file is
    /// moved, because the apply may fail.
    pub(super) fn set_aside(
        &self,
        workspace: &Workspace,
        directory: &EngineDirectory,
        job_id: Uuid,
        warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        let name = format!("before-{job_id}-{ERRORED_STATE}");
        let init = workspace.tree()?.init_folder();
        let moved = init.and_then(|init| {
            let kept = keep(&init, ERRORED_STATE, workspace.rescued_dir(), &name, true)?;
            let Some((kept, state)) = kept else { return Ok(()) };
            warn(&format!(
                "An earlier apply left an {ERRORED_STATE}, a state that its backend did not accept. It is kept in {}. If you \
                 have not pushed it yet: {}",
                kept.display(),
                self.push_advice(directory, &kept, stored_state::is_encrypted(&state))
            ));
            init.remove_file(OsStr::new(ERRORED_STATE)).map(drop)
        });
        moved.map_err(|source| EngineError::SetAside { path: directory.init.join(ERRORED_STATE), source })
    }
}

/// Whether the engine locks the state for this task.
fn locks_state(task: &EngineTask) -> bool {
    let flags = &task.flags.terraform_flags.known;
    let unlocked =
        flags.iter().any(|it| it.flag == TerraformFlag::Lock) && !is_on(flags, TerraformFlag::Lock);
    (task.task.applies() || matches!(task.task, Task::Plan | Task::PlanDestroy)) && !unlocked
}

/// Moves a state that the backend did not accept to the rescued states. Returns its path and its contents. The path is
/// recorded in the step folder, so that a repeated conclusion reports the same.
fn rescue_errored_state(step: &FailedStep) -> io::Result<Option<(PathBuf, io::Result<Vec<u8>>)>> {
    let record = step.folder.rescued_path();
    let name = format!("{}-{ERRORED_STATE}", step.job_id);
    let init = match step.workspace.tree() {
        Ok(tree) => tree.init_folder(),
        Err(WorkspaceError::NoSubdirectory { .. }) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(io::Error::other(error)),
    };
    let kept = match &init {
        Ok(init) => keep(init, ERRORED_STATE, step.workspace.rescued_dir(), &name, true)?.zip(Some(init)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io::Error::other(error.to_string())),
    };
    let Some(((kept, state), init)) = kept else {
        let Ok(kept) = fs::read_to_string(&record).map(PathBuf::from) else { return Ok(None) };
        let state = fs::read(&kept);
        return Ok(Some((kept, state)));
    };
    let recorded = kept.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"));
    let recorded = recorded.and_then(|kept| write_private_atomic(&record, kept.as_bytes()));
    // Without the record, a repeated conclusion would not find the copy. The file stays then.
    if let Err(error) = recorded.and_then(|()| init.remove_file(OsStr::new(ERRORED_STATE)).map(drop)) {
        let (path, kept) = (step.directory.init.join(ERRORED_STATE), kept.display());
        tracing::warn!(path = %path.display(), %kept, %error, "failed to remove a rescued state");
    }
    Ok(Some((kept, Ok(state))))
}

/// Warns about rescued states: a plan without them would create their resources again.
pub(super) fn reminder(workspace: &Workspace) -> Option<String> {
    let folder = workspace.rescued_dir();
    let shown = folder.display();
    let files = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(files) => files.into_iter().map(|file| file.file_name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("Failed to look for rescued states in {shown}: {error}")),
    };
    let count = files.filter(|name| name.to_string_lossy().ends_with(ERRORED_STATE)).count();
    (count > 0).then(|| {
        format!(
            "There are rescued states ({count}) in {shown}, which a backend did not accept. Before the next apply, push them \
             if you have not done so, and then remove them"
        )
    })
}
