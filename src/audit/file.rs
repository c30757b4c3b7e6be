//! The file of the audit log, which is only ever appended to.
//!
//! Each line is one `write` to a file opened with `O_APPEND`, so lines of several processes do not mix. It is flushed to disk
//! before the caller records it as written. The file can be rotated by renaming or removing it: before each line, the runner
//! checks that the path still leads to the open file, and opens the new one if not. The runner never truncates, renames, or
//! removes the file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;

use crate::base::files::create_private_dir_all;
use crate::base::retry;

#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: Option<File>,
    /// A crash or a full disk cut the last line short.
    torn: bool,
}

impl Appender {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, torn: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at the path, unless it is already open; creates it with mode 0600 if it does not exist.
    pub(super) fn open(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) if is_at(&file, &self.path) => file,
            _ => {
                let file = open_or_create(&self.path)?;
                self.torn = is_torn(&self.path);
                file
            }
        };
        Ok(self.file.insert(file))
    }

    /// Appends a line, given without its line feed.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.open()?;
        let mut bytes = Vec::with_capacity(line.len() + 2);
        if self.torn {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        let file = self.open()?;
        let written = write_once(file, &bytes);
        let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let flushed = if written.is_ok() && is_regular { file.sync_data() } else { Ok(()) };
        self.torn = written.is_err() && (self.torn || is_torn(&self.path));
        written.and(flushed)
    }
}

/// Writes the line with one call. The rest is needed only after a signal or on a disk that fills up.
fn write_once(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let count = loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    file.write_all(&bytes[count..])
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

/// Whether the last line was cut short. A line that another process is writing gets longer, or its line feed.
fn is_torn(path: &Path) -> bool {
    let Some(length) = unfinished_length(path) else { return false };
    thread::sleep(retry::AUDIT_FILE);
    unfinished_length(path) == Some(length)
}

/// The length of the file if it does not end with a line feed.
fn unfinished_length(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut last = [0];
    File::open(path).ok()?.read_exact_at(&mut last, metadata.len().checked_sub(1)?).ok()?;
    (last != *b"\n").then_some(metadata.len())
}
