//! Allows one task at a time in a module's directory, across processes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::time::SystemTime;

use rustix::io::{FdFlags, fcntl_setfd};

use super::{Workspace, WorkspaceError, swap};
use crate::base::files::create_private_dir_all;
use crate::base::lock::{self, LockMode};

/// Locks the module until it is dropped or its process ends.
#[derive(Debug)]
pub struct ModuleLock {
    file: File,
}

impl ModuleLock {
    /// Another handle of the locked file, which a process can inherit. The module is locked until all handles are closed.
    pub fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Keeps the module locked until the program that replaces this process has ended, with all processes that it starts.
    pub fn pass_on(&self) -> io::Result<()> {
        Ok(fcntl_setfd(&self.file, FdFlags::empty())?)
    }
}

impl Workspace {
    /// Locks the module without waiting; the error names the holder. Also undoes a swap of revisions that a crash interrupted, so
    /// that the caller finds a complete tree. `holder` is who locks it, for that error: "task Plan".
    pub fn lock(&self, holder: &str) -> Result<ModuleLock, WorkspaceError> {
        let file = self.take_lock()?;
        let (process, now) = (std::process::id(), jiff::Timestamp::now());
        lock::sign(&file, &format!("{holder} (process {process}, since {now:.0})\n"));
        swap::restore(&self.staging, &self.module_root)?;
        Ok(ModuleLock { file })
    }

    /// When a task last locked the module. A file without the name of its holder was created by [`Self::hold_quietly`].
    pub(crate) fn last_locked(&self) -> Option<SystemTime> {
        self.lock_file.metadata().ok().filter(|file| file.len() > 0)?.modified().ok()
    }

    /// Locks the module without leaving a trace: records neither the holder nor the time, and does not undo a swap. `None` if
    /// there is no lock file and `create` is not set.
    pub(crate) fn hold_quietly(&self, create: bool) -> Result<Option<File>, WorkspaceError> {
        if create {
            return self.take_lock().map(Some);
        }
        match lock::try_lock_existing(&self.lock_file, LockMode::Alone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            locked => self.locked(locked).map(Some),
        }
    }

    fn take_lock(&self) -> Result<File, WorkspaceError> {
        if let Some(folder) = self.lock_file.parent() {
            create_private_dir_all(folder)
                .map_err(|error| WorkspaceError::io("lock", &self.lock_file, error))?;
        }
        self.locked(lock::try_lock(&self.lock_file, LockMode::Alone))
    }

    fn locked(&self, locked: io::Result<Option<File>>) -> Result<File, WorkspaceError> {
        match locked {
            Ok(Some(file)) => Ok(file),
            Ok(None) => {
                let holder = lock::holder(&self.lock_file).unwrap_or_else(|| "another process".to_owned());
                Err(WorkspaceError::Busy { module: self.module.clone(), holder })
            }
            Err(error) => Err(WorkspaceError::io("lock", &self.lock_file, error)),
        }
    }
}
