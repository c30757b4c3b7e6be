//! Looks for what an engine left behind in a module's directory, and has it kept ([`crate::workspace::backup`]).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::{fs, io};

use hawser_contract::{Engine, Task, TerraformFlag};

use super::advice;
use super::place::EngineDirectory;
use crate::base::confined_dir::ConfinedDir;
use crate::base::files::write_private_atomic;
use crate::engines::ResultPaths;
use crate::engines::flags::is_on;
use crate::engines::leftovers::{self, ERRORED_STATE};
use crate::script::ScriptPhase;
use crate::tasks::prepare_script::{OpenModule, environment};
use crate::tasks::shape::ScriptTask;
use crate::tasks::{TaskContext, TaskError, exit_analysis};
use crate::workspace::backup::{By, keep};
use crate::workspace::{PrivateFile, Workspace, WorkspaceError, stored_state};

/// What was left behind.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Sentences for people, without the full stop.
    pub(super) notes: Vec<String>,
    /// How many resources the rescued state has: more than the backend knows of.
    pub(super) resources: Option<u64>,
}

impl Leftovers {
    fn not_looked_for(shape: &ScriptTask<'_>, why: &dyn std::error::Error) -> Self {
        Self { notes: vec![advice::not_looked_for(shape, why)], resources: None }
    }
}

#[derive(Debug, Clone)]
struct Search {
    context: TaskContext,
    workspace: Workspace,
    directory: EngineDirectory,
    engine: Engine,
    /// Whether the task changes resources.
    applies: bool,
    /// Whether the engine may have run at all.
    began: bool,
    /// Whether a stack is gone, as it was meant to be.
    removed: bool,
    /// Whether the engine may have had a lock when it was killed.
    lock_lost: bool,
}

/// How a script ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptEnding {
    /// It may have ended before its end, where it reads the state of a stack.
    pub(super) stopped: bool,
    /// What ran then could not clean up.
    pub(super) killed: bool,
}

pub(super) async fn look(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    ScriptEnding { stopped, killed }: ScriptEnding,
) -> Leftovers {
    let (engine, applies) = (shape.engine, shape.applies());
    let workspace = match Workspace::new(&context.settings.working_directory, &context.common.metadata) {
        Ok(workspace) => workspace,
        Err(error) => return Leftovers::not_looked_for(shape, &error),
    };
    let directory = place(context, shape, &workspace);
    let part = context.folder.part().and_then(|word| ScriptPhase::from_word(&word));
    let began = part.is_some_and(|part| part != ScriptPhase::Before);
    let removed = shape.removes_stack() && began && part != Some(ScriptPhase::Engine);
    let lock_lost = killed && part == Some(ScriptPhase::Engine) && locks(shape);
    // The file is made before the script begins, so that it is private, and filled at the end.
    let export = context.folder.path().join(PrivateFile::PulumiExport.name());
    let is_unread = fs::symlink_metadata(export).ok().is_none_or(|export| export.len() == 0);
    if engine == Engine::Pulumi && applies && began && stopped && is_unread && !removed {
        let exported = match OpenModule::open(context) {
            Ok(module) => module.export_stack(shape).await,
            Err(error) => Err(error),
        };
        if let Err(TaskError::Faulted(fault)) = exported {
            context.warn(&format!("The state of the stack could not be read: {}", fault.message));
        }
    }
    let context = context.clone();
    let search = Search { context, workspace, directory, engine, applies, began, removed, lock_lost };
    searched(shape, move || search.run()).await
}

/// Searches on a thread of its own. One that fails has not found that there is nothing.
async fn searched(shape: &ScriptTask<'_>, search: impl FnOnce() -> Leftovers + Send + 'static) -> Leftovers {
    let found = tokio::task::spawn_blocking(search).await;
    found.unwrap_or_else(|error| Leftovers::not_looked_for(shape, &error))
}

/// Whether the engine locks the state for this task.
fn locks(shape: &ScriptTask<'_>) -> bool {
    let flags = shape.flags.map(|flags| &flags.terraform_flags.known);
    let unlocked = flags.is_some_and(|flags| {
        flags.iter().any(|it| it.flag == TerraformFlag::Lock) && !is_on(flags, TerraformFlag::Lock)
    });
    (shape.applies() || matches!(shape.task, Task::Plan | Task::PlanDestroy)) && !unlocked
}

/// Where the engine worked.
fn place(context: &TaskContext, shape: &ScriptTask<'_>, workspace: &Workspace) -> EngineDirectory {
    let variables = workspace.load_environment().unwrap_or_default();
    let environment = environment(context, shape.engine, &variables);
    EngineDirectory::new(workspace, &environment, shape.before.is_some()).noted_by(&context.folder)
}

