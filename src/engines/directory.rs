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
use crate::workspace::{EnginePlace, Workspace};

#[derive(Debug, Clone)]
pub struct EngineDirectory {
    /// `stack/namespace/module`.
    module: String,
    /// The init directory of the module.
    pub init: PathBuf,
    /// What a hook may have changed.
    place: EnginePlace,
    /// Whether there is a hook that may set other variables too.
    has_hook: bool,
}

impl EngineDirectory {
    /// Without the changes of hooks. `has_hook` is set if there is a hook that may set variables.
    pub fn new(workspace: &Workspace, environment: &Environment, has_hook: bool) -> Self {
        let init = workspace.init_dir();
        let set = |name: &&str| {
            let value = environment.get(name)?.to_string_lossy().into_owned();
            Some(((*name).to_owned(), value))
        };
        let variables = PLACE_VARIABLES.iter().filter_map(set).collect();
        let place = EnginePlace { directory: init.clone(), variables };
        Self { module: workspace.module().to_owned(), init, place, has_hook }
    }

    /// With the changes of hooks, if the script got far enough to record them.
    pub fn recorded_by(mut self, step: &StepFolder) -> Self {
        if let Some(place) = recorded_place(step) {
            self.place = place;
        }
        self
    }

    pub fn into_place(self) -> EnginePlace {
        self.place
    }

    pub fn worked_in(&self) -> &Path {
        &self.place.directory
    }

    pub fn workspace(&self) -> Option<&str> {
        self.variable("TF_WORKSPACE")
    }

    /// The engine's data folder.
    pub fn data(&self) -> PathBuf {
        self.worked_in().join(self.variable("TF_DATA_DIR").unwrap_or(".terraform"))
    }

    fn variable(&self, wanted: &str) -> Option<&str> {
        self.place.variables.get(wanted).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A command for a user's shell, in backticks, which runs in this place.
    pub fn command(&self, command: &str) -> String {
        let module = quote(&self.module);
        let hooks = match self.has_hook {
            false => String::new(),
            true => format!(
                " (hooks are not run: if the command needs variables that they set, set them in `hawser shell {module}`)"
            ),
        };
        format!("`hawser exec {module} -- {command}`{hooks}")
    }
}

/// Where the engine of a step ran, if its script got that far.
pub fn recorded_place(step: &StepFolder) -> Option<EnginePlace> {
    let record = fs::read(step.place_path()).ok()?;
    let record = String::from_utf8_lossy(&record);
    let record: Vec<&str> = record.split_terminator('\0').collect();
    let (directory, values) = record.split_first()?;
    let is_complete = values.len() == PLACE_VARIABLES.len() && Path::new(directory).is_absolute();
    if !is_complete || record.iter().any(|it| it.contains(char::is_control)) {
        return None;
    }
    let variables = PLACE_VARIABLES.iter().zip(values);
    let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Some(EnginePlace { directory: PathBuf::from(directory), variables })
}
