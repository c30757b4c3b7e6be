//! Independence from the runner: the inherited lock, a new session, and signals.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Signal as Number, setsid};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::base::lock::{self, LockMode};
use crate::step::StepFolder;

/// Where the module lock is in the script, if the limit of open files allows it, and otherwise.
const LOCK_NUMBER: i32 = 150;
const LOWEST_LOCK_NUMBER: i32 = 10;

/// The signals by which a runner cancels a step. They are part of the contract between versions: after an upgrade, a new
/// runner signals supervisors of the old one. Each may be sent any number of times.
pub(super) const GRACEFUL: Number = Number::USR1;
pub(super) const KILL: Number = Number::USR2;
/// The runner's time to drain has passed. Also sent when the machine shuts down.
pub(super) const DRAINED: Number = Number::TERM;

/// The folder's lock, which the runner passed on stdin. Returns `None` if stdin is another file, or if another process holds
/// the lock. The lock lasts until the last descriptor of the open file is closed, so it stays with this process.
pub(super) fn inherited_lock(folder: &StepFolder) -> io::Result<Option<File>> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (stdin, expected) = (file.metadata()?, fs::metadata(folder.lock_path())?);
    if (stdin.dev(), stdin.ino()) != (expected.dev(), expected.ino()) {
        return Ok(None);
    }
    lock::take(file, LockMode::Alone)
}

/// Leaves the session of the runner and its terminal.
///
/// The runner does not start us as the leader of a process group, because a leader cannot start a session. So until here,
/// within the first millisecond, a Ctrl-C or a hangup of the runner's terminal ends us too. Nothing has been started by
/// then, and the task faults with that reason.
pub(super) fn leave_session() {
    // Fails for a leader, started by hand.
    let _ = setsid();
}

/// A copy of the module lock, which the runner passed on stdout, for the script and everything that it starts.
///
/// Its number is high, so that a hook does not close it by accident (`exec 3>&-`), and bash does not use it for a file of
/// its own.
pub(super) fn module_lock() -> io::Result<Option<OwnedFd>> {
    let stdout = io::stdout();
    // Without a module it is `/dev/null`.
    if !File::from(stdout.as_fd().try_clone_to_owned()?).metadata()?.is_file() {
        return Ok(None);
    }
    let copy = |number| fcntl_dupfd_cloexec(&stdout, number);
    let lock = copy(LOCK_NUMBER).or_else(|_| copy(LOWEST_LOCK_NUMBER))?;
    // This process starts no other program than the script.
    fcntl_setfd(&lock, FdFlags::empty())?;
    Ok(Some(lock))
}

/// The signals that the supervisor handles.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) child: Signal,
    /// [`GRACEFUL`]
    pub(super) cancel: Signal,
    /// [`KILL`]
    pub(super) kill: Signal,
    /// [`DRAINED`]
    pub(super) terminate: Signal,
}

impl Signals {
    /// Catches signals instead of ignoring them: an ignored signal stays ignored in the script, where bash cannot even trap it.
    /// This also undoes inherited settings, such as the ignored SIGINT of a background job, which would make engines
    /// impossible to interrupt.
    pub(super) fn catch() -> io::Result<Self> {
        // With this signal caught, exceeding a file size limit is a write error, like a full disk.
        let size_limit = SignalKind::from_raw(Number::XFSZ.as_raw());
        for kind in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit(), size_limit] {
            // The handler stays installed.
            drop(signal(kind)?);
        }
        let catch = |number: Number| signal(SignalKind::from_raw(number.as_raw()));
        Ok(Self {
            child: catch(Number::CHILD)?,
            terminate: catch(DRAINED)?,
            kill: catch(KILL)?,
            // The last one: the runner signals a supervisor that catches it.
            cancel: catch(GRACEFUL)?,
        })
    }
}
