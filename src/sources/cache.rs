//! The source cache: a folder of bare repositories, one per URL.
//!
//! ```text
//! sourcecache/github.com-org-repo-0123456789abcdef.git    the cached repository
//! sourcecache/github.com-org-repo-0123456789abcdef.lock   locked shared for reading, exclusively for writing;
//!                                                         its modification time is the time of the last use
//! sourcecache/github.com-org-repo-0123456789abcdef.busy   exists while the repository is being changed
//! ```
//!
//! - The name consists of the URL's host and path, for readability, and a hash of the URL without credentials.
//! - A lock ends with its process ([`crate::base::lock`]).
//! - A `.busy` without a lock means that its process was killed. The repository is not trusted then.
//! - All jobs of a runner trust each other: every job could read the folder anyway. So a job that names a repository gets a
//!   commit from the cache without asking the server again.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use sha2::{Digest as _, Sha256};

use super::SourceError;
use crate::base::digest::hex;
use crate::base::files::{create_private_dir_all, remove_all};
use crate::base::git_url::{GitUrl, mask_url};
use crate::base::lock::{self, LockMode};

/// The length of the readable part of a name. The end of a longer one is kept, because it is more specific.
const MAX_READABLE: usize = 80;

#[derive(Debug, Clone)]
pub struct Cache {
    pub folder: PathBuf,
    pub max_bytes: u64,
}

/// The paths of one repository in the cache, which may not exist yet.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) folder: PathBuf,
    lock: PathBuf,
    busy: PathBuf,
}

impl Cache {
    /// SHA-1 and SHA-256 repositories have separate entries, because the repository at a URL may have been replaced.
    pub(super) fn entry(&self, url: &GitUrl, sha256: bool) -> Entry {
        let address = mask_url(&url.argument());
        let digest = Sha256::digest(format!("{}\n{sha256}", address.trim_end_matches('/')));
        let hash = hex(&digest[..8]);
        self.named(&format!("{}-{hash}", readable(url)))
    }

    fn named(&self, name: &str) -> Entry {
        let path = |extension: &str| self.folder.join(format!("{name}.{extension}"));
        Entry { folder: path("git"), lock: path("lock"), busy: path("busy") }
    }

    pub(super) fn entries(&self) -> io::Result<Vec<Entry>> {
        let names = fs::read_dir(&self.folder)?.filter_map(|file| file.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| Some(self.named(name.strip_suffix(".git")?))).collect())
    }

    /// Deletes the least recently used repositories until the rest fits, except those in use. Returns what was deleted.
    pub(super) fn shrink(&self) -> io::Result<Vec<Entry>> {
        let mut entries: Vec<_> =
            self.entries()?.into_iter().map(|it| (it.last_use(), it.size(), it)).collect();
        entries.sort_by_key(|(last_use, ..)| *last_use);
        let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
        let mut deleted = Vec::new();
        for (_, size, entry) in entries {
            if total <= self.max_bytes {
                break;
            }
            let Some(_lock) = entry.try_lock(LockMode::Alone)? else { continue };
            entry.discard()?;
            total = total.saturating_sub(size);
            deleted.push(entry);
        }
        Ok(deleted)
    }
}

/// Cached repositories that were not used for a long time.
#[derive(Debug, Default)]
pub struct Expired {
    /// With their sizes in bytes.
    pub unused: Vec<(PathBuf, u64)>,
    /// Expired, but in use right now.
    pub busy: Vec<PathBuf>,
}

/// Finds the repositories of a cache that were last used before `before`, and deletes them if `remove` is set.
pub fn expired(folder: &Path, before: SystemTime, remove: bool) -> io::Result<Expired> {
    let mut expired = Expired::default();
    let entries = match (Cache { folder: folder.to_owned(), max_bytes: 0 }).entries() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(expired),
        entries => entries?,
    };
    for entry in entries.into_iter().filter(|entry| entry.last_use() <= before) {
        let Some(_lock) = entry.try_lock(LockMode::Alone)? else {
            expired.busy.push(entry.folder);
            continue;
        };
        let bytes = entry.size();
        if remove {
            entry.discard()?;
        }
        expired.unused.push((entry.folder, bytes));
    }
    expired.unused.sort();
    Ok(expired)
}

impl Entry {
    pub(super) fn failed(&self, source: io::Error) -> SourceError {
        SourceError::Folder { folder: self.folder.clone(), source }
    }

