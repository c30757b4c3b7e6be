//! The first process of a container. Whoever has lost its parent there becomes its child, and stays as a zombie until it is
//! waited for: what `docker exec` and probes leave behind, for one.
//!
//! The runner waits for the programs that it has started, each by its number, and for nobody else. So a runner that finds
//! itself to be process 1 (the image has `tini` for that, but entrypoints get overridden) starts itself once more, hands signals on
//! to it, takes in whoever ends, and leaves as it leaves.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use crate::supervisor;

pub(super) fn is_this() -> bool {
    getpid() == Pid::INIT
}

/// Runs this same command as a child, to its end.
pub(super) fn execute() -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::temporary(format!("cannot run as the first process of a container: {error}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let status = runtime.block_on(run()).map_err(failed)?;
    match status.terminating_signal().map_or_else(|| status.exit_status(), |signal| Some(128 + signal)) {
        Some(0) => Ok(()),
        code => Err(Failure::of_child(code)),
    }
}

async fn run() -> io::Result<WaitStatus> {
    // Before there is anybody to hear of.
    let mut ended = signal(SignalKind::child())?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let child =
        Command::new(supervisor::program()).arg0("hawser").args(std::env::args_os().skip(1)).spawn()?;
    let runner = Pid::from_child(&child);
    loop {
        let signal = tokio::select! {
            _ = ended.recv() => {
                if let Some(status) = take_in(runner)? {
                    return Ok(status);
                }
                continue;
            }
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv() => Signal::INT,
        };
        // It has not been waited for, so the number is still its own.
        let _ = kill_process(runner, signal);
    }
}

/// Waits for all that have ended; how the runner did, if it is among them.
fn take_in(runner: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == runner => return Ok(Some(status)),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
