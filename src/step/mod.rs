//! The step folder: the only truth about a dispatched task.
//!
//! Every pushed task becomes a folder below the runner's state directory before anyone is told about it, so a
//! crash at any instruction leaves a folder from which the next start can go on.
//!
//! ```text
//! {WorkingDirectory}/.hawser/{runner id}/{instance}/steps/{job id}.{task}/     (0700; files 0600)
//!   request.json     the push as it came in: version, sequence, time, method, payload
//!   lock             locked by whoever drives the step: the runner while it prepares, then the supervisor,
//!                    which inherits the very same lock, so that there is no moment in between
//!   script.sh        what the supervisor runs
//!   supervisor.json  that the script was started: by which process, when, in which boot of the machine
//!   output.log       records of both streams and of the runner's own lines, see [`records`]
//!   part             which parts of the script were reached, a line each: `before`, `engine`, `collect`, `after`, and `done`
//!                    at its end; the last is the one that runs
//!   command          the engine's command that runs, where it is not the one that the task is known by
//!   place            where the engine runs: its working directory and what else leads to the state
//!   noticed          not empty: the script has noticed an interrupt, or a hook of it answers for interrupts by itself
//!   reserve          disk space for the end of the step, given back when exit.json is written
//!   plan.json, state.json, output.json, destroy_preview.json, export.json
//!                    what the engine said of its result, each for the tasks that have it
//!   extra-outputs.json
//!                    which outputs extra files declare, when the request names such files
//!   exit.json        how the script ended; written once
//!   cancel.json      that a cancel was asked for, and which
//!   secrets.json     values that no log or message of the step may say, for a runner that is started anew
//!   facts.json       the engine's version and the module's commit, for the audit log
//!   audited.json     which lines of the audit log are written, see [`crate::audit`]
//!   rescued          where a state is that the engine could not write and that was kept safe
//!   outcome.json     the call that the server must still acknowledge
//!   shipped          how far output.log has been acknowledged
//! ```
//!
//! Invariants: JSON files are written beside their place and renamed into it, so each is complete or absent;
//! each carries `version` and one with a higher version is not read. `supervisor.json` is written before the
//! script starts and never again, so a script runs at most once. When `output.log` is shipped and
//! `outcome.json` is acknowledged the folder is removed, by a rename out of `steps/` first.

pub mod folder;
mod identity;
pub mod records;
pub mod recovery_phase;
pub mod scratch;
pub mod store;

pub use folder::{
    Audited, Cancel, CancelledBy, Exit, Facts, FolderError, StepFolder, StepRequest, SupervisorNote,
};
pub use identity::{Step, StepWork};
#[cfg(feature = "testing")]
pub use records::Record;
pub use records::{Position, RecordReader, RecordRef, RecordWriter, Stream};
pub use recovery_phase::RecoveryPhase;
pub use scratch::Scratch;
pub use store::{StepStore, StoreError};
