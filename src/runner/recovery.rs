//! Goes on with every step that an earlier run of the program left behind.
//!
//! A step that cannot be looked at for the moment (no more open files, a disk that stumbles) is sound for all we know. It stays
//! among those that the [store](Store::left) remembers, and is looked at again and again while the runner runs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::intake::{self, Found, Step};
use crate::redact::Vault;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::shipping::ShipperHandle;
use crate::step::{CancelledBy, Folder, FolderError, Scratch, Stage, Store, StoreError};

/// Before what could not be looked at is looked at again.
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) store: Arc<Store>,
    pub(super) settings: Arc<Settings>,
    pub(super) vault: Vault,
    pub(super) scheduler: Scheduler,
    pub(super) shipper: ShipperHandle,
}

type Looked = (Folder, Result<(Stage, Found), FolderError>);

impl Recovery {
    pub(super) async fn at_start(&self) -> Result<(), StoreError> {
        let temp_directory = &self.settings.working_directory.temp_directory;
        if let Err(error) = Scratch::sweep(temp_directory, &self.store.steps()) {
            warn!("cannot look for what earlier steps left in {}: {error}", temp_directory.display());
        }
        let listed = self.store.list()?.into_iter().map(|(folder, _)| folder);
        // A cancel that is found is noted in the others too, if that can be done.
        let folders = listed.chain(self.store.left()).collect();
        for (folder, problem) in self.take_up(folders).await {
            warn!(step = folder.name(), "a step could not be looked at, and is tried again: {problem}");
        }
        Ok(())
    }

    /// Takes up what was left, as soon as that works.
    pub(super) async fn keep_trying(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_some() {
            let left = self.store.left();
            if left.is_empty() {
                // A step may have been set aside while the runner runs.
                self.tell_of_damaged().await;
                continue;
            }
            for (folder, problem) in self.take_up(left).await {
                debug!(step = folder.name(), "a step can still not be looked at: {problem}");
            }
        }
    }

    /// Returns what is left, and why.
    async fn take_up(&self, folders: Vec<Folder>) -> Vec<(Folder, String)> {
        let (mut steps, mut cancels, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut passed_on = Vec::new();
        for (folder, found) in self.look(folders).await {
            match found {
                Ok((_, Found::Answer(answer))) => {
                    drop(self.shipper.add(answer).await);
                    self.store.taken_up(&folder);
                }
                Ok((_, Found::Cancel { kind, job_id, answer })) => cancels.push((kind, job_id, answer)),
                Ok((stage, Found::Step(step))) => steps.push((stage, step)),
                Err(problem) if problem.is_damage() => {
                    self.store.set_aside(&folder, &problem.to_string());
                    self.store.taken_up(&folder);
                }
                // The machine is at fault, not the folder.
                Err(problem) => {
                    self.store.leave(&folder);
                    left.push((folder, problem.to_string()));
                }
            }
        }
        steps.sort_by_key(|(_, step)| step.sequence);
        // Before anyone takes up a step of the job.
        for (kind, job_id, answer) in cancels {
            info!(%job_id, ?kind, "cancel, left by an earlier run of this runner or not noted everywhere");
            let found =
                steps.iter().filter(|(stage, step)| *stage != Stage::Ship && step.job_id() == Some(job_id));
            let found = found.map(|(_, step)| &step.folder);
            let unseen =
                left.iter().map(|(folder, _)| folder).filter(|folder| intake::is_of_job(folder, job_id));
            let grace = Duration::from_secs(self.settings.runner.cancel_grace_seconds);
            let noted =
                found.chain(unseen).try_for_each(|folder| folder.cancel_as(kind, grace, CancelledBy::Server));
            passed_on.push((job_id, kind, answer, noted.map_err(|problem| problem.to_string())));
        }
        for (stage, step) in steps {
            self.go_on(stage, step).await;
        }
        // Those that wait need not wait for their turn to hear of it. It is answered when all have.
        for (job_id, kind, answer, noted) in passed_on {
            let passed_on = self.scheduler.cancel(job_id, kind).await;
            let done = noted.and(passed_on).and_then(|()| {
                let answered = answer.folder.set_outcome(&intake::cancel_answer(kind, job_id));
                answered.map_err(|problem| problem.to_string())
            });
            match done {
                Ok(()) => {
                    self.store.taken_up(&answer.folder);
                    drop(self.shipper.add(answer).await);
                }
                Err(problem) => {
                    self.store.leave(&answer.folder);
                    left.push((answer.folder, problem));
                }
            }
        }
        self.tell_of_damaged().await;
        left
    }

    async fn look(&self, folders: Vec<Folder>) -> Vec<Looked> {
        let (store, redactor) = (Arc::clone(&self.store), self.vault.redactor());
        let looking = move || {
            let look = |folder: &Folder| {
                let request = store.look(folder)?;
                folder.mend_shipped()?;
                Ok((folder.stage()?, intake::reread(folder.clone(), &request, &redactor)?))
            };
            folders.into_iter().map(|folder| (folder.clone(), look(&folder))).collect()
        };
        // A thread that fails has said so itself.
        tokio::task::spawn_blocking(looking).await.unwrap_or_default()
    }

    async fn go_on(&self, stage: Stage, step: Step) {
        info!(step = step.name(), ?stage, "left by an earlier run of this runner");
        let folder = step.folder.clone();
        if stage == Stage::Ship {
            // Before anyone may ship it: the folder is gone then.
            self.scheduler.audit().found_finished(&step).await;
        }
        self.shipper.add(step.shipped()).await;
        if stage != Stage::Ship {
            self.scheduler.adopt(step, stage).await;
        }
        // Not before the scheduler has it: a cancel finds it here or there.
        self.store.taken_up(&folder);
    }

    async fn tell_of_damaged(&self) {
        for name in self.store.take_set_aside() {
            match intake::answer_for_damaged(&self.store, &name) {
                Ok(Some(answer)) => {
                    if let Some((job_id, task)) = intake::identity(&name) {
                        let reason = "the record of the task was damaged";
                        self.scheduler.audit().lost(job_id, task, reason).await;
                    }
                    drop(self.shipper.add(answer).await);
                }
                Ok(None) => self.store.told(&name),
                Err(error) => warn!(step = name, "the server is not told of a damaged step: {error}"),
            }
        }
    }
}
