//! A step that failed, was cancelled or was lost, and what its engine left behind.

use hawser_contract::EngineTask;
use uuid::Uuid;

use super::directory::EngineDirectory;
use crate::script::ScriptPhase;
use crate::step::StepFolder;
use crate::workspace::Workspace;

/// Where an engine looks for what it left behind.
#[derive(Debug, Clone)]
pub struct FailedStep {
    pub folder: StepFolder,
    pub job_id: Uuid,
    pub workspace: Workspace,
    pub directory: EngineDirectory,
    pub task: EngineTask,
    /// The part that the script had reached.
    pub phase: Option<ScriptPhase>,
    /// Whether the processes of the step were killed.
    pub killed: bool,
    /// The end of what the step printed to stderr, without colors.
    pub stderr: Vec<String>,
}

impl FailedStep {
    /// Whether the engine may have run.
    pub fn began(&self) -> bool {
        began(self.phase)
    }
}

/// Whether the engine may have run by the time that the script reached a phase.
pub fn began(phase: Option<ScriptPhase>) -> bool {
    phase.is_some_and(|phase| phase != ScriptPhase::Before)
}

/// What an engine left behind.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Sentences for people, without the full stop.
    pub notes: Vec<String>,
    /// How many resources a rescued state has: more than the backend knows of.
    pub resources: Option<u64>,
}
