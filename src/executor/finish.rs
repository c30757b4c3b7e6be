//! How a step gets its outcome: an audit line, `outcome.json`, and a word to the shipper.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use hawser_contract::{Call, Fault, Outcome};
use tracing::{error, info, warn};

use super::drive::Executor;
use super::wait::script_ended;
use crate::settings::Refusal;
use crate::step::{FolderError, Scratch, Step, StepWork, Stream};
use crate::tasks::secrets::watch;

impl Executor {
    /// Ends a step in one of the ways that a task can end.
    pub(crate) async fn conclude_with(&self, step: &Step, outcome: &Outcome) {
        self.clear_scratch(step).await;
        self.finish(step, step.call(outcome)).await;
    }

    /// The audit log first: when the outcome is on the disk the step may be shipped and gone at any moment.
    pub(crate) async fn finish(&self, step: &Step, call: Call) {
        self.tools.audit.finished(step, &call).await;
        self.keep(step, call).await;
    }

    /// Writes the outcome, however long the disk takes to accept it, and tells the shipper. Every fault passes here. Only
    /// where the folder itself is gone there is nothing to write it into, nor will there be.
    async fn keep(&self, step: &Step, call: Call) {
        let call = self.tools.secret_store.job(step.job_id()).masker().call(call);
        let mut delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(30))
            .without_max_times()
            .with_jitter()
            .build();
        let mut said = false;
        loop {
            let (folder, kept) = (step.folder.clone(), call.clone());
            let writing = move || folder.set_outcome(&kept).map_err(|problem| (problem, folder.is_gone()));
            match tokio::task::spawn_blocking(writing).await {
                Ok(Ok(())) => break,
                Ok(Err((problem, true))) => {
                    error!(
                        step = step.name(),
                        "the step's folder is gone: the server is not told of its end ({}): {problem}",
                        call.method
                    );
                    return;
                }
                Ok(Err((problem, false))) if !said => {
                    error!(step = step.name(), "the outcome cannot be kept and is tried again: {problem}");
                    said = true;
                }
                Ok(Err(_)) => {}
                Err(stopped) => {
                    warn!(step = step.name(), "the outcome was not kept, the runner is stopping: {stopped}");
                    return;
                }
            }
            tokio::time::sleep(delays.next().unwrap_or(Duration::from_secs(30))).await;
        }
        info!(step = step.name(), "ended: {}", call.method);
        self.tools.shipper.concluded(&step.folder).await;
    }

    /// Ends a step that the settings do not allow, with nothing done but this.
    pub(crate) async fn refuse(&self, step: &Step, refusal: &Refusal) {
        let message = refusal.to_string();
        let _secrets = watch::learn_of_refused(&self.tools.secret_store, self.settings(), step).await;
        warn!(step = step.name(), "{message}");
        self.tools.audit.refused(step, refusal).await;
        if matches!(step.work, StepWork::Task(_)) {
            let (folder, line) = (step.folder.clone(), message.clone());
            let said = tokio::task::spawn_blocking(move || -> Result<(), FolderError> {
                let path = folder.output_path();
                let kept = folder.writer()?.say(Stream::Error, &line);
                kept.map_err(|source| FolderError::Io { action: "write", path, source })
            });
            if let Ok(Err(error)) = said.await {
                warn!(step = step.name(), "a line for the job's log could not be kept: {error}");
            }
        }
        self.keep(step, step.call(&Outcome::Faulted(Fault::new(message)))).await;
    }

    /// The driver itself broke: the server must still be told something.
    pub(crate) async fn internal_error(&self, step: &Step) {
        // Nothing is said to have ended while a script of it runs.
        if let Err(error) = script_ended(&step.folder).await {
            warn!(step = step.name(), "cannot tell whether a script still runs: {error}");
        }
        let mut message =
            "the runner failed while it worked on this task; its own log has the details".to_owned();
        if !matches!(step.folder.supervisor(), Ok(None)) {
            message.push_str(". Its script may have been run: check what it changed before the next run");
        }
        self.conclude_with(step, &Outcome::Faulted(Fault::new(message))).await;
    }

    /// Removes the step's scratch space: nothing of it runs any more.
    async fn clear_scratch(&self, step: &Step) {
        let scratch = Scratch::of(&self.settings().working_directory.temp_directory, &step.folder);
        // It may be large. A panic in it would be no reason to lose an outcome.
        let _ = tokio::task::spawn_blocking(move || scratch.remove_or_warn()).await;
    }
}
