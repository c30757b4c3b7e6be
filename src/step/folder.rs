//! One step folder and the files in it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Push, PushError, StepOutcome};
use jiff::Timestamp;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::identity::StepKey;
use super::phase::ScriptPhase;
use super::records::{Position, RecordWriter};
use crate::base::files::write_private_atomic;
use crate::base::lock::{self, LockMode};
use crate::masking::JobSecrets;

/// The version of the JSON files that this program writes, and the highest one that it reads.
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("invalid file {}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} was written by a newer hawser (version {found}, this one reads up to {VERSION})", path.display())]
    Newer { path: PathBuf, found: u32 },
}

impl FolderError {
    /// For `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    fn damaged(path: &Path, reason: &dyn fmt::Display) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }

    /// Whether the error may go away, such as too many open files.
    pub fn is_temporary(&self) -> bool {
        !self.is_damage() && !matches!(self, Self::Newer { .. })
    }

    /// Whether the folder itself is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Newer { .. } => false,
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

/// `request.json`: the push as received.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRequest {
    pub received: Timestamp,
    pub method: String,
    pub payload: Value,
}

impl StepRequest {
    pub fn push(&self) -> Result<Push, PushError> {
        Push::read(&self.method, std::slice::from_ref(&self.payload))
    }
}

/// `supervisor.json`: the script was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorNote {
    pub pid: u32,
    pub started: Timestamp,
    /// Distinguishes a reboot of the machine from a crash of the supervisor.
    pub boot_id: Option<String>,
    /// Distinguishes the process from a later one with the same number. `None` if `/proc` shows other processes.
    pub start_time: Option<u64>,
}

/// `exit.json`: how the script ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The script could not be started, or its output could not be written (disk full). The text is the reason.
    Failure(String),
}

/// The content of `exit.json`.
#[derive(Serialize, Deserialize)]
struct RecordedExit {
    #[serde(flatten)]
    exit: Exit,
    /// The cancel that the supervisor received while the script was running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled: Option<CancelKind>,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Failure(reason) => f.write_str(reason),
        }
    }
}

/// `facts.json`: details for the audit log that only the task finds out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Determined before any hook runs.
    pub engine_version: Option<String>,
    /// The commit of the module's checkout.
    pub source_commit: Option<String>,
}

/// `audited.json`: the lines of the audit log that are already written for this step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    pub accepted: bool,
    pub refused: bool,
    pub cancelled: Option<CancelKind>,
    /// The method of the outcome.
    pub finished: Option<String>,
}

/// `cancel.json`: the requested cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    pub kind: CancelKind,
    pub requested: Timestamp,
    pub by: CancelledBy,
}

/// Who cancelled a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelledBy {
    Server,
    /// The runner, whose drain has timed out.
    Drain,
}

/// The state of a step from which recovery continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryPhase {
    /// The script was not started: start from `prepare`.
    Prepare,
    /// The supervisor is alive: wait for it, then `conclude`.
    Running,
    /// The script has ended: `conclude`.
    Conclude,
    /// The script was started, but there is neither a supervisor nor an exit: the outcome is unknown.
    Lost,
    /// The outcome is known: ship what is left.
    Ship,
}

/// The name of the folder of a step. It sorts by arrival.
pub(super) fn name_of(sequence: u64, key: &StepKey) -> String {
    format!("{sequence:08}.{key}")
}

/// Reads the name of a step folder.
pub(super) fn sequence_and_key(name: &str) -> (u64, StepKey) {
    let numbered = name.split_once('.').and_then(|(number, key)| Some((number.parse().ok()?, key)));
    numbered.map_or_else(|| (0, name.into()), |(sequence, key)| (sequence, key.into()))
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(rename = "is")]
    content: T,
}

