//! One step folder and the files in it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Push, PushError};
use jiff::Timestamp;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::records::{Position, RecordWriter};
use super::recovery_phase::RecoveryPhase;
use crate::base::files::write_private_atomic;
use crate::base::lock::{self, LockMode};
use crate::masking::JobSecrets;

/// The version of the JSON files that this program writes, and the highest that it reads.
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} cannot be read: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} was written by a newer hawser (version {found}, this one reads up to {VERSION})", path.display())]
    Newer { path: PathBuf, found: u32 },
}

impl FolderError {
    /// Whether the folder itself is at fault, rather than the machine at this moment (no more open files, say).
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Newer { .. } => true,
            Self::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::NotADirectory
                        | io::ErrorKind::IsADirectory
                        | io::ErrorKind::NotFound
                        | io::ErrorKind::PermissionDenied
                ) || Errno::from_io_error(source) == Some(Errno::LOOP)
            }
        }
    }
}

/// `request.json`: the push as it came in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRequest {
    /// Order of arrival within this runner, over restarts.
    pub sequence: u64,
    pub received: Timestamp,
    pub method: String,
    pub payload: Value,
}

impl StepRequest {
    pub fn push(&self) -> Result<Push, PushError> {
        Push::read(&self.method, std::slice::from_ref(&self.payload))
    }
}

/// `supervisor.json`: the script has been started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorNote {
    pub pid: u32,
    pub started: Timestamp,
    /// Tells a reboot of the machine from the death of the supervisor alone.
    pub boot_id: Option<String>,
}

/// `exit.json`: how the script ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub finished: Timestamp,
    /// Exactly one of `code`, `signal` and `failure` is set.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The script could not be run, or its output could not be kept (disk full): what happened.
    pub failure: Option<String>,
}

/// `facts.json`: what the audit log says of a step and only the task finds out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Before any hook has had its say.
    pub engine_version: Option<String>,
    /// The commit of the module's checkout.
    pub source_commit: Option<String>,
}

/// `audited.json`: which lines of the audit log there are for this step already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    pub accepted: bool,
    pub refused: bool,
    pub cancelled: Option<CancelKind>,
    /// The call that told of its end.
    pub finished: Option<String>,
}

/// `cancel.json`: somebody wants the job stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    pub kind: CancelKind,
    pub requested: Timestamp,
    /// How long after the interrupt a graceful cancel turns into a kill; without it the script may take as long
    /// as it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_after_seconds: Option<u64>,
    pub by: CancelledBy,
}

/// Who wants a job stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelledBy {
    Server,
    /// The runner itself, which is being stopped and has no more time to wait.
    Drain,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(rename = "is")]
    content: T,
}

/// Handle to a step folder; cheap to clone, holds no open file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepFolder {
    path: PathBuf,
}

impl StepFolder {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's own name, which is the step's identity.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether somebody has removed it. A folder that merely cannot be looked at is not gone, nor is one whose whole disk
    /// is away.
    pub fn is_gone(&self) -> bool {
        let is_missing =
            fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        is_missing && self.path.parent().is_some_and(Path::is_dir)
    }

    pub fn script_path(&self) -> PathBuf {
        self.path.join("script.sh")
    }

    pub fn output_path(&self) -> PathBuf {
        self.path.join("output.log")
    }

    pub fn part_path(&self) -> PathBuf {
        self.path.join("part")
    }

    /// Where the engine runs, see [`crate::script::bash_script`].
    pub fn place_path(&self) -> PathBuf {
        self.path.join("place")
    }

    /// Not empty once the script has noticed an interrupt, or answers for interrupts by itself.
    pub fn noticed_path(&self) -> PathBuf {
        self.path.join("noticed")
    }

    pub fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Disk space that the supervisor keeps for the end of the step.
    pub fn reserve_path(&self) -> PathBuf {
        self.path.join("reserve")
    }

    /// Says where a state is that the engine left behind and that was kept safe.
    pub fn rescued_path(&self) -> PathBuf {
        self.path.join("rescued")
    }

