//! Goes on with every step that an earlier run of the program left behind.
//!
//! Everything here that the disk may take its time for is done beside the threads of the runtime, so that a signal is
//! heard though the disk hangs.
//!
//! A step that cannot be looked at for the moment (no more open files, a disk that stumbles) is sound for all we know. It stays
//! among those that the [store](StepStore::left) remembers, and is looked at again and again while the runner runs.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::RunnerError;
use crate::intake::{self, RecoveredStep};
use crate::masking::SecretStore;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::shipping::{ShippedStep, ShipperHandle};
use crate::step::{
    CancelledBy, FolderError, RecoveryPhase, Scratch, Step, StepFolder, StepStore, StoreError,
};
use crate::workspace::permissions;

/// Before what could not be looked at is looked at again.
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) store: Arc<StepStore>,
    pub(super) settings: Arc<Settings>,
    pub(super) secret_store: SecretStore,
    pub(super) scheduler: Scheduler,
    pub(super) shipper: ShipperHandle,
}

/// What was seen of a folder.
pub(super) type InspectedStep = (StepFolder, Result<(RecoveryPhase, RecoveredStep), FolderError>);

/// Opens the step folders of this instance and looks at each. Nothing is begun by that, and nobody told.
pub(super) async fn open(
    settings: &Arc<Settings>,
    secret_store: &SecretStore,
) -> Result<(Arc<StepStore>, Vec<InspectedStep>), RunnerError> {
    let of_thread = Arc::clone(settings);
    let opening = move || -> Result<_, StoreError> {
        let (places, runner) = (&of_thread.working_directory, &of_thread.runner);
        let narrowed = permissions::narrow(places);
        narrowed.done.iter().for_each(|line| info!("{line}"));
        narrowed.warnings.iter().for_each(|line| warn!("{line}"));
        let store = StepStore::open(&places.working_directory, runner.id, &runner.instance)?;
        store.abandoned_by_others().iter().for_each(|abandoned| warn!("{abandoned}"));
        if let Err(error) = Scratch::sweep(&places.temp_directory, &store.steps()) {
            warn!("cannot look for what earlier steps left in {}: {error}", places.temp_directory.display());
        }
        let listed = store.list()?.into_iter().map(|(folder, _)| folder);
        // A cancel that is found is noted in the others too, if that can be done.
        let folders = listed.chain(store.left()).collect();
        Ok((Arc::new(store), folders))
    };
    let opened = tokio::task::spawn_blocking(opening).await;
    let (store, folders) = opened.map_err(|_| RunnerError::Part("look at the step folders"))??;
    let looked = look(&store, secret_store, folders).await;
    Ok((store, looked))
}

