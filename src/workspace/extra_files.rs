//! Files that the server adds to a module.
//!
//! `.snapcd/extra-files.json` lists what is ours among the files of the init directory:
//! ```json
//! {"version": 1, "created": ["backend.tf"], "overwritten": ["conf/main.tf"]}
//! ```
//! The original of an overwritten file is kept in `.snapcd/original-files/` under the same path. A file that is no longer
//! wanted is removed or its original restored. A file of ours is always brought up to date; a file that was there
//! before is only replaced when `overwrite` is set.
//!
//! Order of writes, so that a crash in between does no harm: the original is kept, then the list says so, then the file
//! is written; and back: the file is restored, then the list says so. An overwritten file without an original is
//! one that had just been restored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::carry::link_or_copy;
use super::names::{place_inside, relative_file};
use super::{PrivateFile, Workspace, WorkspaceError};
use crate::contract::requests::ExtraFile;
use crate::files::{create_private_dir_all, write_private_atomic};
use crate::source::Log;

const WHAT: &str = "extra file name";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    created: BTreeSet<String>,
    overwritten: BTreeSet<String>,
}

impl Manifest {
    fn load(private: &Path) -> Result<Self, WorkspaceError> {
        let path = private.join(PrivateFile::ExtraFiles.name());
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|source| WorkspaceError::DamagedManifest { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(WorkspaceError::io("read", &path, error)),
        }
    }
}

/// What a private folder's list names; nothing when there is none.
pub(super) fn listed(private: &Path) -> Vec<PathBuf> {
    let manifest = Manifest::load(private).unwrap_or_default();
    manifest.created.iter().chain(&manifest.overwritten).map(PathBuf::from).collect()
}

/// The files by their cleaned paths; of two with one name the later counts.
pub(super) fn by_path(files: &[ExtraFile]) -> Result<BTreeMap<PathBuf, &ExtraFile>, WorkspaceError> {
    files.iter().map(|file| Ok((relative_file(WHAT, &file.file_name)?, file))).collect()
}

impl Workspace {
    /// Makes the init directory hold exactly these extra files.
    pub fn place_extra_files(&self, files: &[ExtraFile], log: Log<'_>) -> Result<(), WorkspaceError> {
        let wanted = by_path(files)?;
        let wanted: BTreeMap<String, &ExtraFile> =
            wanted.into_iter().map(|(path, file)| (path.to_string_lossy().into_owned(), file)).collect();
        let private = self.private_dir();
        if wanted.is_empty() && !private.join(PrivateFile::ExtraFiles.name()).exists() {
            return Ok(());
        }
        let private = self.prepare_private_dir()?;
        let manifest = Manifest::load(&private)?;
        let originals = private.join(PrivateFile::OriginalFiles.name());
        Placing { workspace: self, init_dir: self.checked_init_dir()?, private, originals, manifest, log }
            .run(&wanted)
    }
}

struct Placing<'a> {
    workspace: &'a Workspace,
    init_dir: PathBuf,
    private: PathBuf,
    originals: PathBuf,
    manifest: Manifest,
    log: Log<'a>,
}

