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

/// A hook with the name that users know it by, such as `ApplyBeforeHook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook<'a> {
    pub name: &'static str,
    pub text: &'a str,
}

impl<'a> Hook<'a> {
    /// A hook that is missing or blank does not exist: it is neither run nor checked.
    pub fn new(name: &'static str, text: Option<&'a str>) -> Option<Self> {
        text.filter(|text| !text.trim().is_empty()).map(|text| Self { name, text })
    }
}

impl TaskRequest {
    /// The hooks of the task that are not blank: before and after its engine command.
    pub fn hooks(&self) -> [Option<Hook<'_>>; 2] {
        let (before, after) = match self {
            Self::GetDefinitiveRevision(_) | Self::GetModule(..) | Self::Variables(_) => return [None, None],
            Self::Init(own) => {
                (("InitBeforeHook", &own.init_before_hook), ("InitAfterHook", &own.init_after_hook))
            }
            Self::Validate(own) => (
                ("ValidateBeforeHook", &own.validate_before_hook),
                ("ValidateAfterHook", &own.validate_after_hook),
            ),
            Self::Plan(own, _) => {
                (("PlanBeforeHook", &own.plan_before_hook), ("PlanAfterHook", &own.plan_after_hook))
            }
            Self::PlanDestroy(own, _) => (
                ("PlanDestroyBeforeHook", &own.plan_destroy_before_hook),
                ("PlanDestroyAfterHook", &own.plan_destroy_after_hook),
            ),
            Self::ApplyFromPlan(own, _) => {
                (("ApplyBeforeHook", &own.apply_before_hook), ("ApplyAfterHook", &own.apply_after_hook))
            }
            Self::DestroyFromPlan(own, _) => (
                ("DestroyBeforeHook", &own.destroy_before_hook),
                ("DestroyAfterHook", &own.destroy_after_hook),
            ),
            Self::Output(own, _) => {
                (("OutputBeforeHook", &own.output_before_hook), ("OutputAfterHook", &own.output_after_hook))
            }
        };
        [before, after].map(|(name, text)| Hook::new(name, text.as_deref()))
    }
}
