//! What moves from the old revision into the new one: the engine's state, and what Init has told us.
//!
//! - Files and folders named `.terraform*` or `*.tfstate*`, at every level, with everything in such a folder. Not on a clean init.
//! - `.snapcd/snapcd.env` and `.snapcd/sensitive.json`, always; `.snapcd/backend-settings.json`, which is about what is in
//!   `.terraform`, not on a clean init. Plans and the list of extra files belong to the old revision and stay behind.
//! - An extra file with the name of a state, since the engine may have made it its own; the new list names it again.
//!
//! A file that came from the repository and is as it was there is not the engine's doing and gives way to the new
//! revision. Where both have a file, state and the contents of `.terraform/` are kept, while `.terraform.lock.hcl`,
//! `.terraform-version` and their like are taken from the new revision: a committed upgrade must have effect.
//!
//! Files are hard-linked. That is quick for gigabytes of providers, and the old tree stays whole until it is replaced.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::inside::{Folder, Inside, Kind, is_missing};
use super::names::PRIVATE_FOLDER;
use super::{PrivateFile, WorkspaceError, extra_files};

pub(super) struct Carry {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    /// The init directory of the new tree.
    pub(super) init: PathBuf,
    pub(super) clean: bool,
    /// Files of the old tree that are as the repository has them.
    pub(super) unchanged: HashSet<PathBuf>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Worth a line in the job's log.
    pub(super) notes: Vec<String>,
    /// Extra files of the old init directory that are in the new one now.
    pub(super) extra_files: Vec<String>,
}

impl Carry {
    pub(super) fn run(self) -> Result<Carried, WorkspaceError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| WorkspaceError::io("open", &path, error)
        };
        let old = match Inside::open(&self.old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Carried::default()),
            opened => opened.and_then(|old| old.folder(Path::new(""))).map_err(failed(&self.old))?,
        };
        let new =
            Inside::open(&self.new).and_then(|new| new.folder(Path::new(""))).map_err(failed(&self.new))?;
        let (extra_files, carried) = (HashSet::new(), Carried::default());
        let mut walk = Walk { carry: self, new, extra_files, carried, files: 0 };
        walk.folder(&old, Path::new(""))?;
        if walk.files > 0 {
            walk.carried.notes.push(format!("Kept {} state files of the old revision", walk.files));
        }
        Ok(walk.carried)
    }
}

struct Walk {
    carry: Carry,
    /// The root of the new tree.
    new: Folder,
    /// Files that the server had put there; they come again.
    extra_files: HashSet<PathBuf>,
    carried: Carried,
    files: usize,
}

fn is_state(name: &str) -> bool {
    name.contains(".tfstate")
}

fn is_engines(name: &str) -> bool {
    name.starts_with(".terraform") || is_state(name)
}

/// Whether the old file counts where the new revision has one too.
fn beats_new_revision(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == ".terraform")
        || path.file_name().is_some_and(|name| is_state(&name.to_string_lossy()))
}

impl Walk {
    /// Looks for what is to be carried in a folder, given by its path below the root.
    fn folder(&mut self, folder: &Folder, below: &Path) -> Result<(), WorkspaceError> {
        let entries = self.entries(folder, below)?;
        // First, because it says what the others are.
        if entries.iter().any(|(name, kind)| name == PRIVATE_FOLDER && *kind == Kind::Folder) {
            self.private(&self.enter(folder, below, OsStr::new(PRIVATE_FOLDER))?, below)?;
        }
        for (name, kind) in entries {
            let path = below.join(&name);
            let text = name.to_string_lossy();
            if name == ".git" || name == PRIVATE_FOLDER {
                continue;
            }
            if is_engines(&text) {
                if self.carry.clean {
                    continue;
                }
                match kind {
                    Kind::Folder => self.everything(&self.enter(folder, below, &name)?, &path)?,
                    _ => self.engines_file(folder, &path)?,
                }
            } else if kind == Kind::Folder {
                self.folder(&self.enter(folder, below, &name)?, &path)?;
            }
        }
        Ok(())
    }

