//! Lock files, which also work across processes.
//!
//! The operating system ties the lock to an open file and releases it when the last copy of that file is closed, even if
//! the process crashes, so a lock cannot go stale. The content of the file only names the holder, for messages. A lock file
//! is never deleted: a process that still has the deleted file open would hold a lock that no other process can see.
//!
//! The folder of a lock file must exist. A symlink in place of the file is an error, because its target is not ours.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::files::PRIVATE_FILE;
use super::retry;

/// The longest name of a holder is that of a module: three directory names.
const LONGEST_NAME: u64 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    Shared,
    Alone,
}

/// Takes the lock without waiting, and creates the file if needed. Returns `None` if another holder has the lock.
pub fn try_lock(path: &Path, mode: LockMode) -> io::Result<Option<File>> {
    take(open(path, true)?, mode)
}

/// Like [`try_lock`], but a missing file is an error.
pub fn try_lock_existing(path: &Path, mode: LockMode) -> io::Result<Option<File>> {
    take(open(path, false)?, mode)
}

/// A lock that is not passed on to other processes. Dropping it unlocks explicitly: closing the file is not enough while
/// this process is starting a program, because the child has a copy of every open file until it calls `exec`.
#[derive(Debug)]
pub struct OwnLock(File);

impl OwnLock {
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // If this fails, closing the file releases the lock.
        let _ = self.0.unlock();
    }
}

/// Like [`try_lock`], for a lock that stays in this process.
pub fn try_own(path: &Path, mode: LockMode) -> io::Result<Option<OwnLock>> {
    Ok(try_lock(path, mode)?.map(OwnLock))
}

/// Like [`try_own`], but waits up to `timeout`: if the last holder died while it was starting a program, that program has a
/// copy of the file until it calls `exec`.
pub fn own_within(path: &Path, mode: LockMode, timeout: Duration) -> io::Result<Option<OwnLock>> {
    let start = Instant::now();
    loop {
        let own = try_own(path, mode)?;
        if own.is_some() || start.elapsed() >= timeout {
            return Ok(own);
        }
        thread::sleep(retry::LOCK);
    }
}

/// Takes the lock of an open file. Succeeds if this open file already holds it.
pub fn take(file: File, mode: LockMode) -> io::Result<Option<File>> {
    let taken = match mode {
        LockMode::Shared => file.try_lock_shared(),
        LockMode::Alone => file.try_lock(),
    };
    match taken {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Writes the name of the holder into the file. Errors, such as a full disk, are ignored.
pub fn sign(held: &File, holder: &str) {
    let _ = held.set_len(0).and_then(|()| held.write_all_at(holder.as_bytes(), 0));
}

/// The last holder that [signed](sign) the lock, if known.
pub fn holder(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(LONGEST_NAME).read_to_string(&mut text)).ok()?;
    let name = text.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .custom_flags(no_follow)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_lock_is_exclusive_or_shared_and_names_its_holder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        assert_eq!(try_lock_existing(&path, LockMode::Alone).unwrap_err().kind(), io::ErrorKind::NotFound);

        let alone = try_own(&path, LockMode::Alone).unwrap().unwrap();
        assert_eq!(holder(&path), None);
        sign(alone.file(), "a name that is longer than the next");
        sign(alone.file(), "process 1\n");
        assert_eq!(holder(&path).unwrap(), "process 1");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [LockMode::Shared, LockMode::Alone] {
            assert!(try_lock(&path, mode).unwrap().is_none());
            assert!(try_lock_existing(&path, mode).unwrap().is_none());
        }
        drop(alone);

        let shared = try_own(&path, LockMode::Shared).unwrap().unwrap();
        let with_it = try_own(&path, LockMode::Shared).unwrap().unwrap();
        assert!(try_lock(&path, LockMode::Alone).unwrap().is_none());
        drop((shared, with_it));
        try_lock_existing(&path, LockMode::Alone).unwrap().unwrap();
    }

    #[test]
    fn an_own_lock_is_released_although_a_copy_of_the_file_is_open() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let own = try_own(&path, LockMode::Alone).unwrap().unwrap();
        let _copy = own.file().try_clone().unwrap();
        assert!(try_own(&path, LockMode::Alone).unwrap().is_none());
        drop(own);
        try_own(&path, LockMode::Alone).unwrap().unwrap();
    }

    #[test]
    fn waiting_outlasts_a_holder_that_is_about_to_release() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let held = try_own(&path, LockMode::Alone).unwrap().unwrap();
        assert!(own_within(&path, LockMode::Alone, Duration::ZERO).unwrap().is_none());
        let release = thread::spawn(move || {
            thread::sleep(3 * retry::LOCK);
            drop(held);
        });
        own_within(&path, LockMode::Alone, Duration::from_secs(600)).unwrap().unwrap();
        release.join().unwrap();
    }

    #[test]
    fn the_target_of_a_symlink_is_neither_created_nor_changed() {
        let root = tempfile::tempdir().unwrap();
        let (path, target) = (root.path().join("lock"), root.path().join("target"));
        std::os::unix::fs::symlink(&target, &path).unwrap();
        try_lock(&path, LockMode::Alone).unwrap_err();
        assert!(!target.exists());
        fs::write(&target, "untouched").unwrap();
        try_lock(&path, LockMode::Alone).unwrap_err();
        assert_eq!(fs::read(&target).unwrap(), b"untouched");
    }
}
