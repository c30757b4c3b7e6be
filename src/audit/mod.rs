//! The audit log: one line of JSON for every task that is accepted, refused, cancelled or finished.
//!
//! The step folder is the truth here too. A line is written first and noted in the folder then (`audited.json`), and the
//! `finished` line comes before the outcome is kept and so before anyone is told. So a crash at any moment loses no
//! line: the next start looks at each folder and writes what is not noted. In the worst case, a crash between a line
//! and its note, there are two of them.
//!
//! | event | written |
//! |---|---|
//! | `accepted` | when the task has been judged and gets its place in the queue |
//! | `refused` | when a rule of `Policy` says no, before that or (registries, submodules) on the way; when a push cannot be read or kept |
//! | `cancelled` | when a cancel was noted for it, not yet obeyed: by the server, or (`reason`) by a runner that is being stopped |
//! | `finished` | when its outcome is known; a task that was refused before it was accepted has none |
//!
//! No line holds anything secret: names, hashes and masked URLs only, and no text of an engine or a fault.
//!
//! What cannot be written is an error in the runtime log that says so, and the task goes on: an auditor's full disk must
//! not keep an apply from being finished. It is tried again at the next start while the step is not shipped.

mod file;
mod line;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_contract::{Call, Task};
use tracing::error;
use uuid::Uuid;

use crate::settings::{Refusal, Settings};
use crate::step::{Audited, Step, StepFolder};
use file::Appender;
use line::{AuditLine, AuditSource};

/// The audit log of a runner. Cheap to clone; every clone is the same log.
#[derive(Debug, Clone)]
pub struct Audit(Arc<AuditInner>);

#[derive(Debug)]
struct AuditInner {
    writer: AuditSource,
    file: Mutex<Appender>,
}

impl Audit {
    pub fn new(settings: &Settings) -> Self {
        let writer = AuditSource { runner: settings.runner.id, instance: settings.runner.instance.clone() };
        Self(Arc::new(AuditInner { writer, file: Mutex::new(Appender::new(path(settings))) }))
    }

    /// Opens the file, so that one that cannot be used is known at the start and not at the first task.
    pub async fn open(&self) {
        self.blocking(|inner| {
            let mut file = inner.lock();
            if let Err(problem) = file.open() {
                error!(
                    "the audit log {} cannot be opened, and nothing will be recorded while that is so: {problem}; \
                     see Audit.File",
                    file.path().display()
                );
            }
        })
        .await;
    }

    /// The step has its place in the queue. Of one that an earlier process accepted, what is missing is written.
    pub async fn accepted(&self, step: &Step) {
        let step = step.clone();
        self.blocking(move |inner| {
            let mut file = inner.lock();
            let mut seen = audited(&step.folder);
            // It was refused, a crash came before anyone was told, and by the settings of today it is done after all.
            if seen.refused {
                (seen.refused, seen.accepted) = (false, false);
            }
            inner.write_missing(&step, &mut seen, &mut file);
        })
        .await;
    }

    /// The step is refused: before it was accepted, or on its way.
    pub async fn refused(&self, step: &Step, refusal: &Refusal) {
        let (step, refusal) = (step.clone(), refusal.clone());
        self.blocking(move |inner| {
            let mut file = inner.lock();
            let mut audited = audited(&step.folder);
            if !audited.refused {
                let line = AuditLine::of(&step, "refused", &inner.writer).refused(&refusal);
                audited.refused = file.record(&line);
                note(&step.folder, &audited);
            }
        })
        .await;
    }

    /// A cancel was noted in the step's folder.
    pub async fn cancelled(&self, step: &Step) {
        let step = step.clone();
        self.blocking(move |inner| {
            // Whoever finished it meanwhile has seen the cancel too.
            if step.folder.path().exists() {
                inner.catch_up(&step);
            }
        })
        .await;
    }

    /// The step has ended, and this call will tell of it.
    pub async fn finished(&self, step: &Step, call: &Call) {
        let (step, call) = (step.clone(), call.clone());
        self.blocking(move |inner| inner.finish(&step, &call)).await;
    }

