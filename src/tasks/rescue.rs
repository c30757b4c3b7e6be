//! After a step that failed, was cancelled or was lost: what the engine left behind is kept safe, and said.
//!
//! A state that the backend did not take exists nowhere else. It leaves the checkout, where the next apply would
//! overwrite it and a clean init would drop it, for the module's folder of rescued files:
//!
//! ```text
//! {WorkingDirectory}/.hawser/rescued/{stack}/{namespace}/{module}/        (0700; files 0600)
//!   20261116T021036Z-{job id}-errored.tfstate           a step of that job could not write this state then
//!   20261116T021036Z-before-{job id}-errored.tfstate    it was there before that job's apply
//!   20261116T021036Z-{job id}-pulumi-export.json        a state with pending operations
//! ```
//!
//! Nothing here removes them: whoever has pushed a state does. The time is that of the file. The order is a second name or a
//! copy (with fsync), note in the step folder (`rescued`), removal, so that a crash at any point loses neither the file nor the
//! word about it, and concluding once more says the same.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::contract::{Engine, Fault, Task, TaskRequest};
use crate::engine::Written;
use crate::engine::leftovers::{self, ERRORED_STATE, LockTrouble};
use crate::files::{create_private_dir_all, sync_dir, write_private_atomic};
use crate::hooks::{Part, quote};
use crate::workspace::inside::{self, Kind};
use crate::workspace::{PrivateFile, Workspace, WorkspaceError};

use super::script::Module;
use super::shape::Shape;
use super::{Context, TaskError, verdict};

/// How many pending operations a message names.
const NAMED: usize = 10;

/// What was left behind.
#[derive(Debug, Default)]
struct Found {
    /// Sentences for people, without the full stop.
    notes: Vec<String>,
    /// How many resources the rescued state has: more than the backend knows of.
    resources: Option<u64>,
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

/// Adds to the end of a step what the engine left behind: to the fault, or to the log of a cancelled job.
pub(super) async fn explain(context: &Context, shape: &Shape<'_>, error: TaskError) -> TaskError {
    let stopped = matches!(error, TaskError::Cancelled);
    let found = look(context, shape, stopped).await;
    match error {
        TaskError::Cancelled => {
            for note in &found.notes {
                context.warn(note);
            }
            TaskError::Cancelled
        }
        TaskError::Faulted(fault) => TaskError::Faulted(add(fault, &found)),
        TaskError::Refused { refusal, fault } => TaskError::Refused { refusal, fault: add(fault, &found) },
    }
}

/// What to look for after a step that nobody saw the end of. Only what its task can have left.
pub fn to_check(request: &TaskRequest) -> &'static str {
    let Some(shape) = Shape::of(request) else { return "it changes no resources" };
    match (shape.task, shape.engine) {
        (Task::ApplyFromPlan | Task::DestroyFromPlan, Engine::Pulumi) => {
            "look for a lock of the stack that was left behind, for pending operations, and for resources that are \
             not in the state"
        }
        (Task::ApplyFromPlan | Task::DestroyFromPlan, _) => {
            "look for a state lock that was left behind, for an errored.tfstate in the module's directory, and for \
             resources that are not in the state"
        }
        (Task::Plan | Task::PlanDestroy, Engine::Pulumi) => {
            "it changes no resources itself, but its hooks may, and the configuration of the stack may be half written"
        }
        (Task::Plan | Task::PlanDestroy, _) => {
            "look for a state lock that was left behind; it changes no resources itself, but its hooks may"
        }
        (Task::Init, Engine::Terraform | Engine::Tofu) => {
            "where a state was to move to another backend, look where it is; apart from that, only its hooks can have \
             changed anything"
        }
        _ => "it changes no resources itself, but its hooks may",
    }
}

/// The same for a step that nobody saw the end of. Whoever calls this holds the lock of the module's directory.
pub async fn explain_lost(context: &Context, request: &TaskRequest, fault: Fault) -> Fault {
    let Some(shape) = Shape::of(request) else { return fault };
    let found = look(context, &shape, true).await;
    add(fault, &found)
}

