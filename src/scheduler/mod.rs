//! Decides when a step starts, and owns it until it ends.
//!
//! The path of a step:
//!
//! ```text
//! Scheduler (this file) ─→ admit ─→ dispatch ⇄ queue (slots, lanes, module directories)
//!                          policy      └─→ executor, one tokio task per step: claim, prepare, run, conclude
//!                                            └─→ executor/finish: outcome.json ─→ shipping
//! ```
//!
//! A waiting step is not claimed, so that among several replicas a free one wins the broadcast.

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
use crate::engines::Engines;
use crate::executor::ExecutorContext;
use crate::policy::Policy;
use crate::step::{RecoveryPhase, Step};
use dispatch::{CancelledSteps, Dispatch, SchedulerCommand};

/// The number of running and waiting steps.
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
    engines: Engines,
    audit: Audit,
}

impl Scheduler {
    /// Starts the loop. It ends when `stop` is cancelled; supervised scripts continue.
    pub fn start(context: ExecutorContext, stop: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        let (commands, received) = mpsc::channel(64);
        let (load, load_receiver) = watch::channel(Load::default());
        let (policy, audit) = (Arc::clone(&context.policy), context.audit.clone());
        let engines = context.engines.clone();
        let task = tokio::spawn(Dispatch::new(context, load).run(received, stop));
        (Self { commands, load: load_receiver, policy, engines, audit }, task)
    }

    /// Queues a new step, if the policy allows it.
    pub async fn submit(&self, step: Step) {
        if let Some(step) = self.admit(step).await {
            self.send(SchedulerCommand::Submit(Box::new(step))).await;
        }
    }

    /// Takes over a step of an earlier process. The policy is checked again for an unstarted step: the settings may
    /// have changed.
    pub async fn adopt(&self, step: Step, phase: RecoveryPhase) {
        let step = if phase == RecoveryPhase::Prepare {
            self.admit(step).await
        } else {
            self.audit.accepted(&step).await;
            Some(step)
        };
        if let Some(step) = step {
            self.send(SchedulerCommand::Adopt(Box::new(step), phase)).await;
        }
    }

    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Reports a running step again, because its task was pushed again.
    pub async fn report_again(&self, name: String) {
        self.send(SchedulerCommand::ReportAgain(name)).await;
    }

    /// Cancels every step of a job. Returns once the cancel is recorded in their folders, from where it reaches running
    /// scripts, or the error if one of them could not be written.
    pub async fn cancel(&self, job_id: Uuid, kind: CancelKind) -> Result<(), String> {
        let (done, wait) = oneshot::channel();
        self.send(SchedulerCommand::Cancel { job_id, kind, done }).await;
        self.audit_cancels(wait).await
    }

    /// Cancels every running step at the drain limit.
    pub async fn cancel_all(&self, kind: CancelKind) {
        let (done, wait) = oneshot::channel();
        self.send(SchedulerCommand::CancelAll { kind, done }).await;
        // Errors were logged.
        let _ = self.audit_cancels(wait).await;
    }

    async fn audit_cancels(&self, done: oneshot::Receiver<CancelledSteps>) -> Result<(), String> {
        // The loop drops the sender only when it ends; the next start repeats the cancel.
        let Ok(CancelledSteps { steps, error }) = done.await else {
            return Err("the runner is stopping".to_owned());
        };
        for step in steps {
            self.audit.cancelled(&step).await;
        }
        error.map_or(Ok(()), Err)
    }

    /// Starts no more steps. Waiting steps stay in their folders for the next start. When this returns, the
    /// [load](Self::load) counts every step that was started before.
    pub async fn drain(&self) {
        let (drained, wait) = oneshot::channel();
        self.send(SchedulerCommand::Drain(drained)).await;
        // Fails only if the loop has ended.
        let _ = wait.await;
    }

    pub fn load(&self) -> watch::Receiver<Load> {
        self.load.clone()
    }

    /// Waits until no step is running.
    pub async fn idle(&self) {
        let mut load = self.load.clone();
        let _ = load.wait_for(|load| load.running == 0).await;
    }

    async fn send(&self, command: SchedulerCommand) {
        if self.commands.send(command).await.is_err() {
            debug!("scheduler stopped, step stays in its folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_cancel_after_the_scheduler_stopped_is_an_error() {
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
        let scheduler = Scheduler { commands, load, policy, engines: Engines::default(), audit };
        scheduler.cancel(Uuid::from_u128(3), CancelKind::Graceful).await.unwrap_err();
    }
}
