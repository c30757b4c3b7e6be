//! All step folders of one runner instance.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use hawser_contract::StepOutcome;
use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use super::folder::{FolderError, RecoveryPhase, StepFolder, StepRequest};
use super::identity::StepId;
use crate::base::files::{create_private_dir_all, remove_all, sync_dir, write_private_atomic};
use crate::base::lock::{self, LockMode};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "another hawser on this machine already runs as this instance (it holds {}); give this one another Runner.Instance",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// How long to wait for the lock. A runner that was just killed may still hold it through a program that it was starting, and
/// another runner may hold it briefly for a check ([`StepStore::abandoned_by_others`]).
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Longer than any push waits in the inbox.
const RETIRED_REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// Holds an empty file for each damaged folder that is not yet reported to the server. The file is written before the folder
/// is moved, so that a crash in between does not lose the task.
const UNREPORTED: &str = "unreported";

#[derive(Debug)]
pub enum Created {
    New(StepFolder, StepRequest),
    /// The step exists already: it is waiting, running, or done and not yet acknowledged.
    Known(StepFolder),
}

/// Steps of another instance of the same runner, which is not running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abandoned {
    pub instance: String,
    pub path: PathBuf,
    pub steps: usize,
}

/// The `steps` directory. Holding a `StepStore` means holding its lock: no two runners share one.
#[derive(Debug)]
pub struct StepStore {
    root: PathBuf,
    sequence: AtomicU64,
    unreadable: Mutex<BTreeSet<StepId>>,
    /// Held while a damaged folder is set aside or reported.
    aside: Mutex<()>,
    /// When steps were removed.
    retired: Mutex<HashMap<StepId, Instant>>,
    _lock: lock::OwnLock,
}

impl StepStore {
    /// Opens the store of one runner instance, and creates it if needed.
    pub fn open(working_directory: &Path, runner_id: uuid::Uuid, instance: &str) -> Result<Self, StoreError> {
        let root = working_directory.join(".hawser").join(runner_id.to_string()).join(encoded(instance));
        let create = |path: &Path| create_private_dir_all(path).map_err(FolderError::io("create", path));
        create(&root)?;
        let path = root.join("lock");
        let lock = lock::own_within(&path, LockMode::Alone, LOCK_TIMEOUT)
            .map_err(FolderError::io("lock", &path))?
            .ok_or(StoreError::InUse { path })?;
        // Leftovers of a crash: folders in `new` are not steps yet, and those in `done` no longer are. They do no harm.
        for path in ["new", "done"].map(|name| root.join(name)) {
            if let Err(error) = remove_all(&path) {
                warn!(path = %path.display(), %error, "failed to remove leftovers");
            }
        }
        for name in ["steps", "new", "done", "damaged", UNREPORTED] {
            create(&root.join(name))?;
        }
        let store = Self {
            root,
            sequence: AtomicU64::new(0),
            unreadable: Mutex::default(),
            aside: Mutex::default(),
            retired: Mutex::default(),
            _lock: lock,
        };
        // Finds the highest sequence number. Recovery handles errors.
        for folder in store.folders()? {
            let _ = store.look(&folder);
        }
        Ok(store)
    }

    /// Steps of other instances of this runner in the same working directory, which replicas may share. Instances that hold
    /// their lock are running and left out.
    pub fn abandoned_by_others(&self) -> Vec<Abandoned> {
        let Some(Ok(others)) = self.root.parent().map(fs::read_dir) else { return Vec::new() };
        let others = others.flatten().map(|entry| entry.path()).filter(|path| *path != self.root);
        let mut abandoned: Vec<Abandoned> = others
            .filter_map(|path| {
                let names: BTreeSet<_> = ["steps", UNREPORTED]
                    .into_iter()
                    .flat_map(|name| fs::read_dir(path.join(name)).into_iter().flatten().flatten())
                    .map(|entry| entry.file_name())
                    .collect();
                if names.is_empty() {
                    return None;
                }
                // Released at once. If the lock cannot be checked, there is no warning.
                lock::try_lock_existing(&path.join("lock"), LockMode::Alone).ok()??.unlock().ok()?;
                let instance = decoded(&path.file_name()?.to_string_lossy());
                Some(Abandoned { instance, path, steps: names.len() })
            })
            .collect();
        abandoned.sort_by(|one, other| one.instance.cmp(&other.instance));
        abandoned
    }