fn add(mut fault: Fault, found: &Found) -> Fault {
    for note in &found.notes {
        let end = if fault.message.ends_with('.') { " " } else { ". " };
        fault.message.push_str(end);
        fault.message.push_str(note);
    }
    fault.resources = found.resources.or(fault.resources);
    fault
}

async fn look(context: &Context, shape: &Shape<'_>, stopped: bool) -> Found {
    let (engine, task) = (shape.engine, shape.task);
    let Ok(workspace) = Workspace::new(&context.settings.working_directory, &context.common.metadata) else {
        return Found::default();
    };
    let directory = workspace.init_dir();
    let data = data_directory(context, engine).unwrap_or_else(|| directory.join(".terraform"));
    let began = began(context);
    let is_update = matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan);
    // The script makes the file before it begins, so that it is private, and fills it at the end.
    let export = workspace.tree().ok().and_then(|tree| tree.open_private(PrivateFile::PulumiExport).ok());
    let is_unread = export.and_then(|file| file.metadata().ok()).is_none_or(|export| export.len() == 0);
    if engine == Engine::Pulumi && is_update && began && stopped && is_unread {
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

/// Takes an `errored.tfstate` out of the way of an apply that would overwrite it, and returns what to say about it.
pub(super) fn set_aside(
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
    let push = push_command(engine, directory, &kept);
    Ok(Some(format!(
        "An earlier apply left an {ERRORED_STATE}, a state that its backend did not take. It is kept in {}. If it was \
         not pushed since: `{push}`",
        kept.display()
    )))
}

/// Says that there are rescued states: a plan that does not know of them makes again what they have.
pub(super) fn reminder(workspace: &Workspace) -> Option<String> {
    let folder = workspace.rescued_dir();
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.file_name());
    let count = files.filter(|name| name.to_string_lossy().ends_with(ERRORED_STATE)).count();
    (count > 0).then(|| {
        format!(
            "There are rescued states ({count}) in {}, which a backend did not take. Push what was not pushed before \
             anything is applied, and remove what was",
            folder.display()
        )
    })
}

impl Search {
    fn run(&self) -> Found {
        let mut found = Found::default();
        let said = verdict::tail(&self.context).stderr;
        let applies = matches!(self.task, Task::ApplyFromPlan | Task::DestroyFromPlan);
        match self.engine {
            Engine::Pulumi if applies => found.notes.extend(self.pending_operations()),
            Engine::Terraform | Engine::Tofu if applies => self.errored_state(&said, &mut found),
            _ => {}
        }
        found.notes.extend(self.lock(&said));
        found
    }

