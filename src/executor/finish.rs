//! Ends a step: an audit line, `outcome.json`, a log event, and a notice to the shipper.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_contract::{Fault, Outcome, StepOutcome};
use tracing::field::display;
use tracing::{debug, error, info, warn};

use super::wait::script_ended;
use super::{Executor, on_disk};
use crate::base::blocking::blocking;
use crate::base::retry::Delays;
use crate::masking::JobSecrets;
use crate::settings::Refusal;
use crate::step::{FolderError, Scratch, Step, StepFolder, StepWork, Stream};
use crate::tasks::secrets::watch;

impl Executor {
    /// Ends a step. The audit line comes first: once the outcome is on disk, the step may be shipped and removed at any
    /// moment.
    pub(crate) async fn finish(&self, step: &Step, outcome: Outcome, secrets: &JobSecrets, since: Instant) {
        let scratch = Scratch::of(&self.settings.working_directory.temp_directory, &step.folder);
        // May take a while. A panic in it must not cost the outcome.
        let _ = blocking(move || scratch.remove_or_warn()).await;
        let outcome = step.work.ended(outcome);
        self.audit.finished(step, &outcome).await;
        self.record(step, outcome, secrets, since).await;
    }

    /// Masks and writes the outcome, retrying until the disk accepts it, and notifies the shipper. Gives up only when the
    /// folder itself is gone.
    async fn record(&self, step: &Step, outcome: StepOutcome, secrets: &JobSecrets, since: Instant) {
        let outcome = secrets.masker().outcome(outcome);
        let mut delays = Delays::outcome();
        let mut attempt = 0_u32;
        loop {
            attempt += 1;
            let (folder, written) = (step.folder.clone(), outcome.clone());
            let writing = move || folder.set_outcome(&written).map_err(|error| (error, folder.is_gone()));
            match blocking(writing).await {
                Ok(Ok(())) => break,
                Ok(Err((error, true))) => {
                    let outcome = outcome.kind();
                    error!(step = step.name(), %outcome, %error, "step folder disappeared, outcome dropped");
                    return;
                }
                Ok(Err((error, false))) if attempt == 1 => {
                    error!(step = step.name(), %error, "failed to write outcome, retrying");
                }
                Ok(Err((error, false))) => {
                    debug!(step = step.name(), %error, attempt, "failed to write outcome, retrying");
                }
                Err(error) => {
                    warn!(step = step.name(), %error, "outcome not written, runner is stopping");
                    return;
                }
            }
            delays.wait().await;
        }
        log_finished(step, &outcome, since);
        self.shipper.concluded(&step.folder).await;
    }

    /// Ends a step that the policy refuses, without running any of it.
    pub(crate) async fn refuse(&self, step: &Step, refusal: &Refusal) {
        let since = Instant::now();
        let message = refusal.to_string();
        let Self { secret_store, settings, engines, .. } = self;
        let secrets = watch::learn_of_refused(secret_store, settings, engines, step).await;
        self.audit.refused(step, refusal).await;
        if matches!(step.work, StepWork::Task(_)) {
            let (folder, line) = (step.folder.clone(), message.clone());
            let logged = blocking(move || -> Result<(), FolderError> {
                let written = folder.writer()?.say(Stream::Error, &line);
                written.map_err(FolderError::io("write", &folder.output_path()))
            });
            if let Ok(Err(error)) = logged.await {
                warn!(step = step.name(), %error, "failed to write to job log");
            }
        }
        let outcome = step.work.ended(Outcome::Faulted(Fault::new(message)));
        self.record(step, outcome, &secrets, since).await;
    }

    /// Removes a step whose claim the server has refused. It gets no outcome, because another runner may be running the task.
    pub(crate) async fn withdraw(&self, step: &Step, reason: &str) {
        let (module, job, task) = (step.work.module(), step.job_id().map(display), step.work.name());
        warn!(module, job, task, step = step.name(), reason, "claim refused, task not run");
        // The shipper notices that the folder is gone.
        let (store, folder) = (Arc::clone(&self.store), step.folder.clone());
        match on_disk(move || store.retire(&folder)).await {
            Ok(path) => {
                let folder = StepFolder::at(&path);
                self.audit.not_claimed(&Step { folder, work: step.work.clone() }).await;
                let store = Arc::clone(&self.store);
                let _ = blocking(move || store.discard(&path)).await;
            }
            Err(error) => {
                error!(
                    step = step.name(),
                    error, "failed to remove step folder, the next start claims the task again"
                );
                self.audit.not_claimed(step).await;
            }
        }
    }

    /// Ends a step after a panic in the executor, so that the server still gets an outcome.
    pub(crate) async fn internal_error(&self, step: &Step, since: Instant) {
        // A step has no outcome while its script runs.
        if let Err(error) = script_ended(&step.folder).await {
            warn!(step = step.name(), %error, "failed to check whether the script still runs");
        }
        let mut message = "the runner failed while it ran this task; see the runner's log".to_owned();
        if !matches!(step.folder.supervisor(), Ok(None)) {
            message.push_str(". The script may have run: check what it changed before the next run");
        }
        let secrets = self.secret_store.job(step.job_id());
        self.finish(step, Outcome::Faulted(Fault::new(message)), &secrets, since).await;
    }
}

/// `outcome` has been masked: its first line is in the event.
fn log_finished(step: &Step, outcome: &StepOutcome, since: Instant) {
    let (module, job, task) = (step.work.module(), step.job_id().map(display), step.work.name());
    let duration = Duration::from_millis(since.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
    let (step, kind) = (step.name_without_job(), outcome.kind());
    if let Outcome::Faulted(fault) = &outcome.outcome {
        let reason = fault.message.lines().next().unwrap_or_default();
        warn!(module, job, task, step, outcome = %kind, ?duration, reason, "task finished");
    } else {
        info!(module, job, task, step, outcome = %kind, ?duration, "task finished");
    }
}
