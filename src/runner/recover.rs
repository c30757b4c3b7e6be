//! Recovers the steps of earlier processes: [`plan`] decides what to do, and a small loop does it.
//!
//! All disk access is on blocking threads, so that signals are handled even if the disk hangs.
//!
//! A folder that cannot be read at the moment (too many open files, a failing disk) may be intact. The
//! [store](StepStore::left) remembers it, and it is retried while the runner runs.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::{fs, io};

use hawser_contract::StepOutcome;
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{debug, info, warn};

use super::RunnerError;
use crate::base::blocking::blocking;
use crate::base::retry;
use crate::executor::{Executor, on_disk};
use crate::intake::{self, RecoveredStep, UnansweredCancel};
use crate::masking::SecretStore;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::shipping::ShippedStep;
use crate::step::store::Abandoned;
use crate::step::{
    CancelledBy, FolderError, RecoveryPhase, Scratch, Step, StepFolder, StepStore, StoreError,
};
use crate::workspace::{self, permissions};

#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) store: Arc<StepStore>,
    pub(super) scheduler: Scheduler,
    pub(super) executor: Arc<Executor>,
}

/// A folder and what is in it.
pub(super) type InspectedStep = (StepFolder, Result<(RecoveryPhase, RecoveredStep), FolderError>);

/// Opens the step store of this instance and reads every folder. Starts nothing.
pub(super) async fn open(
    settings: &Arc<Settings>,
    secret_store: &SecretStore,
) -> Result<(Arc<StepStore>, Vec<InspectedStep>), RunnerError> {
    let settings = Arc::clone(settings);
    let opening = move || -> Result<_, StoreError> {
        let (directories, runner) = (&settings.working_directory, &settings.runner);
        let narrowed = permissions::narrow(directories);
        narrowed.done.iter().for_each(|line| info!("{line}"));
        narrowed.warnings.iter().for_each(|line| warn!("{line}"));
        let store = StepStore::open(&directories.working_directory, runner.id, &runner.instance)?;
        for Abandoned { instance, path, steps } in store.abandoned_by_others() {
            let path = path.display();
            warn!(
                instance,
                steps,
                %path,
                "found steps of an instance that is not running; to finish them, start hawser once with its name as \
                 Runner.Instance. If names of hosts or containers change, set Runner.Instance to a permanent name"
            );
        }
        if let Err(error) = Scratch::sweep(&directories.temp_directory, &store.steps()) {
            let path = directories.temp_directory.display();
            warn!(%path, %error, "failed to clean up after earlier steps");
        }
        if let Err(error) = workspace::sweep_all(directories) {
            warn!(%error, "failed to remove interrupted checkouts");
        }
        let folders = store.folders()?;
        Ok((Arc::new(store), folders))
    };
    let opened = blocking(opening).await;
    let (store, folders) = opened.map_err(|_| RunnerError::Part("step store"))??;
    let inspected = inspect(&store, secret_store, folders).await;
    Ok((store, inspected))
}

impl Recovery {
    pub(super) async fn at_start(&self, inspected: Vec<InspectedStep>) {
        if !inspected.is_empty() {
            info!(steps = inspected.len(), "recovering steps of an earlier process");
        }
        self.recover(inspected).await;
    }