/// Handle to a step folder; cheap to clone, holds no open file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// The number that identifies the step, and its place in the order of arrival, across restarts. Numbers start at 1; a
    /// folder that this program did not create has 0.
    pub fn sequence(&self) -> u64 {
        sequence_and_key(&self.name()).0
    }

    /// What was pushed.
    pub fn key(&self) -> StepKey {
        sequence_and_key(&self.name()).1
    }

    /// `{sequence}.{key}`, which identifies the step in log events.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether the folder was removed. A folder that cannot be accessed is not gone, and neither is one on a disk that is
    /// not mounted.
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

    /// The engine's working directory, see [`crate::script::bash_script`].
    pub fn place_path(&self) -> PathBuf {
        self.path.join("place")
    }

    /// Names the engine command that is running, if it is not the task's main command.
    pub fn command_path(&self) -> PathBuf {
        self.path.join("command")
    }

    pub fn lock_path(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Disk space that the supervisor reserves for the end of the step.
    pub fn reserve_path(&self) -> PathBuf {
        self.path.join("reserve")
    }

    /// Holds the path of a saved state that the engine failed to write.
    pub fn rescued_path(&self) -> PathBuf {
        self.path.join("rescued")
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FolderError> {
        let path = self.path.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FolderError::io("read", &path)(error)),
        };
        let file: Versioned<Value> =
            serde_json::from_slice(&bytes).map_err(|error| FolderError::damaged(&path, &error))?;
        if file.version > VERSION {
            return Err(FolderError::Newer { path, found: file.version });
        }
        serde_json::from_value(file.content).map(Some).map_err(|error| FolderError::damaged(&path, &error))
    }

    fn write<T: Serialize>(&self, name: &str, content: &T) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let bytes = serde_json::to_vec_pretty(&Versioned { version: VERSION, content })
            .map_err(|error| FolderError::damaged(&path, &error))?;
        write_private_atomic(&path, &bytes).map_err(FolderError::io("write", &path))
    }

    pub fn request(&self) -> Result<StepRequest, FolderError> {
        const NAME: &str = "request.json";
        let missing = || FolderError::damaged(&self.path.join(NAME), &"the file is missing");
        self.read(NAME)?.ok_or_else(missing)
    }

    pub(super) fn set_request(&self, request: &StepRequest) -> Result<(), FolderError> {
        self.write("request.json", request)
    }

    pub fn set_script(&self, script: &str) -> Result<(), FolderError> {
        let path = self.script_path();
        write_private_atomic(&path, script.as_bytes()).map_err(FolderError::io("write", &path))
    }

    pub fn supervisor(&self) -> Result<Option<SupervisorNote>, FolderError> {
        self.read("supervisor.json")
    }

    pub fn set_supervisor(&self, note: &SupervisorNote) -> Result<(), FolderError> {
        self.write("supervisor.json", note)
    }

    pub fn exit(&self) -> Result<Option<Exit>, FolderError> {
        Ok(self.read::<RecordedExit>("exit.json")?.map(|recorded| recorded.exit))
    }

    pub fn set_exit(&self, exit: &Exit, cancelled: Option<CancelKind>) -> Result<(), FolderError> {
        self.write("exit.json", &RecordedExit { exit: exit.clone(), cancelled })
    }

    /// The cancel that the script received, according to its supervisor. Needs no `cancel.json`, which a full disk
    /// prevents.
    pub fn cancelled_by_supervisor(&self) -> Result<Option<CancelKind>, FolderError> {
        Ok(self.read::<RecordedExit>("exit.json")?.and_then(|recorded| recorded.cancelled))
    }

    pub fn cancel(&self) -> Result<Option<Cancel>, FolderError> {
        self.read("cancel.json")
    }

    /// Records a cancel. A kill replaces a graceful cancel. Otherwise the earlier one stays.
    pub fn record_cancel(&self, kind: CancelKind, by: CancelledBy) -> Result<(), FolderError> {
        match self.cancel() {
            Ok(Some(earlier)) if earlier.kind >= kind => return Ok(()),
            Err(error @ (FolderError::Io { .. } | FolderError::Newer { .. })) => return Err(error),
            // A damaged file is replaced.
            Ok(_) | Err(FolderError::Damaged { .. }) => {}
        }
        self.write("cancel.json", &Cancel { kind, requested: Timestamp::now(), by })
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

    pub fn outcome(&self) -> Result<Option<StepOutcome>, FolderError> {
        self.read("outcome.json")
    }

    pub fn set_outcome(&self, outcome: &StepOutcome) -> Result<(), FolderError> {
        self.write("outcome.json", outcome)
    }

    /// The recorded secrets of this step.
    pub fn secrets(&self) -> Result<BTreeSet<String>, FolderError> {
        Ok(self.read("secrets.json")?.unwrap_or_default())
    }

    /// Teaches a job the recorded secrets, because the files that they came from may have changed since. If the record is
    /// damaged, all text is masked. An I/O error is returned, so that the caller can retry.
    pub fn recall_secrets(&self, job: &JobSecrets) -> Result<(), FolderError> {
        match self.secrets() {
            Ok(secrets) => job.learn(secrets.iter().map(String::as_str)),
            Err(error @ FolderError::Io { .. }) => return Err(error),
            // The details of the error might contain a secret.
            Err(FolderError::Damaged { path, .. } | FolderError::Newer { path, .. }) => {
                job.hide_everything(&format!("{} cannot be read", path.display()));
            }
        }
        Ok(())
    }

    /// Adds secrets to the record, so that they are still masked after a restart, even if the files that they came from have
    /// changed. Only the process that drives the step may call this.
    pub fn add_secrets(&self, secrets: &[String]) -> Result<(), FolderError> {
        let mut all = match self.secrets() {
            Ok(all) => all,
            Err(error @ FolderError::Io { .. }) => return Err(error),
            // A damaged record makes the runner mask all text. Replacing it with an incomplete one would end that.
            Err(FolderError::Damaged { .. } | FolderError::Newer { .. }) => return Ok(()),
        };
        let known = all.len();
        all.extend(secrets.iter().cloned());
        if all.len() == known { Ok(()) } else { self.write("secrets.json", &all) }
    }

    /// The phase that the script has reached.
    pub fn part(&self) -> Option<ScriptPhase> {
        let text = fs::read_to_string(self.part_path()).ok()?;
        text.lines().last().and_then(|word| ScriptPhase::from_word(word.trim()))
    }

    /// The last engine command, if it differs from the task's main command.
    pub fn engine_command(&self) -> Option<String> {
        let name = fs::read_to_string(self.command_path()).ok()?;
        Some(name.trim().to_owned()).filter(|name| !name.is_empty())
    }

    /// Opens `output.log` for appending, and terminates a record that a crash has cut off.
    pub fn writer(&self) -> Result<RecordWriter, FolderError> {
        let path = self.output_path();
        RecordWriter::open(&path).map_err(FolderError::io("open", &path))
    }

    /// How far `output.log` has been acknowledged. If the file is damaged, everything is sent again.
    pub fn shipped(&self) -> Position {
        fs::read_to_string(self.path.join("shipped"))
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default()
    }

    /// Overwrites the file in place, because this happens once per acknowledged batch. The text has a fixed width, so no
    /// part of the old one remains.
    pub fn set_shipped(&self, position: Position) -> Result<(), FolderError> {
        let path = self.path.join("shipped");
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file| file.write_all_at(position.to_string().as_bytes(), 0))
            .map_err(FolderError::io("write", &path))
    }

    /// Repairs `shipped` after a power cut that lost the end of `output.log`: new records take the place of the lost ones
    /// and must not count as acknowledged.
    pub fn mend_shipped(&self) -> Result<(), FolderError> {
        let path = self.output_path();
        let length = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(FolderError::io("inspect", &path)(error)),
        };
        let shipped = self.shipped();
        // If the record at the end is missing, so is its acknowledged part.
        if shipped.record > length || (shipped.record == length && shipped.within > 0) {
            self.set_shipped(Position { record: length, within: 0 })?;
        }
        Ok(())
    }

    /// Takes the lock. Returns `None` if another process holds it, that is, drives the step.
    pub fn try_lock(&self) -> Result<Option<File>, FolderError> {
        let path = self.lock_path();
        lock::try_lock(&path, LockMode::Alone).map_err(FolderError::io("lock", &path))
    }

    /// The phase of the step.
    pub fn phase(&self) -> Result<RecoveryPhase, FolderError> {
        if self.outcome()?.is_some() {
            return Ok(RecoveryPhase::Ship);
        }
        // The lock comes first: its holder may still write the exit, but without a holder the files no longer change.
        let path = self.lock_path();
        let lock = lock::try_own(&path, LockMode::Alone).map_err(FolderError::io("lock", &path))?;
        if lock.is_some() || self.exit()?.is_some() {
            self.phase_of_holder()
        } else {
            Ok(RecoveryPhase::Running)
        }
    }

    /// The phase of an unfinished step, for the holder of its lock.
    pub fn phase_of_holder(&self) -> Result<RecoveryPhase, FolderError> {
        Ok(match (self.supervisor()?, self.exit()?) {
            (_, Some(_)) => RecoveryPhase::Conclude,
            (Some(_), None) => RecoveryPhase::Lost,
            (None, None) => RecoveryPhase::Prepare,
        })
    }
}
