//! A folder with the files of one commit: filling it, and telling later which of them nobody has changed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::FileType;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::commits::FetchTarget;
use super::git::{LOCAL_TIMEOUT, MAX_LIST};
use super::submodules::{MAX_SUBMODULES, SubmoduleCommit};
use super::{Fetcher, JobLog, SourceError, refs};
use crate::base::confined_dir::open_regular;
use crate::base::files::create_private_dir_all;
use crate::base::git_url::{self, mask_url};

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
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        // A list and no recursion: how deep a repository nests must not decide how much stack we need.
        let mut todo = vec![SubmoduleCommit::new(url, commit, folder)];
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
        wanted: &SubmoduleCommit,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<Vec<SubmoduleCommit>, SourceError> {
        let SubmoduleCommit { url, commit, folder, .. } = wanted;
        git_url::check(url)?;
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
            self.fetch_commit(FetchTarget { folder, keep: None }, url, commit, log, cancel).await?;
        }
        self.write_files(folder, url, commit, cancel).await?;
        self.submodules(wanted, log, cancel).await
    }

    /// The files that a checkout has from its commit, with their paths below `root`, those of its submodules included.
    /// Nothing when `root` is no checkout.
    ///
    /// Whatever ran in the module could write to its `.git`, and settings of git can be programs (`filter.*.clean`,
    /// `core.sshCommand`). So git works with a repository of our own, and of the old one it sees the index and the
    /// objects, which are data.
    pub(crate) async fn tracked_files(
        &self,
        root: &Path,
        cancel: &CancellationToken,
    ) -> Result<Tracked, SourceError> {
        let (old, index) = (root.join(".git"), root.join(".git/index"));
        if !is_real(&old, FileType::is_dir) || !is_real(&index, FileType::is_file) {
            return Ok(Tracked::default());
        }
        let failed = |source| SourceError::Folder { folder: self.scratch.clone(), source };
        create_private_dir_all(&self.scratch).map_err(failed)?;
        let own = tempfile::Builder::new().prefix("compare-").tempdir_in(&self.scratch).map_err(failed)?;
        self.init(own.path(), has_long_ids(&old), cancel).await?;
        let own = own.path().join(".git");
        let list = async |more: &[&str]| {
            let tool = self.tool("list the files of the old checkout".to_owned())?;
            let tool = tool
                .current_dir(root)
                .env("GIT_DIR", &own)
                .env("GIT_WORK_TREE", root)
                .env("GIT_INDEX_FILE", &index)
                .env("GIT_OBJECT_DIRECTORY", old.join("objects"))
                // Whether modes mean anything on the module's disk, the repository of our own on another cannot know.
                .args(["-c", "core.fileMode=false", "ls-files", "-z"])
                .args(more)
                .timeout(LOCAL_TIMEOUT)
                .max_stdout(MAX_LIST);
            Ok::<_, SourceError>(split_paths(&tool.run(cancel).await?.stdout()?))
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
            // What is in an index is not to be believed: only folders that really are below this one.
            let real_root = root.canonicalize().unwrap_or_default();
            let is_below = |path: &Path| {
                path.components().all(|part| matches!(part, Component::Normal(_)))
                    && root.join(path).canonicalize().is_ok_and(|real| real == real_root.join(path))
            };
            for inside in
                all.iter().filter(|path| is_real(&root.join(path), FileType::is_dir) && is_below(path))
            {
                let below = Box::pin(self.tracked_files(&root.join(inside), cancel)).await?;
                tracked.unchanged.extend(below.unchanged.into_iter().map(|path| inside.join(path)));
                tracked.changed.extend(below.changed.into_iter().map(|path| inside.join(path)));
            }
        }
        Ok(tracked)
    }
}

/// Whether there is such a thing at the end of the path, which is no symlink to one.
fn is_real(path: &Path, kind: impl Fn(&FileType) -> bool) -> bool {
    path.symlink_metadata().is_ok_and(|found| kind(&found.file_type()))
}

/// Whether a repository has SHA-256 ids, by the commit that is checked out in it.
fn has_long_ids(git: &Path) -> bool {
    let head = open_regular(&git.join("HEAD")).and_then(|file| {
        let mut text = String::new();
        file.take(100).read_to_string(&mut text).map(|_| text)
    });
    head.is_ok_and(|head| head.trim().len() == 64)
}

fn split_paths(list: &[u8]) -> HashSet<PathBuf> {
    list.split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| OsStr::from_bytes(path).into())
        .collect()
}
