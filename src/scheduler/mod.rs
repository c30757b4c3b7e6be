//! Decides when a step starts, and sees it through.
//!
//! A step's way through the files:
//!
//! ```text
//! Scheduler (this file) ─→ admit ─→ dispatch ⇄ queue (slots, lanes, module directories)
//!                          policy      └─→ executor, a task per step: claim, prepare, run, conclude
//!                                            └─→ executor/finish: outcome.json ─→ shipping
//! ```
//!
//! A step that waits is not claimed, so that with several replicas a free one wins the broadcast.

mod admit;
mod dispatch;
mod queue;

use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use crate::audit::Audit;
use crate::executor::ExecutorContext;
use crate::policy::Policy;
use crate::step::{RecoveryPhase, Step};
use dispatch::{Dispatch, Noted, SchedulerCommand};

/// How much there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
}

/// Handle to the scheduler; cheap to clone.
#[derive(Debug, Clone)]
pub struct Scheduler {
    commands: mpsc::Sender<SchedulerCommand>,
    load: watch::Receiver<Load>,
    policy: Arc<Policy>,
    audit: Audit,
}

impl Scheduler {
    /// Starts the loop. It ends when `stop` is cancelled; scripts under supervision go on.
    pub fn start(tools: ExecutorContext, stop: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        let (commands, received) = mpsc::channel(64);
        let (load, seen) = watch::channel(Load::default());
        let (policy, audit) = (Arc::new(Policy::new(&tools.settings)), tools.audit.clone());
        let task = tokio::spawn(Dispatch::new(tools, load).run(received, stop));
        (Self { commands, load: seen, policy, audit }, task)
    }

    /// Takes a step that has just come in.
    pub async fn submit(&self, step: Step) {
        if let Some(step) = self.admit(step).await {
            self.send(SchedulerCommand::Submit(Box::new(step))).await;
        }
    }

    /// Takes over a step of an earlier run of the program. One that was not begun is judged like a new one: the
    /// settings may allow less by now.
    pub async fn adopt(&self, step: Step, stage: RecoveryPhase) {
        let step = if stage == RecoveryPhase::Prepare {
            self.admit(step).await
        } else {
            self.audit.accepted(&step).await;
            Some(step)
        };
        if let Some(step) = step {
            self.send(SchedulerCommand::Adopt(Box::new(step), stage)).await;
        }
    }

    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// A task was pushed again.
    pub async fn report_again(&self, name: String) {
        self.send(SchedulerCommand::ReportAgain(name)).await;
    }

    /// Cancels every step of a job; returns when the cancel is noted in their folders, or why it is not in all of them:
    /// a script that runs hears of it only from there.
    pub async fn cancel(&self, job_id: Uuid, kind: CancelKind) -> Result<(), String> {
        let (noted, wait) = oneshot::channel();
        self.send(SchedulerCommand::Cancel { job_id, kind, noted }).await;
        self.audit_cancels(wait).await
    }

    /// Cancels every step that runs, because the runner is being stopped.
    pub async fn cancel_all(&self, kind: CancelKind) {
        let (noted, wait) = oneshot::channel();
        self.send(SchedulerCommand::CancelAll { kind, noted }).await;
        // What could not be noted was said; there is nobody to answer to.
        let _ = self.audit_cancels(wait).await;
    }

    async fn audit_cancels(&self, noted: oneshot::Receiver<Noted>) -> Result<(), String> {
        // The loop drops the sender only when it ends, and then nobody knows what was noted: the next start does it all.
        let Ok(Noted { meant, problem }) = noted.await else {
            return Err("the runner is stopping".to_owned());
        };
        for step in meant {
            self.audit.cancelled(&step).await;
        }
        problem.map_or(Ok(()), Err)
    }

    /// Starts nothing any more. What waits stays in its folder for the next start. When this returns, the [load](Self::load)
    /// tells of everything that was started before.
    pub async fn drain(&self) {
        let (drained, wait) = oneshot::channel();
        self.send(SchedulerCommand::Drain(drained)).await;
        // A loop that has ended starts nothing either.
        let _ = wait.await;
    }

    pub fn load(&self) -> watch::Receiver<Load> {
        self.load.clone()
    }

    /// Returns when no step runs any more.
    pub async fn idle(&self) {
        let mut load = self.load.clone();
        let _ = load.wait_for(|load| load.running == 0).await;
    }

    async fn send(&self, command: SchedulerCommand) {
        if self.commands.send(command).await.is_err() {
            debug!("the scheduler has stopped; what was accepted stays in its folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_cancel_that_comes_when_the_scheduler_has_stopped_is_not_called_noted() {
        let settings = json!({
            "Runner": {
                "Id": Uuid::from_u128(1), "OrganizationId": Uuid::from_u128(2), "Instance": "test",
                "Credentials": {"ClientId": "id", "ClientSecret": "hush"},
            },
            "Server": {"Url": "http://localhost:1/"},
        });
        let settings: crate::settings::Settings = serde_json::from_value(settings).unwrap();
        let (commands, _) = mpsc::channel(1);
        let (_, load) = watch::channel(Load::default());
        let (policy, audit) = (Arc::new(Policy::new(&settings)), Audit::new(&settings));
        let scheduler = Scheduler { commands, load, policy, audit };
        scheduler.cancel(Uuid::from_u128(3), CancelKind::Graceful).await.unwrap_err();
    }
}
