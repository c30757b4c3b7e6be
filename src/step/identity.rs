//! A task that was accepted: what it is, and where it is kept.

use hawser_contract::{Call, Fault, Outcome, Request, SourceRefresh};
use uuid::Uuid;

use super::StepFolder;

/// A task that was accepted, with its folder.
#[derive(Debug, Clone)]
pub struct Step {
    pub folder: StepFolder,
    pub sequence: u64,
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

    pub fn job_id(&self) -> Option<Uuid> {
        match &self.work {
            StepWork::Task(request) => Some(request.common.job_id),
            StepWork::Refresh(_) => None,
        }
    }

    /// What tells the server of an end that the step's own work did not come to. (A refresh that succeeds has its own.)
    pub fn call(&self, outcome: &Outcome) -> Call {
        match (&self.work, outcome) {
            (StepWork::Task(request), outcome) => outcome.call(request.task.task(), request.common.job_id),
            (StepWork::Refresh(refresh), Outcome::Faulted(fault)) => refresh.faulted(fault),
            (StepWork::Refresh(refresh), _) => refresh.faulted(&Fault::new("the refresh was stopped")),
        }
    }
}
