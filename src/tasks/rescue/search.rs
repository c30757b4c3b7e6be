//! Looks for what an engine left behind in a module's directory, and has it kept ([`crate::workspace::keep`]).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::contract::{Engine, Task};
use crate::engine::Places;
use crate::engine::leftovers::{self, ERRORED_STATE};
use crate::files::write_private_atomic;
use crate::hooks::Part;
use crate::workspace::inside::Folder;
use crate::workspace::keep::{By, keep};
use crate::workspace::{PrivateFile, Workspace, WorkspaceError};

use super::advice;
use crate::tasks::script::Module;
use crate::tasks::shape::Shape;
use crate::tasks::{Context, TaskError, verdict};

/// What was left behind.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Sentences for people, without the full stop.
    pub(super) notes: Vec<String>,
    /// How many resources the rescued state has: more than the backend knows of.
    pub(super) resources: Option<u64>,
}

#[derive(Debug, Clone)]
struct Search {
    context: Context,
    workspace: Workspace,
    directory: PathBuf,
    /// Where the engine keeps what it knows about the module, `.terraform`.
    data: PathBuf,
    engine: Engine,
    task: Task,
    /// Whether the engine may have run at all.
    began: bool,
}

/// `stopped` says that the script may have ended before its end, where it reads the state of a stack.
pub(super) async fn look(context: &Context, shape: &Shape<'_>, stopped: bool) -> Found {
    let (engine, task) = (shape.engine, shape.task);
    let Ok(workspace) = Workspace::new(&context.settings.working_directory, &context.common.metadata) else {
        return Found::default();
    };
    let directory = workspace.init_dir();
    let data = data_directory(context, engine).unwrap_or_else(|| directory.join(".terraform"));
    let began = began(context);
    // The file is made before the script begins, so that it is private, and filled at the end.
    let export = context.folder.path().join(PrivateFile::PulumiExport.name());
    let is_unread = fs::symlink_metadata(export).ok().is_none_or(|export| export.len() == 0);
    if engine == Engine::Pulumi && applies(task) && began && stopped && is_unread {
        let exported = match Module::open(context) {
            Ok(module) => module.export_stack(shape).await,
            Err(error) => Err(error),
        };
        if let Err(TaskError::Faulted(fault)) = exported {
            context.warn(&format!("The state of the stack could not be read: {}", fault.message));
        }
    }
    let search = Search { context: context.clone(), workspace, directory, data, engine, task, began };
    tokio::task::spawn_blocking(move || search.run()).await.unwrap_or_default()
}

/// Whether the task changes resources, and so the state.
fn applies(task: Task) -> bool {
    matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan)
}

/// The engine's own folder, where `TF_DATA_DIR` of the module's environment names another. A hook that sets it is not seen.
fn data_directory(context: &Context, engine: Engine) -> Option<PathBuf> {
    let module = Module::open(context).ok()?;
    let variables = module.workspace.load_environment().unwrap_or_default();
    let environment = module.environment(engine, &variables);
    environment.get("TF_DATA_DIR").filter(|value| !value.is_empty()).map(|value| module.directory.join(value))
}

/// Whether the script has come as far as the engine.
fn began(context: &Context) -> bool {
    let part = context.folder.part().and_then(|word| Part::from_word(&word));
    part.is_some_and(|part| part != Part::Before)
}

impl Search {
    fn run(&self) -> Found {
        let mut found = Found::default();
        let said = verdict::tail(&self.context).stderr;
        match self.engine {
            Engine::Pulumi if applies(self.task) => found.notes.extend(self.pending_operations()),
            Engine::Terraform | Engine::Tofu if applies(self.task) => self.errored_state(&said, &mut found),
            _ => {}
        }
        found.notes.extend(self.lock(&said));
        found
    }

    fn errored_state(&self, said: &[String], found: &mut Found) {
        let place = match self.rescue_errored_state() {
            Ok(Some((place, state))) => {
                found.resources = leftovers::stored_resources(&state);
                place
            }
            Ok(None) => {
                if leftovers::says_errored_state(said) {
                    found.notes.push(advice::missing_state(self.engine, &self.directory));
                }
                return;
            }
            Err(error) => {
                found.notes.push(format!("The {ERRORED_STATE} could not be kept elsewhere ({error})"));
                self.directory.join(ERRORED_STATE)
            }
        };
        found.notes.push(advice::errored_state(self.engine, &self.directory, &place, found.resources));
    }

    /// Moves the state that the backend did not take to the rescued ones, and returns where it is and what it holds. Once
    /// it is there the note in the step folder tells, so that concluding once more says the same.
    fn rescue_errored_state(&self) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
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
            let state = fs::read(&kept).unwrap_or_default();
            return Ok(Some((kept, state)));
        };
        let noted = kept.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"));
        let noted = noted.and_then(|kept| write_private_atomic(&note, kept.as_bytes()));
        // Without the note, a repeated conclusion would not find what it said. The file stays then.
        if let Err(error) = noted.and_then(|()| init.remove_file(OsStr::new(ERRORED_STATE)).map(drop)) {
            let from = self.directory.join(ERRORED_STATE);
            tracing::warn!("{} was kept in {} and stays: {error}", from.display(), kept.display());
        }
        Ok(Some((kept, state)))
    }

    fn pending_operations(&self) -> Option<String> {
        let step = self.context.folder.path();
        let places = Places::new(&self.workspace.private_dir(), step).ok()?;
        let export = places.open_collected(PrivateFile::PulumiExport);
        let Ok(pending) = leftovers::pending_operations(export) else {
            return self.began.then(|| advice::unread_stack(&self.directory));
        };
        if pending.is_empty() {
            return None;
        }
        let name = format!("{}-pulumi-export.json", self.context.common.job_id);
        let export = PrivateFile::PulumiExport.name();
        let kept = Folder::open(step)
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
        let state = leftovers::local_state(&self.directory, &self.data)?;
        let (file, lock) = leftovers::local_lock(&state)?;
        Some(advice::local_lock(self.engine, &file, &lock))
    }
}
