//! Why a rule of `Policy.*` refused a task.

/// A task, or a part of a task, that the settings do not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule} refuses {what}: {why}. Only the operator of this runner can allow it")]
pub struct Refusal {
    /// The name of the setting.
    pub rule: &'static str,
    /// The refused part, without secrets: it is written to the audit log.
    pub what: String,
    pub why: String,
}

impl Refusal {
    pub(crate) fn new(rule: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { rule, what: what.into(), why: why.into() }
    }

    /// A task that could not be checked is refused.
    pub(crate) fn failed(error: &dyn std::error::Error) -> Self {
        Self::new("Policy", "the task", format!("the check failed: {error}"))
    }
}
