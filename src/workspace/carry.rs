//! What moves from the old revision into the new one: the engine's state, and what Init has told us.
//!
//! - Files and folders named `.terraform*` or `*.tfstate*`, at every level, with everything in such a folder. Not on a clean init.
//! - `.snapcd/snapcd.env` and `.snapcd/sensitive.json`, always. Plans and the list of extra files belong to the old revision and stay behind.
//!
//! A file that came from the repository and is as it was there is not the engine's doing and gives way to the new
//! revision. Where both have a file, state and the contents of `.terraform/` are kept, while `.terraform.lock.hcl`,
//! `.terraform-version` and their like are taken from the new revision: a committed upgrade must have effect.
//!
//! Files are hard-linked. That is quick for gigabytes of providers, and the old tree stays whole until it is replaced.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::names::PRIVATE_FOLDER;
use super::{PrivateFile, WorkspaceError, extra_files};
use crate::files::create_private_dir_all;

pub(super) struct Carry {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    pub(super) clean: bool,
    /// Files of the old tree that are as the repository has them.
    pub(super) unchanged: HashSet<PathBuf>,
}

impl Carry {
    /// Returns what is worth a line in the job's log.
    pub(super) fn run(self) -> Result<Vec<String>, WorkspaceError> {
        let mut walk = Walk { carry: self, extra_files: HashSet::new(), notes: Vec::new(), files: 0 };
        match walk.carry.old.symlink_metadata() {
            Ok(_) => walk.folder(Path::new(""))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WorkspaceError::io("look at", &walk.carry.old, error)),
        }
        if walk.files > 0 {
            walk.notes.push(format!("Kept {} state files of the old revision", walk.files));
        }
        Ok(walk.notes)
    }
}

struct Walk {
    carry: Carry,
    /// Files that the server had put there; they come again.
    extra_files: HashSet<PathBuf>,
    notes: Vec<String>,
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
    fn folder(&mut self, below: &Path) -> Result<(), WorkspaceError> {
        let private = self.carry.old.join(below).join(PRIVATE_FOLDER);
        for name in extra_files::listed(&private) {
            self.extra_files.insert(below.join(name));
        }
        for (path, name, kind) in self.entries(below)? {
            if name == ".git" {
                continue;
            }
            if name == PRIVATE_FOLDER {
                for kept in [PrivateFile::Environment, PrivateFile::Sensitive] {
                    let kept = path.join(kept.name());
                    if kind.is_dir() && self.carry.old.join(&kept).is_file() {
                        self.file(&kept)?;
                    }
                }
            } else if is_engines(&name) {
                if self.carry.clean {
                    continue;
                }
                if kind.is_dir() { self.everything(&path)? } else { self.engines_file(&path)? }
            } else if kind.is_dir() {
                self.folder(&path)?;
            }
        }
        Ok(())
    }

    fn everything(&mut self, below: &Path) -> Result<(), WorkspaceError> {
        for (path, _, kind) in self.entries(below)? {
            if kind.is_dir() { self.everything(&path)? } else { self.engines_file(&path)? }
        }
        Ok(())
    }

    fn entries(&self, below: &Path) -> Result<Vec<(PathBuf, String, fs::FileType)>, WorkspaceError> {
        let folder = self.carry.old.join(below);
        let failed = |error| WorkspaceError::io("list", &folder, error);
        fs::read_dir(&folder)
            .map_err(failed)?
            .map(|entry| {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok((below.join(entry.file_name()), name, entry.file_type().map_err(failed)?))
            })
            .collect()
    }

    fn engines_file(&mut self, path: &Path) -> Result<(), WorkspaceError> {
        let is_state = path.file_name().is_some_and(|name| is_state(&name.to_string_lossy()));
        if self.carry.unchanged.contains(path) || (!is_state && self.extra_files.contains(path)) {
            return Ok(());
        }
        // Only looked at: a symlink on the way may lead this path out of the new tree.
        if !beats_new_revision(path) && self.carry.new.join(path).symlink_metadata().is_ok() {
            self.notes.push(format!("{} is taken from the new revision", path.display()));
            return Ok(());
        }
        match self.file(path) {
            Err(WorkspaceError::StateInTheWay { .. }) if !is_state => {
                self.notes.push(format!("{} has no place in the new revision", path.display()));
                Ok(())
            }
            other => other,
        }
    }

    /// Puts one file of the old tree at the same place in the new one, instead of a file that is there.
    fn file(&mut self, path: &Path) -> Result<(), WorkspaceError> {
        let (from, to) = (self.carry.old.join(path), self.carry.new.join(path));
        let in_the_way = || WorkspaceError::StateInTheWay { path: path.to_owned() };
        // A symlink on the way would lead the file somewhere else.
        let mut folder = self.carry.new.clone();
        for part in path.parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            if folder.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
                return Err(in_the_way());
            }
        }
        create_private_dir_all(&folder).map_err(|error| WorkspaceError::io("create", &folder, error))?;
        match to.symlink_metadata() {
            Ok(found) if found.is_dir() => return Err(in_the_way()),
            // Writing to it would follow a symlink.
            Ok(_) => fs::remove_file(&to).map_err(|error| WorkspaceError::io("replace", &to, error))?,
            Err(_) => {}
        }
        link_or_copy(&from, &to).map_err(|error| WorkspaceError::io("carry over", &from, error))?;
        self.files += 1;
        Ok(())
    }
}

/// The same file under a second name; a copy where the file system has no hard links. A symlink stays one.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    let kind = from.symlink_metadata()?.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if !kind.is_file() {
        // Sockets and pipes of a plugin mean nothing without it.
        return Ok(());
    }
    fs::hard_link(from, to).or_else(|_| {
        fs::copy(from, to)?;
        fs::File::open(to)?.sync_all()
    })
}
