//! Checkouts by way of the cache.
//!
//! A copy holds single commits, each kept by a ref `refs/hawser/commits/{time}/{commit}`. git sets a ref only when
//! all of its objects are there, so the ref means that the commit can be checked out without the server. A
//! fetch offers these commits to the server, which then sends only what is different. The checkout fetches its
//! commit from the copy: it shares no files with it and does not need it afterwards, and git checks every object on
//! the way.
//!
//! The cache is there to save time. Whatever is wrong with it, the copy is made anew once, and after that the
//! job goes on without it. Only what the server itself refuses is an error.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Entry};
use super::commits::FetchTarget;
use super::git::{IN_BARE, IN_CHECKOUT};
use super::{Fetcher, JobLog, SourceError};
use crate::base::git_url::mask_url;
use crate::base::lock::{self, LockMode};
use crate::base::process::ProcessError;

const KEPT: &str = "refs/hawser/commits/";
/// A copy with this many commits is made anew instead of getting one more. More would make for slow talks with the
/// server, and old ones are hardly ever asked for again.
const MAX_KEPT: usize = 64;
/// The copy is ours, whoever owns its files: some network disks make all of them somebody else's. git asks only at this
/// end who the owner is, and hears of no other setting there.
const READ_COPY: &str = "--upload-pack=git -c safe.directory=* upload-pack";

enum Trouble {
    /// Another copy would not help.
    Server(SourceError),
    Cache(SourceError),
}

/// By default it is the cache that failed.
impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        if error.is_cancelled() { Self::Server(error) } else { Self::Cache(error) }
    }
}

enum Used {
    FromCache,
    Fetched,
    /// Others needed it for too long.
    NotAtAll,
}

/// What is wanted, and where.
#[derive(Clone, Copy)]
struct Wish<'a> {
    url: &'a str,
    commit: &'a str,
    folder: &'a Path,
    log: JobLog<'a>,
    cancel: &'a CancellationToken,
    /// Said once per checkout is enough.
    has_waited: &'a AtomicBool,
}

impl Fetcher {
    /// Brings a commit from the cache into a new repository, and into the cache before that if need be. False
    /// when the cache is of no use.
    pub(super) async fn fill_from_cache(
        &self,
        cache: &Cache,
        url: &str,
        commit: &str,
        folder: &Path,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<bool, SourceError> {
        let has_waited = AtomicBool::new(false);
        let wish = Wish { url, commit, folder, log, cancel, has_waited: &has_waited };
        let entry = cache.entry(url, commit.len() == 64);
        for is_damaged in [false, true] {
            match self.use_copy(&entry, is_damaged, wish).await {
                Ok(Used::FromCache) => return Ok(true),
                Ok(Used::Fetched) => {
                    shrink(cache, log).await;
                    return Ok(true);
                }
                Ok(Used::NotAtAll) => break,
                Err(Trouble::Server(error)) => return Err(error),
                Err(Trouble::Cache(error)) => {
                    log(&format!("The cached copy of {} cannot be used: {error}", mask_url(url)));
                }
            }
        }
        log(&format!("Fetching {} without the cache", mask_url(url)));
        Ok(false)
    }

    async fn use_copy(&self, entry: &Entry, is_damaged: bool, wish: Wish<'_>) -> Result<Used, Trouble> {
        let Wish { commit, log, cancel, .. } = wish;
        let say = || {
            if !wish.has_waited.swap(true, Ordering::Relaxed) {
                log(&format!("Waiting for another step that uses the cached copy of {}", mask_url(wish.url)));
            }
        };
        let lock = async |hold| entry.lock(hold, self.fetch_timeout, say, cancel).await;
        if !is_damaged {
            let Some(held) = lock(LockMode::Shared).await? else { return Ok(Used::NotAtAll) };
            if entry.is_whole() && self.read_out(entry, &held, wish).await? {
                log(&format!("{commit} was in the cache already"));
                return Ok(Used::FromCache);
            }
        }
        let Some(held) = lock(LockMode::Alone).await? else { return Ok(Used::NotAtAll) };
        let mut is_new = is_damaged || !entry.is_whole();
        if !is_new {
            if self.read_out(entry, &held, wish).await? {
                // Whoever we waited for has fetched it.
                return Ok(Used::FromCache);
            }
            is_new = self.kept(entry, cancel).await?.len() >= MAX_KEPT;
        }
        if is_new {
            let failed = |source| SourceError::Folder { folder: entry.folder.clone(), source };
            entry.discard().map_err(failed)?;
            entry.begin_change()?;
            entry.create()?;
            let format = if commit.len() == 64 { "--object-format=sha256" } else { "--object-format=sha1" };
            let init = ["init", "--quiet", "--bare", "--template=", "--initial-branch=main", format];
            self.local(&entry.folder, "make a cached copy".to_owned(), &init, cancel).await?;
        }
        entry.begin_change()?;
        let keep = format!("{KEPT}{:015}/{commit}", jiff::Timestamp::now().as_millisecond());
        let target = FetchTarget { folder: &entry.folder, keep: Some(&keep) };
        let fetched = self.fetch_commit(target, wish.url, commit, log, cancel).await;
        // git has ended, in whatever way, so nothing is written any more.
        entry.end_change()?;
        if let Err(error) = fetched {
            let may_be_ours = !is_new && matches!(error, SourceError::Git(ProcessError::Failed { .. }));
            // If the server answers otherwise, it is the copy.
            if may_be_ours && self.list_refs(wish.url, &["HEAD".to_owned()], cancel).await.is_ok() {
                return Err(Trouble::Cache(error));
            }
            return Err(Trouble::Server(if cancel.is_cancelled() { SourceError::Cancelled } else { error }));
        }
        if !self.read_out(entry, &held, wish).await? {
            return Err(Trouble::Cache(SourceError::UnknownCommit {
                revision: commit.to_owned(),
                url: mask_url(wish.url),
            }));
        }
        Ok(Used::Fetched)
    }

    /// The refs that keep commits, oldest first.
    async fn kept(&self, entry: &Entry, cancel: &CancellationToken) -> Result<Vec<String>, SourceError> {
        let list = [IN_BARE, "for-each-ref", "--format=%(refname)", KEPT];
        let output = self.local(&entry.folder, "look into the cached copy".to_owned(), &list, cancel).await?;
        Ok(output.text()?.lines().map(str::to_owned).collect())
    }

    /// False when the copy does not have the commit.
    async fn read_out(
        &self,
        entry: &Entry,
        held: &lock::OwnLock,
        wish: Wish<'_>,
    ) -> Result<bool, SourceError> {
        let kept = self.kept(entry, wish.cancel).await?;
        let Some(name) = kept.iter().find(|name| name.ends_with(wish.commit)) else { return Ok(false) };
        let copy = entry.folder.to_string_lossy();
        let fetch = [IN_CHECKOUT, "fetch", "--quiet", "--no-prune", "--depth=1", READ_COPY];
        self.fetch(wish.folder, &copy, &fetch, &[name], wish.cancel).await?;
        Entry::touch(held);
        Ok(true)
    }
}

async fn shrink(cache: &Cache, log: JobLog<'_>) {
    let cache = cache.clone();
    match tokio::task::spawn_blocking(move || cache.shrink()).await {
        Ok(Ok(gone)) => {
            for name in gone {
                log(&format!("The source cache is full: {name} was removed from it"));
            }
        }
        Ok(Err(error)) => log(&format!("The source cache cannot be kept to its size: {error}")),
        Err(error) => log(&format!("The source cache cannot be kept to its size: {error}")),
    }
}
