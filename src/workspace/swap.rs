//! From one revision to the next.
//!
//! The new revision is made complete in the staging folder: fetched, checked, given what the old one leaves
//! ([`migrate_state`](super::migrate_state)), and given its extra files. Then the two change places by two renames, the old one to `old` and the
//! new one to the module root. Up to the first rename nothing has happened to the old tree. A crash between the renames leaves
//! no module root but an `old`, which is put back by whoever comes next. All else in the staging folder is waste.
//!
//! At the same commit the tree stays, unless it is damaged as far as that can be told, and only the extra files change. When it
//! is the init directory that changed, those of the last one are taken back first. The marker names every folder that may have
//! some from before the first is written, so that neither a failure nor a crash leaves one behind that nobody knows of.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{Source, SourceRevisionType};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::migrate_state::StateMigration;
use super::tree::Tree;
use super::{Workspace, WorkspaceError, extra_files, is_module_file, names, symlinks};
use crate::base::confined_dir::{ConfinedRoot, read_limited};
use crate::base::files::{create_private_dir_all, remove_all, sync_dir};
use crate::base::git_url::mask_url;
use crate::sources::{Fetcher, JobLog, Location, SourceError, is_commit};

/// What a checkout knows about itself. It is inside `.git` and so changes places together with the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    version: u32,
    /// What is checked out.
    commit: String,
    /// The annotated tag by whose own id it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// The folder that the registry pointed at.
    folder: String,
    /// The init directories that may have extra files in them.
    extra_files_in: BTreeSet<PathBuf>,
}

/// A checkout with another number was made by other rules and is made anew.
const VERSION: u32 = 1;
const LARGEST_MARKER: u64 = 1024 * 1024;
const GIT: &str = ".git";
const MARKER: &str = "hawser.json";

impl Marker {
    fn new(commit: &str, folder: &Path, init: &Path) -> Self {
        let folder = folder.to_string_lossy().into_owned();
        let extra_files_in = BTreeSet::from([init.to_owned()]);
        Self { version: VERSION, commit: commit.to_owned(), tag: None, folder, extra_files_in }
    }

    fn is_at(&self, id: &str) -> bool {
        self.commit == id || self.tag.as_deref() == Some(id)
    }

    /// Nothing when there is no checkout of ours, or none that can be trusted.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let git = ConfinedRoot::open(root).ok()?.folder(Path::new("")).ok()?.folder(OsStr::new(GIT)).ok()?;
        let text = read_limited(git.open_file(OsStr::new(MARKER)).ok()?, LARGEST_MARKER).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn folder(&self) -> PathBuf {
        names::relative_path("registry folder", &self.folder).unwrap_or_default()
    }

    fn write(&self, tree: &Tree) -> Result<(), WorkspaceError> {
        let path = Path::new(GIT).join(MARKER);
        let failed = |error| tree.error("write", &path, error);
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let root = tree.inside().folder(Path::new("")).map_err(failed)?;
        root.folder(OsStr::new(GIT)).and_then(|git| git.write(OsStr::new(MARKER), &text)).map_err(failed)
    }
}

/// The share of the module's lock that a thread holds while it works: a task that is given up does not end its threads, and
/// nobody else may come in before they have.
pub(super) type HeldLock = Option<Arc<fs::File>>;

/// Where the module is wanted, and with what.
struct WantedModule<'a> {
    /// The id of a commit, or of an annotated tag.
    id: String,
    location: Location,
    folder: PathBuf,
    /// The init directory below the root.
    init: PathBuf,
    request: &'a GetModule,
}

