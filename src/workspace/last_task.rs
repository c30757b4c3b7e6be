//! What a module's last task has used: `hawser exec` runs commands with the same engine, in the same place.
//!
//! `last-task.json` has two tasks. `running` is noted when a task is prepared. When its script has ended and its engine has run,
//! it becomes `last`, with the place in which the engine really ran, because hooks may change it. So the variables and the place
//! always belong to the same task.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hawser_contract::{EngineName, Task};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{PrivateFile, Workspace, WorkspaceError};

/// `last-task.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tasks {
    last: Option<LastTask>,
    running: LastTask,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastTask {
    pub job: Uuid,
    pub task: Task,
    pub engine: EngineName,
    /// Whether a before hook may have set variables.
    pub has_hook: bool,
    /// The variables of the module, from its Init.
    pub variables: BTreeMap<String, String>,
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
    pub fn note_task(&self, running: LastTask) -> Result<(), WorkspaceError> {
        // A damaged file must not stop tasks.
        let last = self.last_task().unwrap_or_default();
        self.tree()?.write_json(PrivateFile::LAST_TASK, &Tasks { last, running })
    }

    /// The engine of a task has run in this place. Another task may have used the module since.
    pub fn note_place(&self, job: Uuid, task: Task, place: EnginePlace) -> Result<(), WorkspaceError> {
        match self.tasks()? {
            Some(Tasks { running, .. }) if running.job == job && running.task == task => {
                let last = Some(LastTask { place, ..running.clone() });
                self.tree()?.write_json(PrivateFile::LAST_TASK, &Tasks { last, running })
            }
            _ => Ok(()),
        }
    }

    /// What the last Init has staged is now in the private folder.
    pub(super) fn note_promoted(&self) -> Result<(), WorkspaceError> {
        let Some(Tasks { last: Some(mut last), running }) = self.tasks()? else { return Ok(()) };
        let staged = self.staged_dir();
        let values = last.place.variables.values_mut().filter(|value| Path::new(value) == staged);
        values.for_each(|value| *value = self.private_dir().display().to_string());
        self.tree()?.write_json(PrivateFile::LAST_TASK, &Tasks { last: Some(last), running })
    }

    /// The job and the task that used the module last, or use it now.
    pub fn last_user(&self) -> Result<Option<(Uuid, Task)>, WorkspaceError> {
        Ok(self.tasks()?.map(|tasks| (tasks.running.job, tasks.running.task)))
    }

    /// `None` if no task has used an engine.
    pub fn last_task(&self) -> Result<Option<LastTask>, WorkspaceError> {
        Ok(self.tasks()?.and_then(|tasks| tasks.last))
    }

    fn tasks(&self) -> Result<Option<Tasks>, WorkspaceError> {
        match self.tree() {
            Err(WorkspaceError::NoSubdirectory { .. }) => Ok(None),
            tree => tree?.read_json(PrivateFile::LAST_TASK),
        }
    }
}
