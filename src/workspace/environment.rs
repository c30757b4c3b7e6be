//! The environment variables of an Init, saved for the module's later tasks.
//!
//! `snapcd.env` is a JSON object of strings, because a value may contain any character, including line feeds.

use std::collections::BTreeMap;

use super::{PrivateFile, Workspace, WorkspaceError};
use crate::script::LONGEST_WORD;

impl Workspace {
    pub fn save_environment(&self, variables: &BTreeMap<String, String>) -> Result<(), WorkspaceError> {
        check_variables(variables)?;
        self.tree()?.write_json(PrivateFile::ENVIRONMENT, variables)
    }

    pub fn load_environment(&self) -> Result<BTreeMap<String, String>, WorkspaceError> {
        let variables = match self.tree() {
            Err(WorkspaceError::NoSubdirectory { .. }) => None,
            tree => tree?.read_json(PrivateFile::ENVIRONMENT)?,
        };
        variables.ok_or_else(|| WorkspaceError::NotInitialized {
            path: self.private_path(PrivateFile::ENVIRONMENT),
        })
    }
}

/// Refuses variables that the operating system cannot pass to a process, while the error can still name them.
pub fn check_variables(variables: &BTreeMap<String, String>) -> Result<(), WorkspaceError> {
    variables.iter().try_for_each(|(name, value)| check_variable(name, value))
}

fn check_variable(name: &str, value: &str) -> Result<(), WorkspaceError> {
    let reason = if name.is_empty() {
        "its name is empty"
    } else if name.contains('=') {
        "its name contains an equals sign"
    } else if name.contains(|it: char| it.is_control() && it != '\0') {
        "its name contains control characters"
    } else if name.contains('\0') || value.contains('\0') {
        "it contains a null byte"
    } else if name.len() + 1 + value.len() > LONGEST_WORD {
        "it is larger than 128 KiB, the limit of the operating system"
    } else {
        return Ok(());
    };
    Err(WorkspaceError::EnvironmentVariable { name: name.to_owned(), reason })
}
