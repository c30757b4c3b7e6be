//! From one revision to the next.
//!
//! The new revision is made complete in the staging folder: fetched, checked, and given what the old one leaves
//! ([`carry`](super::carry)). Then the two change places by two renames, the old one to `old` and the new one to the
//! module root. Up to the first rename nothing has happened to the old tree. A crash between the renames leaves
//! no module root but an `old`, which is put back by whoever comes next. All else in the staging folder is waste.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::carry::Carry;
use super::{Workspace, WorkspaceError, extra_files, is_module_file, names};
use crate::contract::requests::GetModule;
use crate::contract::{Source, SourceRevisionType};
use crate::files::{create_private_dir_all, sync_dir, write_private_atomic};
use crate::source::{Fetcher, Location, Log, SourceError, is_commit, mask_url};

/// What a checkout knows about itself. It is inside `.git` and so changes places together with the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    version: u32,
    /// The definitive revision.
    commit: String,
    /// The folder that the registry pointed at.
    folder: String,
}

impl Marker {
    fn new(commit: &str, folder: &Path) -> Self {
        Self { version: 1, commit: commit.to_owned(), folder: folder.to_string_lossy().into_owned() }
    }

    fn path(root: &Path) -> PathBuf {
        root.join(".git").join("hawser.json")
    }

    /// Nothing when there is no checkout of ours, or none that can be trusted.
    pub(super) fn read(root: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path(root)).ok()?).ok()
    }

    pub(super) fn folder(&self) -> PathBuf {
        names::relative_path("registry folder", &self.folder).unwrap_or_default()
    }

    fn write(&self, root: &Path) -> Result<(), WorkspaceError> {
        let path = Self::path(root);
        let failed = |error| WorkspaceError::io("write", &path, error);
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        write_private_atomic(&path, &text).map_err(failed)
    }
}

impl Workspace {
    /// The commit that the module root is a checkout of.
    pub fn local_commit(&self) -> Option<String> {
        Marker::read(&self.module_root).map(|marker| marker.commit)
    }

    /// Brings the module root to the commit that the request names, puts the extra files in place, and returns the
    /// commit. The caller holds the module's lock.
    pub async fn get_module(
        &self,
        source: &Source,
        request: &GetModule,
        fetcher: &Fetcher,
        log: Log<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, WorkspaceError> {
        let extra_names: Vec<PathBuf> = extra_files::by_path(&request.extra_files)?.into_keys().collect();
        self.clear_staging().await?;

        let location = fetcher.locate(source, log, cancel).await?;
        let commit = definitive(source, &location, fetcher, log, cancel).await?;
        let folder =
            names::relative_path("registry folder", location.subdirectory.as_deref().unwrap_or_default())?;
        let marker = Marker::new(&commit, &folder);
        match Marker::read(&self.module_root) {
            Some(local) if local == marker && !request.clean_init_enabled => {
                log(&format!("The local copy is at {commit} already"));
            }
            Some(local) if local.commit == commit && !request.clean_init_enabled => {
                self.check_init_dir(
                    &self.module_root,
                    &self.module_root.join(folder).join(&self.subdirectory),
                )?;
                marker.write(&self.module_root)?;
            }
            _ => {
                let change = Change { marker, location, extra_names, clean: request.clean_init_enabled };
                let changed = self.change_revision(change, fetcher, log, cancel).await;
                if let Err(error) = self.clear_staging().await {
                    log(&format!("The staging folder is cleared next time: {error}"));
                }
                changed?;
            }
        }
        self.place_extra_files(&request.extra_files, log)?;
        let init_dir = self.checked_init_dir()?;
        if !holds_module(&init_dir)? {
            return Err(WorkspaceError::NoModule { folder: init_dir });
        }
        Ok(commit)
    }

    async fn change_revision(
        &self,
        change: Change,
        fetcher: &Fetcher,
        log: Log<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), WorkspaceError> {
        let Change { marker, location, extra_names, clean } = change;
        let new = self.staging.join("new");
        create_private_dir_all(&new).map_err(|error| WorkspaceError::io("create", &new, error))?;
        fetcher.check_out(&location.url, &marker.commit, &new, log, cancel).await?;
        marker.write(&new)?;

        let init_dir = new.join(marker.folder()).join(&self.subdirectory);
        self.check_init_dir(&new, &init_dir)?;
        let brings_module =
            |path: &PathBuf| path.to_str().is_some_and(|name| !name.contains('/') && is_module_file(name));
        if !holds_module(&init_dir)? && !extra_names.iter().any(brings_module) {
            return Err(WorkspaceError::NoModule {
                folder: self.module_root.join(marker.folder()).join(&self.subdirectory),
            });
        }
        // Nothing that is committed under the private folder's name gets to speak for the runner.
        let private = init_dir.join(names::PRIVATE_FOLDER);
        remove(&private).map_err(|error| WorkspaceError::io("remove", &private, error))?;

        let unchanged = fetcher.unchanged_files(&self.module_root, cancel).await?;
        let carry = Carry { old: self.module_root.clone(), new: new.clone(), clean, unchanged };
        for note in blocking("carry state over", move || carry.run()).await? {
            log(&note);
        }
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled.into());
        }
        // On a thread of its own both renames happen even if this task is given up in between.
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        blocking("change revisions", move || swap(&staging, &root)).await?;
        log(&format!("{} is at {} of {}", self.module, marker.commit, mask_url(&location.url)));
        Ok(())
    }

    /// Puts the old tree back if a crash came between the two renames.
    pub(super) fn restore_interrupted_swap(&self) -> Result<(), WorkspaceError> {
        restore(&self.staging, &self.module_root)
    }

    async fn clear_staging(&self) -> Result<(), WorkspaceError> {
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        let clear = move || {
            // The old tree is only waste when something else is in its place.
            restore(&staging, &root)?;
            remove(&staging).map_err(|error| WorkspaceError::io("clear", &staging, error))
        };
        blocking("clear the staging folder", clear).await
    }
}

