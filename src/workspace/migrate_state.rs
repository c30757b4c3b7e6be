//! What moves from the old revision into the new one: the engine's state, and what Init has told us.
//!
//! - Files and folders named `.terraform*` or `*.tfstate*`, at every level, with everything in such a folder.
//! - The state that a local backend was given another name for, with its backup, and the folder that `TF_DATA_DIR` names.
//! - `.pulumi/`, where Pulumi keeps stacks in files, and `Pulumi.{stack}.yaml` of which the repository does not know: its
//!   salt is what secrets in the state are encrypted with.
//! - `.snapcd/snapcd.env`, `.snapcd/sensitive.json` and `.snapcd/backend-settings.json`. Plans and the list of extra files belong to
//!   the old revision and stay behind.
//! - An extra file with the name of a state, since the engine may have made it its own; the new list names it again.
//!
//! A clean init drops all of this but what Init has told us; of that, the backend settings go, which are about what is in
//! `.terraform`. A state with resources is then copied to the rescued ones, and
//! the log names it: whoever asked for something clean may not have known of it.
//!
//! A file that came from the repository and is as it was there is not the engine's doing and gives way to the new
//! revision. Where both have a file, state and the contents of `.terraform/` are kept, while `.terraform.lock.hcl`,
//! `.terraform-version`, `Pulumi.{stack}.yaml` and their like are taken from the new revision: a committed upgrade must have
//! effect.
//!
//! Files are hard-linked. That is quick for gigabytes of providers, and the old tree stays whole until it is replaced.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::backup::{By, keep};
use super::names::{PRIVATE_FOLDER, is_gits};
use super::{PrivateFile, WorkspaceError, extra_files, stored_state};
use crate::base::confined_dir::{
    ConfinedDir, ConfinedRoot, EntryKind, is_missing, is_no_place, leads_out, read_limited,
};
use crate::sources::Tracked;

const DATA: &str = ".terraform";
const STACKS: &str = ".pulumi";
const LONGEST_NAME: usize = 180;
const LARGEST_ENVIRONMENT: u64 = 64 * 1024 * 1024;

pub(super) struct StateMigration {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    /// The init directory of the new tree.
    pub(super) init: PathBuf,
    pub(super) clean: bool,
    /// What the old tree's repository knows.
    pub(super) tracked: Tracked,
    /// Where copies of dropped states go.
    pub(super) rescued: PathBuf,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Worth a line in the job's log.
    pub(super) notes: Vec<String>,
    /// Extra files of the old init directory that are in the new one now.
    pub(super) extra_files: Vec<String>,
}

impl StateMigration {
    pub(super) fn run(self) -> Result<Carried, WorkspaceError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| WorkspaceError::io("open", &path, error)
        };
        let inside = match ConfinedRoot::open(&self.old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Carried::default()),
            opened => opened.map_err(failed(&self.old))?,
        };
        let old = inside.folder(Path::new("")).map_err(failed(&self.old))?;
        let new = ConfinedRoot::open(&self.new)
            .and_then(|new| new.folder(Path::new("")))
            .map_err(failed(&self.new))?;
        let mut walk = Walk {
            carry: self,
            old: inside,
            new,
            extra_files: HashSet::new(),
            named: Vec::new(),
            carried: Carried::default(),
            files: HashSet::new(),
        };
        walk.folder(&old, Path::new(""))?;
        walk.named()?;
        if !walk.files.is_empty() {
            let note = format!("Kept {} of the engine's files from the old revision", walk.files.len());
            walk.carried.notes.push(note);
        }
        Ok(walk.carried)
    }
}

/// What a file is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// Exists nowhere else.
    State,
    /// The engine would make it again, but it counts before what the new revision has.
    Data,
    /// The new revision's counts, where it has one.
    Settings,
}

impl Worth {
    /// What a name means to the engines; nothing when it means nothing.
    fn of(name: &str) -> Option<Self> {
        match name {
            STACKS => Some(Self::State),
            DATA => Some(Self::Data),
            _ if is_state(name) => Some(Self::State),
            _ if name.starts_with(DATA) => Some(Self::Settings),
            _ => None,
        }
    }

    /// Of a file in a folder that is worth this.
    fn inside(self, name: &str) -> Self {
        if is_state(name) { Self::State } else { self }
    }
}