impl WantedModule<'_> {
    fn brings_module(&self) -> Result<bool, WorkspaceError> {
        let names = extra_files::by_path(&self.request.extra_files)?;
        let is_one =
            |path: &PathBuf| path.to_str().is_some_and(|name| !name.contains('/') && is_module_file(name));
        Ok(names.keys().any(is_one))
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
        let wanted = WantedModule { id, location, folder, init, request };
        match Marker::read(&self.module_root).filter(|local| local.is_at(&wanted.id)) {
            Some(local) if !request.clean_init_enabled => match self.damage(&local, &wanted.init) {
                None => {
                    log(&format!("The local copy is at {} already", local.commit));
                    self.change_extra_files(&local, &wanted, log)?;
                    return Ok(local.commit);
                }
                Some(damage) => {
                    log(&format!("The local copy is at {}, but made anew: {damage}", local.commit));
                }
            },
            _ => {}
        }
        let changed = self.change_revision(&wanted, fetcher, log, cancel).await;
        if let Err(error) = self.clear_staging().await {
            log(&format!("The staging folder is cleared next time: {error}"));
        }
        changed
    }

    /// What is wrong with a checkout that says that it is at the right commit.
    fn damage(&self, local: &Marker, init: &Path) -> Option<&'static str> {
        if local.version != VERSION {
            return Some("it is from another version of the runner");
        }
        let Ok(tree) = Tree::open(&self.module_root, init, &self.module_root) else {
            return Some("its init directory is not there");
        };
        let is_whole = head(&tree).is_ok_and(|head| head == local.commit)
            && tree.inside().is_file(&Path::new(GIT).join("index"));
        (!is_whole).then_some("git's own files are damaged")
    }

    /// Brings the extra files up to date in a tree that stays.
    fn change_extra_files(
        &self,
        local: &Marker,
        wanted: &WantedModule<'_>,
        log: JobLog<'_>,
    ) -> Result<(), WorkspaceError> {
        let files = &wanted.request.extra_files;
        let tree = Tree::open(&self.module_root, &wanted.init, &self.module_root)?;
        if !wanted.brings_module()? && !self.holds_module_without(&tree, files)? {
            return Err(self.no_module(wanted));
        }
        extra_files::check(&tree, files)?;
        let mut marker = Marker::new(&local.commit, &wanted.folder, &wanted.init);
        marker.tag = local.tag.clone();
        if marker != *local {
            let mut both = local.clone();
            both.extra_files_in.insert(wanted.init.clone());
            both.write(&tree)?;
            for init in local.extra_files_in.iter().filter(|init| **init != wanted.init) {
                match Tree::open(&self.module_root, init, &self.module_root) {
                    Ok(last) => extra_files::place(&last, &[], log)?,
                    // What was in it is gone with it.
                    Err(WorkspaceError::NoSubdirectory { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        extra_files::place(&tree, files, log)?;
        if marker != *local { marker.write(&tree) } else { Ok(()) }
    }

    /// Whether there is a module once the extra files that are no longer listed are gone.
    fn holds_module_without(&self, tree: &Tree, files: &[ExtraFile]) -> Result<bool, WorkspaceError> {
        let listed = extra_files::by_path(files)?;
        let created = extra_files::created(tree)?;
        let goes = |name: &str| created.contains(name) && !listed.contains_key(Path::new(name));
        let failed = |error| tree.error("list", tree.init(), error);
        let names = tree.file_names().map_err(failed)?;
        Ok(names.iter().any(|name| is_module_file(name) && !goes(name)))
    }

    fn no_module(&self, wanted: &WantedModule<'_>) -> WorkspaceError {
        WorkspaceError::NoModule { folder: self.module_root.join(&wanted.init) }
    }

    async fn change_revision(
        &self,
        wanted: &WantedModule<'_>,
        fetcher: &Fetcher,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, WorkspaceError> {
        let new = self.staging.join("new");
        create_private_dir_all(&new).map_err(|error| WorkspaceError::io("create", &new, error))?;
        fetcher.check_out(&wanted.location.url, &wanted.id, &new, log, cancel).await?;

        let checkout = new.clone();
        // Nothing that is committed under the private folder's name gets to speak for the runner.
        let strangers = blocking("look through the checkout", &self.held, move || {
            let strangers = symlinks::check(&checkout)?;
            for path in &strangers {
                let path = checkout.join(path);
                remove_all(&path).map_err(|error| WorkspaceError::io("remove", &path, error))?;
            }
            Ok(strangers)
        });
        for path in strangers.await? {
            log(&format!(
                "{} of the source is left out: that name is for files of the runner's own",
                path.display()
            ));
        }
        let tree = Tree::open(&new, &wanted.init, &self.module_root)
            .map_err(|error| self.blame_registry(error, wanted, &new))?;
        let commit = head(&tree).map_err(|error| tree.error("read", &Path::new(GIT).join("HEAD"), error))?;
        if !tree.holds_module()? && !wanted.brings_module()? {
            return Err(self.no_module(wanted));
        }
        let tracked = fetcher.tracked_files(&self.module_root, cancel).await?;
        let (old, new, init) = (self.module_root.clone(), new.clone(), tree.init().to_owned());
        let (clean, rescued) = (wanted.request.clean_init_enabled, self.rescued.clone());
        let carry = StateMigration { old, new, init, clean, tracked, rescued };
        let carried = blocking("carry state over", &self.held, move || carry.run()).await?;
        for note in &carried.notes {
            log(note);
        }
        extra_files::adopt(&tree, carried.extra_files)?;
        extra_files::place(&tree, &wanted.request.extra_files, log)?;
        if !tree.holds_module()? {
            return Err(self.no_module(wanted));
        }
        let mut marker = Marker::new(&commit, &wanted.folder, &wanted.init);
        marker.tag = (wanted.id != commit).then(|| wanted.id.clone());
        marker.write(&tree)?;
        if cancel.is_cancelled() {
            return Err(SourceError::Cancelled.into());
        }
        // On a thread of its own both renames happen even if this task is given up in between.
        let (staging, root) = (self.staging.clone(), self.module_root.clone());
        blocking("change revisions", &self.held, move || swap(&staging, &root)).await?;
        if wanted.id != commit {
            log(&format!("{} is an annotated tag of {commit}", wanted.id));
        }
        log(&format!("{} is at {commit} of {}", self.module, mask_url(&wanted.location.url)));
        Ok(commit)
    }

    /// A folder that is not there may be the registry's, and then there is nothing to check in the module.
    fn blame_registry(&self, error: WorkspaceError, wanted: &WantedModule<'_>, new: &Path) -> WorkspaceError {
        let is_missing = |error| matches!(error, WorkspaceError::NoSubdirectory { .. });
        let folder = &wanted.folder;
        match error {
            WorkspaceError::NoSubdirectory { .. }
                if Tree::open(new, folder, &self.module_root).is_err_and(is_missing) =>
            {
                WorkspaceError::NoRegistryFolder { folder: folder.clone() }
            }
            other => other,
        }
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
            remove_all(&staging).map_err(|error| WorkspaceError::io("clear", &staging, error))
        };
        blocking("clear the staging folder", &self.held, clear).await
    }
}

/// The commit that a checkout is at.
fn head(tree: &Tree) -> io::Result<String> {
    let head = tree.inside().open_file(&Path::new(GIT).join("HEAD"))?;
    let head = String::from_utf8_lossy(read_limited(head, 1024)?.trim_ascii()).into_owned();
    match is_commit(&head) {
        true => Ok(head),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it names no commit")),
    }
}

fn restore(staging: &Path, root: &Path) -> Result<(), WorkspaceError> {
    let old = staging.join("old");
    if exists(&old)? && !exists(root)? { rename(&old, root) } else { Ok(()) }
}

/// The commit that the request carries, or what its revision means now.
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

fn flush(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(folder)?)?)
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

async fn blocking<T: Send + 'static>(
    action: &'static str,
    held: &HeldLock,
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, WorkspaceError> {
    let held = held.clone();
    let work = move || {
        let done = work();
        drop(held);
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(|source| WorkspaceError::Thread { action, source })?
}
