//! The log events of a task: one when it starts, one when it finishes.

use std::time::{Duration, Instant};

use hawser_contract::{Outcome, StepOutcome};
use tracing::field::display;
use tracing::{debug, info, warn};

use crate::step::{RecoveryPhase, Step, StepWork};

/// The fields that identify a task in the log.
struct TaskFields {
    module: Option<String>,
    task: &'static str,
    step: String,
}

impl TaskFields {
    fn of(step: &Step) -> Self {
        let (module, task) = match &step.work {
            StepWork::Task(request) => {
                let metadata = &request.common.metadata;
                let names = [&metadata.stack_name, &metadata.namespace_name, &metadata.module_name];
                (Some(names.map(String::as_str).join("/")), request.task.task().name())
            }
            StepWork::Refresh(_) => (None, "SourceRefresh"),
        };
        Self { module, task, step: step.name() }
    }
}

/// A task that an earlier process started is not started again.
pub(super) fn log_started(step: &Step, phase: RecoveryPhase) {
    let (TaskFields { module, task, step: name }, job) = (TaskFields::of(step), step.job_id().map(display));
    match phase {
        RecoveryPhase::Prepare => info!(module, job, task, step = name, "task started"),
        _ => debug!(module, job, task, step = name, ?phase, "task resumed"),
    }
}

/// `outcome` has been masked: its first line is in the event.
pub(super) fn log_finished(step: &Step, outcome: &StepOutcome, since: Instant) {
    let (TaskFields { module, task, step: name }, job) = (TaskFields::of(step), step.job_id().map(display));
    let duration = Duration::from_millis(since.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
    let kind = outcome.kind();
    if let Outcome::Faulted(fault) = &outcome.outcome {
        let reason = fault.message.lines().next().unwrap_or_default();
        warn!(module, job, task, step = name, outcome = %kind, ?duration, reason, "task finished");
    } else {
        info!(module, job, task, step = name, outcome = %kind, ?duration, "task finished");
    }
}
