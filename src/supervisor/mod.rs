//! The supervisor: the small process between the runner and a script, which outlives the runner.
//!
//! It is this same program with a hidden subcommand, `hawser supervise FOLDER`, and knows nothing but its step
//! folder: no network, no settings. The runner starts it with the script's working directory and
//! with the folder's locked `lock` file as its stdin, so the lock passes from one to the other without a gap. The
//! script's variables pass through it under other names (`client`), so that none of them means anything to it.
//! As long as the lock is held the step is being driven; when it is free, `exit.json` says how it ended.
//!
//! The order of its life, in which each step relies on the ones before it:
//!
//! 1. It holds the lock, or leaves. It finds no `supervisor.json`, or leaves: a script runs at most once.
//! 2. It takes a session of its own, so that neither a Ctrl-C nor the end of the runner's terminal reaches it and
//!    no engine can ask the terminal for anything.
//! 3. `reserve` is written, then `supervisor.json`; then the script starts in a process group of its own.
//! 4. Both pipes become records of `output.log` (`output`, `lines`); `cancel.json` is looked for ten times a
//!    second; `lifecycle` decides what to do about what happens.
//! 5. The script has ended, no process of it is left and all output is kept: `output.log` is synced, `reserve`
//!    is given back and `exit.json` is written.
//!
//! When the disk is full the script is interrupted, what it still says is read and dropped (a record says how
//! much, as soon as there is room for it), and `exit.json` carries the failure. If even that cannot be written
//! although the reserve was given back, the supervisor tries again for five minutes and then leaves: the step is
//! then one whose outcome is unknown.
//!
//! An interrupt is sent once, to the script's process group, while bash is held still (`hold`); a command that missed it,
//! because bash was just about to start it, gets it a second later (`interrupt`), and a bash that
//! loops on the interrupt is killed (`stuck`).
//!
//! `linux` finds every process below the supervisor, whatever its session.

mod client;
mod hold;
mod interrupt;
mod lifecycle;
mod lines;
mod linux;
mod output;
mod run;
mod session;
mod stuck;

#[cfg(feature = "testing")]
pub use client::LaunchError;
pub use client::{Launch, launch, program, wait};
pub use linux::boot_id;
pub use run::{SuperviseError, run};

use rustix::process::Pid;

/// A living process of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: Pid,
    /// The program's name only: arguments may hold secrets.
    name: String,
}
