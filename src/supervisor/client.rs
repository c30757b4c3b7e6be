//! The runner's side: starts supervisors, cancels their steps, and waits for them.
//!
//! A cancel is a signal (`session`), so it needs no disk. It is sent to a pidfd: either that of a supervisor that this process
//! has started, or that of the process in `supervisor.json`, if it is still the same one.
//!
//! A supervisor that does not catch the signal yet would die of it, so it is not signaled. The caller records every cancel in
//! `cancel.json` too, and signals again after that: a supervisor looks for this file after it has caught the signals and
//! written `supervisor.json`. So either it finds the file, or the runner finds the supervisor.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use hawser_contract::requests::CancelKind;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::linux;
use super::session::{DRAINED, GRACEFUL, KILL};
use crate::base::process::{Inherited, search_path};
use crate::base::retry::Delays;
use crate::step::{CancelledBy, FolderError, RecoveryPhase, StepFolder};

/// The supervisors that this process has started, by their step folders.
static STARTED: LazyLock<Mutex<HashMap<PathBuf, Started>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Started {
    pid: Pid,
    process: OwnedFd,
}

fn started() -> MutexGuard<'static, HashMap<PathBuf, Started>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prefix of the script's variables in the environment of the supervisor, where they must have no effect: an `LD_PRELOAD` of
/// a module must not be loaded into the process that records how its script ended.
const FOR_SCRIPT: &str = "SCRIPT:";

/// Host variables for the supervisor itself besides `ALWAYS` in `base::process`: this program may need its libraries.
const FOR_SUPERVISOR: &str = "LD_*";

/// What the supervisor runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The text of a bash script.
    pub script: String,
    pub directory: PathBuf,
    /// The whole environment of the script.
    pub environment: Vec<(OsString, OsString)>,
    /// A lock to hold until the script has ended, even if the runner dies.
    pub held: Option<Arc<File>>,
    /// How long the script may take after a graceful cancel before it is killed.
    pub cancel_grace: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot enter the working directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot start the supervisor {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
}

/// The path by which this program can be started.
pub fn program() -> PathBuf {
    // This link works even after an upgrade has replaced or removed the file.
    PathBuf::from("/proc/self/exe")
}

/// Starts the supervisor of a step whose script is written, and passes the lock of the step to it. The supervisor outlives
/// this process. Returns its process ID; [`wait`] returns when it is done.
///
/// If the supervisor is killed before it starts the script, there is neither a `supervisor.json` nor an `exit.json`: nothing was
/// run. A runner that waits for it faults the step. If the runner is gone too, its next start prepares the step again.
///
/// `module` is the lock of the module's directory. The supervisor and all processes of the script hold it too, so that the
/// directory stays locked while any of them runs, even if the runner and the supervisor die. It is passed as the
/// supervisor's stdout, which is otherwise unused. The lock in [`Launch::held`] is passed as its stderr.
pub fn launch(
    program: &Path,
    folder: &StepFolder,
    lock: File,
    module: Option<File>,
    launch: &Launch,
) -> Result<u32, LaunchError> {
    let directory = |source| LaunchError::Directory { path: launch.directory.clone(), source };
    // `spawn` returns the same error for a missing directory and a missing program.
    if !std::fs::metadata(&launch.directory).map_err(directory)?.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    let failed = |source| LaunchError::Start { program: program.to_owned(), source };
    // The supervisor runs in the script's directory.
    let path = std::path::absolute(folder.path()).map_err(failed)?;
    let held = launch.held.as_ref().map(|file| file.try_clone()).transpose().map_err(failed)?;
    let child = Command::new(program)
        .arg0("hawser")
        .arg("supervise")
        .arg(path)
        .arg(launch.cancel_grace.as_secs().to_string())
        .current_dir(&launch.directory)
        .env_clear()
        .envs(Inherited::of_this_process().narrowed_to(Some(&[FOR_SUPERVISOR.to_owned()])).into_variables())
        .env("PATH", search_path(&[]))
        .envs(launch.environment.iter().map(|(name, value)| (for_script(name), value)))
        .stdin(Stdio::from(lock))
        .stdout(module.map_or_else(Stdio::null, Stdio::from))
        .stderr(held.map_or_else(Stdio::null, Stdio::from))
        .spawn()
        .map_err(failed)?;
    let pid = child.id();
    keep(child, folder.path());
    Ok(pid)
}

/// Remembers a supervisor until it ends, and reaps it.
fn keep(mut child: Child, folder: &Path) {
    let (pid, folder) = (Pid::from_child(&child), folder.to_owned());
    // Without it, the supervisor is found by its `supervisor.json`.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        started().insert(folder.clone(), Started { pid, process });
    }
    let reap = move || {
        let _ = child.wait();
        let mut started = started();
        if started.get(&folder).is_some_and(|it| it.pid == pid) {
            started.remove(&folder);
        }
    };
    // If no thread can be started, it becomes a zombie, but the step is running.
    let reaper = thread::Builder::new().name(format!("reap-{pid}")).stack_size(64 * 1024);
    if let Err(error) = reaper.spawn(reap) {
        tracing::warn!(%pid, %error, "failed to start the thread that reaps the supervisor");
    }
}

/// Cancels the step of a supervisor that this process has started. Does not access the disk.
pub fn cancel_started(folder: &StepFolder, kind: CancelKind, by: CancelledBy) {
    if let Some(Started { pid, process }) = started().get(folder.path()) {
        signal(*pid, process, kind, by);
    }
}

/// Cancels the step of a running supervisor, if there is one, no matter which process started it.
pub fn cancel(folder: &StepFolder, kind: CancelKind, by: CancelledBy) {
    cancel_started(folder, kind, by);
    let Ok(Some(note)) = folder.supervisor() else { return };
    let same_boot = note.boot_id.is_none() || note.boot_id == linux::boot_id();
    let pid = i32::try_from(note.pid).ok().and_then(Pid::from_raw).filter(|_| same_boot);
    let Some((pid, process)) = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
    else {
        return;
    };
    // The pidfd is opened: what is true of the process now stays true of it.
    let same_process = match note.start_time.filter(|_| linux::proc_is_ours()) {
        Some(start_time) => linux::start_time(pid) == Some(start_time),
        None => matches!(folder.phase(), Ok(RecoveryPhase::Running)),
    };
    if same_process {
        signal(pid, &process, kind, by);
    }
}

fn signal(pid: Pid, process: &OwnedFd, kind: CancelKind, by: CancelledBy) {
    let number = match (kind, by) {
        (CancelKind::Kill, _) => KILL,
        (CancelKind::Graceful, CancelledBy::Server) => GRACEFUL,
        (CancelKind::Graceful, CancelledBy::Drain) => DRAINED,
    };
    // It catches the others first.
    if !linux::proc_is_ours() || linux::catches(pid, GRACEFUL) {
        // Fails if it has just ended.
        let _ = pidfd_send_signal(process, number);
    }
}

fn for_script(name: &OsStr) -> OsString {
    let mut prefixed = OsString::from(FOR_SCRIPT);
    prefixed.push(name);
    prefixed
}

/// Called in the supervisor: the environment of its script.
pub(super) fn environment_of_script() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(FOR_SCRIPT.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

/// Waits until no process drives the step, and takes its lock.
pub async fn wait(folder: &StepFolder) -> Result<File, FolderError> {
    let mut delays = Delays::supervisor();
    loop {
        if let Some(lock) = folder.try_lock()? {
            return Ok(lock);
        }
        delays.wait().await;
    }
}