fn is_state(name: &str) -> bool {
    name.contains(".tfstate")
}

/// `Pulumi.{stack}.yaml`
fn is_stack_settings(name: &str) -> bool {
    let stack = name.strip_prefix("Pulumi.").and_then(|rest| rest.rsplit_once('.'));
    stack.is_some_and(|(stack, ending)| !stack.is_empty() && matches!(ending, "yaml" | "yml"))
}

/// A place in the old tree, or perhaps outside of it, that something in it names.
enum Named {
    State(PathBuf),
    Data(PathBuf),
}

struct Walk {
    carry: StateMigration,
    /// The old tree.
    old: ConfinedRoot,
    /// The root of the new tree.
    new: ConfinedDir,
    /// Files that the server had put there; they come again.
    extra_files: HashSet<PathBuf>,
    named: Vec<Named>,
    carried: Carried,
    /// The engine's files that are in the new tree now.
    files: HashSet<PathBuf>,
}

impl Walk {
    /// Looks for what is to be carried in a folder, given by its path below the root.
    fn folder(&mut self, folder: &ConfinedDir, below: &Path) -> Result<(), WorkspaceError> {
        let entries = self.entries(folder, below)?;
        // First, because it says what the others are.
        if entries.iter().any(|(name, kind)| name == PRIVATE_FOLDER && *kind == EntryKind::Folder) {
            self.private(&self.enter(folder, below, OsStr::new(PRIVATE_FOLDER))?, below)?;
        }
        for (name, kind) in entries {
            let path = below.join(&name);
            let text = name.to_string_lossy();
            if name == ".git" || name == PRIVATE_FOLDER {
                continue;
            }
            if name == DATA {
                self.note_state(below, Path::new(DATA));
            }
            match (Worth::of(&text), kind) {
                (Some(worth), EntryKind::Folder) => {
                    self.everything(&self.enter(folder, below, &name)?, &path, worth)?;
                }
                (Some(worth), _) => self.engines_file(folder, &path, worth)?,
                (None, EntryKind::Folder) => self.folder(&self.enter(folder, below, &name)?, &path)?,
                (None, EntryKind::File)
                    if is_stack_settings(&text) && !self.carry.tracked.changed.contains(&path) =>
                {
                    self.engines_file(folder, &path, Worth::Settings)?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn private(&mut self, private: &ConfinedDir, below: &Path) -> Result<(), WorkspaceError> {
        // What is as the repository has it was not written by the runner.
        let is_ours = |file: PrivateFile| {
            !self.carry.tracked.unchanged.contains(&below.join(PRIVATE_FOLDER).join(file.name()))
        };
        if is_ours(PrivateFile::ExtraFiles) {
            self.extra_files.extend(extra_files::listed(private).into_iter().map(|name| below.join(name)));
        }
        let of_engine = (!self.carry.clean).then_some(PrivateFile::BackendSettings);
        let ours = [PrivateFile::Environment, PrivateFile::Sensitive].into_iter().chain(of_engine);
        for name in ours.filter(|file| is_ours(*file)).map(PrivateFile::name).collect::<Vec<_>>() {
            let path = below.join(PRIVATE_FOLDER).join(name);
            let kind =
                private.kind(OsStr::new(name)).map_err(|error| self.failed("look at", &path, error))?;
            if kind == Some(EntryKind::File) {
                self.file(private, &path)?;
            }
        }
        if is_ours(PrivateFile::Environment)
            && let Some(data) = data_folder(private)
        {
            self.note_state(below, &data);
            self.named.push(Named::Data(self.carry.old.join(below).join(data)));
        }
        Ok(())
    }

    /// Notes the state that a local backend was told to use.
    fn note_state(&mut self, below: &Path, data: &Path) {
        let directory = self.carry.old.join(below);
        let named = stored_state::named_local_state(&directory, &directory.join(data));
        self.named.extend(named.map(Named::State));
    }

    /// Carries what has no name to be known by. What is outside of the tree stays where it is.
    fn named(&mut self) -> Result<(), WorkspaceError> {
        let roots = [self.carry.old.canonicalize().unwrap_or_default(), self.carry.old.clone()];
        for named in std::mem::take(&mut self.named) {
            let (Named::State(place) | Named::Data(place)) = &named;
            let Some(below) = roots.iter().find_map(|root| place.strip_prefix(root).ok()) else { continue };
            let real = match self.old.real(below) {
                Err(error) if is_missing(&error) || leads_out(&error) || is_no_place(&error) => continue,
                real => real.map_err(|error| self.failed("look at", below, error))?,
            };
            let is_known = |name: &OsStr| {
                is_gits(name) || name == PRIVATE_FOLDER || Worth::of(&name.to_string_lossy()).is_some()
            };
            // What has such a name was found already, and the whole tree is nobody's folder.
            let Some(name) = real.file_name().map(ToOwned::to_owned) else { continue };
            if real.components().any(|part| is_known(part.as_os_str())) {
                continue;
            }
            let above = real.parent().unwrap_or(Path::new(""));
            let folder = self.old.folder(above).map_err(|error| self.failed("open", above, error))?;
            let kind = folder.kind(&name).map_err(|error| self.failed("look at", &real, error))?;
            match (named, kind) {
                (Named::State(_), Some(EntryKind::File)) => {
                    self.engines_file(&folder, &real, Worth::State)?;
                    if self.carry.clean {
                        continue;
                    }
                    let name = name.to_string_lossy();
                    for beside in [format!("{name}.backup"), format!(".{name}.lock.info")] {
                        let path = real.with_file_name(&beside);
                        let kind = folder.kind(OsStr::new(&beside));
                        if kind.map_err(|error| self.failed("look at", &path, error))?
                            == Some(EntryKind::File)
                        {
                            self.engines_file(&folder, &path, Worth::State)?;
                        }
                    }
                }
                (Named::Data(_), Some(EntryKind::Folder)) => {
                    self.everything(&self.enter(&folder, above, &name)?, &real, Worth::Data)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn everything(&mut self, folder: &ConfinedDir, below: &Path, worth: Worth) -> Result<(), WorkspaceError> {
        if self.carry.clean && worth != Worth::State {
            return Ok(());
        }
        for (name, kind) in self.entries(folder, below)? {
            let path = below.join(&name);
            match kind {
                EntryKind::Folder => self.everything(&self.enter(folder, below, &name)?, &path, worth)?,
                _ => self.engines_file(folder, &path, worth.inside(&name.to_string_lossy()))?,
            }
        }
        Ok(())
    }

    fn failed(&self, action: &'static str, path: &Path, error: io::Error) -> WorkspaceError {
        WorkspaceError::io(action, &self.carry.old.join(path), error)
    }

    fn enter(&self, folder: &ConfinedDir, below: &Path, name: &OsStr) -> Result<ConfinedDir, WorkspaceError> {
        folder.folder(name).map_err(|error| self.failed("open", &below.join(name), error))
    }

    fn entries(
        &self,
        folder: &ConfinedDir,
        below: &Path,
    ) -> Result<Vec<(OsString, EntryKind)>, WorkspaceError> {
        folder.entries().map_err(|error| self.failed("list", below, error))
    }

    fn engines_file(
        &mut self,
        folder: &ConfinedDir,
        path: &Path,
        worth: Worth,
    ) -> Result<(), WorkspaceError> {
        let is_state = worth == Worth::State;
        if self.carry.tracked.unchanged.contains(path) || self.files.contains(path) {
            return Ok(());
        }
        if self.carry.clean {
            return if is_state { self.rescue(folder, path) } else { Ok(()) };
        }
        let extra_file = self.extra_files.contains(path);
        let of_init = path.strip_prefix(&self.carry.init).ok().and_then(Path::to_str).map(str::to_owned);
        if extra_file && (!is_state || of_init.is_none() || self.is_in_new(path)?) {
            return Ok(());
        }
        if worth == Worth::Settings && self.is_in_new(path)? {
            self.carried.notes.push(format!("{} is taken from the new revision", path.display()));
            return Ok(());
        }
        match self.file(folder, path) {
            Err(WorkspaceError::StateInTheWay { .. }) if !is_state => {
                self.carried.notes.push(format!("{} has no place in the new revision", path.display()));
                return Ok(());
            }
            other => other?,
        }
        self.files.insert(path.to_owned());
        if extra_file {
            self.carried.extra_files.extend(of_init);
        }
        Ok(())
    }

    /// Copies a state that is about to be dropped to the rescued ones. One without resources is no loss, and backups and
    /// locks are none without their state.
    fn rescue(&mut self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let failed = |error| WorkspaceError::io("keep a copy of", &self.carry.old.join(path), error);
        let name = path.file_name().unwrap_or_default();
        let text = name.to_string_lossy();
        if folder.kind(name).map_err(failed)? != Some(EntryKind::File) {
            return Ok(());
        }
        let mut parts = path.components().map(Component::as_os_str);
        let count = if parts.any(|part| part == STACKS) {
            let is_stack = parts.next().is_some_and(|part| part == "stacks") && text.contains(".json");
            if !is_stack || text.ends_with(".bak") || text.ends_with(".attrs") {
                return Ok(());
            }
            stored_state::stored_stack_resources
        } else if is_state(&text) && (text.ends_with(".backup") || text.ends_with(".lock.info")) {
            return Ok(());
        } else {
            stored_state::stored_resources
        };
        let state =
            folder.open_file(name).and_then(|file| read_limited(file, u64::MAX - 1)).map_err(failed)?;
        let count = count(&state);
        if count == Some(0) || state.trim_ascii().is_empty() {
            return Ok(());
        }
        let shown = path.display();
        let mut kept = path.to_string_lossy().replace('/', "-");
        // A name has room for 255 bytes, and its end says more than its beginning.
        kept.drain(..kept.ceil_char_boundary(kept.len().saturating_sub(LONGEST_NAME)));
        let kept = format!("clean-init-{kept}");
        let kept = keep(folder, &text, &self.carry.rescued, &kept, By::Copy).map_err(failed)?;
        let (kept, _) = kept.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let holds = match count {
            Some(1) => "1 resource".to_owned(),
            Some(count) => format!("{count} resources"),
            None => "nobody knows how many resources: it cannot be read".to_owned(),
        };
        self.carried.notes.push(format!(
            "The clean init drops the state {shown} ({holds}); a copy of it is kept in {}",
            kept.display()
        ));
        Ok(())
    }

    /// Whether the new revision has something there.
    fn is_in_new(&self, path: &Path) -> Result<bool, WorkspaceError> {
        let look = || -> io::Result<bool> {
            let mut folder = self.new.folders_made(Path::new(""))?;
            for part in path.parent().into_iter().flat_map(Path::components) {
                folder = match folder.folder(part.as_os_str()) {
                    // A symlink or a file on the way is in the way, which is for others to say.
                    Err(error) if is_missing(&error) => return Ok(false),
                    found => found?,
                };
            }
            Ok(folder.kind(path.file_name().unwrap_or_default())?.is_some())
        };
        look().map_err(|error| WorkspaceError::io("look at", &self.carry.new.join(path), error))
    }

    /// Puts one file of the old tree at the same place in the new one, instead of a file that is there.
    fn file(&self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let name = path.file_name().unwrap_or_default();
        let in_the_way = || WorkspaceError::StateInTheWay { path: path.to_owned() };
        let failed = |error: io::Error| match error.kind() {
            // A symlink on the way would lead the file somewhere else.
            io::ErrorKind::NotADirectory => in_the_way(),
            _ => WorkspaceError::io("carry over", &self.carry.old.join(path), error),
        };
        let to = self.new.folders_made(path.parent().unwrap_or(Path::new(""))).map_err(failed)?;
        if to.kind(name).map_err(failed)? == Some(EntryKind::Folder) {
            return Err(in_the_way());
        }
        // Writing to it would follow a symlink.
        to.remove_file(name).map_err(failed)?;
        folder.link_or_copy(name, &to, name).map_err(failed)
    }
}

/// The engine's own folder, where the variables that came with Init name another than `.terraform`.
fn data_folder(private: &ConfinedDir) -> Option<PathBuf> {
    let file = private.open_file(OsStr::new(PrivateFile::Environment.name())).ok()?;
    let text = read_limited(file, LARGEST_ENVIRONMENT).ok()?;
    let mut variables: BTreeMap<String, String> = serde_json::from_slice(&text).ok()?;
    variables.remove("TF_DATA_DIR").filter(|value| !value.is_empty()).map(PathBuf::from)
}
