//! What of a request the rules, and the audit log, are about.

use crate::{Engine, Source, TaskRequest};

/// The engine that a task names; only a revision is found without one.
pub fn engine_of(task: &TaskRequest) -> Option<Engine> {
    match task {
        TaskRequest::GetDefinitiveRevision(_) => None,
        TaskRequest::GetModule(_, own) => Some(own.engine),
        TaskRequest::Init(own) => Some(own.engine),
        TaskRequest::Validate(own) => Some(own.engine),
        TaskRequest::Variables(own) => Some(own.engine),
        TaskRequest::Plan(own, _) => Some(own.engine),
        TaskRequest::PlanDestroy(own, _) => Some(own.engine),
        TaskRequest::ApplyFromPlan(own, _) => Some(own.engine),
        TaskRequest::DestroyFromPlan(own, _) => Some(own.engine),
        TaskRequest::Output(own, _) => Some(own.engine),
    }
}

/// The source that a task names.
pub fn source_of(task: &TaskRequest) -> Option<&Source> {
    match task {
        TaskRequest::GetDefinitiveRevision(source) | TaskRequest::GetModule(source, _) => Some(source),
        _ => None,
    }
}
