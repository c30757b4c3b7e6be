//! Why a rule of `Policy.*` did not allow something.

/// A task, or a part of one, that the settings do not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule} refuses {what}: {why}. Only whoever runs this runner can allow it")]
pub struct Refusal {
    /// The setting.
    pub rule: &'static str,
    /// What was asked for, without anything secret: this goes into the audit log.
    pub what: String,
    pub why: String,
}

impl Refusal {
    pub(crate) fn new(rule: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { rule, what: what.into(), why: why.into() }
    }

    /// What nobody could judge is not done.
    pub(crate) fn failed(error: &dyn std::error::Error) -> Self {
        Self::new("Policy", "the task", format!("the runner failed while it judged it ({error})"))
    }
}