    fn errored_state(&self, said: &[String], found: &mut Found) {
        let from = self.directory.join(ERRORED_STATE);
        let note = self.context.folder.rescued_path();
        let name = format!("{}-{ERRORED_STATE}", self.context.common.job_id);
        let init = match self.workspace.tree() {
            Ok(tree) => tree.init_folder(),
            Err(WorkspaceError::NoSubdirectory { .. }) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(io::Error::other(error)),
        };
        let kept = match &init {
            Ok(init) => keep(init, ERRORED_STATE, self.workspace.rescued_dir(), &name, By::Link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        let gone =
            || init.as_ref().map_or(Ok(()), |init| init.remove_file(OsStr::new(ERRORED_STATE)).map(drop));
        let (place, state) = match kept {
            Ok(Some((kept, state))) => {
                let noted = kept.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"));
                let noted = noted.and_then(|kept| write_private_atomic(&note, kept.as_bytes()));
                // Without the note, a repeated conclusion would not find what it said. The file stays then.
                if let Err(error) = noted.and_then(|()| gone()) {
                    tracing::warn!("{} was kept in {} and stays: {error}", from.display(), kept.display());
                }
                (kept, state)
            }
            Ok(None) => match fs::read_to_string(&note).map(PathBuf::from) {
                Ok(kept) => {
                    let state = fs::read(&kept).unwrap_or_default();
                    (kept, state)
                }
                Err(_) => {
                    if leftovers::says_errored_state(said) {
                        found.notes.push(format!(
                            "{} has written an {ERRORED_STATE}, but it is not in {}: look where the hooks may have \
                             changed to, it is the only copy of that state",
                            self.engine,
                            self.directory.display()
                        ));
                    }
                    return;
                }
            },
            Err(error) => {
                found.notes.push(format!("The {ERRORED_STATE} could not be kept elsewhere ({error})"));
                (from.clone(), Vec::new())
            }
        };
        found.resources = leftovers::stored_resources(&state);
        let holds = match found.resources {
            Some(count) => format!("it has {count} resources"),
            None => "it is damaged".to_owned(),
        };
        found.notes.push(format!(
            "The backend did not take the new state; the only copy of it is {} ({holds}). Before the next run: `{}`",
            place.display(),
            push_command(self.engine, &self.directory, &place)
        ));
    }

    fn pending_operations(&self) -> Option<String> {
        let directory = quoted(&self.directory);
        let path = self.workspace.private_path(PrivateFile::PulumiExport);
        let tree = self.workspace.tree().map_err(io::Error::other);
        let export = tree.as_ref().map_err(|error| io::Error::other(error.to_string()));
        let export = export.and_then(|tree| tree.open_private(PrivateFile::PulumiExport));
        let Ok(pending) = leftovers::pending_operations(Written::new(path, export)) else {
            return self.began.then(|| {
                format!(
                    "The state of the stack could not be read afterwards: `cd {directory} && pulumi stack export` shows whether \
                     there are pending_operations"
                )
            });
        };
        if pending.is_empty() {
            return None;
        }
        let name = format!("{}-pulumi-export.json", self.context.common.job_id);
        let private = tree.and_then(|tree| tree.private_made().map_err(io::Error::other));
        let export = PrivateFile::PulumiExport.name();
        let kept =
            private.and_then(|folder| keep(&folder, export, self.workspace.rescued_dir(), &name, By::Copy));
        let kept = match kept {
            Ok(Some((kept, _))) => format!("the state is kept in {}", kept.display()),
            Ok(None) => "the state is gone".to_owned(),
            Err(error) => format!("the state could not be kept: {error}"),
        };
        let more = pending.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "Pending operations ({}), which Pulumi began and did not see end: {}{more}; {kept}. Check what became of them, \
             then clear them by hand, which must be interactive for those that create: `cd {directory} && pulumi refresh`",
            pending.len(),
            pending[..pending.len().min(NAMED)].join(", "),
        ))
    }

    fn lock(&self, said: &[String]) -> Option<String> {
        let (engine, directory) = (self.engine, quoted(&self.directory));
        let local =
            (engine != Engine::Pulumi).then(|| leftovers::local_state(&self.directory, &self.data)).flatten();
        Some(match (leftovers::lock_trouble(said), local) {
            (Some(LockTrouble::HeldByProcess(lock)), _) => format!(
                "The state {} is locked, lock id {}{}, by a process that still runs: the lock ends with it and cannot \
                 be forced",
                lock.path,
                lock.id,
                lock.about()
            ),
            (Some(LockTrouble::Held(lock)), _) => format!(
                "The state is locked, lock id {}{}. Only when it is certain that nobody works with it: \
                 `cd {directory} && {engine} force-unlock {}`",
                lock.id,
                lock.about(),
                quote(&lock.id)
            ),
            (Some(LockTrouble::NotReleased), _) => format!(
                "{engine} could not release its state lock and does not say its id: when it is still there, the next \
                 Plan fails and names it"
            ),
            (Some(LockTrouble::Stack(locks)), _) => {
                let locks = if locks.is_empty() { String::new() } else { format!(": {}", locks.join(", ")) };
                format!(
                    "The stack is locked{locks}. Only when it is certain that no other update runs: \
                     `cd {directory} && pulumi cancel`"
                )
            }
            (None, Some(state)) => {
                let (file, lock) = leftovers::local_lock(&state)?;
                format!(
                    "The state lock {}{} stayed behind in {}: the lock of a local state ends with its process, so make \
                     sure that no {engine} runs there any more; there is nothing to unlock",
                    lock.id,
                    lock.about(),
                    file.display()
                )
            }
            (None, None) => return None,
        })
    }
}

fn push_command(engine: Engine, directory: &Path, state: &Path) -> String {
    format!("cd {} && {} state push {}", quoted(directory), engine.program(), quoted(state))
}

fn quoted(path: &Path) -> String {
    // A path that was joined with an empty one ends with a slash.
    let path: PathBuf = path.components().collect();
    quote(&path.to_string_lossy())
}

