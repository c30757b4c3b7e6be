//! The audit log: one line of JSON for every task that is accepted, refused, cancelled, or finished, and for every command that
//! a user runs in a module.
//!
//! An event is first written to the log and then recorded in the step folder (`audited.json`). `finished` is written before
//! the outcome is saved, and so before the server learns about it. A crash at any moment loses no event: the next start reads
//! each folder and writes the missing ones. A crash between the two writes produces the same event twice.
//!
//! | event | written |
//! |---|---|
//! | `accepted` | when the policy allows the task, before it enters the queue |
//! | `refused` | when a rule of `Policy` refuses the task, at once or (registries, submodules) while it runs; when a push cannot be parsed or stored |
//! | `cancelled` | when a cancel is recorded in the step folder: from the server, or (`reason`) from a runner that shuts down |
//! | `finished` | when the outcome is known, except for a task that was refused before it was accepted; when the server refuses the claim (`notRun`) |
//! | `exec` | when a user runs a command in a module (`hawser exec`, `hawser shell`), before it starts |
//!
//! The log contains no secrets: only names, hashes, and masked URLs, and no text of an engine or a fault.
//!
//! If an event cannot be written, the runtime log has an error and the task continues: a full disk under the audit log must
//! not block an apply. The next start tries again if the step folder still exists.

mod event;
mod file;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_contract::{EngineName, StepOutcome, Task};
use tracing::{error, field, warn};
use uuid::Uuid;

use crate::base::blocking::blocking;
use crate::settings::{Refusal, Settings};
use crate::step::{Audited, Step, StepFolder};
use event::{AuditEvent, EventKind};
use file::Appender;

#[derive(Debug, thiserror::Error)]
#[error("failed to write audit event to {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// The audit log of a runner. Cheap to clone; every clone is the same log.
#[derive(Debug, Clone)]
pub struct Audit(Arc<Mutex<AuditLog>>);

/// The lock around it also guards `audited.json` of every step.
#[derive(Debug)]
struct AuditLog {
    runner: Uuid,
    instance: String,
    file: Appender,
}

impl Audit {
    pub fn new(settings: &Settings) -> Self {
        Self(Arc::new(Mutex::new(AuditLog {
            runner: settings.runner.id,
            instance: settings.runner.instance.clone(),
            file: Appender::new(path(settings)),
        })))
    }

    /// Opens the file, so that a problem with it shows at start and not at the first task.
    pub async fn open(&self) {
        self.blocking(|log| {
            if let Err(error) = log.file.open() {
                error!(path = %log.file.path().display(), %error, "failed to open audit log, see Audit.File");
            }
        })
        .await;
    }

    /// The step enters the queue. For a step of an earlier process, this writes the missing events.
    pub async fn accepted(&self, step: &Step) {
        self.on_step(step, |log, step, mut audited| {
            // It was refused before a crash, and the current settings allow it.
            if audited.refused {
                (audited.refused, audited.accepted) = (false, false);
            }
            log.write_missing(step, &mut audited);
        })
        .await;
    }

    /// The step is refused, before or after it was accepted.
    pub async fn refused(&self, step: &Step, refusal: &Refusal) {
        let refusal = refusal.clone();
        self.on_step(step, move |log, step, mut audited| {
            if !audited.refused {
                audited.refused = log.write(AuditEvent::of(EventKind::Refused, step).refused(&refusal));
                save(&step.folder, &audited);
            }
        })
        .await;
    }

    /// A cancel was recorded in the step folder.
    pub async fn cancelled(&self, step: &Step) {
        self.on_step(step, |log, step, mut audited| {
            // If the folder is gone, `finished` has already written the cancel.
            if step.folder.path().exists() {
                log.write_missing(step, &mut audited);
            }
        })
        .await;
    }

    /// The step ended with this outcome.
    pub async fn finished(&self, step: &Step, outcome: &StepOutcome) {
        let outcome = outcome.clone();
        self.on_step(step, move |log, step, audited| log.finish(step, audited, &outcome)).await;
    }

    /// Writes the missing events of a step that already had its outcome at start.
    pub async fn found_finished(&self, step: &Step) {
        self.on_step(step, |log, step, audited| {
            let never_accepted = audited.refused && !audited.accepted;
            if let Ok(Some(outcome)) = step.folder.outcome()
                && !never_accepted
            {
                log.finish(step, audited, &outcome);
            }
        })
        .await;
    }

    /// A push cannot be parsed or stored.
    pub async fn not_taken(&self, job_id: Uuid, task: Option<Task>, reason: &'static str) {
        let event = AuditEvent::new(EventKind::Refused, job_id, task).with("reason", reason);
        self.blocking(|log| _ = log.write(event)).await;
    }

