//! A step whose script was started and that nobody saw the end of: the machine or its supervisor went down.

use std::time::Duration;

use hawser_contract::Fault;
use hawser_contract::requests::Request;

use super::drive::Executor;
use crate::step::StepFolder;
use crate::supervisor;
use crate::tasks::{self, TaskContext};
use crate::workspace::ModuleLock;

/// How long a module's directory is waited for to see what a lost step has left in it.
const LOST_PATIENCE: Duration = Duration::from_secs(5);

impl Executor {
    /// What there is to say about a step that nobody saw the end of. What it left behind is only looked for, and moved,
    /// with the module's lock held: whoever else works there by now may be writing the same files. That one is waited
    /// for briefly and not to its end, which may be hours away.
    pub(crate) async fn lost(
        &self,
        context: &TaskContext,
        request: &Request,
        module: Option<ModuleLock>,
    ) -> Fault {
        let mut fault = unknown_outcome(&context.folder, request);
        let lock = match module {
            Some(module) => Some(module),
            None => {
                let lock = tokio::time::timeout(LOST_PATIENCE, self.module_lock_now(request)).await;
                lock.ok().and_then(Result::ok)
            }
        };
        if lock.is_some() {
            return tasks::explain_lost(context, &request.task, fault).await;
        }
        fault.message.push_str(
            " The module's directory is in use or cannot be locked, so what this task left in it was not looked for.",
        );
        fault
    }
}

/// The script was started, and there is nobody left who could say how it ended.
fn unknown_outcome(folder: &StepFolder, request: &Request) -> Fault {
    let note = folder.supervisor().ok().flatten();
    let rebooted = note
        .as_ref()
        .and_then(|note| note.boot_id.clone())
        .zip(supervisor::boot_id())
        .is_some_and(|(then, now)| then != now);
    let why = if rebooted {
        "the machine was restarted while it ran"
    } else {
        "the process that watched it is gone (the container was stopped, or it was killed), and what it started \
         may still be running"
    };
    let started = note.map_or_else(String::new, |note| format!(" It was started at {}.", note.started));
    let check = tasks::to_check(&request.task);
    Fault::new(format!(
        "unknown outcome: {why}.{started} It was not run again. Before the next run, check what it changed: {check}."
    ))
}