/// How a file gets its second place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A copy of its contents.
    Copy,
    /// A second name where that is possible: should an engine that nobody watches any more still be writing the file,
    /// the rest of it arrives too.
    Link,
}

/// Keeps a file in a private folder as well, under its time and `name`, and returns where it is and what it holds. One that
/// is there already counts; another file of that name is never overwritten. `None` when there is no such file.
fn keep(
    from: &inside::Folder,
    file: &str,
    folder: &Path,
    name: &str,
    by: By,
) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    let file = OsStr::new(file);
    if from.kind(file)? != Some(Kind::File) {
        // A symlink or a folder of that name is nothing that an engine has written.
        return Ok(None);
    }
    let mut opened = from.open_file(file)?;
    let mut contents = Vec::new();
    opened.read_to_end(&mut contents)?;
    let time = jiff::Timestamp::try_from(opened.metadata()?.modified()?).map_err(io::Error::other)?;
    let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
    create_private_dir_all(folder)?;
    let to = inside::Folder::open(folder)?;
    let mut count = 1;
    loop {
        let number = if count == 1 { String::new() } else { format!("-{count}") };
        let place = folder.join(format!("{time}{number}-{name}"));
        match fs::read(&place) {
            Ok(earlier) if earlier == contents => {
                // Whoever put it there may not have come to this.
                settle(&place)?;
                return Ok(Some((place, contents)));
            }
            Ok(_) => count += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let new_name = place.file_name().unwrap_or_default();
                let link = || -> io::Result<()> {
                    from.link_or_copy(file, &to, new_name)?;
                    // Another file may have got that name since it was opened.
                    let linked = to.open_file(new_name)?.metadata()?;
                    match linked.ino() == opened.metadata()?.ino() {
                        true => settle(&place),
                        false => Err(io::Error::other("it is another file by now")),
                    }
                };
                if by == By::Copy || link().is_err() {
                    to.write(new_name, &contents)?;
                }
                return Ok(Some((place, contents)));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes a file private and lets it survive a power cut.
fn settle(file: &Path) -> io::Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    fs::File::open(file)?.sync_all()?;
    file.parent().map_or(Ok(()), sync_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inside::Folder;

    #[test]
    fn a_copy_is_made_once_and_overwrites_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("a/b"));
        let keep = |_: &Path, folder: &Path, name: &str, by| {
            keep(&Folder::open(root.path()).unwrap(), ERRORED_STATE, folder, name, by)
        };
        assert_eq!(keep(&from, &folder, "x", By::Copy).unwrap(), None);
        fs::write(&from, "one").unwrap();
        let (first, contents) = keep(&from, &folder, "x", By::Copy).unwrap().unwrap();
        assert_eq!(contents, b"one");
        assert_eq!(keep(&from, &folder, "x", By::Copy).unwrap().unwrap().0, first);
        let time = fs::metadata(&from).unwrap().modified().unwrap();
        fs::write(&from, "two").unwrap();
        fs::File::options().write(true).open(&from).unwrap().set_modified(time).unwrap();
        let (second, _) = keep(&from, &folder, "x", By::Copy).unwrap().unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read(first).unwrap(), b"one");
        fs::remove_file(&from).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &from).unwrap();
        assert_eq!(keep(&from, &folder, "x", By::Copy).unwrap(), None);
    }
    #[test]
    fn what_is_written_after_the_rescue_is_rescued_too() {
        let root = tempfile::tempdir().unwrap();
        let (from, folder) = (root.path().join(ERRORED_STATE), root.path().join("kept"));
        let keep = |_: &Path, folder: &Path, name: &str, by| {
            keep(&Folder::open(root.path()).unwrap(), ERRORED_STATE, folder, name, by)
        };
        let mut writer = fs::File::create(&from).unwrap();
        io::Write::write_all(&mut writer, b"one").unwrap();
        let (kept, _) = keep(&from, &folder, "x", By::Link).unwrap().unwrap();
        assert_eq!(keep(&from, &folder, "x", By::Link).unwrap().unwrap().0, kept);
        fs::remove_file(&from).unwrap();
        io::Write::write_all(&mut writer, b" two").unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"one two");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