    /// Retries what could not be recovered, and reports steps that the shipper has set aside.
    pub(super) async fn keep_trying(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(retry::RECOVERY)).await.is_some() {
            let inspected = inspect(&self.store, &self.executor.secret_store, self.store.left()).await;
            self.recover(inspected).await;
        }
    }

    async fn recover(&self, inspected: Vec<InspectedStep>) {
        let mut unrecorded = HashMap::new();
        for action in plan(inspected) {
            match action {
                Recover::ShipAnswer(answer) => self.ship(answer).await,
                Recover::SetAside(folder, error) => {
                    let store = Arc::clone(&self.store);
                    // After a panic, the next start tries again.
                    let _ = blocking(move || store.set_aside(&folder, &error.to_string())).await;
                }
                Recover::Leave(folder, error) => self.leave(&folder, &error),
                Recover::LeaveAlone(folder, error) => {
                    warn!(step = folder.name(), %error, "found step of a newer version, leaving it alone");
                    self.store.leave_alone(&folder);
                }
                Recover::RecordCancel(cancel, folders) => {
                    let UnansweredCancel { kind, job_id, .. } = cancel;
                    info!(job = %job_id, ?kind, "resuming cancel of an earlier process");
                    if let Err(error) = self.executor.record_cancel(folders, kind, CancelledBy::Server).await
                    {
                        unrecorded.insert(cancel.answer.folder, error);
                    }
                }
                Recover::Resume(phase, step) => self.resume(phase, step).await,
                Recover::AnswerCancel(cancel) => {
                    let folder = cancel.answer.folder.clone();
                    let recorded = unrecorded.remove(&folder).map_or(Ok(()), Err);
                    if let Err(error) = self.answer_cancel(cancel, recorded).await {
                        self.leave(&folder, &error);
                    }
                }
            }
        }
        self.report_damaged().await;
    }

    fn leave(&self, folder: &StepFolder, error: &dyn Display) {
        if self.store.leave(folder) {
            warn!(step = folder.name(), %error, "failed to recover step, retrying");
        } else {
            debug!(step = folder.name(), %error, "failed to recover step, retrying");
        }
    }

    async fn ship(&self, answer: ShippedStep) {
        self.store.taken_up(&answer.folder);
        if self.store.is_superseded(&answer.folder) {
            return self.retire(answer.folder).await;
        }
        self.executor.shipper.add(answer).await;
    }

    /// A crash came between the acknowledgement of the outcome and the removal of the folder, or a withdrawn step could not be
    /// removed.
    async fn retire(&self, folder: StepFolder) {
        debug!(step = folder.name(), "removing acknowledged step of an earlier process");
        let store = Arc::clone(&self.store);
        if let Err(error) = on_disk(move || store.retire(&folder).map(|path| store.discard(&path))).await {
            warn!(error, "failed to remove acknowledged step");
        }
    }

    /// Cancels the waiting steps of the job too, and answers once every step has the cancel.
    async fn answer_cancel(
        &self,
        cancel: UnansweredCancel,
        recorded: Result<(), String>,
    ) -> Result<(), String> {
        let UnansweredCancel { kind, job_id, answer } = cancel;
        recorded.and(self.scheduler.cancel(Some(job_id), kind).await)?;
        let folder = answer.folder.clone();
        on_disk(move || folder.set_outcome(&StepOutcome::of_cancel(kind, job_id))).await?;
        self.ship(answer).await;
        Ok(())
    }

    async fn resume(&self, phase: RecoveryPhase, step: Step) {
        let (module, job) = (step.work.module(), step.job_id().map(display));
        debug!(module, job, task = step.work.name(), ?phase, "found step of an earlier process");
        let folder = step.folder.clone();
        if phase == RecoveryPhase::Ship {
            // First, because the folder is removed once it is shipped.
            self.executor.audit.found_finished(&step).await;
        }
        // A superseded step that never started was withdrawn.
        if matches!(phase, RecoveryPhase::Ship | RecoveryPhase::Prepare) && self.store.is_superseded(&folder)
        {
            self.store.taken_up(&folder);
            return self.retire(folder).await;
        }
        self.executor.shipper.add(ShippedStep::of(&step)).await;
        if phase != RecoveryPhase::Ship {
            self.scheduler.submit(step, phase).await;
        }
        // After the scheduler has it, so that a cancel finds it in one of the two.
        self.store.taken_up(&folder);
    }

    async fn report_damaged(&self) {
        let store = Arc::clone(&self.store);
        // On failure they stay recorded, and are reported next time.
        for folder in blocking(move || store.unreported()).await.unwrap_or_default() {
            let (store, damaged) = (Arc::clone(&self.store), folder.clone());
            match on_disk(move || intake::answer_for_damaged(&store, &damaged)).await {
                Ok(Some(answer)) => {
                    if let Some((job_id, task)) = folder.key().job_and_task() {
                        let reason = "the record of the task was damaged";
                        self.executor.audit.lost(job_id, task, reason).await;
                    }
                    self.executor.shipper.add(answer).await;
                }
                Ok(None) => {}
                Err(error) => warn!(step = folder.name(), error, "failed to report damaged step"),
            }
        }
    }
}

