//! Independence from the runner: the inherited lock, a new session, and signals.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal as Number, setpgid, setsid};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::base::lock::{self, LockMode};
use crate::base::process::find_program;
use crate::step::StepFolder;

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
/// The runner starts us as a group leader, so that a Ctrl-C does not reach us before this point. But a leader cannot start a
/// session, so we briefly join the group of a helper; signals are already caught by then. The runner's own group does not
/// work: in a PID namespace that was created later it has no number. If this fails, we stay in our own group, which is almost
/// as good.
pub(super) fn leave_session() {
    if setsid().is_ok() {
        return;
    }
    // The helper exits when our end of the pipe is closed, which also happens if we are killed.
    let helper = find_program("bash", &[]).map(|bash| {
        Command::new(bash)
            .args(["--norc", "-c", "read"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
    });
    let Ok(Ok(mut helper)) = helper else { return };
    let _ = setpgid(None, Some(Pid::from_child(&helper)));
    let _ = setsid();
    // `wait` closes the pipe first.
    let _ = helper.wait();
}

/// The signals that the supervisor handles.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) child: Signal,
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
        Ok(Self { child: signal(SignalKind::child())?, terminate: signal(SignalKind::terminate())? })
    }
}
