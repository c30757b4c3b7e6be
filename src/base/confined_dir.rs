//! Access to files below one folder, never outside of it.
//!
//! Checking a path and then opening it by name is a race: a hook, a provisioner or a process that one of them left running
//! can replace a part of the path with a symlink in between. So all access starts from an open handle:
//!
//! - [`ConfinedRoot`] is the handle of a module root. A path below it may go through symlinks as long as they stay below
//!   it. The operating system (`openat2` with `RESOLVE_BENEATH`) or, where that is missing, `cap-std` enforces this.
//! - [`ConfinedDir`] is the handle of one folder below the root. Its operations name a single entry and never follow a
//!   symlink of that name.
//!
//! Only regular files are read: a pipe or a device is an error, so a read cannot block forever.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Opening a pipe must not wait for a writer.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_FOLDER: Mode = Mode::RWXU;

/// A folder that no path can leave.
#[derive(Debug)]
pub struct ConfinedRoot {
    root: Dir,
}

impl ConfinedRoot {
    /// The last component of the path must be a folder, not a symlink to one.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = rustix::fs::open(path, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { root: Dir::from_std_file(File::from(root)) })
    }

    /// Opens an existing folder. The empty path is the root itself.
    pub fn folder(&self, below: &Path) -> io::Result<ConfinedDir> {
        let fd = match below.as_os_str().is_empty() {
            true => rustix::fs::openat(&self.root, ".", FOLDER, Mode::empty())?,
            // `open_dir` may return an `O_PATH` handle, which cannot be read.
            false => rustix::fs::openat(self.root.open_dir(below)?, ".", FOLDER, Mode::empty())?,
        };
        Ok(ConfinedDir { fd })
    }

    /// Opens a folder, and creates it and its parents if they are missing. New folders are private.
    pub fn open_or_create(&self, below: &Path) -> io::Result<ConfinedDir> {
        let mut folder = self.folder(Path::new(""))?;
        let mut path = PathBuf::new();
        for part in below.components() {
            path.push(part);
            folder = match self.folder(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    folder.open_or_create(part.as_os_str())?
                }
                opened => opened?,
            };
        }
        Ok(folder)
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, below: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        options.read(true).custom_flags(flags.cast_signed());
        regular(self.root.open_with(below, &options)?.into_std())
    }

    /// Whether the path is a regular file, or a symlink to one below the root.
    pub fn is_file(&self, below: &Path) -> bool {
        self.root.metadata(below).is_ok_and(|metadata| metadata.is_file())
    }

    /// Resolves all symlinks of an existing path.
    pub fn real(&self, below: &Path) -> io::Result<PathBuf> {
        match below.as_os_str().is_empty() {
            true => Ok(PathBuf::new()),
            false => self.root.canonicalize(below),
        }
    }
}

