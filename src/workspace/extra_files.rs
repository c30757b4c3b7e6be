//! Files that the server adds to a module.
//!
//! `.snapcd/extra-files.json` lists the runner's own files in the init directory:
//! ```json
//! {"created": ["backend.tf"], "overwritten": ["conf/main.tf"]}
//! ```
//! The original of an overwritten file is kept in `.snapcd/original-files/` under the same path. When a file is no longer
//! requested, it is deleted or its original is restored. A file of the runner's own is always updated; any other file is only
//! replaced if `overwrite` is set.
//!
//! The order of writes makes a crash harmless: save the original, update the list, write the file; and back: restore the file,
//! update the list. An overwritten file without an original had just been restored.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use hawser_contract::requests::ExtraFile;
use serde::{Deserialize, Serialize};

use super::names::relative_file;
use super::tree::{Tree, existing_folder};
use super::{PrivateFile, WorkspaceError};
use crate::base::confined_dir::{ConfinedDir, EntryKind, read_limited};
use crate::sources::JobLog;

const WHAT: &str = "extra file name";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    created: BTreeSet<PathBuf>,
    overwritten: BTreeSet<PathBuf>,
}

impl Manifest {
    /// Checks the names like those of a request.
    fn load(tree: &Tree) -> Result<Option<Self>, WorkspaceError> {
        let manifest: Option<Self> = tree.read_json(PrivateFile::EXTRA_FILES)?;
        for path in manifest.iter().flat_map(|it| it.created.iter().chain(&it.overwritten)) {
            relative_file(WHAT, &path.to_string_lossy())?;
        }
        Ok(manifest)
    }

    fn save(&self, tree: &Tree) -> Result<(), WorkspaceError> {
        tree.write_json(PrivateFile::EXTRA_FILES, self)
    }

    fn contains(&self, path: &Path) -> bool {
        self.created.contains(path) || self.overwritten.contains(path)
    }
}

/// The files in the list of a private folder; none if there is no valid list.
pub(super) fn listed(private: &ConfinedDir) -> Vec<PathBuf> {
    let file = private.open_file(OsStr::new(PrivateFile::EXTRA_FILES.name()));
    let manifest = file.ok().and_then(|file| serde_json::from_reader(BufReader::new(file)).ok());
    let manifest: Manifest = manifest.unwrap_or_default();
    manifest.created.into_iter().chain(manifest.overwritten).collect()
}

impl Tree {
    /// The extra files among these names that are in place: a skipped one is a file of the source. Without a valid list, all of
    /// them.
    pub fn placed_extra_files(&self, names: &[String]) -> Vec<String> {
        let Ok(Some(manifest)) = Manifest::load(self) else { return names.to_vec() };
        let paths = names.iter().filter_map(|name| relative_file(WHAT, name).ok());
        paths
            .filter(|path| manifest.contains(path))
            .filter_map(|path| path.to_str().map(str::to_owned))
            .collect()
    }
}

/// The files by their normalized paths. If a path occurs twice, the last one wins.
pub(super) fn by_path(files: &[ExtraFile]) -> Result<BTreeMap<PathBuf, &ExtraFile>, WorkspaceError> {
    files.iter().map(|file| Ok((relative_file(WHAT, &file.file_name)?, file))).collect()
}

/// Makes the init directory contain exactly these extra files.
pub(super) fn place(tree: &Tree, files: &[ExtraFile], log: JobLog<'_>) -> Result<(), WorkspaceError> {
    let requested = by_path(files)?;
    let manifest = match Manifest::load(tree)? {
        Some(manifest) => manifest,
        None if requested.is_empty() => return Ok(()),
        None => Manifest::default(),
    };
    let originals = tree
        .private_made()?
        .open_or_create(OsStr::new(PrivateFile::ORIGINAL_FILES.name()))
        .map_err(|error| tree.error("keep originals in", tree.init(), error))?;
    Placement { tree, originals, manifest, log }.run(&requested)
}

fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}

struct Placement<'a> {
    tree: &'a Tree,
    originals: ConfinedDir,
    manifest: Manifest,
    log: JobLog<'a>,
}

