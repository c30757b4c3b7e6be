//! Moves a module from one revision to the next.
//!
//! The new revision is completed in a folder of its own below the staging folder: fetched, checked, given the state of the old
//! one ([`migrate_state`](super::migrate_state)) and its extra files. Then two renames swap them: the old one to `old`, and the
//! new one to the module root. Before the first rename, nothing changes in the old tree. A crash between the renames leaves an
//! `old` but no module root; the next one to lock the module moves `old` back. Everything else in the staging folder is waste.
//!
//! Each attempt has a folder of its own, because git survives a runner that is killed, and keeps writing for a while. What it
//! leaves is removed before and after the next change of the module, and when a runner starts.
//!
//! At the same commit the tree stays, unless it is visibly damaged or the init directory has changed, and only the extra files
//! change.

use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::requests::GetModule;
use hawser_contract::{Source, SourceRevisionType};
use uuid::Uuid;

use super::marker::{GIT, Marker};
use super::migrate_state::StateMigration;
use super::tree::Tree;
use super::{LockShare, ModuleFiles, Workspace, WorkspaceError, extra_files, names, symlinks};
use crate::base;
use crate::base::confined_dir::read_limited;
use crate::base::files::{create_private_dir_all, remove_all, sync_dir};
use crate::settings::model::WorkingDirectorySettings;
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
    is_module_file: ModuleFiles<'a>,
}

impl Workspace {
    /// The commit in the module root.
    pub fn local_commit(&self) -> Option<String> {
        Marker::read(&self.module_root).map(|marker| marker.commit)
    }

    /// Checks out the requested commit in the module root, writes the extra files, and returns the commit. The caller holds the
    /// module's lock. A revision without any of the module files of the engines is refused.
    pub async fn get_module(
        &self,
        source: &Source,
        request: &GetModule,
        is_module_file: ModuleFiles<'_>,
        fetcher: &Fetcher<'_>,
    ) -> Result<String, WorkspaceError> {
        let log = fetcher.log;
        extra_files::by_path(&request.extra_files)?;
        self.clear_staging().await?;

        let location = fetcher.locate(source).await?;
        let definitive = source.source_definitive_revision.as_deref().map(str::trim);
        let id = match definitive.filter(|revision| !revision.is_empty()) {
            Some(revision) => {
                let named = Location { revision: revision.to_owned(), ..location.clone() };
                fetcher.definitive(&named, SourceRevisionType::Default).await?
            }
            None => fetcher.definitive(&location, source.source_revision_type).await?,
        };
        let folder =
            names::relative_path("registry folder", location.subdirectory.as_deref().unwrap_or_default())?;
        let init = folder.join(&self.subdirectory).components().collect();
        let revision = ModuleRevision { id, location, folder, init, request, is_module_file };
        let local = Marker::read(&self.module_root).filter(|local| local.is_at(&revision.id));
        if let Some(local) = local.filter(|_| !request.clean_init_enabled) {
            let Some(damage) = self.damage(&local, &revision) else {
                log("The local copy is up to date");
                let tree = Tree::open(&self.module_root, &revision.init, &self.module_root)?;
                self.place_extra_files(&tree, &revision, log)?;
                return Ok(local.commit);
            };
            log(&format!("The local copy must be fetched again: {damage}"));
        }
        let changed = self.change_revision(&revision, fetcher).await;
        if let Err(error) = self.clear_staging().await {
            log(&format!("Failed to clear the staging folder, retrying with the next revision: {error}"));
        }
        changed
    }

