//! One task at a time in a module's directory, between processes too.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::time::SystemTime;

use super::{Workspace, WorkspaceError};
use crate::base::files::create_private_dir_all;
use crate::base::lock::{self, LockMode};

/// Holds the module until it is dropped, or until its process ends in whatever way.
#[derive(Debug)]
pub struct ModuleLock {
    file: File,
}

impl ModuleLock {
    /// The open file that holds the lock, once more. Whoever gets it, or inherits it, holds the module too: it is
    /// free when all have let go.
    pub fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Workspace {
    /// Takes the module, or says who has it; never waits. A swap of revisions that a crash interrupted is undone
    /// first, so that whoever holds the lock finds a whole tree.
    pub fn lock(&self) -> Result<ModuleLock, WorkspaceError> {
        let file = self.take_lock()?;
        lock::sign(&file, &format!("process {} since {}\n", std::process::id(), jiff::Timestamp::now()));
        self.restore_interrupted_swap()?;
        Ok(ModuleLock { file })
    }

    /// When the module was last taken; none when it never was.
    pub(crate) fn last_locked(&self) -> Option<SystemTime> {
        self.lock_file.metadata().and_then(|found| found.modified()).ok()
    }

    /// Takes the module without leaving a trace of it: neither a name nor a time is written, and no swap is undone. A
    /// lock file that is not there is made when `create` says so; otherwise there is nobody to hold it against.
    pub(crate) fn hold_quietly(&self, create: bool) -> Result<Option<File>, WorkspaceError> {
        if create {
            return self.take_lock().map(Some);
        }
        match lock::try_lock_existing(&self.lock_file, LockMode::Alone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            taken => self.taken(taken).map(Some),
        }
    }

    fn take_lock(&self) -> Result<File, WorkspaceError> {
        if let Some(folder) = self.lock_file.parent() {
            create_private_dir_all(folder)
                .map_err(|error| WorkspaceError::io("lock", &self.lock_file, error))?;
        }
        self.taken(lock::try_lock(&self.lock_file, LockMode::Alone))
    }

    fn taken(&self, taken: io::Result<Option<File>>) -> Result<File, WorkspaceError> {
        match taken {
            Ok(Some(file)) => Ok(file),
            Ok(None) => {
                let holder = lock::holder(&self.lock_file).unwrap_or_else(|| "another process".to_owned());
                Err(WorkspaceError::Busy { module: self.module.clone(), holder })
            }
            Err(error) => Err(WorkspaceError::io("lock", &self.lock_file, error)),
        }
    }
}
