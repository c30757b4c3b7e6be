//! The backend settings that Init has passed to the engine. The engine saves them in its data folder (`.terraform`) and keeps
//! using them, so the policy checks them before every later task.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{PrivateFile, Workspace, WorkspaceError};
use crate::base::confined_dir::is_missing;

/// `backend-settings.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendNote {
    /// The job of the last Init.
    pub job: Option<Uuid>,
    /// All settings that the engine may be using, see [`crate::engines::BackendChange`]. `None` if it has a backend
    /// whose settings are unknown.
    pub settings: Option<Vec<String>>,
}

impl Workspace {
    pub fn save_backend_note(&self, note: &BackendNote) -> Result<(), WorkspaceError> {
        self.tree()?.write_json(PrivateFile::BACKEND_SETTINGS, note)
    }

    pub fn load_backend_note(&self) -> Result<BackendNote, WorkspaceError> {
        if let Some(note) = self.tree()?.read_json(PrivateFile::BACKEND_SETTINGS)? {
            return Ok(note);
        }
        let has_backend = |data: &str| {
            let saved = self.init_dir().join(data).join("terraform.tfstate").metadata();
            !saved.is_err_and(|error| is_missing(&error))
        };
        // A TF_DATA_DIR that a hook sets is not known here.
        let data = self.load_environment().unwrap_or_default().remove("TF_DATA_DIR").unwrap_or_default();
        let is_unknown = has_backend(".terraform") || !data.is_empty() && has_backend(&data);
        Ok(BackendNote { job: None, settings: (!is_unknown).then(Vec::new) })
    }
}
