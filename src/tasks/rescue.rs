//! After a step that failed, was cancelled or was lost: what the engine left behind is kept safe, and said.
//!
//! A state that the backend did not take exists nowhere else. It leaves the checkout, where the next apply would
//! overwrite it and a clean init would drop it, for the module's folder of rescued files:
//!
//! ```text
//! {WorkingDirectory}/.hawser/rescued/{stack}/{namespace}/{module}/        (0700; files 0600)
//!   20261116T021036Z-{job id}-errored.tfstate           a step of that job could not write this state then
//!   20261116T021036Z-before-{job id}-errored.tfstate    it was there before that job's apply
//!   20261116T021036Z-{job id}-pulumi-export.json        a state with pending operations
//!   20261116T021036Z-clean-init-env-terraform.tfstate   a clean init dropped `env/terraform.tfstate`, see `workspace`
//! ```
//!
//! Nothing here removes them: whoever has pushed a state does. The time is that of the file. The order is a second name or a
//! copy (with fsync), note in the step folder (`rescued`), removal, so that a crash at any point loses neither the file nor the
//! word about it, and concluding once more says the same.
//!
//! `search` finds what is there and has it kept by [`crate::workspace::backup`]; `advice` is what people are told about it, with
//! commands that work where the engine did (`place`). `earlier` is the other side: what the next step does about what is still there.

mod advice;
mod earlier;
mod place;
mod search;

use hawser_contract::{Fault, TaskRequest};

use super::shape::ScriptTask;
use super::{TaskContext, TaskError};
use crate::step::Exit;
pub use advice::to_check;
pub(super) use earlier::{reminder, set_aside};
pub(super) use place::EngineDirectory;
use search::{Leftovers, ScriptEnding, look};

/// Adds to the end of a step what the engine left behind: to the fault, or to the log of a cancelled job.
pub(super) async fn explain(
    context: &TaskContext,
    shape: &ScriptTask<'_>,
    exit: &Exit,
    error: TaskError,
) -> TaskError {
    let ended = ScriptEnding { stopped: matches!(error, TaskError::Cancelled), killed: is_kill(exit) };
    let found = look(context, shape, ended).await;
    match error {
        TaskError::Cancelled => {
            for note in &found.notes {
                context.warn(note);
            }
            TaskError::Cancelled
        }
        TaskError::Faulted(fault) => TaskError::Faulted(add(fault, &found)),
        TaskError::Refused { refusal, fault } => TaskError::Refused { refusal, fault: add(fault, &found) },
    }
}

/// The same for a step that nobody saw the end of. Whoever calls this holds the lock of the module's directory.
pub async fn explain_lost(context: &TaskContext, request: &TaskRequest, fault: Fault) -> Fault {
    let Some(shape) = ScriptTask::of(request) else { return fault };
    let found = look(context, &shape, ScriptEnding { stopped: true, killed: true }).await;
    add(fault, &found)
}

/// Whether the script, or the engine in it, was ended without a chance to clean up.
fn is_kill(exit: &Exit) -> bool {
    const KILL: i32 = 9;
    exit.signal == Some(KILL) || exit.code == Some(128 + KILL)
}

fn add(mut fault: Fault, found: &Leftovers) -> Fault {
    for note in &found.notes {
        let end = if fault.message.ends_with('.') { " " } else { ". " };
        fault.message.push_str(end);
        fault.message.push_str(note);
    }
    fault.resources = found.resources.or(fault.resources);
    fault
}
