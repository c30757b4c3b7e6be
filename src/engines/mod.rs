//! The engines: Terraform, OpenTofu and Pulumi.
//!
//! An engine is one folder behind the trait [`Engine`]. Adding one touches its folder and [`Engines::default`].
//!
//! Nothing here starts a process. Command lines become part of a step's script ([`crate::script::Script`]), which runs
//! under the supervisor and writes the results to files. Concluding a task reads these files, and is safe to repeat.

pub mod declarations;
pub mod diagnostics;
pub mod directory;
mod engine_commands;
pub mod environment;
pub mod failed_step;
pub mod flags;
pub mod hcl_values;
pub mod outputs;
pub mod plan_counts;
pub mod pulumi;
pub mod terraform;

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_contract::{EngineName, EngineTask, FlagLists, OutputValue, PlanData, Task};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::masking::Rules;
use crate::script::ScriptError;
use crate::workspace::{PrivateFile, Tree, Workspace, WorkspaceError};
use declarations::Declarations;
use diagnostics::{Diagnostic, EngineOutput};
use directory::EngineDirectory;
use engine_commands::printed;
pub use engine_commands::{
    COPY, EXTRA_OUTPUTS, EngineCommands, OIDC_TOKEN, REMOVE, ResultPaths, SHOWN_PLAN, SHOWN_STATE,
};
use environment::Environment;
use failed_step::{FailedStep, Leftovers};
use flags::GivenFlag;
use pulumi::Pulumi;
use terraform::Terraform;
use terraform::plugin_cache::PluginCache;

/// [`Engine::to_check`] for tasks that change nothing themselves.
const HOOKS_TO_CHECK: &str = "check what its hooks changed";

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the parameter {name:?} cannot be written: {reason}")]
    Parameter { name: String, reason: String },
    #[error("the flag {flag} cannot be used: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error("failed to move {}, the state of an earlier apply, out of the way: {source}", path.display())]
    SetAside { path: PathBuf, source: io::Error },
    #[error("Init has not run for this module: {} is missing", path.display())]
    NotInitialized { path: PathBuf },
    #[error("failed to copy the operator's login to {}: {source}", path.display())]
    Login { path: PathBuf, source: io::Error },
    #[error("failed to restore the configuration of the stack, {}: {source}", path.display())]
    Configuration { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
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

/// What an Init does to the backend of a module.
#[derive(Debug, Default)]
pub struct BackendChange {
    /// The settings: `name=value`, or the name of a file. References to variables are not resolved.
    pub settings: Vec<String>,
    /// Whether the engine forgets the settings of earlier Inits.
    pub replaces: bool,
}

/// What [`Engine::prepare`] may use.
#[derive(Debug)]
pub struct Preparation<'a> {
    pub paths: &'a ResultPaths,
    pub workspace: &'a Workspace,
    /// The environment of the script, without [`Engine::backend_variables`].
    pub environment: &'a Environment,
    /// The version of the engine, if it is known.
    pub version: Option<&'a str>,
    /// Which parameters are secret by their names.
    pub rules: &'a Rules,
}

/// Everything that the runner must know about an engine. The defaults fit an engine that stores nothing on this machine.
pub trait Engine: Debug + Send + Sync {
    /// The name in requests, and of the program.
    fn name(&self) -> EngineName;

    /// Where to get the program.
    fn install_hint(&self) -> &'static str;

    /// Whether a folder with a file of this name is a module for this engine.
    fn uses_file(&self, name: &str) -> bool;

    /// Whether a module declares its variables. If it does not, it takes any parameter, as text.
    fn declares_variables(&self) -> bool {
        true
    }

    /// The flags that select a stack; `None` if the engine has no stacks.
    fn stack_flags(&self, _name: &str) -> Option<FlagLists> {
        None
    }

