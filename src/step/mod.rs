//! The step folder: the source of truth about a dispatched task.
//!
//! Every pushed task becomes a folder below the runner's state directory before the runner reports it, so a crash at any
//! instruction leaves a folder from which the next start can continue. The sequence number is the identity of the step, and the
//! order of arrival: two dispatches of the same task of the same job are two steps.
//!
//! ```text
//! {WorkingDirectory}/.hawser/{runner id}/{instance}/steps/{sequence}.{job id}.{task}/  (0700; files 0600)
//!   request.json     the push as received: version, time, method, payload
//!   lock             held by the process that drives the step: the runner while it prepares, then the supervisor,
//!                    which inherits the same lock, so that there is no gap
//!   script.sh        the script that the supervisor runs
//!   supervisor.json  the script was started: by which process, when, in which boot of the machine
//!   output.log       records of both streams and of the runner's own lines, see [`records`]
//!   gate             the socket on which the script asks its supervisor before it starts anything
//!   part             the phases that the script has reached, one per line: `before`, `engine`, `succeeded`, `collect`,
//!                    `after`, `done`
//!   command          the engine command that is running, if it differs from the task's main command
//!   place            the engine's working directory, and the variables by which it finds the state
//!   reserve          disk space for the end of the step, released when exit.json is written
//!   plan.json, state.json, output.json, destroy_preview.json, export.json
//!                    results printed by the engine, depending on the task
//!   extra-outputs.json
//!                    the outputs that extra files declare, if the request names such files
//!   exit.json        how the script ended, and the cancel that its supervisor received; written once
//!   cancel.json      the requested cancel
//!   secrets.json     values to mask in logs and messages of the step, for the next start of the runner
//!   facts.json       the engine's version and the module's commit, for the audit log
//!   audited.json     the lines of the audit log that are written, see [`crate::audit`]
//!   rescued          the path of a saved state that the engine failed to write
//!   outcome.json     the outcome, until the server acknowledges it
//!   shipped          how far output.log has been acknowledged
//! ```
//!
//! Invariants: JSON files are written to a temporary file and renamed, so each is complete or absent. Each has a
//! `version`; files with a higher version are not read. `supervisor.json` is written once, before the script starts, so a
//! script runs at most once. When `output.log` is shipped and `outcome.json` is acknowledged, the folder is first renamed
//! out of `steps/` and then removed.

pub mod folder;
mod identity;
mod phase;
pub mod record_reader;
pub mod records;
pub mod scratch;
pub mod store;

pub use folder::{
    Audited, Cancel, CancelledBy, Exit, Facts, FolderError, RecoveryPhase, StepFolder, StepRequest,
    SupervisorNote,
};
pub use identity::{Step, StepKey, StepWork};
pub use phase::ScriptPhase;
pub use record_reader::{FoundRecord, RecordReader};
pub use records::{Position, RecordRef, RecordWriter, Stream};
pub use scratch::Scratch;
pub use store::{StepStore, StoreError};
