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
//! 3. It opens the gate (`gate`), writes `reserve`, then `supervisor.json`, and starts the script in its own process group.
//! 4. It turns both pipes into records of `output.log` (`output`, `lines`), and answers the script's questions (`question`):
//!    nothing starts without a yes, and what gets one is recorded before (`recorder`). `lifecycle` decides.
//! 5. When the script has ended, all its processes are gone and all output is written, it syncs `output.log`, removes
//!    `reserve` and writes `exit.json`.
//!
//! The main loop sleeps until a signal, a question or a deadline wakes it. It never waits for the disk, so neither does a
//! cancel, which is a signal from the runner (`client`, `session`):
//!
//! - An engine gets one interrupt, through the pidfd of the process that asked for it. The supervisor has it before it says
//!   yes, so there is no moment at which an engine runs that it does not know, and none at which it could get two.
//! - A hook gets one SIGTERM, like every process in the script's group, and a SIGKILL ten seconds later.
//! - Between them, the next question is refused. `Runner.CancelGraceSeconds` limits all of this.
//!
//! The script inherits the lock of the module directory, see `script::bash_script`.
//!
//! If the disk is full, the supervisor stops the script, discards further output (a record states how much, as soon as
//! there is room for it) and records the failure in `exit.json`. If it cannot write even that after removing `reserve`, it
//! retries for five minutes and then exits: the outcome of the step is then unknown.
//!
//! `linux` finds every process below the supervisor, in any session.

mod client;
mod gate;
mod lifecycle;
mod lines;
mod linux;
mod output;
mod question;
mod recorder;
mod run;
mod session;

#[cfg(feature = "testing")]
pub use client::LaunchError;
pub use client::{Launch, cancel, cancel_started, launch, program, wait};
pub use linux::boot_id;
pub use question::{Question, YES};
pub use run::{SuperviseError, run};
