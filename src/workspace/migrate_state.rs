//! What the new revision gets from the old one: the engine's state, and the settings of the last Init.
//!
//! - Files and folders named `.terraform*` or `*.tfstate*`, at every level, with everything in such a folder.
//! - The state file that a local backend was configured with, its backup, and the folder in `TF_DATA_DIR`.
//! - `.pulumi/`, where Pulumi stores stacks in files, and every `Pulumi.{stack}.yaml` that is not in the repository: its salt
//!   encrypts the secrets in the state.
//! - `.snapcd/snapcd.env`, `.snapcd/sensitive.json` and `.snapcd/backend-settings.json`. Plans and the list of extra files belong
//!   to the old revision.
//! - An extra file with the name of a state, since the engine may have changed it; the new list contains it again.
//!
//! A clean init drops all of this except `snapcd.env` and `sensitive.json`. A state with resources is then copied to the rescued
//! states, and the log names the copy: the user may not have known about that state.
//!
//! A file that is unchanged since its commit is not the engine's and gives way to the new revision. If both revisions have a
//! file, state and the contents of `.terraform/` are kept, but `.terraform.lock.hcl`, `.terraform-version`,
//! `Pulumi.{stack}.yaml` and similar files come from the new revision, so that a committed upgrade takes effect.
//!
//! Files are hard-linked: this is fast for gigabytes of providers, and the old tree stays complete until the swap.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::backup::{By, keep};
use super::names::{PRIVATE_FOLDER, is_git_folder};
use super::tree::existing_folder;
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
    /// The path of the init directory in the new tree.
    pub(super) init: PathBuf,
    pub(super) clean: bool,
    /// The files of the old tree that are in its commit.
    pub(super) tracked: Tracked,
    /// The folder for copies of dropped states.
    pub(super) rescued: PathBuf,
}

#[derive(Debug, Default)]
pub(super) struct MigratedState {
    /// Lines for the job's log.
    pub(super) notes: Vec<String>,
    /// Extra files of the old init directory that are now in the new one.
    pub(super) extra_files: Vec<PathBuf>,
}

impl StateMigration {
    pub(super) fn run(self) -> Result<MigratedState, WorkspaceError> {
        let open = |path: &Path| {
            let opened = ConfinedRoot::open(path).and_then(|root| Ok((root.folder(Path::new(""))?, root)));
            opened.map_err(|error| WorkspaceError::io("open", path, error))
        };
        let (old, old_root) = match open(&self.old) {
            Err(WorkspaceError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(MigratedState::default());
            }
            opened => opened?,
        };
        let (new, _) = open(&self.new)?;
        let mut walk = Walk {
            migration: self,
            old: old_root,
            new,
            extra_files: HashSet::new(),
            referenced: Vec::new(),
            result: MigratedState::default(),
            files: HashSet::new(),
        };
        walk.folder(&old, Path::new(""))?;
        walk.migrate_referenced()?;
        if !walk.files.is_empty() {
            let note = format!("Kept engine files of the old revision: {}", walk.files.len());
            walk.result.notes.push(note);
        }
        Ok(walk.result)
    }
}

/// How to treat a file of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EngineFile {
    /// Exists nowhere else: always kept.
    State,
    /// The engine could create it again; replaces a file of the new revision.
    Data,
    /// Kept unless the new revision has the file.
    Settings,
}

impl EngineFile {
    /// `None` if the name means nothing to the engines.
    fn by_name(name: &str) -> Option<Self> {
        match name {
            STACKS => Some(Self::State),
            DATA => Some(Self::Data),
            _ if is_state(name) => Some(Self::State),
            _ if name.starts_with(DATA) => Some(Self::Settings),
            _ => None,
        }
    }