impl Search {
    fn run(&self) -> Leftovers {
        let mut found = Leftovers::default();
        let said = exit_analysis::tail(&self.context).stderr;
        match self.engine {
            Engine::Pulumi if self.removed => {}
            Engine::Pulumi if self.applies => found.notes.extend(self.pending_operations()),
            Engine::Terraform | Engine::Tofu if self.applies => self.errored_state(&said, &mut found),
            _ => {}
        }
        found.notes.extend(self.lock(&said));
        found
    }

    fn errored_state(&self, said: &[String], found: &mut Leftovers) {
        let (engine, directory) = (self.engine, &self.directory);
        found.notes.extend(match self.rescue_errored_state() {
            Ok(Some((place, state))) => {
                let resources = state.map(|state| stored_state::stored_resources(&state));
                found.resources = resources.as_ref().ok().copied().flatten();
                Some(advice::errored_state(engine, directory, &place, &resources))
            }
            Ok(None) if leftovers::says_errored_state(said) => {
                Some(advice::missing_state(engine, directory, self.workspace.rescued_dir()))
            }
            Ok(None) => None,
            Err(error) => Some(advice::unkept_state(engine, directory, &error)),
        });
    }

    /// Moves the state that the backend did not take to the rescued ones, and returns where it is and what it holds. Once
    /// it is there the note in the step folder tells, so that concluding once more says the same.
    fn rescue_errored_state(&self) -> io::Result<Option<(PathBuf, io::Result<Vec<u8>>)>> {
        let note = self.context.folder.rescued_path();
        let name = format!("{}-{ERRORED_STATE}", self.context.common.job_id);
        let init = match self.workspace.tree() {
            Ok(tree) => tree.init_folder(),
            Err(WorkspaceError::NoSubdirectory { .. }) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(io::Error::other(error)),
        };
        let kept = match &init {
            Ok(init) => {
                keep(init, ERRORED_STATE, self.workspace.rescued_dir(), &name, By::Link)?.zip(Some(init))
            }
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
            let from = self.directory.join(ERRORED_STATE);
            tracing::warn!("{} was kept in {} and stays: {error}", from.display(), kept.display());
        }
        Ok(Some((kept, Ok(state))))
    }

    fn pending_operations(&self) -> Option<String> {
        let step = self.context.folder.path();
        let places = ResultPaths::new(&self.workspace.private_dir(), step).ok()?;
        let export = places.open_collected(PrivateFile::PulumiExport);
        let Ok(pending) = leftovers::pending_operations(export) else {
            return self.began.then(|| advice::unread_stack(&self.directory));
        };
        if pending.is_empty() {
            return None;
        }
        let name = format!("{}-pulumi-export.json", self.context.common.job_id);
        let export = PrivateFile::PulumiExport.name();
        let kept = ConfinedDir::open(step)
            .and_then(|step| keep(&step, export, self.workspace.rescued_dir(), &name, By::Copy));
        let kept = match kept {
            Ok(Some((kept, _))) => format!("the state is kept in {}", kept.display()),
            Ok(None) => "the state is gone".to_owned(),
            Err(error) => format!("the state could not be kept: {error}"),
        };
        Some(advice::pending_operations(&self.directory, &pending, &kept))
    }

    fn lock(&self, said: &[String]) -> Option<String> {
        if let Some(trouble) = leftovers::lock_trouble(said) {
            return Some(advice::lock_trouble(self.engine, &self.directory, &trouble));
        }
        if self.engine == Engine::Pulumi {
            return None;
        }
        let at = &self.directory;
        let Some(state) = stored_state::local_state(at.worked_in(), &at.data(), at.workspace()) else {
            return self.lock_lost.then(|| advice::remote_lock(self.engine));
        };
        let (file, lock) = leftovers::local_lock(&state)?;
        Some(advice::local_lock(self.engine, &file, &lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::requests::ApplyFromPlan;
    use hawser_contract::{FlagLists, TaskRequest};

    #[tokio::test]
    async fn a_search_that_fails_is_not_told_as_one_that_found_nothing() {
        let own = ApplyFromPlan { engine: Engine::Terraform, ..ApplyFromPlan::default() };
        let request = TaskRequest::ApplyFromPlan(own, FlagLists::default());
        let shape = ScriptTask::of(&request).unwrap();
        let found = searched(&shape, || panic!("the search breaks")).await;
        let [note] = found.notes.as_slice() else { panic!("{found:?}") };
        assert!(
            note.starts_with("The search for what terraform apply may have left behind failed"),
            "{note}"
        );
        assert!(note.contains("the search breaks") && note.contains("errored.tfstate"), "{note}");
        assert!(searched(&shape, Leftovers::default).await.notes.is_empty());
    }
}
