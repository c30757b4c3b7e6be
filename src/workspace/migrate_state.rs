//! What the new revision gets from the old one: the engine's state, and the settings of the last Init.
//!
//! - Files and folders named `.terraform*` or `*.tfstate*`, at every level, with everything in such a folder.
//! - The state file that a local backend was configured with, its backup, and the folder in `TF_DATA_DIR`.
//! - `.pulumi/`, where Pulumi stores stacks in files, and every `Pulumi.{stack}.yaml` that is not in the repository: its salt
//!   encrypts the secrets in the state.
//! - `snapcd.env`, `sensitive.json`, `last-task.json`, `backend-settings.json`, `init.tfvars`, and Pulumi's backend and login in
//!   `.snapcd`. Plans and the list of extra files belong to the old revision.
//! - Each entry of `.snapcd/pulumi-parameters.json` together with the `Pulumi.{stack}.yaml` that it is about.
//!
//! A clean init drops all of this except the first three of these. A state with resources is then copied to the rescued
//! states, and the log names the copy: the user may not have known about that state.
//!
//! A file that is unchanged since its commit is not the engine's and gives way to the new revision. If both revisions have a
//! file, state and the contents of `.terraform/` are kept, but `.terraform.lock.hcl`, `.terraform-version`,
//! `Pulumi.{stack}.yaml` and similar files come from the new revision, so that a committed upgrade takes effect.
//!
//! Files are hard-linked: this is fast for gigabytes of providers, and the old tree stays complete until the swap.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::path::{Component, Path, PathBuf};

use super::backup::keep;
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

pub(super) struct StateMigration {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    pub(super) clean: bool,
    /// The files of the old tree that are in its commit.
    pub(super) tracked: Tracked,
    /// The folder for copies of dropped states.
    pub(super) rescued: PathBuf,
}

