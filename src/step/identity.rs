//! What a step is: its key, its work and its folder.

use std::fmt;

use hawser_contract::requests::{CancelKind, Metadata};
use hawser_contract::{Fault, Outcome, Request, SourceRefresh, StepOutcome, Subject, Task};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::StepFolder;
use crate::base::digest::hex;

/// What was pushed, as text. A push with the key of an unfinished step is a repeat. The identity of a step is its
/// [sequence number](StepFolder::sequence): the same task, pushed again after its outcome was acknowledged, is another step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKey(String);

impl StepKey {
    /// `{job id}.{task}`
    pub fn task(job_id: Uuid, task: Task) -> Self {
        Self(format!("{job_id}.{task}"))
    }

    /// Two requests to refresh the same revision of the same source have the same key.
    pub fn refresh(refresh: &SourceRefresh) -> Self {
        let parts = json!([
            refresh.source_url,
            refresh.source_revision,
            refresh.source_type,
            refresh.source_revision_type
        ]);
        Self(format!("refresh.{}", hex(&Sha256::digest(parts.to_string())[..12])))
    }

    /// `{job id}.{method}`
    pub fn cancel(kind: CancelKind, job_id: Uuid) -> Self {
        Self(format!("{job_id}.{}", kind.pushed_as()))
    }

    /// A cancel is never a repeat: each gets its own answer, even while the answer to an earlier one is still in flight.
    pub(super) fn is_cancel(&self) -> bool {
        [CancelKind::Graceful, CancelKind::Kill].iter().any(|kind| self.0.ends_with(kind.pushed_as()))
    }

    /// The job and task, unless this is the key of a refresh or of a cancel.
    pub fn job_and_task(&self) -> Option<(Uuid, Task)> {
        let (job_id, task) = self.0.split_once('.')?;
        Some((job_id.parse().ok()?, Task::from_name(task)?))
    }

    pub fn is_task_of(&self, job_id: Uuid) -> bool {
        self.job_and_task().is_some_and(|(job, _)| job == job_id)
    }
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// From the name of a folder.
impl<T: Into<String>> From<T> for StepKey {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

/// An accepted task and its folder.
#[derive(Debug, Clone)]
pub struct Step {
    pub folder: StepFolder,
    pub work: StepWork,
}

#[derive(Debug, Clone)]
pub enum StepWork {
    Task(Box<Request>),
    Refresh(SourceRefresh),
}

impl Step {
    pub fn name(&self) -> String {
        self.folder.name()
    }

    /// The name for log events, which have a job and a task instead if there are any.
    pub fn name_without_job(&self) -> Option<String> {
        self.job_id().is_none().then(|| self.name())
    }

    pub fn job_id(&self) -> Option<Uuid> {
        match &self.work {
            StepWork::Task(request) => Some(request.common.job_id),
            StepWork::Refresh(_) => None,
        }
    }
}

impl StepWork {
    /// The name of the task.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Task(request) => request.task.task().name(),
            Self::Refresh(_) => "SourceRefresh",
        }
    }

    /// The stack, namespace and name of the module, as in the path of its directory.
    pub fn module(&self) -> Option<String> {
        let Self::Task(request) = self else { return None };
        let Metadata { stack_name, namespace_name, module_name, .. } = &request.common.metadata;
        Some(format!("{stack_name}/{namespace_name}/{module_name}"))
    }

    /// The outcome of a step with this work. The contract has no cancelled refresh: one that is cancelled has faulted.
    pub fn ended(&self, outcome: Outcome) -> StepOutcome {
        let refresh = match self {
            Self::Task(request) => return outcome.of(request.task.task(), request.common.job_id),
            Self::Refresh(refresh) => refresh.clone(),
        };
        let outcome = match outcome {
            Outcome::Cancelled => Outcome::Faulted(Fault::new("the refresh was stopped with the runner")),
            outcome => outcome,
        };
        StepOutcome { subject: Subject::SourceRefresh(refresh), outcome }
    }
}