    /// The damaged steps that were set aside and are not yet [reported](Self::mark_reported).
    pub fn unreported(&self) -> BTreeSet<StepId> {
        let markers = fs::read_dir(self.root.join(UNREPORTED)).into_iter().flatten().flatten();
        markers.filter_map(|marker| marker.file_name().into_string().ok().map(StepId::from)).collect()
    }

    /// The outcome of a damaged step is on disk, or there is none to report.
    pub fn mark_reported(&self, id: &StepId) {
        let marker = self.root.join(UNREPORTED).join(id.as_str());
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(path = %marker.display(), %error, "failed to remove marker of a damaged step");
            }
            _ => {}
        }
    }

    /// All step folders, including unreadable ones, in no particular order.
    pub fn folders(&self) -> Result<Vec<StepFolder>, StoreError> {
        let path = self.steps();
        let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(FolderError::io("list", &path))?;
        Ok(entries.into_iter().map(|entry| StepFolder::at(entry.path())).collect())
    }

    /// Reads a step's request and phase. The other files that recovery needs must be readable too.
    pub fn look(&self, folder: &StepFolder) -> Result<(StepRequest, RecoveryPhase), FolderError> {
        let (request, phase) = (folder.request()?, folder.phase()?);
        folder.cancel()?;
        // New steps get higher numbers.
        self.sequence.fetch_max(request.sequence.saturating_add(1), Ordering::Relaxed);
        Ok((request, phase))
    }

    /// Step folders that could not be read and are to be tried again. This process does not drive them.
    pub fn left(&self) -> Vec<StepFolder> {
        let unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.iter().map(|id| self.folder(id)).collect()
    }

    /// The folder could not be read, or its cancel could not be carried out: to be tried again. False if it was left before.
    pub fn leave(&self, folder: &StepFolder) -> bool {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.id())
    }

    /// The folder is no longer [left](Self::left): it is being driven or shipped.
    pub fn taken_up(&self, folder: &StepFolder) {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).remove(&folder.id());
    }

    /// Moves a damaged folder out of the way, where an operator can inspect it. If that fails, it is [left](Self::left).
    pub fn set_aside(&self, folder: &StepFolder, reason: &str) {
        let name = format!("{}.{}", folder.name(), Timestamp::now().as_millisecond());
        let target = self.root.join("damaged").join(name);
        let _guard = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = write_private_atomic(&self.root.join(UNREPORTED).join(folder.name()), b"");
        match marked.and_then(|()| fs::rename(folder.path(), &target)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.taken_up(folder);
                warn!(step = folder.name(), reason, "damaged step folder disappeared");
            }
            Ok(()) => {
                self.taken_up(folder);
                warn!(step = folder.name(), path = %target.display(), reason, "damaged step folder set aside");
            }
            Err(error) => {
                if self.leave(folder) {
                    warn!(step = folder.name(), reason, %error, "failed to set aside damaged step folder, retrying");
                }
            }
        }
    }

    /// Creates the folder of a damaged step again, with the outcome to report. `None` if it is not needed: the step was
    /// dispatched again, or its folder is still to be set aside.
    pub fn create_report(
        &self,
        id: &StepId,
        method: &str,
        payload: &Value,
        outcome: &StepOutcome,
    ) -> Result<Option<(StepFolder, StepRequest)>, StoreError> {
        // Not between the marker and the move of `set_aside`: the marker would be removed too early.
        let _guard = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        match self.create_with(id, method, payload, Some(outcome))? {
            Created::New(folder, request) => Ok(Some((folder, request))),
            Created::Known(_) => {
                self.mark_reported(id);
                Ok(None)
            }
        }
    }

    /// Creates the folder of a step atomically.
    pub fn create(&self, id: &StepId, method: &str, payload: &Value) -> Result<Created, StoreError> {
        self.create_with(id, method, payload, None)
    }

    /// Like [`create`](Self::create), with an outcome that is already known.
    pub fn create_with(
        &self,
        id: &StepId,
        method: &str,
        payload: &Value,
        outcome: Option<&StepOutcome>,
    ) -> Result<Created, StoreError> {
        let folder = self.folder(id);
        if folder.path().exists() {
            return Ok(Created::Known(folder));
        }
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let request = StepRequest {
            sequence,
            received: Timestamp::now(),
            method: method.to_owned(),
            payload: payload.clone(),
        };
        let new = StepFolder::at(self.root.join("new").join(format!("{sequence}.{id}")));
        let created = create_private_dir_all(new.path())
            .map_err(FolderError::io("create", new.path()))
            .and_then(|()| new.set_request(&request))
            .and_then(|()| outcome.map_or(Ok(()), |outcome| new.set_outcome(outcome)))
            .and_then(|()| {
                fs::rename(new.path(), folder.path()).map_err(FolderError::io("create", folder.path()))
            });
        if let Err(error) = created {
            // The next start removes leftovers.
            let _ = fs::remove_dir_all(new.path());
            return Err(error.into());
        }
        if let Err(error) = sync_dir(&self.steps()) {
            // The caller reports that the task was not accepted, so a later start must not find and run it. If the folder
            // cannot be removed either, the task is accepted, although a power cut may lose it.
            if let Ok(path) = self.retire(&folder) {
                self.discard(&path);
                return Err(FolderError::io("create", folder.path())(error).into());
            }
            warn!(step = %id, %error, "failed to sync step folder, a power cut may lose it");
        }
        // The outcome of this step replaces that of a damaged one with the same identity.
        self.mark_reported(id);
        Ok(Created::New(folder, request))
    }

    /// Whether the step was removed after `moment`. A push that arrived before `moment` is then a repeat: it waited in the
    /// inbox while the outcome of the step was acknowledged.
    pub fn retired_since(&self, id: &StepId, moment: Instant) -> bool {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.get(id).is_some_and(|removed| *removed >= moment)
    }

    /// The parent of all step folders.
    pub fn steps(&self) -> PathBuf {
        self.root.join("steps")
    }

    fn folder(&self, id: &StepId) -> StepFolder {
        StepFolder::at(self.steps().join(id.as_str()))
    }

    /// Moves a finished step out of `steps/` atomically: from now on a push of the same task is a new step. Returns the path
    /// to [`discard`](Self::discard).
    pub fn retire(&self, folder: &StepFolder) -> Result<PathBuf, StoreError> {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join("done").join(format!("{number}.{}", folder.name()));
        let now = Instant::now();
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        fs::rename(folder.path(), &path).map_err(FolderError::io("remove", folder.path()))?;
        retired.retain(|_, removed| now.duration_since(*removed) < RETIRED_REMEMBERED);
        retired.insert(folder.id(), now);
        Ok(path)
    }

    /// Deletes a [retired](Self::retire) step, which may take a while. If it fails, the next start tries again.
    pub fn discard(&self, path: &Path) {
        if let Err(error) = fs::remove_dir_all(path) {
            warn!(path = %path.display(), %error, "failed to remove finished step");
        }
    }
}

/// An instance name as a file name: everything but letters, digits, `-`, `_` and inner dots is percent-encoded.
fn encoded(instance: &str) -> String {
    const ENCODED: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let text = percent_encoding::utf8_percent_encode(instance, ENCODED).to_string();
    match text.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None if text.is_empty() => "%".to_owned(),
        None => text,
    }
}

/// The instance name of a folder.
fn decoded(folder: &str) -> String {
    match folder {
        "%" => String::new(),
        _ => percent_encoding::percent_decode_str(folder).decode_utf8_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests;
