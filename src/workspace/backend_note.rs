//! The backend settings that Inits have given to the engine. It keeps them in a folder of its own (`.terraform`) and goes on
//! using them, so they are judged before every later task.

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
    /// The job whose Init was the last.
    pub job: Option<Uuid>,
    /// All that the engine may be using, see [`crate::engines::terraform::backend_settings`]. None when it has a backend and
    /// nobody has noted how it came to it.
    pub settings: Option<Vec<String>>,
}

impl Workspace {
    pub fn save_backend_note(&self, note: &BackendNote) -> Result<(), WorkspaceError> {
        let path = || self.private_path(PrivateFile::BackendSettings);
        let text = serde_json::to_vec_pretty(note)
            .map_err(|source| WorkspaceError::DamagedBackendSettings { path: path(), source })?;
        self.write_private(PrivateFile::BackendSettings, &text).map(|_| ())
    }

    pub fn load_backend_note(&self) -> Result<BackendNote, WorkspaceError> {
        let tree = self.tree()?;
        let file = PrivateFile::BackendSettings;
        if let Some(text) = tree.read_private(file)? {
            let path = self.private_path(file);
            return serde_json::from_slice(&text)
                .map_err(|source| WorkspaceError::DamagedBackendSettings { path, source });
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
        // Where else the engine was told to keep it. (Not told of by a hook, which nobody knows of.)
        let elsewhere =
            self.load_environment().unwrap_or_default().get("TF_DATA_DIR").cloned().unwrap_or_default();
        let is_elsewhere =
            !elsewhere.is_empty() && self.init_dir().join(elsewhere).join("terraform.tfstate").exists();
        let has_backend =
            has_backend().map_err(|error| WorkspaceError::io("look into", &self.init_dir(), error))?;
        Ok(BackendNote { job: None, settings: (!has_backend && !is_elsewhere).then(Vec::new) })
    }
}
