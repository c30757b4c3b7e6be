//! All step folders of one runner.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use hawser_contract::Call;
use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use super::folder::{FolderError, StepFolder, StepRequest};
use crate::base::files::{create_private_dir_all, sync_dir, write_private_atomic};
use crate::base::lock::{self, LockMode};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "another hawser on this machine already runs as this instance (it holds {}); give this one another Runner.Instance",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// So long a runner that was killed just now may hold the lock by a program that it was starting, and another runner to see whether
/// anybody does ([`StepStore::abandoned_by_others`]).
const LAST_HOLDER: Duration = Duration::from_secs(3);

/// No push waits for so long to be taken.
const RETIRED_REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// An empty file for each folder that was set aside and of which the server has still to be told. It is there before
/// the folder is moved, so that no crash in between makes a task disappear.
const UNTOLD: &str = "untold";

/// What came of a push.
#[derive(Debug)]
pub enum Created {
    New(StepFolder, StepRequest),
    /// The same task is here already: running, waiting, or done and not yet acknowledged.
    Known(StepFolder),
}

/// Steps of another instance of the same runner, which nobody is there to go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abandoned {
    pub instance: String,
    pub path: PathBuf,
    pub steps: usize,
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, path, steps } = self;
        let path = path.display();
        write!(
            f,
            "{path} holds steps ({steps}) that the server has still to be told of, and no runner of that instance is running \
             here. They wait for one: start hawser once with Runner.Instance set to {instance:?}. If that was the name of a \
             host or container that is gone, set Runner.Instance to a name that stays"
        )
    }
}

/// The `steps` directory. Holding a `StepStore` means holding its lock: no two runners share one.
#[derive(Debug)]
pub struct StepStore {
    root: PathBuf,
    sequence: AtomicU64,
    set_aside: Mutex<Vec<String>>,
    left: Mutex<BTreeSet<String>>,
    /// Steps that are done, and since when.
    retired: Mutex<HashMap<String, Instant>>,
    _lock: lock::OwnLock,
}

impl StepStore {
    /// Opens (and creates) the store of one runner instance.
    pub fn open(working_directory: &Path, runner_id: uuid::Uuid, instance: &str) -> Result<Self, StoreError> {
        let root = working_directory.join(".hawser").join(runner_id.to_string()).join(encoded(instance));
        for name in ["steps", "new", "done", "damaged", UNTOLD] {
            let path = root.join(name);
            create_private_dir_all(&path).map_err(|source| StoreError::Io {
                action: "create",
                path,
                source,
            })?;
        }
        let path = root.join("lock");
        let failed = |source| StoreError::Io { action: "lock", path: path.clone(), source };
        let lock = lock::own_within(&path, LockMode::Alone, LAST_HOLDER).map_err(failed)?;
        let lock = lock.ok_or_else(|| StoreError::InUse { path: path.clone() })?;
        let store = Self {
            root,
            sequence: AtomicU64::new(0),
            set_aside: Mutex::default(),
            left: Mutex::default(),
            retired: Mutex::default(),
            _lock: lock,
        };
        // What was being created or removed when an earlier runner died was not yet, or no longer, a step.
        for name in ["new", "done"] {
            store.empty(name);
        }
        // For the numbers that are taken.
        store.list()?;
        Ok(store)
    }

