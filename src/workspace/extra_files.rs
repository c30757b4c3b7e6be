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
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use hawser_contract::requests::ExtraFile;
use serde::{Deserialize, Serialize};

use super::names::relative_file;
use super::tree::Tree;
use super::{PrivateFile, WorkspaceError};
use crate::base::confined_dir::{ConfinedDir, EntryKind, is_missing, read_limited};
use crate::sources::JobLog;

const WHAT: &str = "extra file name";
const LARGEST_MANIFEST: u64 = 64 * 1024 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    created: BTreeSet<String>,
    overwritten: BTreeSet<String>,
}

impl Manifest {
    fn load(tree: &Tree) -> Result<Option<Self>, WorkspaceError> {
        let Some(text) = tree.read_private(PrivateFile::ExtraFiles)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|source| {
            let path = tree.inside().place().join(tree.init()).join(super::names::PRIVATE_FOLDER);
            WorkspaceError::DamagedManifest { path: path.join(PrivateFile::ExtraFiles.name()), source }
        })
    }

    fn save(&mut self, tree: &Tree) -> Result<(), WorkspaceError> {
        self.version = 1;
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| tree.error("write the list of extra files in", tree.init(), error.into()))?;
        tree.write_private(PrivateFile::ExtraFiles, &text)
    }
}

/// What a private folder's list names; nothing when there is none.
pub(super) fn listed(private: &ConfinedDir) -> Vec<PathBuf> {
    let file = private.open_file(OsStr::new(PrivateFile::ExtraFiles.name()));
    let text = file.and_then(|file| read_limited(file, LARGEST_MANIFEST)).unwrap_or_default();
    let manifest: Manifest = serde_json::from_slice(&text).unwrap_or_default();
    manifest.created.iter().chain(&manifest.overwritten).map(PathBuf::from).collect()
}

/// The files that only exist as extra files.
pub(super) fn created(tree: &Tree) -> Result<BTreeSet<String>, WorkspaceError> {
    Ok(Manifest::load(tree)?.unwrap_or_default().created)
}

impl Tree {
    /// Those of these extra files that are in place. One that was left out is a file of the source. Where nobody knows, all are.
    pub fn placed_extra_files(&self, names: &[String]) -> Vec<String> {
        let Ok(Some(manifest)) = Manifest::load(self) else { return names.to_vec() };
        let names =
            names.iter().filter_map(|name| relative_file(WHAT, name).ok()?.to_str().map(str::to_owned));
        names.filter(|name| manifest.created.contains(name) || manifest.overwritten.contains(name)).collect()
    }
}

/// The files by their cleaned paths; of two with one name the later counts.
pub(super) fn by_path(files: &[ExtraFile]) -> Result<BTreeMap<PathBuf, &ExtraFile>, WorkspaceError> {
    files.iter().map(|file| Ok((relative_file(WHAT, &file.file_name)?, file))).collect()
}

/// Notes that these files of the init directory, which came from an earlier tree, are extra files.
pub(super) fn adopt(tree: &Tree, names: Vec<String>) -> Result<(), WorkspaceError> {
    if names.is_empty() {
        return Ok(());
    }
    let mut manifest = Manifest::load(tree)?.unwrap_or_default();
    manifest.created.extend(names);
    manifest.save(tree)
}

/// Finds out whether all files can be put in place, before anything is changed.
pub(super) fn check(tree: &Tree, files: &[ExtraFile]) -> Result<(), WorkspaceError> {
    let wanted = by_path(files)?;
    // What is no longer listed is removed first, and then in nobody's way.
    let mut goes: BTreeSet<PathBuf> = created(tree)?.into_iter().map(PathBuf::from).collect();
    goes.retain(|name| !wanted.contains_key(name));
    for name in wanted.keys() {
        if name.ancestors().any(|above| goes.contains(above)) {
            continue;
        }
        let Some((folder, last)) = find(tree, name)? else { continue };
        let failed = |error| tree.error("look at", &tree.init().join(name), error);
        if folder.kind(&last).map_err(failed)? == Some(EntryKind::Folder)
            && !folder.folder(&last).and_then(|inner| holds_only(&inner, name, &goes)).map_err(failed)?
        {
            return Err(WorkspaceError::ExtraFileIsFolder { name: name.to_string_lossy().into_owned() });
        }
    }
    Ok(())
}

