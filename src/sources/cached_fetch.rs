//! Checkouts through the cache.
//!
//! A cached repository contains single commits, each kept by a ref `refs/hawser/commits/{time}/{commit}`. git sets a ref only
//! when all of its objects are there, so the ref means that the commit can be checked out without the server. A fetch offers
//! these commits to the server, which then sends only the differences. The checkout fetches its commit from the cached
//! repository: the two share no files, and git verifies every object on the way.
//!
//! The cache only saves time. If anything is wrong with a cached repository, it is created again once, and after that the job
//! continues without it. Only a refusal by the server itself is an error.

use std::io;
use std::path::Path;

use super::cache::{Cache, Entry};
use super::git::{IN_BARE, IN_CHECKOUT};
use super::{Fetcher, SourceError};
use crate::base::blocking::blocking;
use crate::base::git_url::GitUrl;
use crate::base::lock::{LockMode, OwnLock};
use crate::base::process::ProcessError;
use crate::base::retry;

const KEPT: &str = "refs/hawser/commits/";
/// A repository with this many commits is created again instead of getting one more. More commits would slow down the
/// negotiation with the server, and old ones are hardly ever requested again.
const MAX_KEPT: usize = 64;
/// On some network disks, all files belong to another user. git checks the owner on this end only, where it ignores other
/// ways to set `safe.directory`.
const UPLOAD_PACK: &str = "--upload-pack=git -c safe.directory=* upload-pack";

enum CacheError {
    /// The server failed: creating the cached repository again would not help.
    Server(SourceError),
    Cache(SourceError),
}

impl From<SourceError> for CacheError {
    fn from(error: SourceError) -> Self {
        if error.is_cancelled() { Self::Server(error) } else { Self::Cache(error) }
    }
}

impl Fetcher<'_> {
    /// Fetches a commit from the cache into a new repository, and before that into the cache if necessary. False if the cache
    /// cannot be used.
    pub(super) async fn fill_from_cache(
        &self,
        cache: &Cache,
        url: &GitUrl,
        commit: &str,
        folder: &Path,
    ) -> Result<bool, SourceError> {
        let entry = cache.entry(url, commit.len() == 64);
        for is_damaged in [false, true] {
            match self.fill_from_entry(&entry, is_damaged, url, commit, folder).await {
                Ok(None) => break,
                Ok(Some(has_grown)) => {
                    if has_grown {
                        self.shrink(cache).await;
                    }
                    return Ok(true);
                }
                Err(CacheError::Server(error)) => return Err(error),
                Err(CacheError::Cache(error)) => {
                    (self.log)(&format!("Cannot use the cached copy of {url}: {error}"));
                }
            }
        }
        (self.log)(&format!("Fetching {url} without the cache"));
        Ok(false)
    }

    /// Returns whether the commit had to be fetched from the server; `None` if other steps used the cached repository for too
    /// long.
    async fn fill_from_entry(
        &self,
        entry: &Entry,
        is_damaged: bool,
        url: &GitUrl,
        commit: &str,
        folder: &Path,
    ) -> Result<Option<bool>, CacheError> {
        if !is_damaged {
            let Some(shared) = self.lock(entry, LockMode::Shared, url).await? else { return Ok(None) };
            if entry.is_whole() && self.fetch_from_entry(entry, &shared, commit, folder).await? {
                (self.log)("The commit was in the cache already");
                return Ok(Some(false));
            }
        }
        let Some(exclusive) = self.lock(entry, LockMode::Alone, url).await? else { return Ok(None) };
        let mut is_new = is_damaged || !entry.is_whole();
        if !is_new {
            // Another step may have fetched it while this one waited.
            if self.fetch_from_entry(entry, &exclusive, commit, folder).await? {
                return Ok(Some(false));
            }
            is_new = self.kept_refs(entry).await?.len() >= MAX_KEPT;
        }
        if is_new {
            entry.recreate()?;
            self.init(&entry.folder, commit.len() == 64, &["--bare"]).await?;
        }
        entry.begin_change()?;
        let keep = format!("{KEPT}{:015}/{commit}", jiff::Timestamp::now().as_millisecond());
        let fetched = self.fetch_commit(&entry.folder, Some(&keep), url, commit).await;
        // git has exited, with or without success, so nothing writes to the repository any more.
        entry.end_change()?;
        if let Err(error) = fetched {
            let may_be_cache = !is_new && matches!(error, SourceError::Git(ProcessError::Failed { .. }));
            // If the server answers another request, the cached repository is the cause.
            if may_be_cache && self.list_refs(url, &[], &["HEAD".to_owned()]).await.is_ok() {
                return Err(CacheError::Cache(error));
            }
            let error = if self.cancel.is_cancelled() { SourceError::Cancelled } else { error };
            return Err(CacheError::Server(error));
        }
        if !self.fetch_from_entry(entry, &exclusive, commit, folder).await? {
            let (revision, url) = (commit.to_owned(), url.to_string());
            return Err(CacheError::Cache(SourceError::UnknownCommit { revision, url }));
        }
        Ok(Some(true))
    }

    /// Waits for the lock. `None` after the timeout.
    async fn lock(
        &self,
        entry: &Entry,
        mode: LockMode,
        url: &GitUrl,
    ) -> Result<Option<OwnLock>, SourceError> {
        let wait = async {
            let mut has_waited = false;
            loop {
                if let Some(lock) = entry.try_lock(mode).map_err(|error| entry.failed(error))? {
                    return Ok(lock);
                }
                if !has_waited {
                    (self.log)(&format!("Waiting for another step that uses the cached copy of {url}"));
                    has_waited = true;
                }
                tokio::time::sleep(retry::SOURCE_CACHE).await;
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(SourceError::Cancelled),
            lock = tokio::time::timeout(self.fetch_timeout, wait) => lock.ok().transpose(),
        }
    }

    /// The refs that keep commits, oldest first.
    async fn kept_refs(&self, entry: &Entry) -> Result<Vec<String>, SourceError> {
        let list = [IN_BARE, "for-each-ref", "--format=%(refname)", KEPT];
        let output = self.local(&entry.folder, "list the cached commits".to_owned(), &list).await?;
        Ok(output.text()?.lines().map(str::to_owned).collect())
    }

    /// Fetches the commit into the checkout. False if it is not cached.
    async fn fetch_from_entry(
        &self,
        entry: &Entry,
        lock: &OwnLock,
        commit: &str,
        folder: &Path,
    ) -> Result<bool, SourceError> {
        let kept = self.kept_refs(entry).await?;
        let Some(name) = kept.iter().find(|name| name.ends_with(commit)) else { return Ok(false) };
        let url = GitUrl::parse(&entry.folder.to_string_lossy())?;
        let fetch = [IN_CHECKOUT, "fetch", "--quiet", "--no-prune", "--depth=1", UPLOAD_PACK];
        self.fetch(folder, &url, &fetch, &[name]).await?;
        Entry::touch(lock);
        Ok(true)
    }

    async fn shrink(&self, cache: &Cache) {
        let cache = cache.clone();
        let shrunk = blocking(move || cache.shrink()).await;
        match shrunk.map_err(io::Error::from).flatten() {
            Ok(deleted) => {
                for entry in deleted {
                    (self.log)(&format!("The source cache is full: deleted {}", entry.name()));
                }
            }
            Err(error) => (self.log)(&format!("Failed to shrink the source cache: {error}")),
        }
    }
}
