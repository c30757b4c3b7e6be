//! Checks the policy before a step enters the queue.

use std::sync::Arc;

use super::Scheduler;
use super::dispatch::SchedulerCommand;
use crate::base::blocking::blocking;
use crate::settings::Refusal;
use crate::step::{Step, StepWork};

impl Scheduler {
    /// Returns the step if the policy allows it. A refused step is not queued and not claimed.
    pub(crate) async fn admit(&self, step: Step) -> Option<Step> {
        let (policy, engines, checked) = (Arc::clone(&self.policy), self.engines.clone(), step.clone());
        // Blocking: pre-approved hooks are files.
        let verdict = blocking(move || match &checked.work {
            StepWork::Task(request) => policy.check(request, &engines),
            StepWork::Refresh(refresh) => policy.check_refresh(refresh),
        });
        let refusal = match verdict.await {
            Ok(Ok(())) => {
                self.audit.accepted(&step).await;
                return Some(step);
            }
            Ok(Err(refusal)) => refusal,
            // A step that could not be checked does not run.
            Err(error) => Refusal::failed(&error),
        };
        self.send(SchedulerCommand::Refuse(Box::new(step), refusal)).await;
        None
    }
}