impl Recovery {
    pub(super) async fn at_start(&self, found: Vec<InspectedStep>) {
        for (folder, problem) in self.take_up(found).await {
            warn!(step = folder.name(), "a step could not be looked at, and is tried again: {problem}");
        }
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
            let looked = look(&self.store, &self.secret_store, left).await;
            for (folder, problem) in self.take_up(looked).await {
                debug!(step = folder.name(), "a step can still not be looked at: {problem}");
            }
        }
    }

    /// Returns what is left, and why.
    async fn take_up(&self, looked: Vec<InspectedStep>) -> Vec<(StepFolder, String)> {
        let (mut steps, mut cancels, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut passed_on = Vec::new();
        for (folder, found) in looked {
            match found {
                Ok((_, RecoveredStep::Answer(answer))) => {
                    drop(self.shipper.add(answer).await);
                    self.store.taken_up(&folder);
                }
                Ok((_, RecoveredStep::Cancel { kind, job_id, answer })) => {
                    cancels.push((kind, job_id, answer));
                }
                Ok((stage, RecoveredStep::Step(step))) => steps.push((stage, step)),
                Err(problem) if problem.is_damage() => {
                    let (store, damaged) = (Arc::clone(&self.store), folder.clone());
                    match on_disk(move || store.set_aside(&damaged, &problem.to_string())).await {
                        Ok(()) => self.store.taken_up(&folder),
                        Err(problem) => {
                            self.store.leave(&folder);
                            left.push((folder, problem));
                        }
                    }
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
            let found = steps
                .iter()
                .filter(|(stage, step)| *stage != RecoveryPhase::Ship && step.job_id() == Some(job_id));
            let found = found.map(|(_, step)| &step.folder);
            let unseen =
                left.iter().map(|(folder, _)| folder).filter(|folder| intake::is_of_job(folder, job_id));
            let folders: Vec<StepFolder> = found.chain(unseen).cloned().collect();
            let grace = Duration::from_secs(self.settings.runner.cancel_grace_seconds);
            let note = move |folder: &StepFolder| folder.cancel_as(kind, grace, CancelledBy::Server);
            let noted = try_on_disk(move || folders.iter().try_for_each(note)).await;
            passed_on.push((job_id, kind, answer, noted));
        }
        for (stage, step) in steps {
            self.go_on(stage, step).await;
        }
        // Those that wait need not wait for their turn to hear of it. It is answered when all have.
        for (job_id, kind, answer, noted) in passed_on {
            let passed_on = self.scheduler.cancel(job_id, kind).await;
            let done = match noted.and(passed_on) {
                Ok(()) => {
                    let folder = answer.folder.clone();
                    try_on_disk(move || folder.set_outcome(&intake::cancel_answer(kind, job_id))).await
                }
                problem => problem,
            };
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

    async fn go_on(&self, stage: RecoveryPhase, step: Step) {
        info!(step = step.name(), ?stage, "left by an earlier run of this runner");
        let folder = step.folder.clone();
        if stage == RecoveryPhase::Ship {
            // Before anyone may ship it: the folder is gone then.
            self.scheduler.audit().found_finished(&step).await;
        }
        self.shipper.add(ShippedStep::of(&step)).await;
        if stage != RecoveryPhase::Ship {
            self.scheduler.adopt(step, stage).await;
        }
        // Not before the scheduler has it: a cancel finds it here or there.
        self.store.taken_up(&folder);
    }

    async fn tell_of_damaged(&self) {
        let store = Arc::clone(&self.store);
        // When this fails they are still noted, and told of the next time.
        for name in on_disk(move || store.take_set_aside()).await.unwrap_or_default() {
            let (store, damaged) = (Arc::clone(&self.store), name.clone());
            match try_on_disk(move || intake::answer_for_damaged(&store, &damaged)).await {
                Ok(Some(answer)) => {
                    if let Some((job_id, task)) = intake::identity(&name) {
                        let reason = "the record of the task was damaged";
                        self.scheduler.audit().lost(job_id, task, reason).await;
                    }
                    drop(self.shipper.add(answer).await);
                }
                Ok(None) => {
                    let store = Arc::clone(&self.store);
                    // A thread that fails has said so itself.
                    let _ = on_disk(move || store.told(&name)).await;
                }
                Err(error) => warn!(step = name, "the server is not told of a damaged step: {error}"),
            }
        }
    }
}

async fn look(
    store: &Arc<StepStore>,
    secret_store: &SecretStore,
    folders: Vec<StepFolder>,
) -> Vec<InspectedStep> {
    let (store, masker) = (Arc::clone(store), secret_store.masker());
    let look = move |folder: &StepFolder| {
        let request = store.look(folder)?;
        folder.mend_shipped()?;
        Ok((folder.stage()?, intake::reread(folder.clone(), &request, &masker)?))
    };
    look_at_each(folders, move |folder| look(folder).map_err(|problem| unless_away(folder, problem))).await
}

/// Where not even the place of the folder is there, the disk is away, and the folder may be sound.
fn unless_away(folder: &StepFolder, problem: FolderError) -> FolderError {
    match folder.path().parent().map(fs::read_dir) {
        Some(Err(source)) if problem.is_damage() => {
            let source = io::Error::other(format!("its disk is away: {source}"));
            FolderError::Io { action: "look at", path: folder.path().to_owned(), source }
        }
        _ => problem,
    }
}

/// Looks at one after the other, each as a task of its own: when that fails, it is one folder that could not be looked at, and
/// not all of them.
async fn look_at_each<T: Send + 'static>(
    folders: Vec<StepFolder>,
    look: impl Fn(&StepFolder) -> Result<T, FolderError> + Send + Sync + 'static,
) -> Vec<(StepFolder, Result<T, FolderError>)> {
    let (look, mut looked) = (Arc::new(look), Vec::new());
    for folder in folders {
        let (look, seen) = (Arc::clone(&look), folder.clone());
        let found = tokio::task::spawn_blocking(move || look(&seen)).await.unwrap_or_else(|failed| {
            let (path, source) = (folder.path().to_owned(), io::Error::other(failed));
            Err(FolderError::Io { action: "look at", path, source })
        });
        looked.push((folder, found));
    }
    looked
}

async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|failed| failed.to_string())
}

async fn try_on_disk<T: Send + 'static, E: Display + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    on_disk(work).await?.map_err(|problem| problem.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_that_panics_is_one_folder_that_could_not_be_looked_at_and_the_others_are_there() {
        let folders: Vec<StepFolder> = ["a", "b", "c"].map(StepFolder::at).into();
        let looked = look_at_each(folders, |folder| {
            assert_ne!(folder.name(), "b", "this panic is wanted");
            Ok(folder.name())
        })
        .await;
        let [(_, Ok(a)), (b, Err(problem)), (_, Ok(c))] = looked.as_slice() else { panic!("{looked:?}") };
        assert_eq!((a.as_str(), b.name().as_str(), c.as_str()), ("a", "b", "c"));
        assert!(!problem.is_damage(), "it is to be tried again: {problem}");
    }
}
