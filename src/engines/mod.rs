//! The engines: Terraform, OpenTofu and Pulumi.
//!
//! An engine is one folder behind the trait [`Engine`]. Adding one touches its folder and [`Engines::default`].
//!
//! Nothing here starts a process. Command lines become part of a step's script ([`crate::script::Script`]), which runs
//! under the supervisor and writes the results to files. Concluding a task reads these files, and is safe to repeat.

mod commands;
pub mod declarations;
pub mod directory;
pub mod environment;
pub mod failed_step;
pub mod flags;
pub mod hcl_values;
pub mod outputs;
pub mod plan;
pub mod pulumi;
pub mod terraform;

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_contract::{EngineName, EngineTask, FlagLists, OutputValue, PlanData, Task};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::script::ScriptError;
use crate::workspace::{PrivateFile, Tree, Workspace, WorkspaceError};
pub use commands::{COPY, EngineCommands, REMOVE, ResultFile, ResultPaths};
use commands::{printed_output, read_json};
use declarations::Declarations;
use directory::EngineDirectory;
use failed_step::{FailedStep, Leftovers};
use flags::GivenFlag;
use pulumi::Pulumi;
use terraform::Terraform;
use terraform::plugin_cache::PluginCache;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("cannot read {what} ({}): {source}", path.display())]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what} ({}) is not the JSON that it should be: {source}", path.display())]
    Json { what: &'static str, path: PathBuf, source: serde_json::Error },
    #[error("the parameter {name:?} cannot be written: {reason}")]
    Parameter { name: String, reason: String },
    #[error("the Pulumi flag {flag} cannot have the value {value:?}: it would be read as an option")]
    Option { flag: &'static str, value: String },
    #[error(
        "the flag {flag} has no value (null), and the engine would take the next argument for it: give it one or leave it out"
    )]
    NoValue { flag: &'static str },
    #[error(
        "the flag {flag} has a user or password in its URL, and every user of the machine can read it on a command line: \
         leave them out, git has the host's own credentials"
    )]
    Credentials { flag: &'static str },
    #[error("{} is from an earlier apply and would be overwritten, but cannot be kept safe: {source}", path.display())]
    SetAside { path: PathBuf, source: io::Error },
    #[error("cannot remove {}: {source}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

/// A file that an engine reads, written before its script starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputFile {
    /// In the private folder of the module.
    Private(PrivateFile, String),
    /// At this path in the step folder.
    Step(String, String),
}

/// A command that prints the state, for an engine whose script prints it after the engine command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateExport {
    pub arguments: Vec<String>,
    pub file: PrivateFile,
}

/// Whether a plan or an apply creates or destroys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Apply,
    Destroy,
}

impl Direction {
    pub fn of(task: Task) -> Self {
        match task {
            Task::PlanDestroy | Task::DestroyFromPlan => Self::Destroy,
            _ => Self::Apply,
        }
    }
}

/// What the runner has to know about an engine. The defaults fit an engine that keeps nothing on this machine.
pub trait Engine: Debug + Send + Sync {
    /// The name on the wire, and of the program.
    fn name(&self) -> EngineName;

    /// Where to get the program.
    fn install_hint(&self) -> &'static str;

    /// Whether a file of this name is part of a module for the engine.
    fn uses_file(&self, name: &str) -> bool;

