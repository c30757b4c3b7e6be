//! A task that was accepted: what it is, and where it is kept.

use uuid::Uuid;

use super::Folder;
use hawser_contract::{Call, Fault, Outcome, Request, SourceRefresh};

/// A task that was accepted, with its folder.
#[derive(Debug, Clone)]
pub struct Step {
    pub folder: Folder,
    pub sequence: u64,
    pub work: Work,
}

#[derive(Debug, Clone)]
pub enum Work {
    Task(Box<Request>),
    Refresh(SourceRefresh),
}

impl Step {
    pub fn name(&self) -> String {
        self.folder.name()
    }

    pub fn job_id(&self) -> Option<Uuid> {
        match &self.work {
            Work::Task(request) => Some(request.common.job_id),
            Work::Refresh(_) => None,
        }
    }

    /// What tells the server of an end that the step's own work did not come to. (A refresh that succeeds has its own.)
    pub fn call(&self, outcome: &Outcome) -> Call {
        match (&self.work, outcome) {
            (Work::Task(request), outcome) => outcome.call(request.task.task(), request.common.job_id),
            (Work::Refresh(refresh), Outcome::Faulted(fault)) => refresh.faulted(fault),
            (Work::Refresh(refresh), _) => refresh.faulted(&Fault::new("the refresh was stopped")),
        }
    }
}
