//! The backend settings that Init has passed to the engine. The engine saves them in its data folder (`.terraform`) and keeps
//! using them, so the policy checks them before every later task.

use std::ffi::OsStr;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{PrivateFile, Workspace, WorkspaceError};
use crate::base::confined_dir::EntryKind;

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
        let tree = self.tree()?;
        if let Some(note) = tree.read_json(PrivateFile::BACKEND_SETTINGS)? {
            return Ok(note);
        }
        let has_backend = || -> io::Result<bool> {
            let init = tree.init_folder()?;
            let name = OsStr::new(".terraform");
            match init.kind(name)? {
                Some(EntryKind::Folder) => {
                    Ok(init.folder(name)?.kind(OsStr::new("terraform.tfstate"))?.is_some())
                }
                other => Ok(other.is_some()),
            }
        };
        let has_backend =
            has_backend().map_err(|error| WorkspaceError::io("read", &self.init_dir(), error))?;
        // A TF_DATA_DIR that a hook sets is not known here.
        let data = self.load_environment().unwrap_or_default().remove("TF_DATA_DIR").unwrap_or_default();
        let has_other_backend =
            !data.is_empty() && self.init_dir().join(data).join("terraform.tfstate").exists();
        Ok(BackendNote { job: None, settings: (!has_backend && !has_other_backend).then(Vec::new) })
    }
}