    pub fn cancel_path(&self) -> PathBuf {
        self.path.join("cancel.json")
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FolderError> {
        let path = self.path.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FolderError::Io { action: "read", path, source }),
        };
        let damaged = |path: PathBuf, error: serde_json::Error| FolderError::Damaged {
            path,
            reason: error.to_string(),
        };
        let read: Versioned<Value> =
            serde_json::from_slice(&bytes).map_err(|error| damaged(path.clone(), error))?;
        if read.version > VERSION {
            return Err(FolderError::Newer { path, found: read.version });
        }
        serde_json::from_value(read.content).map(Some).map_err(|error| damaged(path, error))
    }

    fn write<T: Serialize>(&self, name: &str, content: &T) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let bytes = serde_json::to_vec_pretty(&Versioned { version: VERSION, content })
            .map_err(|error| FolderError::Damaged { path: path.clone(), reason: error.to_string() })?;
        write_private_atomic(&path, &bytes).map_err(|source| FolderError::Io {
            action: "write",
            path,
            source,
        })
    }

    pub fn request(&self) -> Result<StepRequest, FolderError> {
        self.read("request.json")?.ok_or_else(|| FolderError::Damaged {
            path: self.path.join("request.json"),
            reason: "the file is missing".to_owned(),
        })
    }

    pub(super) fn set_request(&self, request: &StepRequest) -> Result<(), FolderError> {
        self.write("request.json", request)
    }

    pub fn set_script(&self, script: &str) -> Result<(), FolderError> {
        let path = self.script_path();
        write_private_atomic(&path, script.as_bytes()).map_err(|source| FolderError::Io {
            action: "write",
            path,
            source,
        })
    }

    pub fn supervisor(&self) -> Result<Option<SupervisorNote>, FolderError> {
        self.read("supervisor.json")
    }

    pub fn set_supervisor(&self, note: &SupervisorNote) -> Result<(), FolderError> {
        self.write("supervisor.json", note)
    }

    pub fn exit(&self) -> Result<Option<Exit>, FolderError> {
        self.read("exit.json")
    }

    pub fn set_exit(&self, exit: &Exit) -> Result<(), FolderError> {
        self.write("exit.json", exit)
    }

    pub fn cancel(&self) -> Result<Option<Cancel>, FolderError> {
        self.read("cancel.json")
    }

    /// Notes a cancel. A kill after a graceful cancel counts; a graceful one after a kill changes nothing.
    #[cfg(feature = "testing")]
    pub fn request_cancel(&self, kind: CancelKind) -> Result<(), FolderError> {
        self.note_cancel(kind, None, CancelledBy::Server)
    }

    /// Notes a graceful cancel that turns into a kill when the script has not ended in time. It may follow a
    /// graceful cancel without a limit.
    #[cfg(feature = "testing")]
    pub fn request_cancel_within(&self, kill_after: Duration) -> Result<(), FolderError> {
        self.note_cancel(CancelKind::Graceful, Some(kill_after), CancelledBy::Server)
    }

    /// Notes a cancel as it is asked for; a graceful one turns into a kill after the grace.
    pub fn cancel_as(&self, kind: CancelKind, grace: Duration, by: CancelledBy) -> Result<(), FolderError> {
        self.note_cancel(kind, (kind == CancelKind::Graceful).then_some(grace), by)
    }

    fn note_cancel(
        &self,
        kind: CancelKind,
        kill_after: Option<Duration>,
        by: CancelledBy,
    ) -> Result<(), FolderError> {
        let has_limit =
            |cancel: &Cancel| cancel.kind == CancelKind::Kill || cancel.kill_after_seconds.is_some();
        let is_enough =
            |earlier: &Cancel| earlier.kind >= kind && (kill_after.is_none() || has_limit(earlier));
        match self.cancel() {
            Ok(Some(earlier)) if is_enough(&earlier) => return Ok(()),
            Err(error @ (FolderError::Io { .. } | FolderError::Newer { .. })) => return Err(error),
            // Whatever a damaged note said, this is wanted now.
            Ok(_) | Err(FolderError::Damaged { .. }) => {}
        }
        let kill_after_seconds = kill_after.map(|after| after.as_secs());
        self.write("cancel.json", &Cancel { kind, requested: Timestamp::now(), kill_after_seconds, by })
    }

    pub fn facts(&self) -> Result<Option<Facts>, FolderError> {
        self.read("facts.json")
    }

    pub fn set_facts(&self, facts: &Facts) -> Result<(), FolderError> {
        self.write("facts.json", facts)
    }

    pub fn audited(&self) -> Result<Option<Audited>, FolderError> {
        self.read("audited.json")
    }

    pub fn set_audited(&self, audited: &Audited) -> Result<(), FolderError> {
        self.write("audited.json", audited)
    }

    pub fn outcome(&self) -> Result<Option<Call>, FolderError> {
        self.read("outcome.json")
    }

    pub fn set_outcome(&self, call: &Call) -> Result<(), FolderError> {
        self.write("outcome.json", call)
    }

    /// What the logs and messages of this step must not say, as far as it was noted here.
    pub fn secrets(&self) -> Result<BTreeSet<String>, FolderError> {
        Ok(self.read("secrets.json")?.unwrap_or_default())
    }

    /// Has a job learn what was noted here: what it was read from may have changed since. Where the note is damaged, all text is
    /// masked; where the machine is at fault, it can be tried again.
    pub fn recall_secrets(&self, job: &JobSecrets) -> Result<(), FolderError> {
        match self.secrets() {
            Ok(noted) => job.learn(noted.iter().map(String::as_str)),
            Err(error @ FolderError::Io { .. }) => return Err(error),
            // Not what is wrong with the file: that might say a secret.
            Err(FolderError::Damaged { path, .. } | FolderError::Newer { path, .. }) => {
                job.hide_everything(&format!("{} cannot be read", path.display()));
            }
        }
        Ok(())
    }

    /// Notes secrets of this step, besides those that were noted before: a runner that is started anew masks them
    /// too, even if the files that they were read from have changed meanwhile. For whoever drives the step.
    pub fn add_secrets(&self, secrets: &[String]) -> Result<(), FolderError> {
        let mut all = match self.secrets() {
            Ok(all) => all,
            Err(error @ FolderError::Io { .. }) => return Err(error),
            // A damaged list stays: because of it all text is masked, and a list without what was lost would end that.
            Err(FolderError::Damaged { .. } | FolderError::Newer { .. }) => return Ok(()),
        };
        let known = all.len();
        all.extend(secrets.iter().cloned());
        if all.len() == known { Ok(()) } else { self.write("secrets.json", &all) }
    }

    /// The part of the script that ran last: see [`crate::script`].
    pub fn part(&self) -> Option<String> {
        fs::read_to_string(self.part_path()).ok()?.lines().last().map(|word| word.trim().to_owned())
    }

    /// The engine command that ran last, where it is not the one that the task is known by.
    pub fn engine_command(&self) -> Option<String> {
        let noted = fs::read_to_string(self.path.join("command")).ok()?;
        Some(noted.trim().to_owned()).filter(|name| !name.is_empty())
    }

    /// Opens `output.log` for appending; a record that a crash has torn is ended first.
    pub fn writer(&self) -> Result<RecordWriter, FolderError> {
        let path = self.output_path();
        RecordWriter::open(&path).map_err(|source| FolderError::Io { action: "open", path, source })
    }

    /// How far `output.log` has been acknowledged. A damaged file means that everything is sent again, which
    /// loses nothing.
    pub fn shipped(&self) -> Position {
        fs::read_to_string(self.path.join("shipped"))
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default()
    }

    /// Overwrites in place: this happens once per acknowledged batch. The text has a fixed width, so that it
    /// is replaced whole.
    pub fn set_shipped(&self, position: Position) -> Result<(), FolderError> {
        let path = self.path.join("shipped");
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file| file.write_all_at(position.to_string().as_bytes(), 0))
            .map_err(|source| FolderError::Io { action: "write", path, source })
    }

    /// A machine that went down may have lost the end of `output.log` and kept the note of how far it had been
    /// acknowledged. What is written from now on stands where that end was, and must not pass for acknowledged.
    pub fn mend_shipped(&self) -> Result<(), FolderError> {
        let path = self.output_path();
        let length = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(source) => return Err(FolderError::Io { action: "look at", path, source }),
        };
        let shipped = self.shipped();
        // A part of a record that is not there at all was lost with it.
        if shipped.record > length || (shipped.record == length && shipped.within > 0) {
            self.set_shipped(Position { record: length, within: 0 })?;
        }
        Ok(())
    }

    /// Takes the lock, or says that somebody holds it: then the step is being driven.
    pub fn try_lock(&self) -> Result<Option<File>, FolderError> {
        let path = self.lock_path();
        lock::try_lock(&path, LockMode::Alone).map_err(|source| FolderError::Io {
            action: "lock",
            path,
            source,
        })
    }

    /// Where the step stands, for whoever holds its lock.
    pub fn stage_of_holder(&self) -> Result<RecoveryPhase, FolderError> {
        Ok(RecoveryPhase::of(false, self.supervisor()?.is_some(), self.exit()?.is_some()))
    }

    /// Where the step stands, from its files alone.
    pub fn stage(&self) -> Result<RecoveryPhase, FolderError> {
        if self.outcome()?.is_some() {
            return Ok(RecoveryPhase::Ship);
        }
        // The order matters: whoever holds the lock may write the exit between two looks, so the lock is
        // tried first. Without a holder the files no longer change.
        let path = self.lock_path();
        let own = lock::try_own(&path, LockMode::Alone);
        let driven = own.map_err(|source| FolderError::Io { action: "lock", path, source })?.is_none();
        Ok(RecoveryPhase::of(driven, self.supervisor()?.is_some(), self.exit()?.is_some()))
    }
}
