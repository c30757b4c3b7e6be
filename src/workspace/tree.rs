//! An open module tree: the current checkout, or the next one while it is being prepared.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::names::{PRIVATE_FOLDER, is_git_folder};
use super::{PrivateFile, WorkspaceError};
use crate::base::confined_dir::{ConfinedDir, ConfinedRoot, EntryKind, is_missing, leads_out, read_limited};

/// The runner never writes larger files to the private folder.
const LARGEST_PRIVATE_FILE: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub struct Tree {
    inside: ConfinedRoot,
    /// The path of the init directory below the root, without symlinks.
    init: PathBuf,
    /// The final path of the tree, for messages.
    shown: PathBuf,
}

impl Tree {
    /// `init` is the path of the init directory below the root. It must exist.
    pub(super) fn open(root: &Path, init: &Path, shown: &Path) -> Result<Self, WorkspaceError> {
        let missing = || WorkspaceError::NoSubdirectory { subdirectory: init.to_owned() };
        let inside = match ConfinedRoot::open(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            opened => opened.map_err(|error| WorkspaceError::io("open", root, error))?,
        };
        let mut tree = Self { inside, init: PathBuf::new(), shown: shown.to_owned() };
        let real = tree.inside.real(init).and_then(|real| tree.inside.folder(&real).map(|_| real));
        tree.init = match real {
            Ok(real) if real.components().any(|part| is_git_folder(part.as_os_str())) => {
                return Err(tree.outside(init));
            }
            Ok(real) => real,
            Err(error) if is_missing(&error) => return Err(missing()),
            Err(error) => return Err(tree.error("open", init, error)),
        };
        Ok(tree)
    }

    pub(super) fn inside(&self) -> &ConfinedRoot {
        &self.inside
    }

    /// The path of the init directory below the root.
    pub(super) fn init(&self) -> &Path {
        &self.init
    }

    fn outside(&self, below: &Path) -> WorkspaceError {
        WorkspaceError::Outside { path: self.shown.join(below), root: self.shown.clone() }
    }

    /// An error about a path below the root.
    pub(super) fn error(&self, action: &'static str, below: &Path, error: io::Error) -> WorkspaceError {
        match leads_out(&error) {
            true => self.outside(below),
            false => WorkspaceError::io(action, &self.shown.join(below), error),
        }
    }

