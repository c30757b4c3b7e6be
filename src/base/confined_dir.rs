//! Files below one folder, and never above it.
//!
//! A path that was checked and is then opened by its name may lead elsewhere by the time it is opened: a hook, a
//! provisioner or a process that either left behind can put a symlink there. So everything starts from an open handle:
//!
//! - [`ConfinedRoot`] is the handle of a module root. A path below it may go through symlinks as long as they stay below it, which
//!   is what the operating system (`openat2` with `RESOLVE_BENEATH`) or, where that is missing, `cap-std` sees to.
//! - [`ConfinedDir`] is the handle of one folder that was found in this way. What is done in it names a single entry, and a
//!   symlink of that name is never followed.
//!
//! What is read must be a regular file: a pipe or a device in its place is an error and not a wait without end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// A pipe is opened without waiting for its other end.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_FOLDER: Mode = Mode::RWXU;

/// A folder that nothing leads out of.
#[derive(Debug)]
pub struct ConfinedRoot {
    root: Dir,
    place: PathBuf,
}

impl ConfinedRoot {
    /// The last part of the path must be a folder and no symlink to one.
    pub fn open(place: &Path) -> io::Result<Self> {
        let root = rustix::fs::open(place, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { root: Dir::from_std_file(File::from(root)), place: place.to_owned() })
    }

    /// Where it was when it was opened, for messages and for programs that take a path.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// An existing folder; the empty path means this one.
    pub fn folder(&self, below: &Path) -> io::Result<ConfinedDir> {
        let fd = match below.as_os_str().is_empty() {
            true => rustix::fs::openat(&self.root, ".", FOLDER, Mode::empty())?,
            // The handle that this gives may be good for nothing but finding other files from it.
            false => rustix::fs::openat(self.root.open_dir(below)?, ".", FOLDER, Mode::empty())?,
        };
        Ok(ConfinedDir { fd })
    }

    /// A folder, made if it is missing, as are those on the way. New ones are private.
    pub fn folder_made(&self, below: &Path) -> io::Result<ConfinedDir> {
        let mut folder = self.folder(Path::new(""))?;
        let mut path = PathBuf::new();
        for part in below.components() {
            path.push(part);
            folder = match self.folder(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    folder.folder_made(part.as_os_str())?
                }
                found => found?,
            };
        }
        Ok(folder)
    }

    /// Opens a regular file to be read.
    pub fn open_file(&self, below: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        options.read(true).custom_flags(flags.cast_signed());
        regular(self.root.open_with(below, &options)?.into_std())
    }

    /// Whether there is a regular file, or a symlink to one that stays inside.
    pub fn is_file(&self, below: &Path) -> bool {
        self.root.metadata(below).is_ok_and(|found| found.is_file())
    }

    /// Where an existing path leads when all symlinks are followed.
    pub fn real(&self, below: &Path) -> io::Result<PathBuf> {
        match below.as_os_str().is_empty() {
            true => Ok(PathBuf::new()),
            false => self.root.canonicalize(below),
        }
    }
}

/// Whether the error says that a path led out.
pub fn leads_out(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// Whether nothing can be at such a path: a name in it is too long, or links lead round in circles.
pub fn is_no_place(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidFilename
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Whether the error says that there is no such file, or no folder where it would be.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What one entry of a folder is.
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

/// An open folder. Every name is that of an entry in it; one with a slash, `.` and `..` are refused.
#[derive(Debug)]
pub struct ConfinedDir {
    fd: OwnedFd,
}

impl ConfinedDir {
    /// A folder of the runner's own, of which the path is known to be good.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: rustix::fs::open(path, FOLDER, Mode::empty())? })
    }

    /// `None` when there is nothing of that name.
    pub fn kind(&self, name: &OsStr) -> io::Result<Option<EntryKind>> {
        match rustix::fs::statat(&self.fd, one(name)?, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode).into())),
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
        match rustix::fs::openat(&self.fd, one(name)?, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => Ok(Self { fd }),
            // A symlink; systems differ in what they call that.
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::MLINK) => Err(rustix::io::Errno::NOTDIR.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The folder of that name, made if it is missing.
    pub fn folder_made(&self, name: &OsStr) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.fd, one(name)?, PRIVATE_FOLDER) {
            Ok(()) => {
                let made = self.folder(name)?;
                made.make_private()?;
                self.sync()?;
                Ok(made)
            }
            Err(rustix::io::Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`folder_made`](Self::folder_made), through several folders.
    pub fn folders_made(&self, path: &Path) -> io::Result<Self> {
        let mut folder = Self { fd: self.fd.try_clone()? };
        for part in path.components() {
            folder = folder.folder_made(part.as_os_str())?;
        }
        Ok(folder)
    }

    /// Nobody but the owner gets in.
    pub fn make_private(&self) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.fd, PRIVATE_FOLDER)?)
    }

    /// Opens a regular file to be read.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.fd, one(name)?, TO_READ | OFlags::NOFOLLOW, Mode::empty())?;
        regular(File::from(fd))
    }

    /// Writes a file that only its owner can read, as [`super::files::write_private_atomic`] does: whoever opens it sees
    /// the old contents or the new. A symlink of that name is replaced.
    pub fn write(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        let temporary = OsString::from(format!(".hawser-new-{:016x}", fastrand::u64(..)));
        let written = || -> io::Result<()> {
            let fd = rustix::fs::openat(&self.fd, &temporary, NEW_FILE, PRIVATE_FILE)?;
            // The umask may have taken bits away.
            rustix::fs::fchmod(&fd, PRIVATE_FILE)?;
            let mut file = File::from(fd);
            file.write_all(contents)?;
            file.sync_all()?;
            self.rename(&temporary, self, name)
        };
        written().inspect_err(|_| {
            // It may never have been made.
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        })
    }

    /// Moves an entry; what has that name at the other place is replaced.
    pub fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(&self.fd, one(name)?, &to.fd, one(new_name)?)?;
        self.sync()?;
        to.sync()
    }

    /// Removes a file, a symlink or a special file. That there is none is no error.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.fd, one(name)?, AtFlags::empty()) {
            Ok(()) => self.sync().map(|()| true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, one(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Gives a file a second name elsewhere, or a copy where the file system has no hard links. A symlink stays one;
    /// pipes and sockets mean nothing without their process and are passed over.
    pub fn link_or_copy(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        match self.kind(name)? {
            Some(EntryKind::Symlink) => {
                let target = rustix::fs::readlinkat(&self.fd, one(name)?, Vec::new())?;
                Ok(rustix::fs::symlinkat(target, &to.fd, one(new_name)?)?)
            }
            Some(EntryKind::File) => {
                if rustix::fs::linkat(&self.fd, name, &to.fd, one(new_name)?, AtFlags::empty()).is_ok() {
                    return Ok(());
                }
                let mut from = self.open_file(name)?;
                let mode = rustix::fs::fstat(&from)?.st_mode;
                let fd = rustix::fs::openat(&to.fd, one(new_name)?, NEW_FILE, PRIVATE_FILE)?;
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

/// A name that is one entry.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is not that of one entry")),
    }
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Opens a regular file of the runner's own, or one that is only looked at for a message. Symlinks are followed.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(File::from(rustix::fs::open(path, TO_READ, Mode::empty())?))
}

/// Reads a file that is expected to be small.
pub fn read_limited(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut contents)?;
    if read as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests;
