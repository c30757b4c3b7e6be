//! Moves a module from one revision to the next.
//!
//! The new revision is completed in the staging folder: fetched, checked, given the state of the old one
//! ([`migrate_state`](super::migrate_state)) and its extra files. Then two renames swap them: the old one to `old`, and the new one
//! to the module root. Before the first rename, nothing changes in the old tree. A crash between the renames leaves an `old` but
//! no module root; the next one to lock the module moves `old` back. Everything else in the staging folder is waste.
//!
//! At the same commit the tree stays, unless it is visibly damaged, and only the extra files change. If the init directory has
//! changed, the extra files of the previous one are removed first. Before the first extra file is written, the marker lists every
//! folder that may contain some, so that neither a failure nor a crash leaves an unknown one behind.

use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{Source, SourceRevisionType};
use tokio_util::sync::CancellationToken;

use super::marker::{GIT, Marker};
use super::migrate_state::StateMigration;
use super::tree::Tree;
use super::{LockShare, Workspace, WorkspaceError, extra_files, is_module_file, names, symlinks};
use crate::base;
use crate::base::confined_dir::read_limited;
use crate::base::files::{create_private_dir_all, remove_all, sync_dir};
use crate::sources::{Fetcher, JobLog, Location, SourceError, is_commit};

/// The requested revision.
struct ModuleRevision<'a> {
    /// The id of a commit or of an annotated tag.
    id: String,
    location: Location,
    /// The folder that the registry named.
    folder: PathBuf,
    /// The path of the init directory below the root.
    init: PathBuf,
    request: &'a GetModule,
}

impl ModuleRevision<'_> {
    /// Whether the extra files alone make the init directory a module.
    fn brings_module(&self) -> Result<bool, WorkspaceError> {
        let files = extra_files::by_path(&self.request.extra_files)?;
        let mut names = files.keys().filter_map(|path| path.to_str());
        Ok(names.any(|name| !name.contains('/') && is_module_file(name)))
    }
}

impl Workspace {
    /// The commit in the module root.
    pub fn local_commit(&self) -> Option<String> {
        Marker::read(&self.module_root).map(|marker| marker.commit)
    }

    /// Checks out the requested commit in the module root, writes the extra files, and returns the commit. The caller holds the
    /// module's lock.
    pub async fn get_module(
        &self,
        source: &Source,
        request: &GetModule,
        fetcher: &Fetcher,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, WorkspaceError> {
        extra_files::by_path(&request.extra_files)?;
        self.clear_staging().await?;

        let location = fetcher.locate(source, log, cancel).await?;
        let id = definitive(source, &location, fetcher, log, cancel).await?;
        let folder =
            names::relative_path("registry folder", location.subdirectory.as_deref().unwrap_or_default())?;
        let init = folder.join(&self.subdirectory).components().collect();
        let revision = ModuleRevision { id, location, folder, init, request };
        match Marker::read(&self.module_root).filter(|local| local.is_at(&revision.id)) {
            Some(local) if !request.clean_init_enabled => match self.damage(&local, &revision.init) {
                None => {
                    log(&format!("The local copy is already at {}", local.commit));
                    self.change_extra_files(&local, &revision, log)?;
                    return Ok(local.commit);
                }
                Some(damage) => {
                    log(&format!(
                        "The local copy is at {}, but must be fetched again: {damage}",
                        local.commit
                    ));
                }
            },
            _ => {}
        }
        let changed = self.change_revision(&revision, fetcher, log, cancel).await;
        if let Err(error) = self.clear_staging().await {
            log(&format!("Failed to clear the staging folder, retrying with the next revision: {error}"));
        }
        changed
    }

    /// Checks a checkout at the right commit for visible damage.
    fn damage(&self, local: &Marker, init: &Path) -> Option<&'static str> {
        if !local.is_current_version() {
            return Some("a different version of the runner made it");
        }
        let Ok(tree) = Tree::open(&self.module_root, init, &self.module_root) else {
            return Some("its init directory is missing");
        };
        let is_whole = head(&tree).is_ok_and(|head| head == local.commit)
            && tree.inside().is_file(&Path::new(GIT).join("index"));
        (!is_whole).then_some("its .git folder is damaged")
    }