impl StateMigration {
    /// Returns lines for the job's log.
    pub(super) fn run(self) -> Result<Vec<String>, WorkspaceError> {
        let old = match ConfinedRoot::open(&self.old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(|error| WorkspaceError::io("open", &self.old, error))?,
        };
        let new = ConfinedDir::open(&self.new);
        let mut walk = Walk {
            new: new.map_err(|error| WorkspaceError::io("open", &self.new, error))?,
            migration: self,
            old,
            extra_files: HashSet::new(),
            referenced: Vec::new(),
            notes: Vec::new(),
            files: HashSet::new(),
            private_folders: Vec::new(),
        };
        let root = walk.old.folder(Path::new("")).map_err(walk.failed(Path::new("")))?;
        walk.folder(&root, Path::new(""), None)?;
        walk.migrate_referenced()?;
        walk.migrate_parameters()?;
        if !walk.files.is_empty() {
            walk.notes.push(format!("Kept engine files of the old revision: {}", walk.files.len()));
        }
        Ok(walk.notes)
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
}

fn is_state(name: &str) -> bool {
    name.contains(".tfstate")
}

/// `Pulumi.{stack}.yaml`
pub fn is_stack_settings(name: &str) -> bool {
    let stack = name.strip_prefix("Pulumi.").and_then(|rest| rest.rsplit_once('.'));
    stack.is_some_and(|(stack, ending)| !stack.is_empty() && matches!(ending, "yaml" | "yml"))
}

struct Walk {
    migration: StateMigration,
    old: ConfinedRoot,
    new: ConfinedDir,
    /// The extra files of the old tree. The server sends them again.
    extra_files: HashSet<PathBuf>,
    /// Paths that files of the old tree refer to: a state file or a data folder, perhaps outside of the tree.
    referenced: Vec<(PathBuf, EngineFile)>,
    /// Lines for the job's log.
    notes: Vec<String>,
    /// The engine's files that are now in the new tree.
    files: HashSet<PathBuf>,
    /// The private folders of the old tree.
    private_folders: Vec<PathBuf>,
}

impl Walk {
    /// Migrates the files of a folder. `below` is its path below the root, `class` is set if it is a folder of the engine.
    fn folder(
        &mut self,
        folder: &ConfinedDir,
        below: &Path,
        class: Option<EngineFile>,
    ) -> Result<(), WorkspaceError> {
        let entries = folder.entries().map_err(self.failed(below))?;
        let is_private = |name: &OsStr| class.is_none() && name == PRIVATE_FOLDER;
        // First, because it lists the extra files.
        if entries.iter().any(|(name, kind)| is_private(name) && *kind == EntryKind::Folder) {
            let private = folder.folder(OsStr::new(PRIVATE_FOLDER)).map_err(self.failed(below))?;
            self.private(&private, below)?;
        }
        for (name, kind) in entries {
            let path = below.join(&name);
            let text = name.to_string_lossy();
            if is_private(&name) || class.is_none() && name == ".git" {
                continue;
            }
            if class.is_none() && name == DATA {
                self.add_local_state(below, Path::new(DATA));
            }
            let is_old_settings = || {
                kind == EntryKind::File
                    && is_stack_settings(&text)
                    && !self.migration.tracked.changed.contains(&path)
            };
            let class = match class {
                Some(_) if kind != EntryKind::Folder && is_state(&text) => Some(EngineFile::State),
                Some(class) => Some(class),
                None => {
                    EngineFile::by_name(&text).or_else(|| is_old_settings().then_some(EngineFile::Settings))
                }
            };
            match (class, kind) {
                (Some(EngineFile::Data | EngineFile::Settings), EntryKind::Folder)
                    if self.migration.clean => {}
                (_, EntryKind::Folder) => {
                    let inner = folder.folder(&name).map_err(self.failed(&path))?;
                    self.folder(&inner, &path, class)?;
                }
                (Some(class), _) => self.engine_file(folder, &path, class)?,
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
        if is_ours(PrivateFile::EXTRA_FILES) {
            self.extra_files.extend(extra_files::listed(private).into_iter().map(|name| below.join(name)));
        }
        let of_engine = [
            PrivateFile::BACKEND_SETTINGS,
            PrivateFile::INIT_VARIABLES,
            PrivateFile::PULUMI_BACKEND,
            PrivateFile::PULUMI_CREDENTIALS,
            PrivateFile::PULUMI_ACCOUNT,
        ];
        let of_engine = of_engine.into_iter().filter(|_| !self.migration.clean);
        let ours = [PrivateFile::ENVIRONMENT, PrivateFile::SENSITIVE, PrivateFile::LAST_TASK];
        let ours = ours.into_iter().chain(of_engine);
        for name in ours.filter(|file| is_ours(*file)).map(PrivateFile::name).collect::<Vec<_>>() {
            let path = below.join(PRIVATE_FOLDER).join(name);
            if private.kind(OsStr::new(name)).map_err(self.failed(&path))? == Some(EntryKind::File) {
                self.link(private, &path)?;
            }
        }
        if is_ours(PrivateFile::PULUMI_PARAMETERS) && !self.migration.clean {
            self.private_folders.push(below.join(PRIVATE_FOLDER));
        }
        if is_ours(PrivateFile::ENVIRONMENT)
            && let Some(data) = data_folder(private)
        {
            self.add_local_state(below, &data);
            self.referenced.push((self.migration.old.join(below).join(data), EngineFile::Data));
        }
        Ok(())
    }

    /// Remembers the state file that a local backend was configured with.
    fn add_local_state(&mut self, below: &Path, data: &Path) {
        let directory = self.migration.old.join(below);
        let state = stored_state::named_local_state(&directory, &directory.join(data));
        self.referenced.extend(state.map(|state| (state, EngineFile::State)));
    }

    /// Migrates the names of the parameters in each file that was migrated.
    fn migrate_parameters(&mut self) -> Result<(), WorkspaceError> {
        let name = OsStr::new(PrivateFile::PULUMI_PARAMETERS.name());
        for folder in std::mem::take(&mut self.private_folders) {
            let path = folder.join(name);
            let private = self.old.folder(&folder).map_err(self.failed(&path))?;
            let Ok(file) = private.open_file(name) else { continue };
            let read =
                serde_json::from_reader::<_, BTreeMap<String, serde_json::Value>>(BufReader::new(file));
            let Ok(mut set) = read else { continue };
            let init = folder.parent().unwrap_or(Path::new(""));
            set.retain(|file, _| self.files.contains(&init.join(file)));
            if !set.is_empty() {
                let written = self.new.open_or_create_all(&folder);
                let written =
                    written.and_then(|to| to.write(name, serde_json::json!(set).to_string().as_bytes()));
                written.map_err(self.failed(&path))?;
            }
        }
        Ok(())
    }

    /// Migrates files that cannot be recognized by their names. Files outside of the tree stay where they are.
    fn migrate_referenced(&mut self) -> Result<(), WorkspaceError> {
        let roots = [self.migration.old.canonicalize().unwrap_or_default(), self.migration.old.clone()];
        for (path, class) in std::mem::take(&mut self.referenced) {
            let Some(below) = roots.iter().find_map(|root| path.strip_prefix(root).ok()) else { continue };
            let real = match self.old.real(below) {
                Err(error) if is_missing(&error) || leads_out(&error) || is_no_place(&error) => continue,
                real => real.map_err(self.failed(below))?,
            };
            let is_known = |name: &OsStr| {
                is_git_folder(name)
                    || name == PRIVATE_FOLDER
                    || EngineFile::by_name(&name.to_string_lossy()).is_some()
            };
            // Known names were migrated before, and the root itself is not the engine's folder.
            let Some(name) = real.file_name() else { continue };
            if real.components().any(|part| is_known(part.as_os_str())) {
                continue;
            }
            let parent =
                self.old.folder(real.parent().unwrap_or(Path::new(""))).map_err(self.failed(&real))?;
            match (class, parent.kind(name).map_err(self.failed(&real))?) {
                (EngineFile::State, Some(EntryKind::File)) => {
                    self.engine_file(&parent, &real, class)?;
                    let name = name.to_string_lossy();
                    for beside in [format!("{name}.backup"), format!(".{name}.lock.info")] {
                        let path = real.with_file_name(&beside);
                        let kind = parent.kind(OsStr::new(&beside)).map_err(self.failed(&path))?;
                        if !self.migration.clean && kind == Some(EntryKind::File) {
                            self.engine_file(&parent, &path, class)?;
                        }
                    }
                }
                (EngineFile::Data, Some(EntryKind::Folder)) if !self.migration.clean => {
                    let folder = parent.folder(name).map_err(self.failed(&real))?;
                    self.folder(&folder, &real, Some(class))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn failed(&self, path: &Path) -> impl Fn(io::Error) -> WorkspaceError + use<> {
        let path = self.migration.old.join(path);
        move |error| WorkspaceError::io("migrate", &path, error)
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
        if self.extra_files.contains(path) {
            return Ok(());
        }
        if class == EngineFile::Settings && self.is_in_new(path)? {
            self.notes.push(format!("Using {} of the new revision", path.display()));
            return Ok(());
        }
        match self.link(folder, path) {
            Err(WorkspaceError::StateBlocked { .. }) if !is_state => {
                let note = format!(
                    "Dropped {}: the new revision has another file or folder in its place",
                    path.display()
                );
                self.notes.push(note);
            }
            linked => {
                linked?;
                self.files.insert(path.to_owned());
            }
        }
        Ok(())
    }

    /// Copies a state to the rescued states before it is dropped. States without resources, backups and locks are not worth it.
    fn rescue(&mut self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let failed = self.failed(path);
        let name = path.file_name().unwrap_or_default();
        let text = name.to_string_lossy();
        if folder.kind(name).map_err(&failed)? != Some(EntryKind::File) {
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
            folder.open_file(name).and_then(|file| read_limited(file, u64::MAX - 1)).map_err(&failed)?;
        let count = count(&state);
        if count == Some(0) || state.trim_ascii().is_empty() {
            return Ok(());
        }
        let mut copy_name = path.to_string_lossy().replace('/', "-");
        // A file name is limited to 255 bytes. The end is more specific than the beginning.
        copy_name.drain(..copy_name.ceil_char_boundary(copy_name.len().saturating_sub(LONGEST_NAME)));
        let copy_name = format!("clean-init-{copy_name}");
        let copy = keep(folder, &text, &self.migration.rescued, &copy_name, false).map_err(&failed)?;
        let (copy, _) = copy.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let contents = match count {
            Some(1) => "1 resource".to_owned(),
            Some(count) => format!("{count} resources"),
            None => "unreadable".to_owned(),
        };
        self.notes.push(format!(
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
        exists().map_err(self.failed(path))
    }

    /// Links one file of the old tree into the new one, and replaces the file that is there.
    fn link(&self, folder: &ConfinedDir, path: &Path) -> Result<(), WorkspaceError> {
        let name = path.file_name().unwrap_or_default();
        let blocked = || WorkspaceError::StateBlocked { path: path.to_owned() };
        let failed = |error: io::Error| match error.kind() {
            // A symlink on the way must not be followed.
            io::ErrorKind::NotADirectory => blocked(),
            _ => self.failed(path)(error),
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
    let file = private.open_file(OsStr::new(PrivateFile::ENVIRONMENT.name())).ok()?;
    let mut variables: BTreeMap<String, String> = serde_json::from_reader(BufReader::new(file)).ok()?;
    variables.remove("TF_DATA_DIR").filter(|value| !value.is_empty()).map(PathBuf::from)
}
