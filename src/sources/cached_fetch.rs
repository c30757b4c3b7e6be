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
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Entry};
use super::commits::FetchTarget;
use super::git::{IN_BARE, IN_CHECKOUT};
use super::{Fetcher, JobLog, SourceError};
use crate::base::blocking::blocking;
use crate::base::git_url::GitUrl;
use crate::base::lock::{self, LockMode};
use crate::base::process::ProcessError;

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

enum CacheUse {
    Hit,
    Fetched,
    /// Other steps used the cached repository for too long.
    TimedOut,
}

/// The checkout that a commit is for.
#[derive(Clone, Copy)]
struct CachedCheckout<'a> {
    url: &'a GitUrl,
    commit: &'a str,
    folder: &'a Path,
    log: JobLog<'a>,
    cancel: &'a CancellationToken,
    /// Waiting is logged once per checkout.
    has_waited: &'a AtomicBool,
}

impl Fetcher {
    /// Fetches a commit from the cache into a new repository, and before that into the cache if necessary. False if the cache
    /// cannot be used.
    pub(super) async fn fill_from_cache(
        &self,
        cache: &Cache,
        url: &GitUrl,
        commit: &str,
        folder: &Path,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<bool, SourceError> {
        let has_waited = AtomicBool::new(false);
        let checkout = CachedCheckout { url, commit, folder, log, cancel, has_waited: &has_waited };
        let entry = cache.entry(url, commit.len() == 64);
        for is_damaged in [false, true] {
            match self.fill_from_entry(&entry, is_damaged, checkout).await {
                Ok(CacheUse::Hit) => return Ok(true),
                Ok(CacheUse::Fetched) => {
                    shrink(cache, log).await;
                    return Ok(true);
                }
                Ok(CacheUse::TimedOut) => break,
                Err(CacheError::Server(error)) => return Err(error),
                Err(CacheError::Cache(error)) => {
                    log(&format!("Cannot use the cached copy of {url}: {error}"));
                }
            }
        }
        log(&format!("Fetching {url} without the cache"));
        Ok(false)
    }

    async fn fill_from_entry(
        &self,
        entry: &Entry,
        is_damaged: bool,
        checkout: CachedCheckout<'_>,
    ) -> Result<CacheUse, CacheError> {
        let CachedCheckout { url, commit, log, cancel, .. } = checkout;
        let on_wait = || {
            if !checkout.has_waited.swap(true, Ordering::Relaxed) {
                log(&format!("Waiting for another step that uses the cached copy of {url}"));
            }
        };
        let lock = async |mode| entry.lock(mode, self.fetch_timeout, on_wait, cancel).await;
        if !is_damaged {
            let Some(shared) = lock(LockMode::Shared).await? else { return Ok(CacheUse::TimedOut) };
            if entry.is_whole() && self.fetch_from_entry(entry, &shared, checkout).await? {
                log(&format!("{commit} was in the cache already"));
                return Ok(CacheUse::Hit);
            }
        }
        let Some(exclusive) = lock(LockMode::Alone).await? else { return Ok(CacheUse::TimedOut) };
        let mut is_new = is_damaged || !entry.is_whole();
        if !is_new {
            // Another step may have fetched it while this one waited.
            if self.fetch_from_entry(entry, &exclusive, checkout).await? {
                return Ok(CacheUse::Hit);
            }
            is_new = self.kept_refs(entry, cancel).await?.len() >= MAX_KEPT;
        }
        if is_new {
            entry.recreate()?;
            self.init(&entry.folder, commit.len() == 64, &["--bare"], cancel).await?;
        }
        entry.begin_change()?;
        let keep = format!("{KEPT}{:015}/{commit}", jiff::Timestamp::now().as_millisecond());
        let target = FetchTarget { folder: &entry.folder, keep: Some(&keep) };
        let fetched = self.fetch_commit(target, url, commit, log, cancel).await;
        // git has exited, with or without success, so nothing writes to the repository any more.
        entry.end_change()?;
        if let Err(error) = fetched {
            let may_be_cache = !is_new && matches!(error, SourceError::Git(ProcessError::Failed { .. }));
            // If the server answers another request, the cached repository is the cause.
            if may_be_cache && self.list_refs(url, &[], &["HEAD".to_owned()], cancel).await.is_ok() {
                return Err(CacheError::Cache(error));
            }
            return Err(CacheError::Server(if cancel.is_cancelled() {
                SourceError::Cancelled
            } else {
                error
            }));
        }
        if !self.fetch_from_entry(entry, &exclusive, checkout).await? {
            let (revision, url) = (commit.to_owned(), url.to_string());
            return Err(CacheError::Cache(SourceError::UnknownCommit { revision, url }));
        }
        Ok(CacheUse::Fetched)
    }

    /// The refs that keep commits, oldest first.
    async fn kept_refs(&self, entry: &Entry, cancel: &CancellationToken) -> Result<Vec<String>, SourceError> {
        let list = [IN_BARE, "for-each-ref", "--format=%(refname)", KEPT];
        let output = self.local(&entry.folder, "list the cached commits".to_owned(), &list, cancel).await?;
        Ok(output.text()?.lines().map(str::to_owned).collect())
    }

    /// Fetches the commit into the checkout. False if it is not cached.
    async fn fetch_from_entry(
        &self,
        entry: &Entry,
        lock: &lock::OwnLock,
        checkout: CachedCheckout<'_>,
    ) -> Result<bool, SourceError> {
        let CachedCheckout { commit, folder, cancel, .. } = checkout;
        let kept = self.kept_refs(entry, cancel).await?;
        let Some(name) = kept.iter().find(|name| name.ends_with(commit)) else { return Ok(false) };
        let url = GitUrl::parse(&entry.folder.to_string_lossy())?;
        let fetch = [IN_CHECKOUT, "fetch", "--quiet", "--no-prune", "--depth=1", UPLOAD_PACK];
        self.fetch(folder, &url, &fetch, &[name], cancel).await?;
        Entry::touch(lock);
        Ok(true)
    }
}

async fn shrink(cache: &Cache, log: JobLog<'_>) {
    let cache = cache.clone();
    let shrunk = blocking(move || cache.shrink()).await;
    match shrunk.map_err(io::Error::from).flatten() {
        Ok(deleted) => {
            for entry in deleted {
                log(&format!("The source cache is full: deleted {}", entry.name()));
            }
        }
        Err(error) => log(&format!("Failed to shrink the source cache: {error}")),
    }
}
