//! `planned.json` and `planned-destroy.json` in the private folder: what a plan is bound to.
//!
//! An apply executes only the plan that its own job has made: the record names the job, its commit, the Init whose environment
//! and backend it used, and the SHA-256 of every file that the apply uses. It is written when the plan is concluded, and checked
//! before the apply. A destroy without a plan file (Pulumi) is bound to the rest. Hooks are trusted: they run between the plan
//! and its record, and between the check and the apply.

use std::collections::BTreeMap;
use std::sync::Arc;

use hawser_contract::{EngineTask, Fault, Task};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::prepare_script::OpenModule;
use super::{TaskContext, TaskError};
use crate::base::blocking::blocking;
use crate::base::confined_dir::is_missing;
use crate::base::digest::sha256_of;
use crate::engines::{Direction, Engine};
use crate::workspace::{PrivateFile, Tree, Workspace, WorkspaceError};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Planned {
    job: Uuid,
    /// The job of the last Init: the plan was made with its environment and its backend.
    init: Option<Uuid>,
    commit: Option<String>,
    /// For each file of the private folder: its SHA-256, or nothing if it does not exist.
    files: BTreeMap<String, Option<String>>,
    /// How many resources there are after the apply.
    pub(super) resources: u64,
}

fn file(direction: Direction) -> PrivateFile {
    match direction {
        Direction::Apply => PrivateFile::PLANNED,
        Direction::Destroy => PrivateFile::PLANNED_DESTROY,
    }
}

impl Planned {
    /// Binds the plan that this task has made, as it is now. The caller holds the module's lock.
    pub(super) async fn record(
        context: &TaskContext,
        engine: &Arc<dyn Engine>,
        task: &EngineTask,
        resources: u64,
    ) -> Result<(), TaskError> {
        let (context, engine, task) = (context.clone(), Arc::clone(engine), task.task);
        on_disk(move || Self::write(&context, &*engine, task, resources)).await
    }

    fn write(
        context: &TaskContext,
        engine: &dyn Engine,
        task: Task,
        resources: u64,
    ) -> Result<(), TaskError> {
        let (workspace, job) = (context.workspace()?, context.common.job_id);
        // After a restart of the runner, another task may have replaced the plan before this one is concluded.
        if let Some((other, ran)) = workspace.last_user()?.filter(|last| *last != (job, task)) {
            let message = format!(
                "{ran} of job {other} ran in the module before this plan was recorded: run {task} again"
            );
            return Err(Fault::new(message).into());
        }
        let tree = workspace.tree()?;
        let files = digests(&tree, engine, task)?;
        let commit = context.folder.facts().ok().flatten().and_then(|facts| facts.source_commit);
        let init = workspace.load_backend_note()?.job;
        let planned = Self { job, init, commit, files, resources };
        Ok(tree.write_json(file(Direction::of(task)), &planned)?)
    }

    /// The plan that this apply may execute. The caller holds the module's lock.
    pub(super) async fn check(module: &OpenModule<'_>) -> Result<(), TaskError> {
        let (job, workspace) = (module.context.common.job_id, module.workspace.clone());
        let (engine, task) = (Arc::clone(&module.engine), module.task.task);
        on_disk(move || Self::compare(job, &workspace, &*engine, task)).await
    }

    fn compare(job: Uuid, workspace: &Workspace, engine: &dyn Engine, task: Task) -> Result<(), TaskError> {
        let direction = Direction::of(task);
        let plan = match direction {
            Direction::Apply => Task::Plan,
            Direction::Destroy => Task::PlanDestroy,
        };
        let tree = workspace.tree()?;
        let refuse = |reason: String| Err(Fault::new(format!("{reason}: run {plan} first")).into());
        let Some(planned) = tree.read_json::<Self>(file(direction))? else {
            return refuse("this job has no plan".to_owned());
        };
        if planned.job != job {
            let other = planned.job;
            return refuse(format!(
                "this job has no plan: the last one in {} was made by job {other}",
                workspace.module()
            ));
        }
        let commit = workspace.local_commit();
        if planned.commit != commit {
            let name = |commit: Option<String>| commit.unwrap_or_else(|| "an unknown commit".to_owned());
            let (then, now) = (name(planned.commit), name(commit));
            return refuse(format!("the plan was made for {then}, but the module is now at {now}"));
        }
        let init = workspace.load_backend_note()?.job;
        if let Some(other) = init.filter(|init| *init != job && Some(*init) != planned.init) {
            return refuse(format!("Init of job {other} has run since this job made its plan"));
        }
        let found = digests(&tree, engine, task)?;
        match found.iter().find(|(name, digest)| planned.files.get(*name) != Some(digest)) {
            None => Ok(()),
            Some((name, None)) => refuse(format!("the plan of this job is gone: {name} is missing")),
            Some((name, Some(_))) => refuse(format!("{name} has changed since this job made its plan")),
        }
    }

    /// The plan of this job that a task has applied.
    pub(super) fn of_job(context: &TaskContext, task: Task) -> Option<Self> {
        let tree = context.workspace().and_then(|workspace| workspace.tree()).ok()?;
        let planned: Self = tree.read_json(file(Direction::of(task))).ok()??;
        (planned.job == context.common.job_id).then_some(planned)
    }
}

/// Plans may be large.
async fn on_disk(work: impl FnOnce() -> Result<(), TaskError> + Send + 'static) -> Result<(), TaskError> {
    blocking(work)
        .await
        .map_err(|error| Fault::new(format!("a background thread failed to read the plan: {error}")))?
}

/// The digests of the files that an apply uses.
fn digests(
    tree: &Tree,
    engine: &dyn Engine,
    task: Task,
) -> Result<BTreeMap<String, Option<String>>, WorkspaceError> {
    let digest = |file: PrivateFile| match tree.open_private(file).and_then(sha256_of) {
        Ok(digest) => Ok((file.name().to_owned(), Some(digest))),
        Err(error) if is_missing(&error) => Ok((file.name().to_owned(), None)),
        Err(error) => Err(tree.read_error(file, error)),
    };
    engine.plan_files(task).into_iter().map(digest).collect()
}