/// One action of the recovery. The order matters.
#[derive(Debug)]
enum Recover {
    ShipAnswer(ShippedStep),
    /// The folder is damaged.
    SetAside(StepFolder, FolderError),
    /// The folder cannot be read at the moment, and may be intact.
    Leave(StepFolder, FolderError),
    /// The folder was written by a newer version, which can finish the step.
    LeaveAlone(StepFolder, FolderError),
    /// Before any step of the job resumes.
    RecordCancel(UnansweredCancel, Vec<StepFolder>),
    Resume(RecoveryPhase, Step),
    AnswerCancel(UnansweredCancel),
}

fn plan(inspected: Vec<InspectedStep>) -> Vec<Recover> {
    let (mut newer, mut actions, mut steps, mut cancels, mut unreadable) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (folder, contents) in inspected {
        match contents {
            Ok((_, RecoveredStep::Answer(answer))) => actions.push(Recover::ShipAnswer(answer)),
            Ok((_, RecoveredStep::Cancel(cancel))) => cancels.push(cancel),
            Ok((phase, RecoveredStep::Step(step))) => steps.push((phase, step)),
            Err(error) if error.is_damage() => actions.push(Recover::SetAside(folder, error)),
            Err(error @ FolderError::Newer { .. }) => newer.push(Recover::LeaveAlone(folder, error)),
            Err(error) => {
                unreadable.push(folder.clone());
                actions.push(Recover::Leave(folder, error));
            }
        }
    }
    steps.sort_by_key(|(_, step)| step.folder.sequence());
    for cancel in &cancels {
        let unfinished = steps
            .iter()
            .filter(|(phase, step)| *phase != RecoveryPhase::Ship && step.job_id() == Some(cancel.job_id))
            .map(|(_, step)| &step.folder);
        let unreadable = unreadable.iter().filter(|folder| folder.key().is_task_of(cancel.job_id));
        let folders = unfinished.chain(unreadable).cloned().collect();
        actions.push(Recover::RecordCancel(cancel.clone(), folders));
    }
    actions.extend(steps.into_iter().map(|(phase, step)| Recover::Resume(phase, step)));
    actions.extend(cancels.into_iter().map(Recover::AnswerCancel));
    // First, so that none of the others counts as superseded by them.
    newer.extend(actions);
    newer
}

async fn inspect(
    store: &Arc<StepStore>,
    secret_store: &SecretStore,
    folders: Vec<StepFolder>,
) -> Vec<InspectedStep> {
    let (store, masker) = (Arc::clone(store), secret_store.masker());
    let inspect = move |folder: &StepFolder| {
        let (request, phase) = store.look(folder)?;
        folder.mend_shipped()?;
        Ok((phase, intake::reread(folder.clone(), &request, &masker)?))
    };
    inspect_each(folders, move |folder| {
        inspect(folder).map_err(|error| unless_disk_is_missing(folder, error))
    })
    .await
}

/// If even the parent directory is missing, the disk is not mounted, and the folder may be intact.
fn unless_disk_is_missing(folder: &StepFolder, error: FolderError) -> FolderError {
    match folder.path().parent().map(fs::read_dir) {
        Some(Err(source)) if error.is_damage() => FolderError::io("read", folder.path())(io::Error::other(
            format!("the disk is not available: {source}"),
        )),
        _ => error,
    }
}

