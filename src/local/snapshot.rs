//! A directory as it is now, uncommitted files included, as a commit that a runner can fetch.
//!
//! The commit is made in a bare repository of our own; the user's repository and index are only read. What
//! goes in is what git would consider part of the project: tracked files and untracked ones that no ignore
//! rule excludes. Two rules of ours stand above that:
//!
//! * The variable files that the engine would load by itself from the directory (`terraform.tfvars`,
//!   `*.auto.tfvars` and their JSON forms) always go in. They are often ignored because they hold secrets,
//!   and the snapshot never leaves the user's private folder.
//! * `.git`, `.terraform` and `*.tfstate*` never go in.
//!
//! Inside a git repository the whole repository is taken, so that `../modules/x` works; nested repositories
//! and submodules go in as plain files. The same files give the same commit, because author and date are fixed.
//!
//! In the commit every file is at its absolute path. So the directory is always at the same place in it, wherever the
//! root of a repository around it is, and an engine that keeps its state beside the configuration finds it again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::base::files::create_private_dir_all;
use crate::base::process::{Inherited, ProcessError, Tool, find_program};

/// The branch that holds the last snapshot.
const BRANCH: &str = "refs/heads/snapshot";

/// Attributes of our repository come before those in the source: bytes are kept as they are, no filter runs.
const ATTRIBUTES: &str = "* -text -filter -ident -working-tree-encoding\n";

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} holds no configuration: no .tf, .tofu or Pulumi.yaml file is in it", path.display())]
    NoConfiguration { path: PathBuf },
    #[error("every configuration file in {} is excluded by an ignore rule of git", path.display())]
    AllIgnored { path: PathBuf },
    #[error("git is not installed, or not on PATH")]
    NoGit,
    #[error(transparent)]
    Git(#[from] ProcessError),
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `file://` URL of the repository with the commit.
    pub url: String,
    pub commit: String,
    /// Where the directory is inside the commit.
    pub subdirectory: String,
    /// A state lies in the directory, or states of workspaces do. They are not part of the snapshot.
    pub leaves_state_behind: bool,
}

/// Whether there can be a snapshot of `directory`, before anything is made for it. Returns it without symlinks, and the names
/// in it.
pub fn check(directory: &Path) -> Result<(PathBuf, Vec<OsString>), SnapshotError> {
    let directory = directory.canonicalize().map_err(failed("find", directory))?;
    if !directory.is_dir() {
        return Err(SnapshotError::NotADirectory { path: directory });
    }
    let own = names_in(&directory)?;
    if !own.iter().any(|name| is_configuration(name)) {
        return Err(SnapshotError::NoConfiguration { path: directory });
    }
    Ok((directory, own))
}

/// Takes a snapshot of `directory` into the bare repository `repository`, which is created when it is missing.
pub async fn take(directory: &Path, repository: &Path) -> Result<Snapshot, SnapshotError> {
    let (directory, own) = check(directory)?;
    let store = SnapshotRepository::open(repository).await?;
    let (root, mut files) = store.contents(&directory).await?;
    let inside = directory.strip_prefix(&root).unwrap_or(Path::new("")).to_owned();
    files.extend(own.iter().filter(|name| is_variable_file(name)).map(|name| inside.join(name)));
    files.retain(|path| may_go_in(path) && std::fs::symlink_metadata(root.join(path)).is_ok());

    let mut subdirectory = renamed(&root);
    let commit = store.commit(&root, &files, &subdirectory).await?;
    // Pushed as a whole, an empty path would leave a slash at the end.
    subdirectory.extend(&inside);
    let url = url::Url::from_file_path(&store.path)
        .map_err(|()| SnapshotError::NotADirectory { path: store.path.clone() })?;
    Ok(Snapshot {
        url: url.into(),
        commit,
        subdirectory: subdirectory.to_string_lossy().into_owned(),
        leaves_state_behind: own
            .iter()
            .any(|name| name.as_bytes().ends_with(b".tfstate") || name == "terraform.tfstate.d"),
    })
}

/// The folders above the root of what is taken, as they are called in the commit. A name that a runner refuses, or that makes
/// it take all that is below for the engine's own files, becomes another; nothing in the commit refers to it.
fn renamed(root: &Path) -> PathBuf {
    let fits = |name: &OsStr| {
        let is_text = name.to_str().is_some_and(|text| !text.contains(char::is_control));
        let is_runners = [".git", ".snapcd"].iter().any(|it| name.eq_ignore_ascii_case(it));
        let bytes = name.as_bytes();
        is_text && !is_runners && !bytes.starts_with(b".terraform") && !contains(bytes, b".tfstate")
    };
    let rename = |component| {
        let Component::Normal(name) = component else { return None };
        if fits(name) {
            return Some(name.to_owned());
        }
        let hash = Sha256::digest(name.as_bytes());
        Some(OsString::from(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()))
    };
    root.components().filter_map(rename).collect()
}