    /// The arguments that make the program print its version.
    fn version_arguments(&self) -> &'static [&'static str] {
        &["version"]
    }

    /// Variables that keep the engine from asking questions.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The command of a task as people know it, without the program.
    fn verb(&self, task: Task) -> &'static str;

    /// The same with the program.
    fn command(&self, task: Task) -> String {
        format!("{} {}", self.name(), self.verb(task))
    }

    /// Refuses flags that the engine would misread, or that make it write outside of the module.
    fn check_flags(&self, _flags: &FlagLists) -> Result<(), EngineError> {
        Ok(())
    }

    /// The flags of a task that reach the command line of the engine.
    fn given_flags(&self, _task: &EngineTask) -> Vec<GivenFlag> {
        Vec::new()
    }

    /// A flag that makes a task other than apply and destroy write to a state.
    fn state_changing_flag(&self, _task: &EngineTask) -> Option<&'static str> {
        None
    }

    /// The backend settings of an Init: `name=value`, or the name of a file. References to variables are not resolved.
    fn backend_settings(&self, _init: &EngineTask) -> Vec<String> {
        Vec::new()
    }

    /// Whether later tasks use the backend settings of an Init.
    fn remembers_backend(&self) -> bool {
        false
    }

    /// Whether an Init makes the engine forget the backend that it used before.
    fn forgets_backend(&self, _init: &EngineTask) -> bool {
        false
    }

    /// Values in the flags of a task that are secret whatever their form.
    fn secret_flags<'a>(&self, _task: &'a EngineTask) -> Vec<&'a str> {
        Vec::new()
    }

    /// The files to write before the script of a task starts.
    fn inputs(&self, _task: &EngineTask, _paths: &ResultPaths) -> Result<Vec<InputFile>, EngineError> {
        Ok(Vec::new())
    }

    /// The commands of a task.
    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError>;

    /// The plan that an apply or destroy executes, if the engine has a file for it.
    fn plan_file(&self, _task: Task, _paths: &ResultPaths) -> Option<String> {
        None
    }

    /// The variables and outputs that a module declares.
    fn declarations(&self, _folder: &Path, _tree: &Tree) -> Result<Declarations, EngineError> {
        Ok(Declarations::default())
    }

    /// Counts the changes of a plan; the lines are for the log of the job.
    fn read_plan(&self, task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError>;

    /// Counts the resources in the state after an apply or destroy.
    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError>;

    /// Whether a task that succeeds leaves no state to read.
    fn removes_state(&self, _task: &EngineTask) -> bool {
        false
    }

    /// Parses the printed outputs.
    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error>;

    /// The sensitive outputs in the plan or state that a task has left; None if the engine does not mark them there.
    fn sensitive_outputs(
        &self,
        _task: Task,
        _paths: &ResultPaths,
    ) -> Option<Result<Vec<Box<RawValue>>, EngineError>> {
        None
    }

    /// What to do about a failure, by the last lines that the engine printed.
    fn failure_hint(&self, _lines: &[String]) -> Option<&'static str> {
        None
    }

    /// What to check after a task that nobody saw the end of.
    fn to_check(&self, _task: Task) -> &'static str {
        "it changes no resources itself, but its hooks may"
    }

    /// Keeps what an earlier apply left from being overwritten. `warn` writes to the log of the job.
    fn before_apply(
        &self,
        _workspace: &Workspace,
        _directory: &EngineDirectory,
        _job_id: Uuid,
        _warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        Ok(())
    }

    /// A warning for a plan of a module with rescued states.
    fn plan_warning(&self, _workspace: &Workspace) -> Option<String> {
        None
    }

    /// How to read the state if a task was stopped before its script did.
    fn state_export(&self, _task: &EngineTask) -> Option<StateExport> {
        None
    }

    /// Finds and keeps what a failed task left behind.
    fn leftovers(&self, _step: &FailedStep) -> Leftovers {
        Leftovers::default()
    }

    /// The cache of plugins that all modules share.
    fn plugin_cache(&self, _working_directory: &Path) -> Option<PluginCache> {
        None
    }
}

/// The engines of a runner, in the order in which `hawser local` tries them.
#[derive(Debug, Clone)]
pub struct Engines(Arc<[Arc<dyn Engine>]>);

impl Default for Engines {
    fn default() -> Self {
        Self::new([
            Arc::new(Terraform::tofu()) as Arc<dyn Engine>,
            Arc::new(Terraform::hashicorp()),
            Arc::new(Pulumi),
        ])
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine {name:?}: this runner has {known}", name = name.as_str())]
pub struct UnknownEngine {
    pub name: EngineName,
    pub known: String,
}

impl Engines {
    pub fn new(engines: impl IntoIterator<Item = Arc<dyn Engine>>) -> Self {
        Self(engines.into_iter().collect())
    }

    pub fn get(&self, name: &EngineName) -> Result<Arc<dyn Engine>, UnknownEngine> {
        let engine = self.iter().find(|engine| engine.name() == *name);
        engine.cloned().ok_or_else(|| UnknownEngine { name: name.clone(), known: self.names() })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        self.0.iter()
    }

    /// All names, for messages.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.iter().map(|engine| engine.name().to_string()).collect();
        names.join(", ")
    }
}
