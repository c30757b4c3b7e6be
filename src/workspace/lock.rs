//! One task at a time in a module's directory, between processes too.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::SystemTime;

use super::{Workspace, WorkspaceError};
use crate::files::create_private_dir_all;

/// Holds the module until it is dropped, or until its process ends in whatever way.
#[derive(Debug)]
pub struct ModuleLock {
    file: File,
}

impl ModuleLock {
    /// The open file that holds the lock, once more. Whoever gets it, or inherits it, holds the module too: it is
    /// free when all have let go.
    pub fn share(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }
}

impl Workspace {
    /// Takes the module, or says who has it; never waits. A swap of revisions that a crash interrupted is undone
    /// first, so that whoever holds the lock finds a whole tree.
    pub fn lock(&self) -> Result<ModuleLock, WorkspaceError> {
        let failed = |error| WorkspaceError::io("lock", &self.lock_file, error);
        if let Some(folder) = self.lock_file.parent() {
            create_private_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.lock_file)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(WorkspaceError::Busy { module: self.module.clone(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The text only serves the message above, so a full disk is no reason to do without the lock. That is the
        // operating system's and cannot go stale.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "process {} since {}", std::process::id(), jiff::Timestamp::now()));
        self.restore_interrupted_swap()?;
        Ok(ModuleLock { file })
    }
}

impl Workspace {
    /// When the module was last taken; none when it never was.
    pub(crate) fn last_locked(&self) -> Option<SystemTime> {
        self.lock_file.metadata().and_then(|found| found.modified()).ok()
    }

    /// Takes the module without leaving a trace of it: neither a name nor a time is written, and no swap is undone. A
    /// lock file that is not there is made when `create` says so; otherwise there is nobody to hold it against.
    pub(crate) fn hold_quietly(&self, create: bool) -> Result<Option<File>, WorkspaceError> {
        let failed = |error| WorkspaceError::io("lock", &self.lock_file, error);
        if let (true, Some(folder)) = (create, self.lock_file.parent()) {
            create_private_dir_all(folder).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(0o600);
        let mut file = match options.open(&self.lock_file) {
            Err(error) if error.kind() == ErrorKind::NotFound && !create => return Ok(None),
            file => file.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {
                Err(WorkspaceError::Busy { module: self.module.clone(), holder: holder(&mut file) })
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(200).read_to_string(&mut text);
    match (read, text.trim()) {
        (Ok(_), known) if !known.is_empty() => known.to_owned(),
        _ => "another process".to_owned(),
    }
}