/// The bare repository that holds the snapshots.
#[derive(Debug)]
struct SnapshotRepository {
    path: PathBuf,
}

impl SnapshotRepository {
    async fn open(path: &Path) -> Result<Self, SnapshotError> {
        create_private_dir_all(path).map_err(failed("create", path))?;
        let path = path.canonicalize().map_err(failed("find", path))?;
        let store = Self { path };
        if !store.path.join("HEAD").exists() {
            let init = own_settings(git("make a repository")?);
            run(init.args(["init", "--quiet", "--bare", "--template="]).args([&store.path])).await?;
        }
        let info = store.path.join("info");
        create_private_dir_all(&info).map_err(failed("create", &info))?;
        let attributes = info.join("attributes");
        std::fs::write(&attributes, ATTRIBUTES).map_err(failed("write", &attributes))?;
        // A runner asks for the commit itself; a later snapshot may have moved the branch on by then.
        store.run(&["config", "uploadpack.allowAnySHA1InWant", "true"]).await?;
        Ok(store)
    }

    /// The root of what goes in, and the paths below it. That is the repository around `directory` if there is
    /// one that knows the directory's files, and the directory alone otherwise.
    async fn contents(&self, directory: &Path) -> Result<(PathBuf, BTreeSet<PathBuf>), SnapshotError> {
        if let Some(root) = toplevel(directory).await? {
            let mut files = BTreeSet::new();
            list_repository(&root, PathBuf::new(), &mut files).await?;
            let inside = directory.strip_prefix(&root).unwrap_or(Path::new(""));
            if holds_configuration(&files, inside) {
                return Ok((root, files));
            }
        }
        let empty_index = tempfile::tempdir().map_err(failed("create", &std::env::temp_dir()))?;
        let list = git("list files")?
            .env("GIT_DIR", &self.path)
            .env("GIT_WORK_TREE", directory)
            .env("GIT_INDEX_FILE", empty_index.path().join("index"))
            .current_dir(directory)
            .args(["ls-files", "-z", "--others", "--exclude-standard"]);
        let mut files = BTreeSet::new();
        for path in paths(&run(list).await?) {
            if ends_with_slash(&path) {
                list_repository(directory, path, &mut files).await?;
            } else {
                files.insert(path);
            }
        }
        if !holds_configuration(&files, Path::new("")) {
            return Err(SnapshotError::AllIgnored { path: directory.to_owned() });
        }
        Ok((directory.to_owned(), files))
    }

    /// Makes a commit of exactly these files, with `root` at `below`. An index of its own means that two snapshots at once
    /// are no matter.
    async fn commit(
        &self,
        root: &Path,
        files: &BTreeSet<PathBuf>,
        below: &Path,
    ) -> Result<String, SnapshotError> {
        let scratch = tempfile::tempdir_in(&self.path).map_err(failed("write to", &self.path))?;
        let index = scratch.path().join("index");
        let list = scratch.path().join("files");
        let names: Vec<&[u8]> = files.iter().map(|path| path.as_os_str().as_bytes()).collect();
        std::fs::write(&list, names.join(&0)).map_err(failed("write", &list))?;
        let add = self.git("add files")?.env("GIT_INDEX_FILE", &index).env("GIT_WORK_TREE", root);
        let add = add.current_dir(root).args(["update-index", "--add", "-z", "--stdin"]);
        run(add.stdin(File::open(&list).map_err(failed("read", &list))?)).await?;

        let mut tree = self.write_tree(&index).await?;
        if !below.as_os_str().is_empty() {
            let moved = scratch.path().join("moved");
            let mut prefix = OsString::from("--prefix=");
            prefix.push(below);
            prefix.push("/");
            let read = self.git("move files")?.env("GIT_INDEX_FILE", &moved).args(["read-tree", "-i"]);
            run(read.args([prefix, tree.into()])).await?;
            tree = self.write_tree(&moved).await?;
        }
        let commit = self.run(&["commit-tree", "-m", "Snapshot by hawser local", &tree]).await?;
        self.run(&["update-ref", BRANCH, &commit]).await?;
        self.run(&["gc", "--auto", "--quiet"]).await?;
        Ok(commit)
    }

    async fn write_tree(&self, index: &Path) -> Result<String, SnapshotError> {
        text(self.git("write a tree")?.env("GIT_INDEX_FILE", index).args(["write-tree"])).await
    }

    fn git(&self, purpose: &str) -> Result<Tool, SnapshotError> {
        Ok(own_settings(git(purpose)?).env("GIT_DIR", &self.path))
    }

