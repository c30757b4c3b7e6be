//! Whether a step gets a place in the queue at all: the settings of this runner have the last word.

use std::sync::Arc;

use super::Scheduler;
use super::dispatch::SchedulerCommand;
use crate::settings::Refusal;
use crate::step::{Step, StepWork};

impl Scheduler {
    /// The local veto. A step that is refused waits for no slot and no directory, and nobody claims it.
    pub(crate) async fn admit(&self, step: Step) -> Option<Step> {
        let (policy, judged) = (Arc::clone(&self.policy), step.clone());
        // Pre-approved hooks are files.
        let verdict = tokio::task::spawn_blocking(move || match &judged.work {
            StepWork::Task(request) => policy.judge(request),
            StepWork::Refresh(refresh) => policy.judge_refresh(refresh),
        });
        let refusal = match verdict.await {
            Ok(Ok(())) => {
                self.audit.accepted(&step).await;
                return Some(step);
            }
            Ok(Err(refusal)) => refusal,
            // What could not be judged is not done.
            Err(error) => Refusal::failed(&error),
        };
        self.send(SchedulerCommand::Refuse(Box::new(step), refusal)).await;
        None
    }
}
