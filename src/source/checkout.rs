//! A folder with the files of one commit: filling it, and telling later which of them nobody has changed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::commits::Target;
use super::git::IN_CHECKOUT;
use super::refs;
use super::submodules::{MAX_SUBMODULES, Wanted};
use super::url::{self, mask_url};
use super::{Fetcher, Log, SourceError};

/// The files of a checkout that its repository knows.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    /// As they are in the repository.
    pub(crate) unchanged: HashSet<PathBuf>,
    /// Changed since, or gone.
    pub(crate) changed: HashSet<PathBuf>,
}

impl Fetcher {
    /// Fills an empty folder with the files of one commit and of its submodules. The transfer is as small as the
    /// server allows: that commit alone, or the whole history from a server that gives out no single commits. With
    /// a cache, it is what the cache does not have yet.
    pub async fn check_out(
        &self,
        url: &str,
        commit: &str,
        folder: &Path,
        log: Log<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        // A list and no recursion: how deep a repository nests must not decide how much stack we need.
        let mut todo = vec![Wanted::new(url, commit, folder)];
        let mut submodules = 0;
        while let Some(wanted) = todo.pop() {
            let inside = self.check_out_alone(&wanted, log, cancel).await;
            let inside = inside.map_err(|error| wanted.blame(error))?;
            // Before any of them is fetched: a few commits that name each other often enough are without end.
            submodules += inside.len();
            if submodules > MAX_SUBMODULES {
                return Err(wanted.blame(SourceError::TooManySubmodules(MAX_SUBMODULES)));
            }
            todo.extend(inside.into_iter().rev());
        }
        Ok(())
    }

    /// Returns the submodules, whose folders are still empty.
    async fn check_out_alone(
        &self,
        wanted: &Wanted,
        log: Log<'_>,
        cancel: &CancellationToken,
    ) -> Result<Vec<Wanted>, SourceError> {
        let Wanted { url, commit, folder, .. } = wanted;
        url::check(url)?;
        self.allowed.judge(url).map_err(SourceError::Refused)?;
        if !refs::is_commit(commit) {
            return Err(SourceError::InvalidRevision { revision: commit.to_owned() });
        }
        log(&format!("Cloning {} at {commit}", mask_url(url)));
        self.init(folder, commit.len() == 64, cancel).await?;
        self.name_origin(folder, url, cancel).await?;
        let filled = match &self.cache {
            Some(cache) => self.fill_from_cache(cache, url, commit, folder, log, cancel).await?,
            None => false,
        };
        if !filled {
            self.fetch_commit(Target { folder, keep: None }, url, commit, log, cancel).await?;
        }
        self.write_files(folder, url, commit, cancel).await?;
        self.submodules(wanted, log, cancel).await
    }

    /// The files that a checkout has from its commit, with their paths below `root`, those of its submodules included.
    /// Nothing when `root` is no checkout.
    pub(crate) async fn tracked_files(
        &self,
        root: &Path,
        cancel: &CancellationToken,
    ) -> Result<Tracked, SourceError> {
        if !root.join(".git").is_dir() {
            return Ok(Tracked::default());
        }
        let list = async |more: &[&str]| {
            // Named outright, so that git does not go looking for a repository further up.
            let fixed = [IN_CHECKOUT, "--work-tree=.", "ls-files", "-z"];
            let arguments: Vec<&str> = fixed.iter().chain(more).copied().collect();
            let purpose = "list the files of the old checkout".to_owned();
            let listed = self.local(root, purpose, &arguments, cancel).await?;
            Ok::<_, SourceError>(split_paths(&listed.stdout()?))
        };
        let (all, modified) = match (list(&[]).await, list(&["--modified"]).await) {
            (Ok(all), Ok(modified)) => (all, modified),
            (Err(SourceError::Cancelled), _) | (_, Err(SourceError::Cancelled)) => {
                return Err(SourceError::Cancelled);
            }
            // A damaged repository says nothing about its files; then all of them count as changed.
            _ => return Ok(Tracked::default()),
        };
        let unchanged = all.difference(&modified).cloned().collect();
        let mut tracked = Tracked { unchanged, changed: modified };
        if root.join(".gitmodules").exists() {
            for inside in all.iter().filter(|path| root.join(path).join(".git").is_dir()) {
                let below = Box::pin(self.tracked_files(&root.join(inside), cancel)).await?;
                tracked.unchanged.extend(below.unchanged.into_iter().map(|path| inside.join(path)));
                tracked.changed.extend(below.changed.into_iter().map(|path| inside.join(path)));
            }
        }
        Ok(tracked)
    }
}

fn split_paths(list: &[u8]) -> HashSet<PathBuf> {
    list.split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| OsStr::from_bytes(path).into())
        .collect()
}
