//! The environment variables that Init brings, kept for the module's later tasks.
//!
//! `snapcd.env` is a JSON object of strings, because a value may have any character in it, new lines included.

use std::collections::BTreeMap;

use super::{PrivateFile, Workspace, WorkspaceError};
use crate::script::LONGEST_WORD;

impl Workspace {
    pub fn save_environment(&self, variables: &BTreeMap<String, String>) -> Result<(), WorkspaceError> {
        for (name, value) in variables {
            check_variable(name, value)?;
        }
        let text = serde_json::to_vec_pretty(variables).map_err(|source| {
            WorkspaceError::DamagedEnvironment { path: self.private_path(PrivateFile::Environment), source }
        })?;
        self.write_private(PrivateFile::Environment, &text).map(|_| ())
    }

    pub fn load_environment(&self) -> Result<BTreeMap<String, String>, WorkspaceError> {
        let path = self.private_path(PrivateFile::Environment);
        let read = match self.tree() {
            Err(WorkspaceError::NoSubdirectory { .. }) => None,
            tree => tree?.read_private(PrivateFile::Environment)?,
        };
        let Some(text) = read else { return Err(WorkspaceError::NotInitialised { path }) };
        serde_json::from_slice(&text).map_err(|source| WorkspaceError::DamagedEnvironment { path, source })
    }
}

/// What the operating system cannot pass on is refused here, where the variable can still be named.
fn check_variable(name: &str, value: &str) -> Result<(), WorkspaceError> {
    let reason = if name.is_empty() {
        "it has no name"
    } else if name.contains('=') {
        "its name has an equals sign"
    } else if name.contains(|it: char| it.is_control() && it != '\0') {
        "its name has control characters"
    } else if name.contains('\0') || value.contains('\0') {
        "it has a zero byte"
    } else if name.len() + 1 + value.len() > LONGEST_WORD {
        "it has more than 128 KiB, and no program can be given a larger variable"
    } else {
        return Ok(());
    };
    Err(WorkspaceError::EnvironmentVariable { name: name.to_owned(), reason })
}