    /// A step that was found with its outcome: writes what is missing of it.
    pub async fn found_finished(&self, step: &Step) {
        let step = step.clone();
        self.blocking(move |inner| {
            let seen = audited(&step.folder);
            let refused_at_once = seen.refused && !seen.accepted;
            if let Ok(Some(call)) = step.folder.outcome()
                && !refused_at_once
            {
                inner.finish(&step, &call);
            }
        })
        .await;
    }

    /// A push that cannot be taken: it is unreadable, or the disk is full.
    pub async fn not_taken(&self, job_id: Uuid, task: Option<Task>, reason: &'static str) {
        self.blocking(move |inner| {
            let line = AuditLine::without_request("refused", job_id, task, &inner.writer);
            inner.lock().record(&line.reason(reason));
        })
        .await;
    }

    /// A step whose folder was damaged: nobody knows what came of it.
    pub async fn lost(&self, job_id: Uuid, task: Task, reason: &'static str) {
        self.blocking(move |inner| {
            let line = AuditLine::without_request("finished", job_id, Some(task), &inner.writer);
            inner.lock().record(&line.unknown().reason(reason));
        })
        .await;
    }

    /// The disk may take its time, so nothing of this is done on a thread of the runtime. A thread that fails has
    /// said so itself.
    async fn blocking(&self, work: impl FnOnce(&AuditInner) + Send + 'static) {
        let inner = Arc::clone(&self.0);
        let _ = tokio::task::spawn_blocking(move || work(&inner)).await;
    }
}

impl AuditInner {
    /// One at a time: what is noted in a folder is read and written under this lock.
    fn lock(&self) -> std::sync::MutexGuard<'_, Appender> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn catch_up(&self, step: &Step) {
        let mut file = self.lock();
        let mut audited = audited(&step.folder);
        self.write_missing(step, &mut audited, &mut file);
    }

    fn finish(&self, step: &Step, call: &Call) {
        let mut file = self.lock();
        let mut audited = audited(&step.folder);
        self.write_missing(step, &mut audited, &mut file);
        // A conclusion that was repeated after a crash may have come to another end than the one that is noted.
        if audited.finished.as_deref() == Some(&call.method) {
            return;
        }
        let line = AuditLine::of(step, "finished", &self.writer).finished(&step.folder, call);
        if file.record(&line) {
            audited.finished = Some(call.method.clone());
            note(&step.folder, &audited);
        }
    }

    /// That it was accepted, and that a cancel is in the folder.
    fn write_missing(&self, step: &Step, audited: &mut Audited, file: &mut Appender) {
        if !audited.accepted && file.record(&AuditLine::of(step, "accepted", &self.writer)) {
            audited.accepted = true;
            note(&step.folder, audited);
        }
        if let Ok(Some(cancel)) = step.folder.cancel()
            && audited.cancelled != Some(cancel.kind)
            && file.record(&AuditLine::of(step, "cancelled", &self.writer).cancelled(&cancel))
        {
            audited.cancelled = Some(cancel.kind);
            note(&step.folder, audited);
        }
    }
}

impl Appender {
    /// False when it could not be written, which is said.
    fn record(&mut self, line: &AuditLine<'_>) -> bool {
        let written = line.text().and_then(|text| self.append(text.as_bytes()));
        if let Err(problem) = &written {
            error!(
                "the audit log {} does not have it that {}: {problem}",
                self.path().display(),
                line.in_words()
            );
        }
        written.is_ok()
    }
}

/// A note that cannot be read counts as none: a line twice is better than none.
fn audited(folder: &StepFolder) -> Audited {
    folder.audited().ok().flatten().unwrap_or_default()
}

fn note(folder: &StepFolder, audited: &Audited) {
    if let Err(problem) = folder.set_audited(audited) {
        tracing::warn!(step = folder.name(), "a line of the audit log may come twice: {problem}");
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
