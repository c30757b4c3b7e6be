//! The supervisor: the small process between the runner and a script, which outlives the runner.
//!
//! It is this same program with a hidden subcommand, `hawser supervise FOLDER`. It knows only its step folder: no network,
//! no settings. The runner starts it in the script's working directory, with the locked `lock` file of the folder as its
//! stdin, so the lock passes on without a gap. The script's variables pass through it under other names (`client`), so that
//! they do not affect it. While the lock is held, the step is being driven; once it is free, `exit.json` records the exit.
//!
//! Each of these steps relies on the ones before it:
//!
//! 1. It checks that it holds the lock and that there is no `supervisor.json`, and exits otherwise. So a script runs at most
//!    once.
//! 2. It starts a new session, so that neither a Ctrl-C nor a hangup of the runner's terminal reaches it, and no engine can
//!    prompt on the terminal.
//! 3. It writes `reserve`, then `supervisor.json`, and starts the script in its own process group.
//! 4. It turns both pipes into records of `output.log` (`output`, `lines`) and checks for `cancel.json` ten times a second.
//!    `lifecycle` decides how to react to events.
//! 5. When the script has ended, all its processes are gone and all output is written, it syncs `output.log`, removes
//!    `reserve` and writes `exit.json`.
//!
//! If the disk is full, the supervisor interrupts the script, discards further output (a record states how much, as soon as
//! there is room for it) and records the failure in `exit.json`. If it cannot write even that after removing `reserve`, it
//! retries for five minutes and then exits: the outcome of the step is then unknown.
//!
//! An interrupt is sent once, to the script's process group, while bash is held still (`hold`); a command that missed it,
//! because bash was just about to start it, gets it a second later (`interrupt`), and a bash that
//! loops on the interrupt is killed (`stuck`).
//!
//! `linux` finds every process below the supervisor, in any session.

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
