//! The file of the audit log: it is only ever appended to.
//!
//! Each line is one `write` on a file that was opened with `O_APPEND`, so lines of several processes do not mix. It is
//! flushed to the disk before the caller notes it as written. Whoever rotates the file by renaming or removing it needs to
//! tell nobody: before each line the path is looked at, and a file that is another one by now is opened. We
//! ourselves never truncate, rename or remove it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::base::files::create_private_dir_all;

/// How often, and with which pause, it is looked at a line without an end: a third of a second in all.
const LOOKS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(10);

/// Appends lines to a file.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: Option<File>,
    /// The last line has no end: a crash or a full disk came in its middle.
    torn: bool,
}

impl Appender {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, torn: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that is at the path now; one that is not there is made, private to the user.
    pub(super) fn open(&mut self) -> io::Result<&mut File> {
        let is_current = self.file.as_ref().is_some_and(|file| is_at(file, &self.path));
        if !is_current {
            self.file = None;
            let file = open_or_create(&self.path)?;
            self.torn = lacks_line_end(&self.path);
            self.file = Some(file);
        }
        self.file.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// `line` is without its end.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.open()?;
        let torn = self.torn;
        let mut bytes = Vec::with_capacity(line.len() + 2);
        if torn {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        let file = self.open()?;
        let written = write_once(file, &bytes);
        let is_regular = file.metadata().is_ok_and(|found| found.is_file());
        let flushed = if written.is_ok() && is_regular { file.sync_data() } else { Ok(()) };
        self.torn = match &written {
            Ok(()) => false,
            Err(_) => torn || lacks_line_end(&self.path),
        };
        written.and(flushed)
    }
}

/// The rest after a part is only for a disk that fills up or a signal; whole lines go out as one.
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
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // A pipe that nobody reads is an error and no reason to wait.
    let not_waiting = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    options.append(true).mode(0o600).custom_flags(not_waiting);
    if let Some(folder) = path.parent() {
        create_private_dir_all(folder)?;
    }
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The umask may have taken the owner's bits.
            file.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        }
        // The mode of a file that is there is its owner's choice. One that was removed just now is made by the next try.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

/// Whether the last line has no end. One that another process is just writing gets it in a moment.
fn lacks_line_end(path: &Path) -> bool {
    for _ in 1..LOOKS {
        if !lacks_line_end_now(path) {
            return false;
        }
        thread::sleep(PAUSE);
    }
    lacks_line_end_now(path)
}

fn lacks_line_end_now(path: &Path) -> bool {
    let look = || -> io::Result<bool> {
        let found = fs::metadata(path)?;
        if !found.is_file() || found.len() == 0 {
            return Ok(false);
        }
        let mut last = [0];
        File::open(path)?.read_exact_at(&mut last, found.len() - 1)?;
        Ok(last != *b"\n")
    };
    look().unwrap_or(false)
}
