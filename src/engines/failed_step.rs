//! A step that failed, was cancelled or was lost, and what its engine left behind.

use hawser_contract::EngineTask;
use uuid::Uuid;

use super::directory::EngineDirectory;
use crate::script::ScriptPhase;
use crate::step::StepFolder;
use crate::workspace::Workspace;

/// A step whose engine may have left something behind.
#[derive(Debug, Clone)]
pub struct FailedStep {
    pub folder: StepFolder,
    pub job_id: Uuid,
    pub workspace: Workspace,
    pub directory: EngineDirectory,
    pub task: EngineTask,
    /// The phase that the script had reached.
    pub phase: Option<ScriptPhase>,
    /// Whether the processes of the step were killed.
    pub killed: bool,
    /// The last lines of the engine on stderr, without colors, secrets and empty lines.
    pub stderr: Vec<String>,
}

/// Whether the engine may have run when the script reached a phase.
pub fn began(phase: Option<ScriptPhase>) -> bool {
    phase.is_some_and(|phase| phase != ScriptPhase::Before)
}

/// What an engine left behind.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Sentences for the user, without the final period.
    pub notes: Vec<String>,
    /// The number of resources in a rescued state.
    pub resources: Option<u64>,
}