    /// The arguments that make the program print its version.
    fn version_arguments(&self) -> &'static [&'static str] {
        &["version"]
    }

    /// Variables that keep the engine from prompting.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Those of [`environment`](Self::environment) that a user at a terminal does not want, who can answer.
    fn prompt_variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// The usual name of a task's command, without the program.
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

    fn backend_change(&self, _init: &EngineTask) -> BackendChange {
        BackendChange::default()
    }

    /// Variables that select the backend of the last Init. They take precedence over those of the module.
    fn backend_variables(
        &self,
        _task: &EngineTask,
        _paths: &ResultPaths,
    ) -> Result<Vec<(&'static str, String)>, EngineError> {
        Ok(Vec::new())
    }

    /// Prepares the module's files, and returns what to add to the commands of the task: engine commands, which come first,
    /// copies to publish, files and lines for the log.
    fn prepare(&self, _task: &EngineTask, _at: &Preparation<'_>) -> Result<EngineCommands, EngineError> {
        Ok(EngineCommands::default())
    }

    /// Values in the flags of a task that are always secret.
    fn secret_flags<'a>(&self, _task: &'a EngineTask) -> Vec<&'a str> {
        Vec::new()
    }

    /// A file to write before the script of a task starts: its path in the private folder or the step folder, and its text.
    fn input(
        &self,
        _task: &EngineTask,
        _paths: &ResultPaths,
    ) -> Result<Option<(String, String)>, EngineError> {
        Ok(None)
    }

    /// What later tasks of the module need, as files of its private folder. They are written before the script of a task starts.
    /// Those of an Init count only once it has succeeded.
    fn kept_files(
        &self,
        _task: &EngineTask,
        _tree: &Tree,
    ) -> Result<Vec<(PrivateFile, String)>, EngineError> {
        Ok(Vec::new())
    }

    /// Variables with which a user's commands find the module's state. `init_variables` is the file of
    /// [`PrivateFile::INIT_VARIABLES`], which may not exist.
    fn command_variables(&self, _init_variables: &Path) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The commands of a task.
    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError>;

    /// The files of the private folder that an apply or destroy executes, first of all the plan. Empty if it has no plan file.
    fn plan_files(&self, _task: Task) -> Vec<PrivateFile> {
        Vec::new()
    }

    /// The variables and outputs that a module declares.
    fn declarations(&self, _tree: &Tree) -> Result<Declarations, EngineError> {
        Ok(Declarations::default())
    }

    /// Counts the changes of a plan. The lines are for the job's log, if the engine has not printed the plan itself.
    fn read_plan(&self, task: Task, paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError>;

    /// Counts the resources in the state after an apply or destroy.
    fn count_resources(&self, paths: &ResultPaths) -> Result<u64, EngineError>;

    /// Whether a task that succeeds leaves no state to read.
    fn removes_state(&self, _task: &EngineTask) -> bool {
        false
    }

    /// Parses the printed outputs.
    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error>;

    /// Marks the sensitive ones of the parsed outputs, if the engine does not print that with them.
    fn mark_sensitive(&self, _outputs: &mut [OutputValue], _paths: &ResultPaths) -> Result<(), EngineError> {
        Ok(())
    }

    /// The sensitive outputs and attributes in the plan or state that a task has left; `None` if the engine does not mark them
    /// there.
    fn sensitive_outputs(
        &self,
        _task: Task,
        _paths: &ResultPaths,
    ) -> Option<Result<Vec<Box<RawValue>>, EngineError>> {
        None
    }

    /// The errors that the engine of a failed task reported. The first is the most important one.
    fn diagnostics(&self, _task: Task, _output: &EngineOutput, _paths: &ResultPaths) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// How to fix a failure, judging by the lines that the engine printed.
    fn failure_hint(&self, _lines: &[String]) -> Option<&'static str> {
        None
    }

    /// Whether the reason of a failure is a variable without a value.
    fn lacks_variable(&self, _reason: &str) -> bool {
        false
    }

    /// What to check after a task whose outcome is unknown. Continues "Before the next run: ".
    fn to_check(&self, _task: Task) -> &'static str {
        HOOKS_TO_CHECK
    }

    /// Deals with what earlier tasks have left, before a task starts. `warn` writes to the job's log.
    fn before_task(
        &self,
        _task: &EngineTask,
        _workspace: &Workspace,
        _directory: &EngineDirectory,
        _job_id: Uuid,
        _warn: &dyn Fn(&str),
    ) -> Result<(), EngineError> {
        Ok(())
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