    /// The server has refused the claim of a step, which was not run.
    pub async fn not_claimed(&self, step: &Step) {
        self.on_step(step, |log, step, mut audited| {
            log.write_missing(step, &mut audited);
            let event = AuditEvent::of(EventKind::Finished, step).with("result", "notRun");
            log.write(event.with("reason", "the server refused the claim"));
        })
        .await;
    }

    /// The folder of a step is damaged, so its outcome is unknown.
    pub async fn lost(&self, job_id: Uuid, task: Task, reason: &'static str) {
        let event = AuditEvent::new(EventKind::Finished, job_id, Some(task));
        let event = event.with("result", "unknown").with("reason", reason);
        self.blocking(|log| _ = log.write(event)).await;
    }

    /// A user is about to run a command in a module.
    pub fn exec(&self, module: &str, engine: &EngineName, command: &[String]) -> Result<(), AuditError> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let event = log.sign(AuditEvent::exec(module, engine, command));
        log.append(&event).map_err(|source| AuditError { path: log.file.path().to_owned(), source })
    }

    /// Runs `work` with the events that are recorded in the step folder. An unreadable file counts as absent: a duplicate event
    /// is better than a missing one.
    async fn on_step(&self, step: &Step, work: impl FnOnce(&mut AuditLog, &Step, Audited) + Send + 'static) {
        let step = step.clone();
        self.blocking(move |log| {
            let audited = step.folder.audited().ok().flatten().unwrap_or_default();
            work(log, &step, audited);
        })
        .await;
    }

    /// A panic in `work` is already in the runtime log.
    async fn blocking(&self, work: impl FnOnce(&mut AuditLog) + Send + 'static) {
        let log = Arc::clone(&self.0);
        let locked = move || {
            let mut log: MutexGuard<'_, AuditLog> = log.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut log);
        };
        let _ = blocking(locked).await;
    }
}

impl AuditLog {
    fn finish(&mut self, step: &Step, mut audited: Audited, outcome: &StepOutcome) {
        self.write_missing(step, &mut audited);
        // After a crash, a repeated conclusion may have another result than the recorded one.
        let method = outcome.method();
        if audited.finished.as_deref() == Some(&method) {
            return;
        }
        if self.write(AuditEvent::of(EventKind::Finished, step).finished(&step.folder, outcome)) {
            audited.finished = Some(method);
            save(&step.folder, &audited);
        }
    }

    /// Writes `accepted`, and `cancelled` if a cancel is in the folder.
    fn write_missing(&mut self, step: &Step, audited: &mut Audited) {
        if !audited.accepted && self.write(AuditEvent::of(EventKind::Accepted, step)) {
            audited.accepted = true;
            save(&step.folder, audited);
        }
        if let Ok(Some(cancel)) = step.folder.cancel()
            && audited.cancelled != Some(cancel.kind)
            && self.write(AuditEvent::of(EventKind::Cancelled, step).cancelled(&cancel))
        {
            audited.cancelled = Some(cancel.kind);
            save(&step.folder, audited);
        }
    }

    /// Returns whether the event was written; a failure is logged.
    fn write(&mut self, event: AuditEvent) -> bool {
        let event = self.sign(event);
        let written = self.append(&event);
        if let Err(error) = &written {
            error!(
                path = %self.file.path().display(),
                event = ?event.kind,
                job = event.text("jobId").map(field::display),
                task = event.text("task").map(field::display),
                %error,
                "failed to write audit event"
            );
        }
        written.is_ok()
    }

    /// Adds who writes the event. Commands of users may not know it.
    fn sign(&self, event: AuditEvent) -> AuditEvent {
        let runner = (!self.runner.is_nil()).then(|| self.runner.to_string());
        let instance = (!self.instance.is_empty()).then_some(self.instance.as_str());
        event.with("runner", runner).with("instance", instance)
    }

    fn append(&mut self, event: &AuditEvent) -> io::Result<()> {
        self.file.append(&serde_json::to_vec(event)?)
    }
}

fn save(folder: &StepFolder, audited: &Audited) {
    if let Err(error) = folder.set_audited(audited) {
        warn!(step = folder.name(), %error, "failed to record audit event in step folder, it may be written twice");
    }
}

fn path(settings: &Settings) -> PathBuf {
    settings
        .audit
        .file
        .clone()
        .unwrap_or_else(|| settings.working_directory.working_directory.join(".hawser").join("audit.jsonl"))
}

#[cfg(test)]
mod tests;