    /// A folder below the init directory. Symlinks must not lead into git's files or the private folder. `None` if it does not
    /// exist.
    pub(super) fn work_folder(&self, path: &Path) -> Result<Option<ConfinedDir>, WorkspaceError> {
        let below = self.init.join(path);
        match self.inside.real(&below) {
            Ok(real) if real.components().any(|part| is_reserved(part.as_os_str())) => {
                Err(self.outside(&below))
            }
            Ok(real) => {
                self.inside.folder(&real).map(Some).map_err(|error| self.error("open", &below, error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error("open", &below, error)),
        }
    }

    /// The same, but creates missing folders.
    pub(super) fn work_folder_made(&self, path: &Path) -> Result<ConfinedDir, WorkspaceError> {
        let below = self.init.join(path);
        // Before anything is created, check where the existing part of the path leads.
        let existing = below.ancestors().find_map(|above| self.inside.real(above).ok()).unwrap_or_default();
        if existing.components().any(|part| is_reserved(part.as_os_str())) {
            return Err(self.outside(&below));
        }
        self.inside.open_or_create(&below).map_err(|error| self.error("create", &below, error))
    }

    /// The names of all files in the init directory, including symlinks that lead out: opening one is an error.
    pub fn file_names(&self) -> io::Result<Vec<String>> {
        let entries = self.inside.folder(&self.init)?.entries()?;
        let is_file = |name: &OsStr, kind| match kind {
            EntryKind::File => true,
            EntryKind::Symlink => {
                let path = self.init.join(name);
                self.inside.is_file(&path) || self.inside.real(&path).is_err_and(|error| leads_out(&error))
            }
            _ => false,
        };
        let files = entries.into_iter().filter(|(name, kind)| is_file(name, *kind));
        Ok(files.filter_map(|(name, _)| name.into_string().ok()).collect())
    }

    /// Opens a file of the init directory for reading. Symlinks may lead anywhere inside the module.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        self.inside.open_file(&self.init.join(name))
    }

    /// Replaces a file of the init directory. Folders on the way may be symlinks to anywhere inside the module.
    pub fn write_file(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let below = self.init.join(path);
        let folder = self.inside.real(below.parent().unwrap_or(Path::new("")))?;
        self.inside.folder(&folder)?.write(below.file_name().unwrap_or_default(), contents)
    }

    /// The init directory itself.
    pub fn init_folder(&self) -> io::Result<ConfinedDir> {
        self.inside.folder(&self.init)
    }

    pub(super) fn private_path(&self, file: &str) -> PathBuf {
        self.init.join(PRIVATE_FOLDER).join(file)
    }

    /// The private folder, if it exists. A symlink or a file with that name is refused.
    pub(super) fn private(&self) -> Result<Option<ConfinedDir>, WorkspaceError> {
        let name = OsStr::new(PRIVATE_FOLDER);
        let path = self.init.join(name);
        let failed = |error| self.error("open", &path, error);
        let init = self.inside.folder(&self.init).map_err(failed)?;
        match init.kind(name).map_err(failed)? {
            None => Ok(None),
            Some(EntryKind::Folder) => init.folder(name).map(Some).map_err(failed),
            Some(_) => Err(WorkspaceError::NotPrivateFolder { path: self.shown.join(path) }),
        }
    }

    /// Creates the private folder if necessary, restricts access to it, and makes git ignore it.
    pub fn private_made(&self) -> Result<ConfinedDir, WorkspaceError> {
        let failed = |error| self.error("prepare the private folder", &self.private_path(""), error);
        let folder = match self.private()? {
            Some(folder) => folder,
            None => {
                let init = self.inside.folder(&self.init).map_err(failed)?;
                init.open_or_create(OsStr::new(PRIVATE_FOLDER)).map_err(failed)?
            }
        };
        folder.make_private().map_err(failed)?;
        let ignore = OsStr::new(".gitignore");
        let existing = folder.open_file(ignore).and_then(|file| read_limited(file, 2));
        if existing.ok().as_deref() != Some(b"*\n") {
            folder.write(ignore, b"*\n").map_err(failed)?;
        }
        Ok(folder)
    }

    /// A file of the private folder.
    pub fn open_private(&self, file: PrivateFile) -> io::Result<File> {
        match self.private().map_err(io::Error::other)? {
            Some(folder) => folder.open_file(OsStr::new(file.name())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// An error about reading a file of the private folder.
    pub fn read_error(&self, file: PrivateFile, error: io::Error) -> WorkspaceError {
        self.error("read", &self.private_path(file.name()), error)
    }

    /// Reads a file of the private folder. `None` if it does not exist.
    fn read_private(&self, file: PrivateFile) -> Result<Option<Vec<u8>>, WorkspaceError> {
        let Some(folder) = self.private()? else { return Ok(None) };
        match folder
            .open_file(OsStr::new(file.name()))
            .and_then(|file| read_limited(file, LARGEST_PRIVATE_FILE))
        {
            Ok(text) => Ok(Some(text)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.error("read", &self.private_path(file.name()), error)),
        }
    }

    pub fn write_private(&self, file: PrivateFile, contents: &[u8]) -> Result<(), WorkspaceError> {
        let folder = self.private_made()?;
        let failed = |error| self.error("write", &self.private_path(file.name()), error);
        folder.write(OsStr::new(file.name()), contents).map_err(failed)
    }

    pub fn read_json<T: DeserializeOwned>(&self, file: PrivateFile) -> Result<Option<T>, WorkspaceError> {
        let Some(text) = self.read_private(file)? else { return Ok(None) };
        let path = self.shown.join(self.private_path(file.name()));
        serde_json::from_slice(&text).map(Some).map_err(|source| WorkspaceError::DamagedFile {
            file,
            path,
            source,
        })
    }

    pub fn write_json(&self, file: PrivateFile, value: &impl Serialize) -> Result<(), WorkspaceError> {
        let failed =
            |error: serde_json::Error| self.error("write", &self.private_path(file.name()), error.into());
        self.write_private(file, &serde_json::to_vec_pretty(value).map_err(failed)?)
    }
}

/// A folder below another one. `None` if it does not exist.
pub(super) fn existing_folder(root: &ConfinedDir, path: &Path) -> io::Result<Option<ConfinedDir>> {
    let mut folder = root.open_or_create_all(Path::new(""))?;
    for part in path.components() {
        folder = match folder.folder(part.as_os_str()) {
            Err(error) if is_missing(&error) => return Ok(None),
            opened => opened?,
        };
    }
    Ok(Some(folder))
}

fn is_reserved(name: &OsStr) -> bool {
    is_git_folder(name) || name == PRIVATE_FOLDER
}
