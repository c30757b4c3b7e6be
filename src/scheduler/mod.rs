//! Decides when a step starts, and owns it until it ends.
//!
//! The path of a step:
//!
//! ```text
//! Scheduler (this file: policy) ─→ dispatch ⇄ queue (slots, lanes, module directories)
//!                                     └─→ executor, one tokio task per step: claim, prepare, run, conclude
//!                                           └─→ executor/finish: outcome.json ─→ shipping
//! ```
//!
//! A waiting step is not claimed, so that among several replicas a free one wins the broadcast.

mod dispatch;
mod queue;

use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use crate::base::blocking::blocking;
use crate::executor::Executor;
use crate::settings::Refusal;
use crate::step::{RecoveryPhase, Step, StepWork};
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
    executor: Arc<Executor>,
}

impl Scheduler {
    /// Starts the loop. It ends when `stop` is cancelled; supervised scripts continue.
    pub fn start(executor: Arc<Executor>, stop: CancellationToken) -> (Self, JoinHandle<()>) {
        let (commands, received) = mpsc::channel(64);
        let (sender, load) = watch::channel(Load::default());
        let task = tokio::spawn(Dispatch::new(Arc::clone(&executor), sender).run(received, stop));
        (Self { commands, load, executor }, task)
    }

    /// Queues a new step, or continues a step of an earlier process. The policy is checked for every step that was not
    /// started, because the settings may have changed. A refused step is not queued and not claimed.
    pub async fn submit(&self, step: Step, phase: RecoveryPhase) {
        if phase == RecoveryPhase::Prepare
            && let Err(refusal) = self.check_policy(&step).await
        {
            return self.send(SchedulerCommand::Refuse(Box::new(step), refusal)).await;
        }
        self.executor.audit.accepted(&step).await;
        self.send(SchedulerCommand::Submit(Box::new(step), phase)).await;
    }

    async fn check_policy(&self, step: &Step) -> Result<(), Refusal> {
        let (executor, work) = (Arc::clone(&self.executor), step.work.clone());
        // Blocking: pre-approved hooks are files.
        let checked = blocking(move || match &work {
            StepWork::Task(request) => executor.policy.check(request, &executor.engines),
            StepWork::Refresh(refresh) => executor.policy.check_refresh(refresh),
        });
        // A step that could not be checked does not run.
        checked.await.unwrap_or_else(|error| Err(Refusal::failed(&error)))
    }

    /// Claims a step or reports it as running at once, because its task was pushed again. False if the step is neither
    /// waiting nor running: it has its outcome, or it was withdrawn a moment ago.
    pub async fn report_again(&self, name: String) -> bool {
        let (known, wait) = oneshot::channel();
        self.send(SchedulerCommand::ReportAgain(name, known)).await;
        wait.await.unwrap_or(true)
    }

    /// Cancels every step of a job, or every running step if the drain has timed out. Returns once the cancel is recorded in
    /// their folders, from where it reaches running scripts, or the error if one of them could not be written.
    pub async fn cancel(&self, job: Option<Uuid>, kind: CancelKind) -> Result<(), String> {
        let (done, wait) = oneshot::channel();
        self.send(SchedulerCommand::Cancel { job, kind, done }).await;
        // The loop drops the sender only when it ends; the next start repeats the cancel.
        let Ok(CancelledSteps { steps, error }) = wait.await else {
            return Err("the runner is stopping".to_owned());
        };
        for step in steps {
            self.executor.audit.cancelled(&step).await;
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
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::audit::Audit;
    use crate::engines::Engines;
    use crate::masking::{Rules, SecretStore};
    use crate::policy::Policy;
    use crate::settings::Settings;
    use crate::shipping::Shipper;
    use crate::step::StepStore;

    /// An executor with one slot, without a connection.
    pub(super) fn executor(directory: &Path, stop: CancellationToken) -> Executor {
        let settings = json!({
            "Runner": {
                "Id": Uuid::from_u128(1), "OrganizationId": Uuid::from_u128(2), "Instance": "test",
                "Credentials": {"ClientId": "id", "ClientSecret": "hush"}, "MaxConcurrentSteps": 1,
            },
            "Server": {"Url": "http://localhost:1/"},
            "WorkingDirectory": {"WorkingDirectory": directory, "TempDirectory": directory.join("temp")},
        });
        let settings: Arc<Settings> = Arc::new(serde_json::from_value(settings).unwrap());
        let store = Arc::new(StepStore::open(directory, Uuid::nil(), "test").unwrap());
        let secret_store = SecretStore::new(Rules::new(&settings.job_log_stream).unwrap());
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (hub, _driver) = hawser_signalr::client::channel();
        let log = &settings.job_log_stream;
        let shipper = Shipper::start(hub.clone(), Arc::clone(&store), log, 4096, secret_store.clone(), stop);
        Executor {
            engines: Engines::default(),
            secret_store,
            hub,
            store,
            shipper,
            http: reqwest::Client::new(),
            supervisor: "hawser".into(),
            audit: Audit::new(&settings),
            policy: Arc::new(Policy::new(&settings)),
            settings,
        }
    }

    #[tokio::test]
    async fn a_cancel_after_the_scheduler_stopped_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let executor = executor(directory.path(), stop.clone());
        let (scheduler, task) = Scheduler::start(Arc::new(executor), stop);
        task.await.unwrap();
        scheduler.cancel(Some(Uuid::from_u128(3)), CancelKind::Graceful).await.unwrap_err();
    }
}
