//! All step folders of one runner instance.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use hawser_contract::StepOutcome;
use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use super::folder::{FolderError, RecoveryPhase, StepFolder, StepRequest, name_of, sequence_and_key};
use super::identity::StepKey;
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

/// Holds an empty file for each damaged folder that is not yet reported to the server. The file is written before the folder
/// is moved, so that a crash in between does not lose the task.
const UNREPORTED: &str = "unreported";

#[derive(Debug)]
pub enum Created {
    New(StepFolder),
    /// A repeat of this step, which is waiting, running, or done and not yet acknowledged.
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
    next: AtomicU64,
    /// The numbers of the steps with each key, until the outcome of the last one is acknowledged. A push with one of these keys
    /// is a repeat of the last one.
    unfinished: Mutex<HashMap<StepKey, BTreeSet<u64>>>,
    unreadable: Mutex<BTreeSet<StepFolder>>,
    /// Held while a damaged folder is set aside or reported.
    aside: Mutex<()>,
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
            next: AtomicU64::new(1),
            unfinished: Mutex::default(),
            unreadable: Mutex::default(),
            aside: Mutex::default(),
            _lock: lock,
        };
        store.take_stock()?;
        Ok(store)
    }

    /// Finds the unfinished steps and the highest number by their names.
    fn take_stock(&self) -> Result<(), StoreError> {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        for part in ["steps", UNREPORTED, "damaged", "done"] {
            for name in names_in(&self.root.join(part))? {
                let (sequence, key) = sequence_and_key(&name);
                self.next.fetch_max(sequence.saturating_add(1), Ordering::Relaxed);
                if sequence > 0 && ["steps", UNREPORTED].contains(&part) && !key.is_cancel() {
                    unfinished.entry(key).or_default().insert(sequence);
                }
            }
        }
        Ok(())
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

    /// Where the damaged steps were that are set aside and not yet [reported](Self::mark_reported).
    pub fn unreported(&self) -> Vec<StepFolder> {
        let names = names_in(&self.root.join(UNREPORTED)).unwrap_or_default();
        names.into_iter().map(|name| StepFolder::at(self.steps().join(name))).collect()
    }

    /// The outcome of a damaged step is on disk, or there is none to report.
    pub fn mark_reported(&self, damaged: &StepFolder) {
        let marker = self.root.join(UNREPORTED).join(damaged.name());
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(path = %marker.display(), %error, "failed to remove marker of a damaged step");
            }
            _ => {}
        }
    }

    /// All step folders, including unreadable ones, in no particular order.
    pub fn folders(&self) -> Result<Vec<StepFolder>, StoreError> {
        let names = names_in(&self.steps())?;
        Ok(names.into_iter().map(|name| StepFolder::at(self.steps().join(name))).collect())
    }

    /// Reads a step's request and phase. The other files that recovery needs must be readable too.
    pub fn look(&self, folder: &StepFolder) -> Result<(StepRequest, RecoveryPhase), FolderError> {
        let (request, phase) = (folder.request()?, folder.phase()?);
        folder.cancel()?;
        Ok((request, phase))
    }

    /// Step folders that could not be read and are to be tried again. This process does not drive them.
    pub fn left(&self) -> Vec<StepFolder> {
        let unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.iter().cloned().collect()
    }

    /// The folder could not be read, or its cancel could not be carried out: to be tried again. False if it was left before.
    pub fn leave(&self, folder: &StepFolder) -> bool {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.clone())
    }

    /// The folder is no longer [left](Self::left): it is being driven or shipped.
    pub fn taken_up(&self, folder: &StepFolder) {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).remove(folder);
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

    /// Creates a step with the outcome of a damaged one. `None` if it is not needed: that was done before, or the folder is
    /// still to be set aside.
    pub fn create_report(
        &self,
        damaged: &StepFolder,
        method: &str,
        payload: &Value,
        outcome: &StepOutcome,
    ) -> Result<Option<StepFolder>, StoreError> {
        // Not between the marker and the move of `set_aside`: the marker would be removed too early.
        let _guard = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let key = damaged.key();
        let mut created = None;
        if self.last(&key) == Some(damaged.sequence()) && !damaged.path().exists() {
            let sequence = self.next.fetch_add(1, Ordering::Relaxed);
            created = Some(self.write(sequence, &key, method, payload, Some(outcome))?);
            let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
            unfinished.insert(key, BTreeSet::from([sequence]));
        }
        self.mark_reported(damaged);
        Ok(created)
    }

    /// Creates the folder of a step atomically, unless the push is a repeat.
    pub fn create(&self, key: &StepKey, method: &str, payload: &Value) -> Result<Created, StoreError> {
        let sequence = {
            let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = unfinished.get(key).and_then(BTreeSet::last) {
                return Ok(Created::Known(self.folder(*known, key)));
            }
            let sequence = self.next.fetch_add(1, Ordering::Relaxed);
            if !key.is_cancel() {
                unfinished.entry(key.clone()).or_default().insert(sequence);
            }
            sequence
        };
        let written = self.write(sequence, key, method, payload, None);
        written.inspect_err(|_| self.acknowledged(sequence)).map(Created::New)
    }

    fn write(
        &self,
        sequence: u64,
        key: &StepKey,
        method: &str,
        payload: &Value,
        outcome: Option<&StepOutcome>,
    ) -> Result<StepFolder, StoreError> {
        let folder = self.folder(sequence, key);
        let request =
            StepRequest { received: Timestamp::now(), method: method.to_owned(), payload: payload.clone() };
        let new = StepFolder::at(self.root.join("new").join(folder.name()));
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
            warn!(step = folder.name(), %error, "failed to sync step folder, a power cut may lose it");
        }
        Ok(folder)
    }

    fn last(&self, key: &StepKey) -> Option<u64> {
        let unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished.get(key).and_then(BTreeSet::last).copied()
    }

    /// The outcome of the step is acknowledged: from now on a push of the same task is a new step.
    pub fn acknowledged(&self, sequence: u64) {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished.retain(|_, steps| steps.last() != Some(&sequence));
    }

    /// The folder was written by a newer version, which can finish the step. It neither proves anything about other steps nor
    /// makes a push of its task a repeat.
    pub fn leave_alone(&self, folder: &StepFolder) {
        self.taken_up(folder);
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        unfinished.retain(|_, steps| !(steps.remove(&folder.sequence()) && steps.is_empty()));
    }

    /// Whether a later step has the same key, which proves that the outcome of this one was acknowledged, or that this one was
    /// withdrawn.
    pub fn is_superseded(&self, folder: &StepFolder) -> bool {
        self.last(&folder.key()).is_some_and(|last| last > folder.sequence())
    }

    /// The parent of all step folders.
    pub fn steps(&self) -> PathBuf {
        self.root.join("steps")
    }

    fn folder(&self, sequence: u64, key: &StepKey) -> StepFolder {
        StepFolder::at(self.steps().join(name_of(sequence, key)))
    }

    /// Moves a finished or withdrawn step out of `steps/` atomically. Returns the path to [`discard`](Self::discard). From now
    /// on a push of the same task is a new step, even if the move fails.
    pub fn retire(&self, folder: &StepFolder) -> Result<PathBuf, StoreError> {
        let path = self.root.join("done").join(folder.name());
        let moved = fs::rename(folder.path(), &path);
        // Not before the move: after a crash in between, a withdrawn step would be found beside its successor.
        self.acknowledged(folder.sequence());
        moved.map_err(FolderError::io("remove", folder.path()))?;
        Ok(path)
    }

    /// Deletes a [retired](Self::retire) step, which may take a while. If it fails, the next start tries again.
    pub fn discard(&self, path: &Path) {
        if let Err(error) = fs::remove_dir_all(path) {
            warn!(path = %path.display(), %error, "failed to remove finished step");
        }
    }
}

fn names_in(path: &Path) -> Result<Vec<String>, StoreError> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(FolderError::io("list", path))?;
    Ok(entries.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
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
