//! Independence of the runner: the inherited lock, a session of one's own, and signals.

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

/// The folder's lock as it was handed over on stdin; None when stdin is something else, or somebody else holds
/// the lock. The lock stands until the last descriptor of the open file is closed, so it stays with this process.
pub(super) fn inherited_lock(folder: &StepFolder) -> io::Result<Option<File>> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (given, wanted) = (file.metadata()?, fs::metadata(folder.lock_path())?);
    if (given.dev(), given.ino()) != (wanted.dev(), wanted.ino()) {
        return Ok(None);
    }
    lock::take(file, LockMode::Alone)
}

/// Leaves the session of the runner, and so its terminal.
///
/// The runner starts us as the leader of a group, so that a Ctrl-C does not reach us before we have got here. But a
/// leader cannot start a session, so we join the group of a helper for the moment between the two calls; signals are
/// already caught then. The runner's own group would not do: seen from a pid namespace that was made after it, it has no
/// number. Should all of this fail, we stay in the group of our own, which is almost as good.
pub(super) fn leave_session() {
    if setsid().is_ok() {
        return;
    }
    // It waits for our end of the pipe to close, which it also does when we are killed.
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
    // Closes the pipe first.
    let _ = helper.wait();
}

/// The signals that mean something here.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) child: Signal,
    pub(super) terminate: Signal,
}

impl Signals {
    /// Catches signals rather than ignoring them: what is ignored stays ignored in the script, where bash could
    /// not even trap it. This also undoes what the runner may have inherited, such as the ignored SIGINT of a
    /// background job, without which no engine could be interrupted.
    pub(super) fn catch() -> io::Result<Self> {
        // A limit on file sizes is then an error of the write, as a full disk is, and not our death.
        let size_limit = SignalKind::from_raw(Number::XFSZ.as_raw());
        for kind in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit(), size_limit] {
            // The handler stays; what it would tell is of no interest.
            drop(signal(kind)?);
        }
        Ok(Self { child: signal(SignalKind::child())?, terminate: signal(SignalKind::terminate())? })
    }
}
