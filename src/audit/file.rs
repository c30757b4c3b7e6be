//! The file of the audit log, which is only ever appended to.
//!
//! Processes that share the file lock it for each line, so their lines do not mix. A line is flushed to disk before the caller
//! records it as written. A line that a crash or a full disk cut short is ended before the next one.
//!
//! The file can be rotated by renaming or removing it: before each line, the runner checks that the path still leads to the
//! open file, and opens the new one if not. The runner never truncates, renames, or removes the file.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::files::create_private_dir_all;

const LOCK_ATTEMPTS: u32 = 25;
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: Option<File>,
}

impl Appender {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at the path, unless it is already open; creates it with mode 0600 if it does not exist.
    pub(super) fn open(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) if is_at(&file, &self.path) => file,
            _ => open_or_create(&self.path)?,
        };
        Ok(self.file.insert(file))
    }

    /// Appends a line, given without its line feed.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let path = self.path.clone();
        let file = self.open()?;
        wait_for_lock(file);
        let written = write_line(file, &path, line);
        let _ = file.unlock();
        written
    }
}

/// Waits only briefly: a process that is stopped while it holds the lock must not stop this one. Without the lock, a line is
/// still a single append.
fn wait_for_lock(file: &File) {
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_INTERVAL),
            // Or the file system has no locks.
            _ => return,
        }
    }
}

fn write_line(file: &mut File, path: &Path, line: &[u8]) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_torn = metadata.is_file() && last_byte(path, metadata.len()).is_some_and(|byte| byte != b'\n');
    let end_of_torn_line: &[u8] = if is_torn { b"\n" } else { b"" };
    file.write_all(&[end_of_torn_line, line, b"\n"].concat())?;
    if metadata.is_file() { file.sync_data() } else { Ok(()) }
}

/// None if the file is empty or cannot be read.
fn last_byte(path: &Path, length: u64) -> Option<u8> {
    let mut last = [0];
    File::open(path).ok()?.read_exact_at(&mut last, length.checked_sub(1)?).ok()?;
    Some(last[0])
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(current)) => (open.dev(), open.ino()) == (current.dev(), current.ino()),
        _ => false,
    }
}

fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Without this flag, opening a pipe waits for a reader.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    options.append(true).mode(0o600).custom_flags(nonblocking);
    if let Some(folder) = path.parent() {
        create_private_dir_all(folder)?;
    }
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The umask may have removed the owner's bits.
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        }
        // The operator chooses the mode of an existing file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}