fn restore(staging: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let old = staging.join("old");
    if exists(&old)? && !exists(root)? { rename(&old, root) } else { Ok(()) }
}

struct Change {
    marker: Marker,
    location: Location,
    extra_names: Vec<PathBuf>,
    clean: bool,
}

/// The commit that the request carries, or what its revision means now.
async fn definitive(
    source: &Source,
    location: &Location,
    fetcher: &Fetcher,
    log: Log<'_>,
    cancel: &CancellationToken,
) -> Result<String, SourceError> {
    match source.source_definitive_revision.as_deref().map(str::trim) {
        Some(commit) if is_commit(commit) => Ok(commit.to_ascii_lowercase()),
        Some(name) if !name.is_empty() => {
            let named = Location { revision: name.to_owned(), ..location.clone() };
            fetcher.definitive(&named, SourceRevisionType::Default, log, cancel).await
        }
        _ => fetcher.definitive(location, source.source_revision_type, log, cancel).await,
    }
}

fn swap(staging: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let (new, old) = (staging.join("new"), staging.join("old"));
    let failed = |error| WorkspaceError::io("write out", &new, error);
    // A power cut after the swap must not find files whose contents never reached the disk.
    flush(&new).map_err(failed)?;
    if let Some(folder) = root.parent() {
        create_private_dir_all(folder).map_err(failed)?;
    }
    let had_old = exists(root)?;
    if had_old {
        rename(root, &old)?;
    }
    if let Err(error) = rename(&new, root) {
        if had_old {
            rename(&old, root)?;
        }
        return Err(error);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn flush(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(folder)?)?)
}

#[cfg(not(target_os = "linux"))]
fn flush(_folder: &Path) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<(), WorkspaceError> {
    let synced = |path: &Path| path.parent().map_or(Ok(()), sync_dir);
    fs::rename(from, to)
        .and_then(|()| synced(from))
        .and_then(|()| synced(to))
        .map_err(|error| WorkspaceError::io("move to its place", from, error))
}

fn exists(path: &Path) -> Result<bool, WorkspaceError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WorkspaceError::io("look at", path, error)),
    }
}

/// Removes whatever is there, a symlink and not what it points at.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn holds_module(folder: &Path) -> Result<bool, WorkspaceError> {
    let failed = |error| WorkspaceError::io("list", folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_module_file(&entry.file_name().to_string_lossy()) && entry.path().is_file() {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn blocking<T: Send + 'static>(
    action: &'static str,
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, WorkspaceError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| WorkspaceError::Thread { action, source })?
}