/// Reads the folders one by one. A panic fails one folder and not all of them.
async fn inspect_each<T: Send + 'static>(
    folders: Vec<StepFolder>,
    inspect: impl Fn(&StepFolder) -> Result<T, FolderError> + Send + Sync + 'static,
) -> Vec<(StepFolder, Result<T, FolderError>)> {
    let (inspect, mut inspected) = (Arc::new(inspect), Vec::new());
    for folder in folders {
        let (inspect, of_thread) = (Arc::clone(&inspect), folder.clone());
        let contents = blocking(move || inspect(&of_thread))
            .await
            .unwrap_or_else(|error| Err(FolderError::io("read", folder.path())(io::Error::other(error))));
        inspected.push((folder, contents));
    }
    inspected
}

#[cfg(test)]
mod tests {
    use hawser_contract::Push;
    use hawser_contract::requests::CancelKind;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::step::StepWork;

    #[tokio::test]
    async fn a_panic_while_reading_a_folder_fails_only_that_folder() {
        let folders: Vec<StepFolder> = ["a", "b", "c"].map(StepFolder::at).into();
        let inspected = inspect_each(folders, |folder| {
            assert_ne!(folder.name(), "b", "this panic is intended");
            Ok(folder.name())
        })
        .await;
        let [(_, Ok(a)), (b, Err(error)), (_, Ok(c))] = inspected.as_slice() else { panic!("{inspected:?}") };
        assert_eq!((a.as_str(), b.name().as_str(), c.as_str()), ("a", "b", "c"));
        assert!(!error.is_damage(), "it must be retried: {error}");
    }

    fn step(job: u128, sequence: u64) -> RecoveredStep {
        let payload = json!({
            "jobId": Uuid::from_u128(job),
            "organizationId": Uuid::nil(),
            "reportActiveJobFrequencySeconds": 5,
            "metadata": {
                "stackName": "stack", "namespaceName": "namespace", "moduleName": "module", "moduleId": Uuid::nil(),
            },
            "engine": "terraform",
        });
        let Ok(Push::Task(request)) = Push::read("Validate", std::slice::from_ref(&payload)) else {
            panic!("{:?}", Push::read("Validate", &[payload]))
        };
        let folder = StepFolder::at(format!("/steps/{sequence}.{}.Validate", Uuid::from_u128(job)));
        RecoveredStep::Step(Step { folder, work: StepWork::Task(request) })
    }

    #[test]
    fn a_cancel_is_recorded_before_steps_resume_in_order_and_answered_after_them() {
        let job_id = Uuid::from_u128(1);
        let unreadable = StepFolder::at(format!("/steps/4.{job_id}.Plan"));
        let error = || FolderError::io("read", unreadable.path())(io::Error::other("too many open files"));
        let answer = ShippedStep::answer(StepFolder::at("/steps/3.cancel"));
        let cancel = UnansweredCancel { kind: CancelKind::Kill, job_id, answer: answer.clone() };
        let cancel = RecoveredStep::Cancel(cancel);
        let inspected = vec![
            (answer.folder.clone(), Ok((RecoveryPhase::Prepare, cancel))),
            (StepFolder::at("/steps/second"), Ok((RecoveryPhase::Running, step(2, 2)))),
            (StepFolder::at("/steps/first"), Ok((RecoveryPhase::Prepare, step(1, 1)))),
            (unreadable.clone(), Err(error())),
        ];
        let actions = plan(inspected);
        let [
            Recover::Leave(left, _),
            Recover::RecordCancel(_, folders),
            Recover::Resume(RecoveryPhase::Prepare, first),
            Recover::Resume(RecoveryPhase::Running, second),
            Recover::AnswerCancel(_),
        ] = actions.as_slice()
        else {
            panic!("{actions:?}")
        };
        assert_eq!(left, &unreadable);
        assert_eq!((first.folder.sequence(), second.folder.sequence()), (1, 2));
        assert_eq!(folders, &[first.folder.clone(), unreadable]);
    }
}