    pub(super) fn try_lock(&self, mode: LockMode) -> io::Result<Option<lock::OwnLock>> {
        if let Some(folder) = self.lock.parent() {
            create_private_dir_all(folder)?;
        }
        lock::try_own(&self.lock, mode)
    }

    /// Whether there is a repository whose last change was completed.
    pub(super) fn is_whole(&self) -> bool {
        self.folder.is_dir() && !self.busy.exists()
    }

    /// A crash before [`end_change`](Self::end_change) makes the repository unusable.
    pub(super) fn begin_change(&self) -> Result<(), SourceError> {
        fs::write(&self.busy, "").map_err(|error| self.failed(error))
    }

    pub(super) fn end_change(&self) -> Result<(), SourceError> {
        absent_is_fine(fs::remove_file(&self.busy)).map_err(|error| self.failed(error))
    }

    /// Starts over with an empty folder. The caller holds the exclusive lock.
    pub(super) fn recreate(&self) -> Result<(), SourceError> {
        let recreate = || {
            self.discard()?;
            fs::write(&self.busy, "")?;
            create_private_dir_all(&self.folder)
        };
        recreate().map_err(|error| self.failed(error))
    }

    pub(super) fn name(&self) -> std::borrow::Cow<'_, str> {
        self.folder.file_stem().unwrap_or_default().to_string_lossy()
    }

    pub(super) fn size(&self) -> u64 {
        size(&self.folder)
    }

    /// Records a use of the repository.
    pub(super) fn touch(lock: &lock::OwnLock) {
        // If this fails, the repository is deleted a little early.
        let _ = lock.file().set_modified(SystemTime::now());
    }

    pub(super) fn last_use(&self) -> SystemTime {
        fs::metadata(&self.lock).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Deletes the repository. The caller holds the exclusive lock.
    pub(super) fn discard(&self) -> io::Result<()> {
        // An interrupted deletion must not leave a repository that looks complete.
        fs::write(&self.busy, "")?;
        remove_all(&self.folder)?;
        absent_is_fine(fs::remove_file(&self.busy))
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The size of all files. Files that disappear are ignored.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| match file.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&file.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Host and path of a URL, as a file name.
fn readable(url: &GitUrl) -> String {
    let path = url.path();
    let path = path[..path.find(['?', '#']).unwrap_or(path.len())].trim_start_matches('/');
    let text = format!("{}/{}", url.server(), path.strip_suffix(".git").unwrap_or(path));
    let plain = |char: char| if char.is_ascii_alphanumeric() || "._".contains(char) { char } else { '-' };
    let name: String = text.chars().map(plain).collect();
    let name = name.trim_matches(['-', '.']);
    // All characters are ASCII here.
    name[name.len().saturating_sub(MAX_READABLE)..].trim_start_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(url: &str) -> String {
        let url = GitUrl::parse(url).unwrap();
        (Cache { folder: "/c".into(), max_bytes: 0 }).entry(&url, false).name().into_owned()
    }

    #[test]
    fn names_are_unique_readable_and_without_credentials() {
        for (url, start) in [
            ("https://github.com/org/repo.git", "github.com-org-repo-"),
            ("https://u:hunter2@github.com/org/repo?token=hunter2", "github.com-org-repo-"),
            ("git@github.com:org/repo.git", "github.com-org-repo-"),
            ("ssh://git@host:22/../x", "host-22-..-x-"),
            ("file:///srv/ü/repo", "srv---repo-"),
            ("/.x", "x-"),
            ("/", "-"),
        ] {
            let name = name(url);
            assert!(name.starts_with(start) && name.len() == start.len() + 16, "{name}");
            assert!(!name.contains("hunter2"), "{name}");
        }
        let plain = name("https://host/repo");
        for same in ["https://user:pw@host/repo", "https://token@host/repo", "https://host/repo/"] {
            assert_eq!(name(same), plain, "{same}");
        }
        for other in ["https://host/Repo", "http://host/repo", "https://host:444/repo", "https://other/repo"]
        {
            assert_ne!(name(other), plain, "{other}");
        }
        assert!(name(&format!("https://host/{}/repo", "x".repeat(5000))).len() < 120);
        let cache = Cache { folder: "/c".into(), max_bytes: 0 };
        let url = GitUrl::parse("/srv/r").unwrap();
        assert_ne!(cache.entry(&url, true).folder, cache.entry(&url, false).folder);
    }
}
