//! What a module's last task has used: `hawser exec` runs commands with the same engine, in the same place.
//!
//! `last-task.json` is written when a task is prepared. When its script has ended, the place in which the engine really ran is
//! added, because hooks may change it. Until then it is that of the task before, if there is a hook.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hawser_contract::{EngineName, Task};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{PrivateFile, Workspace, WorkspaceError};

/// `last-task.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastTask {
    pub job: Uuid,
    pub task: Task,
    pub engine: EngineName,
    /// Whether a before hook may have set variables.
    pub has_hook: bool,
    pub place: EnginePlace,
}

/// Where an engine ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePlace {
    pub directory: PathBuf,
    /// The variables that determine the location of the state. One that is missing or empty is not set.
    pub variables: BTreeMap<String, String>,
}

impl Workspace {
    /// A task is about to start, in this place unless its hook changes it.
    pub fn note_task(&self, mut task: LastTask) -> Result<(), WorkspaceError> {
        if let Ok(Some(last)) = self.last_task()
            && task.has_hook
            && last.engine == task.engine
        {
            task.place = last.place;
        }
        self.tree()?.write_json(PrivateFile::LAST_TASK, &task)
    }

    /// The script of a task has ended. Another task may have used the module since.
    pub fn note_place(&self, job: Uuid, task: Task, place: EnginePlace) -> Result<(), WorkspaceError> {
        match self.last_task()? {
            Some(last) if last.job == job && last.task == task => {
                self.tree()?.write_json(PrivateFile::LAST_TASK, &LastTask { place, ..last })
            }
            _ => Ok(()),
        }
    }

    /// `None` if no task has used an engine.
    pub fn last_task(&self) -> Result<Option<LastTask>, WorkspaceError> {
        match self.tree() {
            Err(WorkspaceError::NoSubdirectory { .. }) => Ok(None),
            tree => tree?.read_json(PrivateFile::LAST_TASK),
        }
    }
}
