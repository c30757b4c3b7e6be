//! Lock files: one holder at a time, between processes too.
//!
//! The lock is the operating system's and belongs to an open file. It ends when the last copy of that is closed, however
//! its process ends, so it cannot go stale. What stands in the file only tells people who holds it. A lock file is never deleted:
//! another process may have it open already, and would hold a lock that nobody else sees.
//!
//! The folder of a lock file has to be there. A symlink in its place is an error: what it points at is not ours to create or
//! to write into.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::files::PRIVATE_FILE;

/// What is read of a holder's name. The longest is that of a module, three directory names.
const LONGEST_NAME: u64 = 1024;

/// Between two tries of a lock that is waited for.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Together with others who do the same.
    Shared,
    Alone,
}

/// Takes the lock, or says with None that somebody has it; never waits. A file that is not there is made.
pub fn try_lock(path: &Path, hold: LockMode) -> io::Result<Option<File>> {
    take(open(path, true)?, hold)
}

/// The same for a file that has to be there already: without one there is nobody to hold it against.
pub fn try_lock_existing(path: &Path, hold: LockMode) -> io::Result<Option<File>> {
    take(open(path, false)?, hold)
}

/// A lock that no other process is ever given a share of. It ends here: a program that this process is just starting has
/// a copy of every open file until it is that program, and would hold the lock for so long.
#[derive(Debug)]
pub struct OwnLock(File);

impl OwnLock {
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for OwnLock {
    fn drop(&mut self) {
        // The file is closed next, which does the same a moment later.
        let _ = self.0.unlock();
    }
}

/// The same as [`try_lock`], for this process alone.
pub fn try_own(path: &Path, hold: LockMode) -> io::Result<Option<OwnLock>> {
    Ok(try_lock(path, hold)?.map(OwnLock))
}

/// The same with a moment of patience: the last holder may have died while it was starting a program, which has a copy of the
/// file until it is that program.
pub fn own_within(path: &Path, hold: LockMode, patience: Duration) -> io::Result<Option<OwnLock>> {
    let since = Instant::now();
    loop {
        let own = try_own(path, hold)?;
        if own.is_some() || since.elapsed() >= patience {
            return Ok(own);
        }
        thread::sleep(RETRY);
    }
}

/// Takes the lock of a file that is open. One that this very open file holds already is simply taken again.
pub fn take(file: File, hold: LockMode) -> io::Result<Option<File>> {
    let taken = match hold {
        LockMode::Shared => file.try_lock_shared(),
        LockMode::Alone => file.try_lock(),
    };
    match taken {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Writes down who holds the lock. A disk that is full is no reason to do without it.
pub fn sign(held: &File, holder: &str) {
    let _ = held.set_len(0).and_then(|()| held.write_all_at(holder.as_bytes(), 0));
}

/// Who has signed the lock last, as far as is known.
pub fn holder(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(LONGEST_NAME).read_to_string(&mut text)).ok()?;
    let known = text.trim();
    (!known.is_empty()).then(|| known.to_owned())
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let as_itself = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .custom_flags(as_itself)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_holds_it_alone_or_several_together_and_it_says_who() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        assert_eq!(try_lock_existing(&path, LockMode::Alone).unwrap_err().kind(), io::ErrorKind::NotFound);

        let alone = try_own(&path, LockMode::Alone).unwrap().unwrap();
        assert_eq!(holder(&path), None);
        sign(alone.file(), "a name that is longer than the next");
        sign(alone.file(), "process 1\n");
        assert_eq!(holder(&path).unwrap(), "process 1");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for hold in [LockMode::Shared, LockMode::Alone] {
            assert!(try_lock(&path, hold).unwrap().is_none());
            assert!(try_lock_existing(&path, hold).unwrap().is_none());
        }
        drop(alone);

        let shared = try_own(&path, LockMode::Shared).unwrap().unwrap();
        let with_it = try_own(&path, LockMode::Shared).unwrap().unwrap();
        assert!(try_lock(&path, LockMode::Alone).unwrap().is_none());
        drop((shared, with_it));
        try_lock_existing(&path, LockMode::Alone).unwrap().unwrap();
    }

    #[test]
    fn one_of_its_own_ends_though_somebody_has_a_copy_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let own = try_own(&path, LockMode::Alone).unwrap().unwrap();
        let _copy = own.file().try_clone().unwrap();
        assert!(try_own(&path, LockMode::Alone).unwrap().is_none());
        drop(own);
        try_own(&path, LockMode::Alone).unwrap().unwrap();
    }

    #[test]
    fn patience_outlasts_a_holder_that_is_about_to_go() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let held = try_own(&path, LockMode::Alone).unwrap().unwrap();
        assert!(own_within(&path, LockMode::Alone, Duration::ZERO).unwrap().is_none());
        let going = thread::spawn(move || {
            thread::sleep(3 * RETRY);
            drop(held);
        });
        own_within(&path, LockMode::Alone, Duration::from_secs(600)).unwrap().unwrap();
        going.join().unwrap();
    }

    #[test]
    fn what_a_symlink_points_at_is_neither_made_nor_changed() {
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
