//! Files that the server adds to a module.
//!
//! `.snapcd/extra-files.json` lists the runner's own files in the init directory:
//! ```json
//! {"version": 1, "created": ["backend.tf"], "overwritten": ["conf/main.tf"]}
//! ```
//! The original of an overwritten file is kept in `.snapcd/original-files/` under the same path. When a file is no longer
//! requested, it is deleted or its original is restored. A file of the runner's own is always updated; any other file is only
//! replaced if `overwrite` is set.
//!
//! The order of writes makes a crash harmless: save the original, update the list, write the file; and back: restore the file,
//! update the list. An overwritten file without an original had just been restored.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use hawser_contract::requests::ExtraFile;
use serde::{Deserialize, Serialize};

use super::names::relative_file;
use super::tree::{Tree, existing_folder};
use super::{PrivateFile, WorkspaceError};
use crate::base::confined_dir::{ConfinedDir, EntryKind, read_limited};
use crate::sources::JobLog;

const WHAT: &str = "extra file name";
const LARGEST_MANIFEST: u64 = 64 * 1024 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    created: BTreeSet<PathBuf>,
    overwritten: BTreeSet<PathBuf>,
}

impl Manifest {
    /// Checks the names like those of a request.
    fn load(tree: &Tree) -> Result<Option<Self>, WorkspaceError> {
        let manifest: Option<Self> = tree.read_json(PrivateFile::ExtraFiles)?;
        for path in manifest.iter().flat_map(|it| it.created.iter().chain(&it.overwritten)) {
            relative_file(WHAT, &path.to_string_lossy())?;
        }
        Ok(manifest)
    }

    fn save(&mut self, tree: &Tree) -> Result<(), WorkspaceError> {
        self.version = 1;
        tree.write_json(PrivateFile::ExtraFiles, self)
    }

    fn contains(&self, path: &Path) -> bool {
        self.created.contains(path) || self.overwritten.contains(path)
    }
}

/// The files in the list of a private folder; none if there is no valid list.
pub(super) fn listed(private: &ConfinedDir) -> Vec<PathBuf> {
    let file = private.open_file(OsStr::new(PrivateFile::ExtraFiles.name()));
    let text = file.and_then(|file| read_limited(file, LARGEST_MANIFEST)).unwrap_or_default();
    let manifest: Manifest = serde_json::from_slice(&text).unwrap_or_default();
    manifest.created.into_iter().chain(manifest.overwritten).collect()
}

/// The files that only exist as extra files.
pub(super) fn created(tree: &Tree) -> Result<BTreeSet<PathBuf>, WorkspaceError> {
    Ok(Manifest::load(tree)?.unwrap_or_default().created)
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

/// Adds files that were carried over from an earlier tree to the list.
pub(super) fn adopt(tree: &Tree, paths: Vec<PathBuf>) -> Result<(), WorkspaceError> {
    if paths.is_empty() {
        return Ok(());
    }
    let mut manifest = Manifest::load(tree)?.unwrap_or_default();
    manifest.created.extend(paths);
    manifest.save(tree)
}

/// Checks that all files can be put in place, before anything is changed.
pub(super) fn check(tree: &Tree, files: &[ExtraFile]) -> Result<(), WorkspaceError> {
    let requested = by_path(files)?;
    // Files that are no longer requested are deleted first.
    let mut deleted = created(tree)?;
    deleted.retain(|path| !requested.contains_key(path));
    for path in requested.keys() {
        if path.ancestors().any(|above| deleted.contains(above)) {
            continue;
        }
        let Some((folder, name)) = find(tree, path)? else { continue };
        let failed = |error| tree.error("check", &tree.init().join(path), error);
        if folder.kind(&name).map_err(failed)? == Some(EntryKind::Folder)
            && !folder.folder(&name).and_then(|inner| holds_only(&inner, path, &deleted)).map_err(failed)?
        {
            return Err(WorkspaceError::ExtraFileIsFolder { path: path.clone() });
        }
    }
    Ok(())
}

/// Whether a folder contains nothing but these files.
fn holds_only(folder: &ConfinedDir, below: &Path, files: &BTreeSet<PathBuf>) -> io::Result<bool> {
    for (name, kind) in folder.entries()? {
        let path = below.join(&name);
        let is_listed = match kind {
            EntryKind::Folder => holds_only(&folder.folder(&name)?, &path, files)?,
            _ => files.contains(&path),
        };
        if !is_listed {
            return Ok(false);
        }
    }
    Ok(true)
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
        .open_or_create(OsStr::new(PrivateFile::OriginalFiles.name()))
        .map_err(|error| tree.error("keep originals in", tree.init(), error))?;
    Placement { tree, originals, manifest, log }.run(&requested)
}

/// The folder of a file, and its name in it. Symlinks on the way must not lead out; the file itself is not followed. `None` if
/// the folder does not exist.
fn find(tree: &Tree, path: &Path) -> Result<Option<(ConfinedDir, OsString)>, WorkspaceError> {
    let (parent, name) = split(path);
    Ok(tree.work_folder(parent)?.map(|folder| (folder, name.to_owned())))
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
        if let Some((folder, name)) = find(self.tree, path)? {
            let failed = |error| self.error("delete the extra file", path, error);
            if folder.remove_file(&name).map_err(failed)? {
                (self.log)(&format!("Deleted the extra file {}: it is no longer requested", path.display()));
            }
        }
        // Its folders are deleted too, up to the first one that is not empty.
        for folder in path.ancestors().skip(1).filter(|it| !it.as_os_str().is_empty()) {
            let Some((above, name)) = find(self.tree, folder)? else { continue };
            if above.remove_folder(&name).is_err() {
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
        (self.log)(&format!("Restored {} of the source: no extra file replaces it any more", path.display()));
        self.manifest.overwritten.remove(path);
        self.manifest.save(self.tree)
    }
}
