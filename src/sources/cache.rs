//! The folder with bare copies of repositories, one per URL.
//!
//! ```text
//! sourcecache/github.com-org-repo-0123456789abcdef.git    the copy
//! sourcecache/github.com-org-repo-0123456789abcdef.lock   held shared by readers, alone by whoever changes the copy;
//!                                                         its time of change is when the copy was last used
//! sourcecache/github.com-org-repo-0123456789abcdef.busy   there while the copy is being changed
//! ```
//!
//! - The name has the URL's host and path for people, and a hash of the URL without credentials.
//! - Locks end with their holder, in this process or another ([`crate::base::lock`]).
//! - A `.busy` that nobody holds the lock for is from somebody who was killed. Such a copy is not trusted.
//! - One runner is one circle of trust: whoever may run jobs on it could read the folder anyway, so a commit that
//!   is in the cache is given to every job that names the repository, without asking the server again.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::SourceError;
use crate::base::files::{create_private_dir_all, remove_all};
use crate::base::git_url::mask_url;
use crate::base::lock::{self, LockMode};

/// How often a lock that another one holds is tried. The wait is for a transfer, so a human does not notice.
const RETRY: Duration = Duration::from_millis(50);
/// The readable part of a name. Longer ones keep their end, which says more than the beginning.
const MAX_READABLE: usize = 80;

#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

/// The place of one repository in the cache, whether it is filled or not.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) folder: PathBuf,
    lock: PathBuf,
    busy: PathBuf,
}

impl Cache {
    pub(super) fn new(folder: &Path, max_bytes: u64) -> Self {
        Self { folder: folder.to_owned(), max_bytes }
    }

    /// A repository has one kind of object ids, but who knows what was at the URL before.
    pub(super) fn entry(&self, url: &str, sha256: bool) -> Entry {
        let url = mask_url(url).replace("://***@", "://");
        let url = url.trim_end_matches('/');
        let digest = Sha256::digest(format!("{url}\n{sha256}"));
        let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        self.named(&format!("{}-{hash}", readable(url)))
    }

    pub(super) fn named(&self, name: &str) -> Entry {
        let path = |extension: &str| self.folder.join(format!("{name}.{extension}"));
        Entry { folder: path("git"), lock: path("lock"), busy: path("busy") }
    }

    /// Deletes least recently used copies until the rest is small enough. What somebody holds stays. Returns the
    /// names of those that went.
    pub(super) fn shrink(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for name in fs::read_dir(&self.folder)?.filter_map(|file| file.ok()?.file_name().into_string().ok()) {
            if let Some(name) = name.strip_suffix(".git") {
                let entry = self.named(name);
                found.push((entry.last_use(), size(&entry.folder), name.to_owned(), entry));
            }
        }
        found.sort_by_key(|(last_use, ..)| *last_use);
        let mut total: u64 = found.iter().map(|(_, size, ..)| size).sum();
        let mut gone = Vec::new();
        for (_, size, name, entry) in found {
            if total <= self.max_bytes {
                break;
            }
            let Some(_held) = entry.try_lock(LockMode::Alone)? else { continue };
            entry.discard()?;
            total = total.saturating_sub(size);
            gone.push(name);
        }
        Ok(gone)
    }
}

impl Entry {
    fn failed(&self, source: io::Error) -> SourceError {
        SourceError::Folder { folder: self.folder.clone(), source }
    }

    /// Waits for the others, and says so when it has to. Nothing when they took longer than `patience`.
    pub(super) async fn lock(
        &self,
        hold: LockMode,
        patience: Duration,
        say: impl Fn(),
        cancel: &CancellationToken,
    ) -> Result<Option<lock::OwnLock>, SourceError> {
        let wait = async {
            let mut said = false;
            loop {
                if let Some(file) = self.try_lock(hold).map_err(|error| self.failed(error))? {
                    return Ok(file);
                }
                if !said {
                    say();
                    said = true;
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SourceError::Cancelled),
            held = tokio::time::timeout(patience, wait) => held.ok().transpose(),
        }
    }

    pub(super) fn try_lock(&self, hold: LockMode) -> io::Result<Option<lock::OwnLock>> {
        if let Some(folder) = self.lock.parent() {
            create_private_dir_all(folder)?;
        }
        lock::try_own(&self.lock, hold)
    }

    /// Whether there is a copy that nobody was killed over.
    pub(super) fn is_whole(&self) -> bool {
        self.folder.is_dir() && !self.busy.exists()
    }

    /// From here to [`end_change`](Self::end_change) a crash makes the copy worthless.
    pub(super) fn begin_change(&self) -> Result<(), SourceError> {
        fs::write(&self.busy, "").map_err(|error| self.failed(error))
    }

    pub(super) fn end_change(&self) -> Result<(), SourceError> {
        absent_is_fine(fs::remove_file(&self.busy)).map_err(|error| self.failed(error))
    }

    pub(super) fn create(&self) -> Result<(), SourceError> {
        create_private_dir_all(&self.folder).map_err(|error| self.failed(error))
    }

    /// Counts as a use of the copy.
    pub(super) fn touch(held: &lock::OwnLock) {
        // Without it the copy goes a little early.
        let _ = held.file().set_modified(SystemTime::now());
    }

    pub(super) fn last_use(&self) -> SystemTime {
        fs::metadata(&self.lock).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Removes the copy. The caller holds it alone.
    pub(super) fn discard(&self) -> io::Result<()> {
        // A removal that is cut short must not leave half a copy that looks whole.
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

/// Files may go while they are counted; then they take no space.
pub(super) fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| match file.metadata() {
            Ok(found) if found.is_dir() => size(&file.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Host and path of a URL without credentials, as a file name.
fn readable(url: &str) -> String {
    let url = url.split_once("://").map_or(url, |(_, rest)| rest);
    let url = &url[..url.find(['?', '#']).unwrap_or(url.len())];
    let authority = &url[..url.find('/').unwrap_or(url.len())];
    let url = authority.rfind('@').map_or(url, |at| &url[at + 1..]);
    let plain = |char: char| if char.is_ascii_alphanumeric() || "._".contains(char) { char } else { '-' };
    let name: String = url.strip_suffix(".git").unwrap_or(url).chars().map(plain).collect();
    let name = name.trim_matches(['-', '.']);
    // One byte per character by now.
    name[name.len().saturating_sub(MAX_READABLE)..].trim_start_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(url: &str) -> String {
        let entry = Cache::new(Path::new("/c"), 0).entry(url, false);
        entry.folder.file_stem().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn names_tell_repositories_apart_and_are_readable_and_without_credentials() {
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
        let cache = Cache::new(Path::new("/c"), 0);
        assert_ne!(cache.entry("/srv/r", true).folder, cache.entry("/srv/r", false).folder);
    }
}
