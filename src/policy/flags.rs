//! The flags of a task, by their names in the contract.

/// Whether an engine reads further arguments from the variable with this name.
pub(super) fn holds_engine_arguments(name: &str) -> bool {
    ["TF_CLI_ARGS", "PULUMI_OPTION_"].iter().any(|start| name.starts_with(start))
}
