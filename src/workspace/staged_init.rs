//! What an Init chooses for later tasks. It is written to the folder `init` of the private folder, and moved to the private folder
//! when the Init has succeeded. One that fails changes nothing here, but Terraform may have changed to the new backend already.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use super::{LastTask, PrivateFile, Tree, Workspace, WorkspaceError};
use crate::base::confined_dir::{ConfinedDir, is_missing, read_limited};

/// The folder in the private folder.
pub const STAGED: &str = "init";

const FILES: [PrivateFile; 4] = [
    PrivateFile::INIT_VARIABLES,
    PrivateFile::PULUMI_BACKEND,
    PrivateFile::PULUMI_CREDENTIALS,
    PrivateFile::PULUMI_ACCOUNT,
];

const LARGEST_FILE: u64 = 64 * 1024 * 1024;

impl Workspace {
    /// Where an Init writes its files.
    pub fn staged_dir(&self) -> PathBuf {
        self.private_dir().join(STAGED)
    }

    /// Removes what an earlier Init has staged.
    pub fn clear_staged(&self) -> Result<(), WorkspaceError> {
        let staged = self.tree()?.staged_made()?;
        let removed =
            FILES.into_iter().try_for_each(|it| staged.remove_file(OsStr::new(it.name())).map(drop));
        removed.map_err(|error| WorkspaceError::io("clear", &self.staged_dir(), error))
    }

    pub fn stage(&self, file: PrivateFile, contents: &[u8]) -> Result<(), WorkspaceError> {
        let written = self.tree()?.staged_made()?.write(OsStr::new(file.name()), contents);
        written.map_err(|error| WorkspaceError::io("write", &self.staged_dir().join(file.name()), error))
    }

    /// An Init has succeeded: later tasks use its files. Safe to repeat. False if another job has fetched a new revision since.
    pub fn promote_staged(&self) -> Result<bool, WorkspaceError> {
        let tree = self.tree()?;
        let private = tree.private_made()?;
        let staged = match private.folder(OsStr::new(STAGED)) {
            Err(error) if is_missing(&error) => return Ok(false),
            opened => opened.map_err(|error| WorkspaceError::io("open", &self.staged_dir(), error))?,
        };
        let promote = |name: &OsStr| -> io::Result<()> {
            match staged.open_file(name).and_then(|file| read_limited(file, LARGEST_FILE)) {
                Ok(text) => private.write(name, &text),
                Err(error) if is_missing(&error) => private.remove_file(name).map(drop),
                Err(error) => Err(error),
            }
        };
        for file in FILES {
            let failed = |error| WorkspaceError::io("save", &self.private_path(file), error);
            promote(OsStr::new(file.name())).map_err(failed)?;
        }
        self.note_promoted()?;
        Ok(true)
    }

    /// The variables of the last Init, as the last task had them.
    pub fn init_variables(&self, last: &LastTask) -> PathBuf {
        let staged = self.staged_dir().join(PrivateFile::INIT_VARIABLES.name());
        let is_of_init = last.task == hawser_contract::Task::Init && staged.is_file();
        if is_of_init { staged } else { self.private_path(PrivateFile::INIT_VARIABLES) }
    }
}

impl Tree {
    fn staged_made(&self) -> Result<ConfinedDir, WorkspaceError> {
        let folder = self.private_made()?.open_or_create(OsStr::new(STAGED));
        let failed = |error| self.error("create", &self.private_path(STAGED), error);
        let folder = folder.map_err(failed)?;
        folder.make_private().map_err(failed)?;
        Ok(folder)
    }
}