    /// Why a checkout at the right commit cannot be used.
    fn damage(&self, local: &Marker, revision: &ModuleRevision<'_>) -> Option<&'static str> {
        if !local.has_init(&revision.folder, &revision.init) {
            return Some("its init directory has changed");
        }
        let Ok(tree) = Tree::open(&self.module_root, &revision.init, &self.module_root) else {
            return Some("its init directory is missing");
        };
        let is_whole = head(&tree).is_ok_and(|head| head == local.commit)
            && tree.inside().is_file(&Path::new(GIT).join("index"));
        (!is_whole).then_some("its .git folder is damaged")
    }

    /// Writes the extra files to a tree that stays or to the next one. A tree without a module is refused.
    fn place_extra_files(
        &self,
        tree: &Tree,
        revision: &ModuleRevision<'_>,
        log: JobLog<'_>,
    ) -> Result<(), WorkspaceError> {
        extra_files::place(tree, &revision.request.extra_files, log)?;
        let names = tree.file_names().map_err(|error| tree.error("list", tree.init(), error))?;
        match names.iter().any(|name| (revision.is_module_file)(name)) {
            true => Ok(()),
            false => Err(WorkspaceError::NoModule { folder: self.module_root.join(&revision.init) }),
        }
    }

    async fn change_revision(
        &self,
        revision: &ModuleRevision<'_>,
        fetcher: &Fetcher<'_>,
    ) -> Result<String, WorkspaceError> {
        let log = fetcher.log;
        let new = self.staging.join(format!("new-{}", Uuid::new_v4()));
        create_private_dir_all(&new).map_err(|error| WorkspaceError::io("create", &new, error))?;
        fetcher.check_out(&revision.location.url, &revision.id, &new).await?;

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
        let open = |below: &Path| Tree::open(&new, below, &self.module_root);
        let tree = open(&revision.init).map_err(|error| match error {
            // If the registry named the missing folder, the error must not blame the module's settings.
            WorkspaceError::NoSubdirectory { .. } if open(&revision.folder).is_err() => {
                WorkspaceError::NoRegistryFolder { folder: revision.folder.clone() }
            }
            other => other,
        })?;
        let commit = head(&tree).map_err(|error| tree.error("read", &Path::new(GIT).join("HEAD"), error))?;
        let tracked = fetcher.tracked_files(&self.module_root).await?;
        let old = self.module_root.clone();
        let (clean, rescued) = (revision.request.clean_init_enabled, self.rescued.clone());
        let migration = StateMigration { old, new: new.clone(), clean, tracked, rescued };
        let notes = blocking("migrate the state", &self.lock_share, move || migration.run()).await?;
        notes.iter().for_each(|note| log(note));
        self.place_extra_files(&tree, revision, log)?;
        Marker::new(&commit, &revision.id, &revision.folder, &revision.init).write(&tree)?;
        if fetcher.cancel.is_cancelled() {
            return Err(SourceError::Cancelled.into());
        }
        // A blocking thread completes both renames even if this task is dropped in between.
        let (new, old, root) = (new.clone(), self.staging.join("old"), self.module_root.clone());
        blocking("swap revisions", &self.lock_share, move || swap(&new, &old, &root)).await?;
        if revision.id != commit {
            log(&format!("{} is an annotated tag of {commit}", revision.id));
        }
        Ok(commit)
    }

    async fn clear_staging(&self) -> Result<(), WorkspaceError> {
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        let clear = move || {
            // The old tree is only waste once the new one has replaced it.
            restore(&staging, &root)?;
            let old = staging.join("old");
            remove_all(&old).map_err(|error| WorkspaceError::io("remove", &old, error))?;
            sweep(&staging);
            Ok(())
        };
        blocking("clear the staging folder", &self.lock_share, clear).await
    }
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

/// Moves the old tree back if a crash happened between the two renames.
pub(super) fn restore(staging: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let old = staging.join("old");
    if exists(&old)? && !exists(root)? { rename(&old, root) } else { Ok(()) }
}

/// Removes what interrupted attempts have left. The git of a killed runner may still be writing there, so a failure means
/// nothing: the next sweep tries again. The caller holds the module's lock.
fn sweep(staging: &Path) {
    if let Err(error) = remove_all(staging) {
        tracing::debug!(path = %staging.display(), %error, "failed to remove an interrupted checkout");
    }
}

/// Removes the interrupted checkouts of all modules that no task uses.
pub fn sweep_all(settings: &WorkingDirectorySettings) -> io::Result<()> {
    for workspace in
        super::workspaces(settings, &settings.working_directory.join(".hawser").join("checkout"))?
    {
        if let Ok(Some(_lock)) = workspace.hold_quietly(false)
            && restore(&workspace.staging, &workspace.module_root).is_ok()
        {
            sweep(&workspace.staging);
        }
    }
    Ok(())
}

fn swap(new: &Path, old: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let failed = |error| WorkspaceError::io("sync", new, error);
    // After a power failure, the new tree must not contain files without their contents.
    fs::File::open(new).and_then(|new| Ok(rustix::fs::syncfs(new)?)).map_err(failed)?;
    if let Some(folder) = root.parent() {
        create_private_dir_all(folder).map_err(failed)?;
    }
    let had_old = exists(root)?;
    if had_old {
        rename(root, old)?;
    }
    if let Err(error) = rename(new, root) {
        if had_old {
            rename(old, root)?;
        }
        return Err(error);
    }
    Ok(())
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