    /// A file in a folder of this class.
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

/// A path that a file of the old tree refers to. It may be outside of the tree.
enum ReferencedPath {
    State(PathBuf),
    Data(PathBuf),
}

struct Walk {
    migration: StateMigration,
    old: ConfinedRoot,
    new: ConfinedDir,
    /// The extra files of the old tree. The server sends them again.
    extra_files: HashSet<PathBuf>,
    referenced: Vec<ReferencedPath>,
    result: MigratedState,
    /// The engine's files that are now in the new tree.
    files: HashSet<PathBuf>,
}

impl Walk {
    /// Migrates the files of a folder. `below` is its path below the root.
    fn folder(&mut self, folder: &ConfinedDir, below: &Path) -> Result<(), WorkspaceError> {
        let entries = self.entries(folder, below)?;
        // First, because it lists the extra files.
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
                self.add_local_state(below, Path::new(DATA));
            }
            match (EngineFile::by_name(&text), kind) {
                (Some(class), EntryKind::Folder) => {
                    self.engine_folder(&self.enter(folder, below, &name)?, &path, class)?;
                }
                (Some(class), _) => self.engine_file(folder, &path, class)?,
                (None, EntryKind::Folder) => self.folder(&self.enter(folder, below, &name)?, &path)?,
                (None, EntryKind::File)
                    if is_stack_settings(&text) && !self.migration.tracked.changed.contains(&path) =>
                {
                    self.engine_file(folder, &path, EngineFile::Settings)?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn private(&mut self, private: &ConfinedDir, below: &Path) -> Result<(), WorkspaceError> {
        // The runner did not write files that are unchanged since the commit.
        let is_ours = |file: PrivateFile| {
            !self.migration.tracked.unchanged.contains(&below.join(PRIVATE_FOLDER).join(file.name()))
        };
        if is_ours(PrivateFile::ExtraFiles) {
            self.extra_files.extend(extra_files::listed(private).into_iter().map(|name| below.join(name)));
        }
        let of_engine = (!self.migration.clean).then_some(PrivateFile::BackendSettings);
        let ours = [PrivateFile::Environment, PrivateFile::Sensitive].into_iter().chain(of_engine);
        for name in ours.filter(|file| is_ours(*file)).map(PrivateFile::name).collect::<Vec<_>>() {
            let path = below.join(PRIVATE_FOLDER).join(name);
            let kind = private.kind(OsStr::new(name)).map_err(|error| self.failed("check", &path, error))?;
            if kind == Some(EntryKind::File) {
                self.link(private, &path)?;
            }
        }
        if is_ours(PrivateFile::Environment)
            && let Some(data) = data_folder(private)
        {
            self.add_local_state(below, &data);
            self.referenced.push(ReferencedPath::Data(self.migration.old.join(below).join(data)));
        }
        Ok(())
    }

    /// Remembers the state file that a local backend was configured with.
    fn add_local_state(&mut self, below: &Path, data: &Path) {
        let directory = self.migration.old.join(below);
        let state = stored_state::named_local_state(&directory, &directory.join(data));
        self.referenced.extend(state.map(ReferencedPath::State));
    }

    /// Migrates files that cannot be recognized by their names. Files outside of the tree stay where they are.
    fn migrate_referenced(&mut self) -> Result<(), WorkspaceError> {
        let roots = [self.migration.old.canonicalize().unwrap_or_default(), self.migration.old.clone()];
        for reference in std::mem::take(&mut self.referenced) {
            let (ReferencedPath::State(path) | ReferencedPath::Data(path)) = &reference;
            let Some(below) = roots.iter().find_map(|root| path.strip_prefix(root).ok()) else { continue };
            let real = match self.old.real(below) {
                Err(error) if is_missing(&error) || leads_out(&error) || is_no_place(&error) => continue,
                real => real.map_err(|error| self.failed("check", below, error))?,
            };
            let is_known = |name: &OsStr| {
                is_git_folder(name)
                    || name == PRIVATE_FOLDER
                    || EngineFile::by_name(&name.to_string_lossy()).is_some()
            };
            // Known names were migrated before, and the root itself is not the engine's folder.
            let Some(name) = real.file_name().map(ToOwned::to_owned) else { continue };
            if real.components().any(|part| is_known(part.as_os_str())) {
                continue;
            }
            let above = real.parent().unwrap_or(Path::new(""));
            let folder = self.old.folder(above).map_err(|error| self.failed("open", above, error))?;
            let kind = folder.kind(&name).map_err(|error| self.failed("check", &real, error))?;
            match (reference, kind) {
                (ReferencedPath::State(_), Some(EntryKind::File)) => {
                    self.engine_file(&folder, &real, EngineFile::State)?;
                    if self.migration.clean {
                        continue;
                    }
                    let name = name.to_string_lossy();
                    for beside in [format!("{name}.backup"), format!(".{name}.lock.info")] {
                        let path = real.with_file_name(&beside);
                        let kind = folder.kind(OsStr::new(&beside));
                        let kind = kind.map_err(|error| self.failed("check", &path, error))?;
                        if kind == Some(EntryKind::File) {
                            self.engine_file(&folder, &path, EngineFile::State)?;
                        }
                    }
                }
                (ReferencedPath::Data(_), Some(EntryKind::Folder)) => {
                    self.engine_folder(&self.enter(&folder, above, &name)?, &real, EngineFile::Data)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn engine_folder(
        &mut self,
        folder: &ConfinedDir,
        below: &Path,
        class: EngineFile,
    ) -> Result<(), WorkspaceError> {
        if self.migration.clean && class != EngineFile::State {
            return Ok(());
        }
        for (name, kind) in self.entries(folder, below)? {
            let path = below.join(&name);
            match kind {
                EntryKind::Folder => self.engine_folder(&self.enter(folder, below, &name)?, &path, class)?,
                _ => self.engine_file(folder, &path, class.inside(&name.to_string_lossy()))?,
            }
        }
        Ok(())
    }

    fn failed(&self, action: &'static str, path: &Path, error: io::Error) -> WorkspaceError {
        WorkspaceError::io(action, &self.migration.old.join(path), error)
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

    fn engine_file(
        &mut self,
        folder: &ConfinedDir,
        path: &Path,
        class: EngineFile,
    ) -> Result<(), WorkspaceError> {
        let is_state = class == EngineFile::State;
        if self.migration.tracked.unchanged.contains(path) || self.files.contains(path) {
            return Ok(());
        }
        if self.migration.clean {
            return if is_state { self.rescue(folder, path) } else { Ok(()) };
        }
        let is_extra_file = self.extra_files.contains(path);
        let of_init = path.strip_prefix(&self.migration.init).ok().filter(|path| path.to_str().is_some());
        let of_init = of_init.map(Path::to_owned);
        if is_extra_file && (!is_state || of_init.is_none() || self.is_in_new(path)?) {
            return Ok(());
        }
        if class == EngineFile::Settings && self.is_in_new(path)? {
            self.result.notes.push(format!("Using {} of the new revision", path.display()));
            return Ok(());
        }
        match self.link(folder, path) {
            Err(WorkspaceError::StateBlocked { .. }) if !is_state => {
                self.result
                    .notes
                    .push(format!("Dropped {}: the new revision leaves no room for it", path.display()));
                return Ok(());
            }
            other => other?,
        }
        self.files.insert(path.to_owned());
        if is_extra_file {
            self.result.extra_files.extend(of_init);
        }
        Ok(())
    }

    /// Copies a state to the rescued states before it is dropped. States without resources, backups and locks are not worth it.
    fn rescue(&mut self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let failed = |error| WorkspaceError::io("keep a copy of", &self.migration.old.join(path), error);
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
        let mut copy_name = path.to_string_lossy().replace('/', "-");
        // A file name is limited to 255 bytes. The end says more than the beginning.
        copy_name.drain(..copy_name.ceil_char_boundary(copy_name.len().saturating_sub(LONGEST_NAME)));
        let copy_name = format!("clean-init-{copy_name}");
        let copy = keep(folder, &text, &self.migration.rescued, &copy_name, By::Copy).map_err(failed)?;
        let (copy, _) = copy.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let contents = match count {
            Some(1) => "1 resource".to_owned(),
            Some(count) => format!("{count} resources"),
            None => "unreadable".to_owned(),
        };
        self.result.notes.push(format!(
            "The clean init drops the state {} ({contents}); a copy is kept in {}",
            path.display(),
            copy.display()
        ));
        Ok(())
    }

    /// Whether the new revision has a file or folder at this path.
    fn is_in_new(&self, path: &Path) -> Result<bool, WorkspaceError> {
        let exists = || match existing_folder(&self.new, path.parent().unwrap_or(Path::new("")))? {
            Some(folder) => Ok(folder.kind(path.file_name().unwrap_or_default())?.is_some()),
            None => Ok(false),
        };
        exists().map_err(|error| WorkspaceError::io("check", &self.migration.new.join(path), error))
    }

    /// Links one file of the old tree into the new one, and replaces the file that is there.
    fn link(&self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let name = path.file_name().unwrap_or_default();
        let blocked = || WorkspaceError::StateBlocked { path: path.to_owned() };
        let failed = |error: io::Error| match error.kind() {
            // A symlink on the way must not be followed.
            io::ErrorKind::NotADirectory => blocked(),
            _ => WorkspaceError::io("migrate", &self.migration.old.join(path), error),
        };
        let to = self.new.open_or_create_all(path.parent().unwrap_or(Path::new(""))).map_err(failed)?;
        if to.kind(name).map_err(failed)? == Some(EntryKind::Folder) {
            return Err(blocked());
        }
        // A copy would follow a symlink.
        to.remove_file(name).map_err(failed)?;
        folder.link_or_copy(name, &to, name).map_err(failed)
    }
}

/// The `TF_DATA_DIR` of the last Init.
fn data_folder(private: &ConfinedDir) -> Option<PathBuf> {
    let file = private.open_file(OsStr::new(PrivateFile::Environment.name())).ok()?;
    let text = read_limited(file, LARGEST_ENVIRONMENT).ok()?;
    let mut variables: BTreeMap<String, String> = serde_json::from_slice(&text).ok()?;
    variables.remove("TF_DATA_DIR").filter(|value| !value.is_empty()).map(PathBuf::from)
}