    /// What cannot be removed is in nobody's way, so it is no reason not to start.
    fn empty(&self, name: &str) {
        let path = self.root.join(name);
        let emptied = fs::read_dir(&path).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        });
        if let Err(error) = emptied {
            warn!("cannot empty {}: {error}", path.display());
        }
    }

    /// What other instances of this runner have left in the same working directory. Replicas may share it: one that is
    /// running holds its lock, and is left out.
    pub fn abandoned_by_others(&self) -> Vec<Abandoned> {
        let others = self.root.parent().map(fs::read_dir);
        let mut abandoned: Vec<Abandoned> = others
            .into_iter()
            .flatten()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| *path != self.root)
            .filter_map(|path| {
                let names = ["steps", UNTOLD].map(|name| fs::read_dir(path.join(name)).into_iter().flatten());
                let names: BTreeSet<_> =
                    names.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
                if names.is_empty() {
                    return None;
                }
                // It is held for no longer than this takes. What cannot be told is not warned about.
                lock::try_lock_existing(&path.join("lock"), LockMode::Alone).ok()??.unlock().ok()?;
                let instance = decoded(&path.file_name()?.to_string_lossy());
                Some(Abandoned { instance, path, steps: names.len() })
            })
            .collect();
        abandoned.sort_by(|one, other| one.instance.cmp(&other.instance));
        abandoned
    }

    /// The names of the folders that were set aside, by this process or an earlier one, and of which nobody has been
    /// [told](Self::told) yet.
    pub fn take_set_aside(&self) -> BTreeSet<String> {
        let own = std::mem::take(&mut *self.set_aside.lock().unwrap_or_else(PoisonError::into_inner));
        let noted = fs::read_dir(self.root.join(UNTOLD)).into_iter().flatten().flatten();
        noted.filter_map(|entry| entry.file_name().into_string().ok()).chain(own).collect()
    }

    /// What there is to say of a folder that was set aside is on disk, or there is nothing to say.
    pub fn told(&self, name: &str) {
        let note = self.root.join(UNTOLD).join(name);
        match fs::remove_file(&note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!("cannot remove {}: {error}", note.display());
            }
            _ => {}
        }
    }

    /// All steps that are here, in the order in which they arrived, with their requests. A folder that cannot
    /// be read is set aside with a warning: it must not keep the runner from starting.
    pub fn list(&self) -> Result<Vec<(StepFolder, StepRequest)>, StoreError> {
        let path = self.root.join("steps");
        let failed = |source| StoreError::Io { action: "list", path: path.clone(), source };
        let mut steps = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let folder = StepFolder::at(entry.map_err(failed)?.path());
            match self.look(&folder) {
                Ok(request) => {
                    self.taken_up(&folder);
                    steps.push((folder, request));
                }
                Err(error) if error.is_damage() => self.set_aside(&folder, &error.to_string()),
                // The folder may be sound, and then it is still wanted.
                Err(error) => {
                    warn!(step = folder.name(), "a step folder could not be looked at: {error}");
                    self.leave(&folder);
                }
            }
        }
        steps.sort_by_key(|(_, request)| request.sequence);
        Ok(steps)
    }

    /// Reads a step's request. Every other file that counts must be readable too, or recovery would fail half-way.
    pub fn look(&self, folder: &StepFolder) -> Result<StepRequest, FolderError> {
        let request = folder.request()?;
        folder.stage()?;
        folder.cancel()?;
        // The numbers go on after the highest that is there.
        self.sequence.fetch_max(request.sequence.saturating_add(1), Ordering::Relaxed);
        Ok(request)
    }

    /// Step folders that could not be looked at for the moment. Nobody in this process drives them.
    pub fn left(&self) -> Vec<StepFolder> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.iter().map(|name| self.folder(name)).collect()
    }

    /// A folder could not be looked at, or what it asks for could not be done: it is to be tried again.
    pub fn leave(&self, folder: &StepFolder) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.name());
    }

    /// A folder that may have been [left](Self::left) is in somebody's hands.
    pub fn taken_up(&self, folder: &StepFolder) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).remove(&folder.name());
    }

    /// Moves a folder that cannot be used out of the way; it is kept for a person to look at.
    pub fn set_aside(&self, folder: &StepFolder, reason: &str) {
        let place = self.root.join("damaged").join(format!(
            "{}.{}",
            folder.name(),
            Timestamp::now().as_millisecond()
        ));
        if let Err(error) = write_private_atomic(&self.root.join(UNTOLD).join(folder.name()), b"") {
            warn!(step = folder.name(), "that it is damaged cannot be noted: {error}");
        }
        match fs::rename(folder.path(), &place) {
            Ok(()) => {
                self.set_aside.lock().unwrap_or_else(PoisonError::into_inner).push(folder.name());
                warn!(step = folder.name(), kept = %place.display(), "a damaged step folder was set aside: {reason}");
            }
            Err(error) => {
                warn!(
                    step = folder.name(),
                    "a damaged step folder ({reason}) could not be set aside: {error}"
                );
            }
        }
    }

    /// Makes the folder of a step, complete or not at all. `name` is the step's identity.
    pub fn create(&self, name: &str, method: &str, payload: &Value) -> Result<Created, StoreError> {
        self.create_with(name, method, payload, None)
    }

    /// The same for a step whose outcome is known already: it is there with its outcome or not at all.
    pub fn create_with(
        &self,
        name: &str,
        method: &str,
        payload: &Value,
        outcome: Option<&Call>,
    ) -> Result<Created, StoreError> {
        let folder = self.folder(name);
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
        let fresh = StepFolder::at(self.root.join("new").join(format!("{sequence}.{name}")));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { action: "create", path, source }
        };
        let placed = create_private_dir_all(fresh.path())
            .map_err(failed(fresh.path()))
            .and_then(|()| Ok(fresh.set_request(&request)?))
            .and_then(|()| Ok(outcome.map_or(Ok(()), |call| fresh.set_outcome(call))?))
            .and_then(|()| fs::rename(fresh.path(), folder.path()).map_err(failed(folder.path())));
        if let Err(error) = placed {
            // Whatever stays is removed by the next start.
            let _ = fs::remove_dir_all(fresh.path());
            return Err(error);
        }
        if let Err(error) = sync_dir(&self.root.join("steps")) {
            // The server will be told that the task was not taken, so no later start may find and run it. When
            // it cannot be taken back either, it is taken: a power cut may lose it, nothing else will.
            if let Ok(gone) = self.retire(&folder) {
                self.discard(&gone);
                return Err(failed(folder.path())(error));
            }
            warn!(step = name, "a step may not outlast a power cut: {error}");
        }
        // Whatever was damaged under this name, the server is told of this one from now on.
        self.told(name);
        Ok(Created::New(folder, request))
    }

    /// Whether a step of this name was done after that moment. A push that arrived before is then a repeat,
    /// although there is no folder any more: it waited while the step's result was acknowledged.
    pub fn retired_since(&self, name: &str, moment: Instant) -> bool {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.get(name).is_some_and(|done| *done >= moment)
    }

    /// Where the folders of steps are.
    pub fn steps(&self) -> PathBuf {
        self.root.join("steps")
    }

    pub fn folder(&self, name: &str) -> StepFolder {
        StepFolder::at(self.root.join("steps").join(name))
    }

    /// Takes a step that is done out of `steps/`, by a rename: it is gone at once or not at all, and a push of the
    /// same name that comes from now on is a new step. Returns what is left to be discarded.
    pub fn retire(&self, folder: &StepFolder) -> Result<PathBuf, StoreError> {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        let gone = self.root.join("done").join(format!("{number}.{}", folder.name()));
        let now = Instant::now();
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        fs::rename(folder.path(), &gone).map_err(|source| StoreError::Io {
            action: "remove",
            path: folder.path().to_owned(),
            source,
        })?;
        retired.retain(|_, done| now.duration_since(*done) < RETIRED_REMEMBERED);
        retired.insert(folder.name(), now);
        Ok(gone)
    }

    /// Removes what [`Self::retire`] has left. A large log takes its time; what cannot be removed is tried again at
    /// the next start.
    pub fn discard(&self, gone: &Path) {
        if let Err(error) = fs::remove_dir_all(gone) {
            warn!("cannot remove {}: {error}", gone.display());
        }
    }
}

/// An instance name as a file name: letters, digits, `-`, `_` and dots inside stay, the rest is %-encoded.
fn encoded(instance: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let text = percent_encoding::utf8_percent_encode(instance, KEPT).to_string();
    match text.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None if text.is_empty() => "%".to_owned(),
        None => text,
    }
}

/// The instance name that a folder stands for.
fn decoded(folder: &str) -> String {
    match folder {
        "%" => String::new(),
        _ => percent_encoding::percent_decode_str(folder).decode_utf8_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests;