impl Placing<'_> {
    fn run(mut self, wanted: &BTreeMap<String, &ExtraFile>) -> Result<(), WorkspaceError> {
        let restored = |name: &String| self.originals.join(name).symlink_metadata().is_err();
        let overwritten: BTreeSet<String> =
            self.manifest.overwritten.iter().filter(|name| !restored(name)).cloned().collect();
        self.manifest.overwritten = overwritten;

        for name in self.manifest.created.clone() {
            if !wanted.contains_key(&name) {
                self.remove(&name)?;
            }
        }
        for name in self.manifest.overwritten.clone() {
            if !wanted.get(&name).is_some_and(|file| file.overwrite) {
                self.restore(&name)?;
            }
        }
        for (name, file) in wanted {
            self.place(name, file)?;
        }
        self.save()
    }

    fn place(&mut self, name: &str, file: &ExtraFile) -> Result<(), WorkspaceError> {
        let target = self.target(name)?;
        match target.symlink_metadata() {
            Ok(found) if found.is_dir() => {
                return Err(WorkspaceError::ExtraFileIsFolder { name: name.to_owned() });
            }
            Ok(_) if self.manifest.created.contains(name) || self.manifest.overwritten.contains(name) => {}
            Ok(_) if file.overwrite => {
                self.keep_original(name, &target)?;
                self.manifest.overwritten.insert(name.to_owned());
                self.save()?;
            }
            Ok(_) => {
                (self.log)(&format!(
                    "Extra file {name} is left out: the source has that file and overwrite is not set"
                ));
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !self.manifest.overwritten.contains(name) && self.manifest.created.insert(name.to_owned())
                {
                    self.save()?;
                }
            }
            Err(error) => return Err(WorkspaceError::io("look at", &target, error)),
        }
        let is_plain = target.symlink_metadata().is_ok_and(|found| found.is_file());
        if is_plain && fs::read(&target).is_ok_and(|there| there == file.contents.as_bytes()) {
            return Ok(());
        }
        let failed = |error| WorkspaceError::io("write the extra file", &target, error);
        if let Some(folder) = target.parent() {
            create_private_dir_all(folder).map_err(failed)?;
        }
        write_private_atomic(&target, file.contents.as_bytes()).map_err(failed)?;
        (self.log)(&format!("Extra file {name} is in place"));
        Ok(())
    }

    fn keep_original(&self, name: &str, target: &Path) -> Result<(), WorkspaceError> {
        let original = self.originals.join(name);
        let failed = |error| WorkspaceError::io("keep the original of", target, error);
        if let Some(folder) = original.parent() {
            create_private_dir_all(folder).map_err(failed)?;
        }
        // Left from a crash before the list was written; the file in place is still the original.
        if original.symlink_metadata().is_ok() {
            fs::remove_file(&original).map_err(failed)?;
        }
        link_or_copy(target, &original).map_err(failed)
    }

    fn remove(&mut self, name: &str) -> Result<(), WorkspaceError> {
        let target = self.target(name)?;
        match fs::remove_file(&target) {
            Ok(()) => (self.log)(&format!("Extra file {name} is removed: it is no longer listed")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WorkspaceError::io("remove the extra file", &target, error)),
        }
        // Folders that were made for it go too; the first one with something else in it ends this.
        let made = target.ancestors().skip(1).take_while(|folder| *folder != self.init_dir);
        for folder in made.take(Path::new(name).components().count() - 1) {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
        self.manifest.created.remove(name);
        self.save()
    }

    fn restore(&mut self, name: &str) -> Result<(), WorkspaceError> {
        let target = self.target(name)?;
        let failed = |error| WorkspaceError::io("restore the original of", &target, error);
        if let Some(folder) = target.parent() {
            create_private_dir_all(folder).map_err(failed)?;
        }
        fs::rename(self.originals.join(name), &target).map_err(failed)?;
        (self.log)(&format!("{name} of the source is restored: the extra file no longer replaces it"));
        self.manifest.overwritten.remove(name);
        self.save()
    }

    /// Names in the list are checked like those of a request.
    fn target(&self, name: &str) -> Result<PathBuf, WorkspaceError> {
        place_inside(self.workspace.module_root(), &self.init_dir, &relative_file(WHAT, name)?)
    }

    fn save(&mut self) -> Result<(), WorkspaceError> {
        self.manifest.version = 1;
        let path = self.private.join(PrivateFile::ExtraFiles.name());
        let text = serde_json::to_vec_pretty(&self.manifest)
            .map_err(|source| WorkspaceError::DamagedManifest { path: path.clone(), source })?;
        write_private_atomic(&path, &text).map_err(|error| WorkspaceError::io("write", &path, error))
    }
}