/// Whether there is nothing in a folder but these files.
fn holds_only(folder: &ConfinedDir, below: &Path, files: &BTreeSet<PathBuf>) -> io::Result<bool> {
    for (name, kind) in folder.entries()? {
        let path = below.join(&name);
        let is_one = match kind {
            EntryKind::Folder => holds_only(&folder.folder(&name)?, &path, files)?,
            _ => files.contains(&path),
        };
        if !is_one {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the init directory hold exactly these extra files.
pub(super) fn place(tree: &Tree, files: &[ExtraFile], log: JobLog<'_>) -> Result<(), WorkspaceError> {
    let wanted = by_path(files)?;
    let wanted: BTreeMap<String, &ExtraFile> =
        wanted.into_iter().map(|(path, file)| (path.to_string_lossy().into_owned(), file)).collect();
    let manifest = match Manifest::load(tree)? {
        Some(manifest) => manifest,
        None if wanted.is_empty() => return Ok(()),
        None => Manifest::default(),
    };
    let private = tree.private_made()?;
    let originals = private
        .folder_made(OsStr::new(PrivateFile::OriginalFiles.name()))
        .map_err(|error| tree.error("keep originals in", tree.init(), error))?;
    Placing { tree, originals, manifest, log }.run(&wanted)
}

/// The folder that a file is in, and its name there. Symlinks on the way may not lead out; one at the end is not followed. `None`
/// when the folder is not there.
fn find(tree: &Tree, path: &Path) -> Result<Option<(ConfinedDir, std::ffi::OsString)>, WorkspaceError> {
    let folder = tree.work_folder(path.parent().unwrap_or(Path::new("")))?;
    Ok(folder.map(|folder| (folder, path.file_name().unwrap_or_default().to_owned())))
}

struct Placing<'a> {
    tree: &'a Tree,
    originals: ConfinedDir,
    manifest: Manifest,
    log: JobLog<'a>,
}

impl Placing<'_> {
    fn run(mut self, wanted: &BTreeMap<String, &ExtraFile>) -> Result<(), WorkspaceError> {
        for name in self.manifest.overwritten.clone() {
            // One without an original had just been restored.
            if self.original(&name)?.is_none() {
                self.manifest.overwritten.remove(&name);
            }
        }
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

    fn error(&self, action: &'static str, name: &str, error: io::Error) -> WorkspaceError {
        self.tree.error(action, &self.tree.init().join(name), error)
    }

    /// Where a file is or belongs. Names in the list are checked like those of a request.
    fn target(&self, name: &str) -> Result<(ConfinedDir, std::ffi::OsString), WorkspaceError> {
        let path = relative_file(WHAT, name)?;
        let folder = self.tree.work_folder_made(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, path.file_name().unwrap_or_default().to_owned()))
    }

    /// The folder in which the original of a file is, if it is there.
    fn original(&self, name: &str) -> Result<Option<ConfinedDir>, WorkspaceError> {
        let path = relative_file(WHAT, name)?;
        let failed = |error| self.error("find the original of", name, error);
        let mut folder = self.originals.folders_made(Path::new("")).map_err(failed)?;
        for part in path.parent().into_iter().flat_map(Path::components) {
            folder = match folder.folder(part.as_os_str()) {
                Err(error) if is_missing(&error) => return Ok(None),
                found => found.map_err(failed)?,
            };
        }
        let there = folder.kind(path.file_name().unwrap_or_default()).map_err(failed)?;
        Ok(there.map(|_| folder))
    }

    fn place(&mut self, name: &str, file: &ExtraFile) -> Result<(), WorkspaceError> {
        let (folder, last) = self.target(name)?;
        let kind = folder.kind(&last).map_err(|error| self.error("look at", name, error))?;
        let is_ours = self.manifest.created.contains(name) || self.manifest.overwritten.contains(name);
        match kind {
            Some(EntryKind::Folder) => {
                return Err(WorkspaceError::ExtraFileIsFolder { name: name.to_owned() });
            }
            Some(_) if is_ours => {}
            Some(_) if file.overwrite => {
                self.keep_original(name, &folder)?;
                self.manifest.overwritten.insert(name.to_owned());
                self.save()?;
            }
            Some(_) => {
                (self.log)(&format!(
                    "Extra file {name} is left out: the source has that file and overwrite is not set"
                ));
                return Ok(());
            }
            None => {
                if !self.manifest.overwritten.contains(name) && self.manifest.created.insert(name.to_owned())
                {
                    self.save()?;
                }
            }
        }
        let contents = file.contents.as_bytes();
        let there = folder.open_file(&last).and_then(|file| read_limited(file, contents.len() as u64));
        if there.is_ok_and(|there| there == contents) {
            return Ok(());
        }
        folder.write(&last, contents).map_err(|error| self.error("write the extra file", name, error))?;
        (self.log)(&format!("Extra file {name} is in place"));
        Ok(())
    }

    fn keep_original(&self, name: &str, folder: &ConfinedDir) -> Result<(), WorkspaceError> {
        let path = Path::new(name);
        let last = path.file_name().unwrap_or_default();
        let keep = || {
            let kept = self.originals.folders_made(path.parent().unwrap_or(Path::new("")))?;
            // Left from a crash before the list was written; the file in place is still the original.
            kept.remove_file(last)?;
            folder.link_or_copy(last, &kept, last)?;
            kept.sync()
        };
        keep().map_err(|error| self.error("keep the original of", name, error))
    }

    fn remove(&mut self, name: &str) -> Result<(), WorkspaceError> {
        let path = relative_file(WHAT, name)?;
        if let Some((folder, last)) = find(self.tree, &path)? {
            let failed = |error| self.error("remove the extra file", name, error);
            if folder.remove_file(&last).map_err(failed)? {
                (self.log)(&format!("Extra file {name} is removed: it is no longer listed"));
            }
        }
        // Folders that were made for it go too; the first one with something else in it ends this.
        for made in path.ancestors().skip(1).filter(|it| !it.as_os_str().is_empty()) {
            let Some((above, last)) = find(self.tree, made)? else { continue };
            if above.remove_folder(&last).is_err() {
                break;
            }
        }
        self.manifest.created.remove(name);
        self.save()
    }

    fn restore(&mut self, name: &str) -> Result<(), WorkspaceError> {
        let (folder, last) = self.target(name)?;
        if let Some(original) = self.original(name)? {
            original
                .rename(&last, &folder, &last)
                .map_err(|error| self.error("restore the original of", name, error))?;
        }
        (self.log)(&format!("{name} of the source is restored: the extra file no longer replaces it"));
        self.manifest.overwritten.remove(name);
        self.save()
    }

    fn save(&mut self) -> Result<(), WorkspaceError> {
        self.manifest.save(self.tree)
    }
}