/// Whether the error means that the path leaves the root.
pub fn leads_out(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// Whether such a path cannot exist: a name in it is too long, or its symlinks form a loop.
pub fn is_no_place(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidFilename
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Whether the error means that the file, or a folder above it, does not exist.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Folder,
    Symlink,
    /// A pipe, a socket or a device.
    Special,
}

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Folder,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

/// An open folder. Its methods take the name of one entry and refuse `.`, `..` and names with a slash.
#[derive(Debug)]
pub struct ConfinedDir {
    fd: OwnedFd,
}

impl ConfinedDir {
    /// Opens a folder that belongs to the runner, by a trusted path.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: rustix::fs::open(path, FOLDER, Mode::empty())? })
    }

    /// Returns `None` if there is no such entry.
    pub fn kind(&self, name: &OsStr) -> io::Result<Option<EntryKind>> {
        match rustix::fs::statat(&self.fd, entry_name(name)?, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode).into())),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn entries(&self) -> io::Result<Vec<(OsString, EntryKind)>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind(name)?,
                known => Some(known.into()),
            };
            entries.extend(kind.map(|kind| (name.to_owned(), kind)));
        }
        Ok(entries)
    }

    pub fn folder(&self, name: &OsStr) -> io::Result<Self> {
        // A symlink is ENOTDIR.
        let fd = rustix::fs::openat(&self.fd, entry_name(name)?, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Opens a folder, and creates it if it is missing.
    pub fn open_or_create(&self, name: &OsStr) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.fd, entry_name(name)?, PRIVATE_FOLDER) {
            Ok(()) => {
                let created = self.folder(name)?;
                created.make_private()?;
                self.sync()?;
                Ok(created)
            }
            Err(rustix::io::Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Like [`open_or_create`](Self::open_or_create), for a path of several folders.
    pub fn open_or_create_all(&self, path: &Path) -> io::Result<Self> {
        let mut folder = Self { fd: self.fd.try_clone()? };
        for part in path.components() {
            folder = folder.open_or_create(part.as_os_str())?;
        }
        Ok(folder)
    }

    /// Removes all access by other users.
    pub fn make_private(&self) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.fd, PRIVATE_FOLDER)?)
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.fd, entry_name(name)?, TO_READ | OFlags::NOFOLLOW, Mode::empty())?;
        regular(File::from(fd))
    }

    /// Writes a file that only its owner can read, atomically like [`super::files::write_private_atomic`]. A symlink of that
    /// name is replaced.
    pub fn write(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        let temporary = OsString::from(format!(".hawser-new-{:016x}", fastrand::u64(..)));
        let written = || -> io::Result<()> {
            let fd = rustix::fs::openat(&self.fd, &temporary, NEW_FILE, PRIVATE_FILE)?;
            // The umask may have removed bits.
            rustix::fs::fchmod(&fd, PRIVATE_FILE)?;
            let mut file = File::from(fd);
            file.write_all(contents)?;
            file.sync_all()?;
            self.rename(&temporary, self, name)
        };
        written().inspect_err(|_| {
            // The file may not exist.
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        })
    }

    /// Moves an entry and replaces an existing one.
    pub fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(&self.fd, entry_name(name)?, &to.fd, entry_name(new_name)?)?;
        self.sync()?;
        to.sync()
    }

    /// Removes a file, a symlink or a special file. Returns whether it existed.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.fd, entry_name(name)?, AtFlags::empty()) {
            Ok(()) => self.sync().map(|()| true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, entry_name(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Creates a hard link to a file, or a copy where the file system has no hard links. Symlinks are copied as symlinks;
    /// pipes, sockets and devices are skipped.
    pub fn link_or_copy(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        match self.kind(name)? {
            Some(EntryKind::Symlink) => {
                let target = rustix::fs::readlinkat(&self.fd, entry_name(name)?, Vec::new())?;
                Ok(rustix::fs::symlinkat(target, &to.fd, entry_name(new_name)?)?)
            }
            Some(EntryKind::File) => {
                if rustix::fs::linkat(&self.fd, name, &to.fd, entry_name(new_name)?, AtFlags::empty()).is_ok()
                {
                    return Ok(());
                }
                let mut from = self.open_file(name)?;
                let mode = rustix::fs::fstat(&from)?.st_mode;
                let fd = rustix::fs::openat(&to.fd, entry_name(new_name)?, NEW_FILE, PRIVATE_FILE)?;
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
                let mut file = File::from(fd);
                io::copy(&mut from, &mut file)?;
                file.sync_all()
            }
            _ => Ok(()),
        }
    }

    /// Makes creations, renames and removals survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }
}

/// Checks that a name is a single path component.
fn entry_name(name: &OsStr) -> io::Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a single entry")),
    }
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Opens a regular file by a trusted path and follows symlinks.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(File::from(rustix::fs::open(path, TO_READ, Mode::empty())?))
}

/// Reads a file of at most `limit` bytes.
pub fn read_limited(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut contents)?;
    if read as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests;