    async fn run(&self, arguments: &[&str]) -> Result<String, SnapshotError> {
        text(self.git("take a snapshot")?.args(arguments)).await
    }
}

/// The work tree that `directory` is in. The home directory does not count: whoever keeps their dotfiles in
/// git does not mean all of their home to be a project.
async fn toplevel(directory: &Path) -> Result<Option<PathBuf>, SnapshotError> {
    let ask = git("find the repository")?.current_dir(directory).args(["rev-parse", "--show-toplevel"]);
    let said = match run(ask).await {
        Err(SnapshotError::Git(ProcessError::Failed { .. })) => return Ok(None),
        said => said?,
    };
    let root = PathBuf::from(OsStr::from_bytes(said.trim_ascii_end()));
    let home = dirs::home_dir().and_then(|home| home.canonicalize().ok());
    Ok((directory.starts_with(&root) && Some(&root) != home.as_ref()).then_some(root))
}

/// Adds the files of the repository at `root/inside`, and of those nested in it, relative to `root`.
async fn list_repository(
    root: &Path,
    inside: PathBuf,
    files: &mut BTreeSet<PathBuf>,
) -> Result<(), SnapshotError> {
    let mut repositories = vec![inside];
    while let Some(inside) = repositories.pop() {
        let list = git("list files")?.current_dir(&root.join(&inside));
        let list = list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for path in paths(&run(list).await?) {
            let path = inside.join(path);
            // A submodule is listed as one entry, an untracked repository with a slash at its end. The `.git` is
            // asked for because one that is not checked out is an empty directory and no repository.
            match root.join(&path) {
                nested if !nested.is_dir() || nested.is_symlink() => _ = files.insert(path),
                nested if nested.join(".git").exists() => repositories.push(path),
                _ => {}
            }
        }
    }
    Ok(())
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn paths(list: &[u8]) -> impl Iterator<Item = PathBuf> {
    list.split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
}

fn names_in(directory: &Path) -> Result<Vec<OsString>, SnapshotError> {
    std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
        .map_err(failed("list", directory))
}

fn holds_configuration(files: &BTreeSet<PathBuf>, directory: &Path) -> bool {
    files
        .iter()
        .any(|path| path.parent() == Some(directory) && path.file_name().is_some_and(is_configuration))
}

/// A file that makes a directory one that an engine can work with.
fn is_configuration(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let suffixes: [&[u8]; 4] = [b".tf", b".tf.json", b".tofu", b".tofu.json"];
    is_pulumi_project(name) || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

fn is_pulumi_project(name: &[u8]) -> bool {
    name == b"Pulumi.yaml" || name == b"Pulumi.yml"
}

/// A file that terraform and tofu load variables from without being told to.
fn is_variable_file(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let name = name.strip_suffix(b".json").unwrap_or(name);
    name == b"terraform.tfvars" || name.ends_with(b".auto.tfvars")
}

fn may_go_in(path: &Path) -> bool {
    path.components().all(|component| match component {
        Component::Normal(name) => {
            name != ".git" && name != ".terraform" && !contains(name.as_bytes(), b".tfstate")
        }
        _ => false,
    })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}

/// A git that asks nothing and ignores the repository that its caller may be working in.
fn git(purpose: &str) -> Result<Tool, SnapshotError> {
    let program = find_program("git", &[]).map_err(|_| SnapshotError::NoGit)?;
    let host = Inherited::of_this_process().into_variables().into_iter();
    Ok(Tool::new(program, purpose)
        .environment(host.filter(|(name, _)| !name.as_bytes().starts_with(b"GIT_")))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("LC_ALL", "C")
        // Another owner of the directory is no reason to refuse: nothing in it is run.
        .args(["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]))
}

/// For our own repository: nobody's settings, a fixed author and a fixed date.
fn own_settings(tool: Tool) -> Tool {
    tool.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "hawser")
        .env("GIT_AUTHOR_EMAIL", "hawser@localhost")
        .env("GIT_AUTHOR_DATE", "2000-01-01T00:00:00Z")
        .env("GIT_COMMITTER_NAME", "hawser")
        .env("GIT_COMMITTER_EMAIL", "hawser@localhost")
        .env("GIT_COMMITTER_DATE", "2000-01-01T00:00:00Z")
        .args(["-c", "core.autocrlf=false", "-c", "core.safecrlf=false", "-c", "commit.gpgSign=false"])
        .args(["-c", "gc.autoDetach=false", "-c", "init.defaultBranch=snapshot"])
}

async fn run(tool: Tool) -> Result<Vec<u8>, SnapshotError> {
    Ok(tool.run(&CancellationToken::new()).await?.stdout()?)
}

async fn text(tool: Tool) -> Result<String, SnapshotError> {
    Ok(String::from_utf8_lossy(&run(tool).await?).trim().to_owned())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
