//! Where an engine worked, and what a command that is typed by hand needs to work there too.
//!
//! The directory is not all: `TF_WORKSPACE` says which of several states is meant, and `TF_DATA_DIR` where the engine has
//! noted its backend. Without them a command would read or write another state. A hook may have set them, so what the
//! script has noted (`place`, see [`crate::script::bash_script`]) counts before what the module's variables say.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use crate::script::bash_script::PLACE_VARIABLES;
use crate::script::quote;
use crate::step::StepFolder;
use crate::workspace::{PrivateFile, Workspace};

#[derive(Debug, Clone)]
pub struct EngineDirectory {
    /// The init directory of the module.
    directory: PathBuf,
    /// The one in which the engine ran: a hook may have changed to another.
    worked_in: PathBuf,
    /// Those of [`PLACE_VARIABLES`] that are set.
    variables: Vec<(&'static str, String)>,
    /// What else a command needs, as a half-sentence, or nothing.
    needs: String,
}

/// It is the init directory, and something more.
impl Deref for EngineDirectory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.directory
    }
}

impl EngineDirectory {
    /// As the environment has it when no hook changes anything. `has_hook` says that one may.
    pub fn new(workspace: &Workspace, environment: &Environment, has_hook: bool) -> Self {
        let directory = workspace.init_dir();
        let set = |name: &&'static str| {
            let value = environment.get(name)?.to_string_lossy().into_owned();
            (!value.is_empty()).then_some((*name, value))
        };
        let variables = PLACE_VARIABLES.iter().filter_map(set).collect();
        let needs = needs(workspace, has_hook);
        Self { worked_in: directory.clone(), directory, variables, needs }
    }

    /// As the script has noted it, if it came so far.
    pub fn noted_by(mut self, step: &StepFolder) -> Self {
        let noted = fs::read(step.place_path()).unwrap_or_default();
        let noted = String::from_utf8_lossy(&noted);
        let noted: Vec<&str> = noted.split_terminator('\0').collect();
        let Some((directory, values)) = noted.split_first() else { return self };
        // Half of a note, or one that cannot be what it was written for.
        if values.len() != PLACE_VARIABLES.len() || noted.iter().any(|it| it.contains(char::is_control)) {
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

    /// Where the engine keeps what it knows about the module.
    pub fn data(&self) -> PathBuf {
        self.worked_in.join(self.variable("TF_DATA_DIR").unwrap_or(".terraform"))
    }

    fn variable(&self, wanted: &str) -> Option<&str> {
        self.variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str())
    }

    /// A command for a person's shell, between backticks, that does there what the engine would, and what it needs.
    pub fn command(&self, command: &str) -> String {
        // A path that was joined with an empty one ends with a slash.
        let directory: PathBuf = self.worked_in.components().collect();
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={} ", quote(value)))
            .collect::<String>();
        format!("`cd {} && {variables}{command}`{}", quote(&directory.to_string_lossy()), self.needs)
    }
}

fn needs(workspace: &Workspace, has_hook: bool) -> String {
    let has_variables = workspace.load_environment().is_ok_and(|variables| !variables.is_empty());
    let file = workspace.private_path(PrivateFile::Environment);
    let file = file.display();
    match (has_variables, has_hook) {
        (false, false) => String::new(),
        (true, false) => {
            format!(", with the module's environment variables, credentials among them, which are in {file}")
        }
        (true, true) => format!(
            ", with the module's environment variables, credentials among them, which are in {file}, and those that its \
             hooks set"
        ),
        (false, true) => ", with the environment variables that the module's hooks set".to_owned(),
    }
}
