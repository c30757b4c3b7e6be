//! A lost step: its script was started, and the machine or the supervisor went down before the exit was recorded.

use std::time::Duration;

use hawser_contract::Fault;
use hawser_contract::requests::Request;

use super::drive::TaskRun;
use crate::engines::Engines;
use crate::step::StepFolder;
use crate::{supervisor, tasks};

/// How long to wait for the lock of the module directory before reporting a lost step without looking there.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

impl TaskRun<'_> {
    /// The fault of a lost step. Its leftovers are searched and moved only with the module lock held, because the engine may
    /// still be running and writing the same files, and so may another process that uses the directory.
    ///
    /// The script has inherited the open file of a lock that this process took before, so only a new one excludes it.
    pub(super) async fn lost(mut self) -> Fault {
        let mut fault = unknown_outcome(&self.context.folder, &self.context.engines, self.request);
        drop((self.module.take(), self.held.take()));
        let lock = tokio::time::timeout(LOCK_TIMEOUT, self.executor.module_lock_now(self.request)).await;
        self.module = lock.ok().and_then(Result::ok);
        if self.module.is_some() {
            return tasks::explain_lost(self.context, &self.request.task, fault).await;
        }
        fault.message.push_str(
            " The module directory is in use or cannot be locked, so it was not searched for files that this task left.",
        );
        fault
    }
}

fn unknown_outcome(folder: &StepFolder, engines: &Engines, request: &Request) -> Fault {
    let supervisor = folder.supervisor().ok().flatten();
    let rebooted = supervisor
        .as_ref()
        .and_then(|it| it.boot_id.clone())
        .zip(supervisor::boot_id())
        .is_some_and(|(then, now)| then != now);
    let why = if rebooted {
        "the machine restarted while the task was running"
    } else {
        "its supervisor is gone (the container was stopped, or the process was killed); processes it started may \
         still be running"
    };
    let started = supervisor.map_or_else(String::new, |it| format!(" It was started at {}.", it.started));
    let check = tasks::to_check(engines, &request.task);
    Fault::new(format!(
        "unknown outcome: {why}.{started} It was not run again. Before the next run: {check}."
    ))
}