    fn private(&mut self, private: &Folder, below: &Path) -> Result<(), WorkspaceError> {
        // What is as the repository has it was not written by the runner.
        let is_ours =
            |file: PrivateFile| !self.carry.unchanged.contains(&below.join(PRIVATE_FOLDER).join(file.name()));
        if is_ours(PrivateFile::ExtraFiles) {
            self.extra_files.extend(extra_files::listed(private).into_iter().map(|name| below.join(name)));
        }
        let of_engine = (!self.carry.clean).then_some(PrivateFile::BackendSettings);
        let ours = [PrivateFile::Environment, PrivateFile::Sensitive].into_iter().chain(of_engine);
        for name in ours.filter(|file| is_ours(*file)).map(PrivateFile::name).collect::<Vec<_>>() {
            let path = below.join(PRIVATE_FOLDER).join(name);
            let kind =
                private.kind(OsStr::new(name)).map_err(|error| self.failed("look at", &path, error))?;
            if kind == Some(Kind::File) {
                self.file(private, &path)?;
            }
        }
        Ok(())
    }

    fn everything(&mut self, folder: &Folder, below: &Path) -> Result<(), WorkspaceError> {
        for (name, kind) in self.entries(folder, below)? {
            let path = below.join(&name);
            match kind {
                Kind::Folder => self.everything(&self.enter(folder, below, &name)?, &path)?,
                _ => self.engines_file(folder, &path)?,
            }
        }
        Ok(())
    }

    fn failed(&self, action: &'static str, path: &Path, error: io::Error) -> WorkspaceError {
        WorkspaceError::io(action, &self.carry.old.join(path), error)
    }

    fn enter(&self, folder: &Folder, below: &Path, name: &OsStr) -> Result<Folder, WorkspaceError> {
        folder.folder(name).map_err(|error| self.failed("open", &below.join(name), error))
    }

    fn entries(&self, folder: &Folder, below: &Path) -> Result<Vec<(OsString, Kind)>, WorkspaceError> {
        folder.entries().map_err(|error| self.failed("list", below, error))
    }

    fn engines_file(&mut self, folder: &Folder, path: &Path) -> Result<(), WorkspaceError> {
        let is_state = path.file_name().is_some_and(|name| is_state(&name.to_string_lossy()));
        if self.carry.unchanged.contains(path) {
            return Ok(());
        }
        let extra_file = self.extra_files.contains(path);
        let of_init = path.strip_prefix(&self.carry.init).ok().and_then(Path::to_str).map(str::to_owned);
        if extra_file && (!is_state || of_init.is_none() || self.is_in_new(path)?) {
            return Ok(());
        }
        if !beats_new_revision(path) && self.is_in_new(path)? {
            self.carried.notes.push(format!("{} is taken from the new revision", path.display()));
            return Ok(());
        }
        match self.file(folder, path) {
            Err(WorkspaceError::StateInTheWay { .. }) if !is_state => {
                self.carried.notes.push(format!("{} has no place in the new revision", path.display()));
                Ok(())
            }
            Ok(()) => {
                self.files += 1;
                self.carried.extra_files.extend(of_init.filter(|_| extra_file));
                Ok(())
            }
            other => other,
        }
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
    fn file(&mut self, folder: &Folder, path: &Path) -> Result<(), WorkspaceError> {
        let name = path.file_name().unwrap_or_default();
        let in_the_way = || WorkspaceError::StateInTheWay { path: path.to_owned() };
        let failed = |error: io::Error| match error.kind() {
            // A symlink on the way would lead the file somewhere else.
            io::ErrorKind::NotADirectory => in_the_way(),
            _ => WorkspaceError::io("carry over", &self.carry.old.join(path), error),
        };
        let to = self.new.folders_made(path.parent().unwrap_or(Path::new(""))).map_err(failed)?;
        if to.kind(name).map_err(failed)? == Some(Kind::Folder) {
            return Err(in_the_way());
        }
        // Writing to it would follow a symlink.
        to.remove_file(name).map_err(failed)?;
        folder.link_or_copy(name, &to, name).map_err(failed)
    }
}
