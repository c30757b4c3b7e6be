//! Writes the files of one commit into a folder, and later finds out which of them have changed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::FileType;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::git::{LOCAL_TIMEOUT, MAX_LIST};
use super::submodules::{MAX_SUBMODULES, SubmoduleCommit};
use super::{Fetcher, SourceError, refs};
use crate::base::confined_dir::open_regular;
use crate::base::files::create_private_dir_all;
use crate::base::git_url::GitUrl;

/// The files of a checkout that are in its commit.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    /// The same as in the commit.
    pub(crate) unchanged: HashSet<PathBuf>,
    /// Changed or deleted.
    pub(crate) changed: HashSet<PathBuf>,
}

impl Fetcher<'_> {
    /// Fills an empty folder with the files of one commit and of its submodules. The transfer is as small as the server
    /// allows: that commit alone, or the whole history if the server does not serve single commits. With a cache, only
    /// objects that are not in the cache are transferred.
    pub async fn check_out(&self, url: &GitUrl, commit: &str, folder: &Path) -> Result<(), SourceError> {
        // A list instead of recursion, so that deeply nested repositories cannot exhaust the stack.
        let mut todo = vec![SubmoduleCommit::new(url, commit, folder)];
        let mut submodules = 0;
        while let Some(next) = todo.pop() {
            let inside = self.check_out_alone(&next).await;
            let inside = inside.map_err(|error| next.locate_error(error))?;
            // Checked before any of them is fetched: a few commits that name each other can multiply without end.
            submodules += inside.len();
            if submodules > MAX_SUBMODULES {
                return Err(next.locate_error(SourceError::TooManySubmodules(MAX_SUBMODULES)));
            }
            todo.extend(inside.into_iter().rev());
        }
        Ok(())
    }

    /// Returns the submodules, which are not checked out yet.
    async fn check_out_alone(&self, source: &SubmoduleCommit) -> Result<Vec<SubmoduleCommit>, SourceError> {
        let SubmoduleCommit { url, commit, folder, .. } = source;
        self.check_allowed(&url.with_credentials())?;
        if !refs::is_commit(commit) {
            return Err(SourceError::InvalidRevision { revision: commit.to_owned() });
        }
        (self.log)(&match source.submodule() {
            None => format!("Cloning {url}"),
            Some(path) => format!("Cloning the submodule {path:?} from {url} at {commit}"),
        });
        self.init(folder, commit.len() == 64, &[]).await?;
        self.set_origin(folder, url).await?;
        let filled = match &self.cache {
            Some(cache) => self.fill_from_cache(cache, url, commit, folder).await?,
            None => false,
        };
        if !filled {
            self.fetch_commit(folder, None, url, commit).await?;
        }
        self.write_files(folder, url, commit).await?;
        self.submodules(source).await
    }

    /// The files of a checkout and its submodules that are in their commits, as paths below `root`. Empty if `root` is not a
    /// checkout.
    ///
    /// Code in the module could write to its `.git`, and git runs programs from its configuration (`filter.*.clean`,
    /// `core.sshCommand`). So git works in a new repository, and reads only the index and the objects of the old one.
    pub(crate) async fn tracked_files(&self, root: &Path) -> Result<Tracked, SourceError> {
        let (old, index) = (root.join(".git"), root.join(".git/index"));
        if !is_real(&old, FileType::is_dir) || !is_real(&index, FileType::is_file) {
            return Ok(Tracked::default());
        }
        let failed = |source| SourceError::Folder { folder: self.scratch.clone(), source };
        create_private_dir_all(&self.scratch).map_err(failed)?;
        let own = tempfile::Builder::new().prefix("compare-").tempdir_in(&self.scratch).map_err(failed)?;
        self.init(own.path(), is_sha256(&old), &[]).await?;
        let own = own.path().join(".git");
        let list = async |more: &[&str]| {
            let tool = self.tool("list the files of the old checkout".to_owned())?;
            let tool = tool
                .current_dir(root)
                .env("GIT_DIR", &own)
                .env("GIT_WORK_TREE", root)
                .env("GIT_INDEX_FILE", &index)
                .env("GIT_OBJECT_DIRECTORY", old.join("objects"))
                // The new repository may be on another disk, and cannot tell whether file modes work on the module's.
                .args(["-c", "core.fileMode=false", "ls-files", "-z"])
                .args(more)
                .timeout(LOCAL_TIMEOUT)
                .max_stdout(MAX_LIST);
            Ok::<_, SourceError>(split_paths(&tool.run(&self.cancel).await?.stdout()?))
        };
        let (all, modified) = match (list(&[]).await, list(&["--modified"]).await) {
            (Ok(all), Ok(modified)) => (all, modified),
            (Err(SourceError::Cancelled), _) | (_, Err(SourceError::Cancelled)) => {
                return Err(SourceError::Cancelled);
            }
            // The repository is damaged. Treat all of its files as changed.
            _ => return Ok(Tracked::default()),
        };
        let unchanged = all.difference(&modified).cloned().collect();
        let mut tracked = Tracked { unchanged, changed: modified };
        if root.join(".gitmodules").exists() {
            // The index is not trusted: only folders that really are below this one count.
            let real_root = root.canonicalize().unwrap_or_default();
            let is_below = |path: &Path| {
                path.components().all(|part| matches!(part, Component::Normal(_)))
                    && root.join(path).canonicalize().is_ok_and(|real| real == real_root.join(path))
            };
            for inside in
                all.iter().filter(|path| is_real(&root.join(path), FileType::is_dir) && is_below(path))
            {
                let below = Box::pin(self.tracked_files(&root.join(inside))).await?;
                tracked.unchanged.extend(below.unchanged.into_iter().map(|path| inside.join(path)));
                tracked.changed.extend(below.changed.into_iter().map(|path| inside.join(path)));
            }
        }
        Ok(tracked)
    }
}

/// Checks the type of a file without following a symlink.
fn is_real(path: &Path, kind: impl Fn(&FileType) -> bool) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| kind(&metadata.file_type()))
}

/// Whether a repository uses SHA-256, judging by the commit in its HEAD.
fn is_sha256(git: &Path) -> bool {
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
