//! Where an engine ran, and how a user can run a command in the same place.
//!
//! `TF_WORKSPACE` selects one of several states, and `TF_DATA_DIR` is where the engine stores its backend settings. Without
//! them, a command would read or write another state. A hook may set them, so the values that the script has recorded
//! (`place`, see [`crate::script::bash_script`]) take precedence over the module's variables.

use std::fs;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use crate::script::bash_script::PLACE_VARIABLES;
use crate::script::quote;
use crate::step::StepFolder;
use crate::workspace::{PrivateFile, Workspace};

#[derive(Debug, Clone)]
pub struct EngineDirectory {
    /// The init directory of the module.
    pub init: PathBuf,
    /// The directory in which the engine ran, which a hook may have changed.
    worked_in: PathBuf,
    /// Those of [`PLACE_VARIABLES`] that are set.
    variables: Vec<(&'static str, String)>,
    /// The rest of the environment that a command needs, or nothing.
    needs: String,
}

impl EngineDirectory {
    /// Without the changes of hooks. `has_hook` is set if there is a hook that may set variables.
    pub fn new(workspace: &Workspace, environment: &Environment, has_hook: bool) -> Self {
        let directory = workspace.init_dir();
        let set = |name: &&'static str| {
            let value = environment.get(name)?.to_string_lossy().into_owned();
            (!value.is_empty()).then_some((*name, value))
        };
        let variables = PLACE_VARIABLES.iter().filter_map(set).collect();
        let file = workspace.private_path(PrivateFile::ENVIRONMENT);
        let has_variables = workspace.load_environment().is_ok_and(|variables| !variables.is_empty());
        let of_module = has_variables.then(|| format!("in {}", file.display()));
        let sources: Vec<String> =
            of_module.into_iter().chain(has_hook.then(|| "of the module's hooks".to_owned())).collect();
        let needs = match sources.is_empty() {
            true => String::new(),
            false => format!(" with the environment variables {}", sources.join(" and those ")),
        };
        Self { worked_in: directory.clone(), init: directory, variables, needs }
    }

    /// With the changes of hooks, if the script got far enough to record them.
    pub fn recorded_by(mut self, step: &StepFolder) -> Self {
        let record = fs::read(step.place_path()).unwrap_or_default();
        let record = String::from_utf8_lossy(&record);
        let record: Vec<&str> = record.split_terminator('\0').collect();
        let Some((directory, values)) = record.split_first() else { return self };
        // The record is incomplete or damaged.
        if values.len() != PLACE_VARIABLES.len() || record.iter().any(|it| it.contains(char::is_control)) {
            return self;
        }
        if Path::new(directory).is_absolute() {
            self.worked_in = PathBuf::from(directory);
        }
        let set = PLACE_VARIABLES.iter().zip(values).filter(|(_, value)| !value.is_empty());
        self.variables = set.map(|(name, value)| (*name, (*value).to_owned())).collect();
        self
    }

    pub fn worked_in(&self) -> &Path {
        &self.worked_in
    }

    pub fn workspace(&self) -> Option<&str> {
        self.variable("TF_WORKSPACE")
    }

    /// The engine's data folder.
    pub fn data(&self) -> PathBuf {
        self.worked_in.join(self.variable("TF_DATA_DIR").unwrap_or(".terraform"))
    }

    fn variable(&self, wanted: &str) -> Option<&str> {
        self.variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str())
    }

    /// A command for a user's shell, in backticks, and the variables that it needs.
    pub fn command(&self, command: &str) -> String {
        // Without the trailing slash of an empty subdirectory.
        let directory: PathBuf = self.worked_in.components().collect();
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={} ", quote(value)))
            .collect::<String>();
        format!("`cd {} && {variables}{command}`{}", quote(&directory.to_string_lossy()), self.needs)
    }
}