    /// Updates the extra files in a tree that stays.
    fn change_extra_files(
        &self,
        local: &Marker,
        revision: &ModuleRevision<'_>,
        log: JobLog<'_>,
    ) -> Result<(), WorkspaceError> {
        let files = &revision.request.extra_files;
        let tree = Tree::open(&self.module_root, &revision.init, &self.module_root)?;
        if !revision.brings_module()? && !holds_module_without(&tree, files)? {
            return Err(self.no_module(revision));
        }
        extra_files::check(&tree, files)?;
        let mut marker = Marker::new(&local.commit, &revision.folder, &revision.init);
        marker.tag = local.tag.clone();
        if marker != *local {
            let mut both = local.clone();
            both.extra_files_in.insert(revision.init.clone());
            both.write(&tree)?;
            for init in local.extra_files_in.iter().filter(|init| **init != revision.init) {
                match Tree::open(&self.module_root, init, &self.module_root) {
                    Ok(last) => extra_files::place(&last, &[], log)?,
                    // The extra files are gone with their folder.
                    Err(WorkspaceError::NoSubdirectory { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        extra_files::place(&tree, files, log)?;
        if marker != *local { marker.write(&tree) } else { Ok(()) }
    }

    fn no_module(&self, revision: &ModuleRevision<'_>) -> WorkspaceError {
        WorkspaceError::NoModule { folder: self.module_root.join(&revision.init) }
    }

    async fn change_revision(
        &self,
        revision: &ModuleRevision<'_>,
        fetcher: &Fetcher,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, WorkspaceError> {
        let new = self.staging.join("new");
        create_private_dir_all(&new).map_err(|error| WorkspaceError::io("create", &new, error))?;
        fetcher.check_out(&revision.location.url, &revision.id, &new, log, cancel).await?;

        let checkout = new.clone();
        // Committed files must not pass for the runner's private files.
        let removed = blocking("check the symlinks of the checkout", &self.lock_share, move || {
            let removed = symlinks::check(&checkout)?;
            for path in &removed {
                let path = checkout.join(path);
                remove_all(&path).map_err(|error| WorkspaceError::io("remove", &path, error))?;
            }
            Ok(removed)
        });
        for path in removed.await? {
            log(&format!("Removed {} of the source: the name is reserved for the runner", path.display()));
        }
        let tree = Tree::open(&new, &revision.init, &self.module_root)
            .map_err(|error| self.blame_registry(error, revision, &new))?;
        let commit = head(&tree).map_err(|error| tree.error("read", &Path::new(GIT).join("HEAD"), error))?;
        if !tree.holds_module()? && !revision.brings_module()? {
            return Err(self.no_module(revision));
        }
        let tracked = fetcher.tracked_files(&self.module_root, cancel).await?;
        let (old, new, init) = (self.module_root.clone(), new.clone(), tree.init().to_owned());
        let (clean, rescued) = (revision.request.clean_init_enabled, self.rescued.clone());
        let migration = StateMigration { old, new, init, clean, tracked, rescued };
        let migrated = blocking("migrate the state", &self.lock_share, move || migration.run()).await?;
        migrated.notes.iter().for_each(|note| log(note));
        extra_files::adopt(&tree, migrated.extra_files)?;
        extra_files::place(&tree, &revision.request.extra_files, log)?;
        if !tree.holds_module()? {
            return Err(self.no_module(revision));
        }
        let mut marker = Marker::new(&commit, &revision.folder, &revision.init);
        marker.tag = (revision.id != commit).then(|| revision.id.clone());
        marker.write(&tree)?;
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled.into());
        }
        // A blocking thread completes both renames even if this task is dropped in between.
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        blocking("swap revisions", &self.lock_share, move || swap(&staging, &root)).await?;
        if revision.id != commit {
            log(&format!("{} is an annotated tag of {commit}", revision.id));
        }
        log(&format!("{} is at {commit} of {}", self.module, revision.location.url));
        Ok(commit)
    }

    /// If the registry named the missing folder, the error must not blame the module's settings.
    fn blame_registry(
        &self,
        error: WorkspaceError,
        revision: &ModuleRevision<'_>,
        new: &Path,
    ) -> WorkspaceError {
        let is_missing = |error| matches!(error, WorkspaceError::NoSubdirectory { .. });
        let folder = &revision.folder;
        match error {
            WorkspaceError::NoSubdirectory { .. }
                if Tree::open(new, folder, &self.module_root).is_err_and(is_missing) =>
            {
                WorkspaceError::NoRegistryFolder { folder: folder.clone() }
            }
            other => other,
        }
    }

    /// Moves the old tree back if a crash happened between the two renames.
    pub(super) fn restore_interrupted_swap(&self) -> Result<(), WorkspaceError> {
        restore(&self.staging, &self.module_root)
    }

    async fn clear_staging(&self) -> Result<(), WorkspaceError> {
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        let clear = move || {
            // The old tree is only waste once the new one has replaced it.
            restore(&staging, &root)?;
            remove_all(&staging).map_err(|error| WorkspaceError::io("clear", &staging, error))
        };
        blocking("clear the staging folder", &self.lock_share, clear).await
    }
}

/// Whether there is a module without the extra files that are no longer requested.
fn holds_module_without(tree: &Tree, files: &[ExtraFile]) -> Result<bool, WorkspaceError> {
    let mut removed = extra_files::created(tree)?;
    let requested = extra_files::by_path(files)?;
    removed.retain(|path| !requested.contains_key(path));
    let names = tree.file_names().map_err(|error| tree.error("list", tree.init(), error))?;
    Ok(names.iter().any(|name| is_module_file(name) && !removed.contains(Path::new(name))))
}

/// The commit that is checked out.
fn head(tree: &Tree) -> io::Result<String> {
    let head = tree.inside().open_file(&Path::new(GIT).join("HEAD"))?;
    let head = String::from_utf8_lossy(read_limited(head, 1024)?.trim_ascii()).into_owned();
    match is_commit(&head) {
        true => Ok(head),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a commit id")),
    }
}

fn restore(staging: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let old = staging.join("old");
    if exists(&old)? && !exists(root)? { rename(&old, root) } else { Ok(()) }
}

/// The definitive revision of the request, or else the commit that its revision means now.
async fn definitive(
    source: &Source,
    location: &Location,
    fetcher: &Fetcher,
    log: JobLog<'_>,
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
    let failed = |error| WorkspaceError::io("sync", &new, error);
    // After a power failure, the new tree must not contain files without their contents.
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

fn flush(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(folder)?)?)
}

fn rename(from: &Path, to: &Path) -> Result<(), WorkspaceError> {
    let synced = |path: &Path| path.parent().map_or(Ok(()), sync_dir);
    fs::rename(from, to)
        .and_then(|()| synced(from))
        .and_then(|()| synced(to))
        .map_err(|error| WorkspaceError::io("move", from, error))
}

fn exists(path: &Path) -> Result<bool, WorkspaceError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WorkspaceError::io("check", path, error)),
    }
}

async fn blocking<T: Send + 'static>(
    action: &'static str,
    lock_share: &LockShare,
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, WorkspaceError> {
    let lock_share = lock_share.clone();
    let work = move || {
        let result = work();
        drop(lock_share);
        result
    };
    base::blocking::blocking(work).await.map_err(|source| WorkspaceError::Thread { action, source })?
}