impl Placement<'_> {
    fn run(mut self, requested: &BTreeMap<PathBuf, &ExtraFile>) -> Result<(), WorkspaceError> {
        for path in self.manifest.overwritten.clone() {
            // Without an original, the file had just been restored.
            if self.original(&path)?.is_none() {
                self.manifest.overwritten.remove(&path);
            }
        }
        for path in self.manifest.created.clone() {
            if !requested.contains_key(&path) {
                self.remove(&path)?;
            }
        }
        for path in self.manifest.overwritten.clone() {
            if !requested.get(&path).is_some_and(|file| file.overwrite) {
                self.restore(&path)?;
            }
        }
        for (path, file) in requested {
            self.place(path, file)?;
        }
        self.manifest.save(self.tree)
    }

    fn error(&self, action: &'static str, path: &Path, error: io::Error) -> WorkspaceError {
        self.tree.error(action, &self.tree.init().join(path), error)
    }

    /// The folder that contains the original of a file, if there is one.
    fn original(&self, path: &Path) -> Result<Option<ConfinedDir>, WorkspaceError> {
        let (parent, name) = split(path);
        let find = || match existing_folder(&self.originals, parent)? {
            Some(folder) => Ok(folder.kind(name)?.map(|_| folder)),
            None => Ok(None),
        };
        find().map_err(|error| self.error("find the original of", path, error))
    }

    fn place(&mut self, path: &Path, file: &ExtraFile) -> Result<(), WorkspaceError> {
        let (parent, name) = split(path);
        let folder = self.tree.work_folder_made(parent)?;
        match folder.kind(name).map_err(|error| self.error("check", path, error))? {
            Some(EntryKind::Folder) => {
                return Err(WorkspaceError::ExtraFileIsFolder { path: path.to_owned() });
            }
            _ if self.manifest.contains(path) => {}
            Some(_) if file.overwrite => {
                self.keep_original(path, &folder)?;
                self.manifest.overwritten.insert(path.to_owned());
                self.manifest.save(self.tree)?;
            }
            Some(_) => {
                (self.log)(&format!(
                    "Skipping the extra file {}: the source contains this file, and overwrite is not set",
                    path.display()
                ));
                return Ok(());
            }
            None => {
                self.manifest.created.insert(path.to_owned());
                self.manifest.save(self.tree)?;
            }
        }
        let contents = file.contents.as_bytes();
        let existing = folder.open_file(name).and_then(|file| read_limited(file, contents.len() as u64));
        if existing.is_ok_and(|existing| existing == contents) {
            return Ok(());
        }
        folder.write(name, contents).map_err(|error| self.error("write the extra file", path, error))?;
        (self.log)(&format!("Wrote the extra file {}", path.display()));
        Ok(())
    }

    fn keep_original(&self, path: &Path, folder: &ConfinedDir) -> Result<(), WorkspaceError> {
        let (parent, name) = split(path);
        let keep = || {
            let originals = self.originals.open_or_create_all(parent)?;
            // Left by a crash before the list was written; the file in place is still the original.
            originals.remove_file(name)?;
            folder.link_or_copy(name, &originals, name)?;
            originals.sync()
        };
        keep().map_err(|error| self.error("keep the original of", path, error))
    }

    fn remove(&mut self, path: &Path) -> Result<(), WorkspaceError> {
        let (parent, name) = split(path);
        if let Some(folder) = self.tree.work_folder(parent)? {
            let failed = |error| self.error("delete the extra file", path, error);
            if folder.remove_file(name).map_err(failed)? {
                (self.log)(&format!("Deleted the extra file {}: it is no longer requested", path.display()));
            }
        }
        // Its folders are deleted too, up to the first one that is not empty.
        for folder in path.ancestors().skip(1).filter(|it| !it.as_os_str().is_empty()) {
            let (parent, name) = split(folder);
            let Some(above) = self.tree.work_folder(parent)? else { continue };
            if above.remove_folder(name).is_err() {
                break;
            }
        }
        self.manifest.created.remove(path);
        self.manifest.save(self.tree)
    }

    fn restore(&mut self, path: &Path) -> Result<(), WorkspaceError> {
        let (parent, name) = split(path);
        let folder = self.tree.work_folder_made(parent)?;
        if let Some(original) = self.original(path)? {
            original
                .rename(name, &folder, name)
                .map_err(|error| self.error("restore the original of", path, error))?;
        }
        (self.log)(&format!(
            "Restored {} from the source: no extra file replaces it anymore",
            path.display()
        ));
        self.manifest.overwritten.remove(path);
        self.manifest.save(self.tree)
    }
}
