//! Runs `hawser run` as process 1 of a container. Orphaned processes, such as those left by `docker exec` and probes,
//! become children of process 1 and stay zombies until it waits for them.
//!
//! The runner waits only for the processes that it starts. So when it is process 1 (the image uses `tini`, but entrypoints
//! get overridden), it starts itself again as a child, forwards signals to the child, reaps orphans, and exits with the
//! child's exit code.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use crate::supervisor;

pub(super) fn is_pid1() -> bool {
    getpid() == Pid::INIT
}

/// Runs this same command as a child until it ends.
pub(super) fn execute() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::temporary(format!("cannot run as process 1: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let status = runtime.block_on(run()).map_err(failed)?;
    match status.terminating_signal().map_or_else(|| status.exit_status(), |signal| Some(128 + signal)) {
        Some(0) => Ok(()),
        code => Err(Failure::of_child(code)),
    }
}

async fn run() -> io::Result<WaitStatus> {
    // Listen before the child exists.
    let mut child_ended = signal(SignalKind::child())?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let child =
        Command::new(supervisor::program()).arg0("hawser").args(std::env::args_os().skip(1)).spawn()?;
    let runner = Pid::from_child(&child);
    loop {
        let signal = tokio::select! {
            _ = child_ended.recv() => {
                if let Some(status) = reap(runner)? {
                    return Ok(status);
                }
                continue;
            }
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv() => Signal::INT,
        };
        // The child has not been reaped, so its pid is still valid.
        let _ = kill_process(runner, signal);
    }
}

/// Reaps all processes that have ended. Returns the status of the runner if it is one of them.
fn reap(runner: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == runner => return Ok(Some(status)),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
