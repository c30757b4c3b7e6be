//! Commits a directory, including uncommitted files, so that a runner can fetch it.
//!
//! The commit goes to a separate bare repository; the user's repository and index are only read. It contains the files
//! that git considers part of the project: tracked files, and untracked files that are not ignored. There are two
//! exceptions:
//!
//! * Variable files that the engine loads automatically (`terraform.tfvars`, `*.auto.tfvars` and their JSON forms) are
//!   always included. They are often ignored because they contain secrets, and the snapshot never leaves the user's
//!   private folder.
//! * `.git`, `.terraform` and `*.tfstate*` are never included.
//!
//! A symlink to a file outside of the snapshot, like the `python` of a virtual environment, becomes a copy of that file, because
//! a runner refuses such a symlink.
//!
//! Inside a git repository the snapshot contains the whole repository, so that `../modules/x` works. Nested repositories
//! and submodules are included as plain files. The same files always result in the same commit, because author and date
//! are fixed.
//!
//! In the commit every file is at its absolute path. So the path of the directory does not depend on the root of the
//! repository around it, and an engine finds the state that it keeps next to the configuration.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{LocalError, failed};
use crate::base::digest::hex;
use crate::base::files::create_private_dir_all;
use crate::base::process::{Inherited, ProcessError, Tool, find_program};

/// The branch that holds the last snapshot.
const BRANCH: &str = "refs/heads/snapshot";

/// Override the attributes in the source: no conversion, no filters.
const ATTRIBUTES: &str = "* -text -filter -ident -working-tree-encoding\n";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `file://` URL of the repository.
    pub url: String,
    pub commit: String,
    /// The directory inside the commit.
    pub subdirectory: String,
    /// The directory contains state, which is not part of the snapshot.
    pub leaves_state_behind: bool,
}

/// Checks whether a snapshot of `directory` is possible. Returns its path without symlinks, and the names in it.
pub fn check(directory: &Path) -> Result<(PathBuf, Vec<OsString>), LocalError> {
    if !directory.is_dir() {
        return Err(LocalError::NotADirectory { path: directory.to_owned() });
    }
    let directory = directory.canonicalize().map_err(failed("find", directory))?;
    let names: Vec<OsString> = std::fs::read_dir(&directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
        .map_err(failed("list", &directory))?;
    if !names.iter().any(|name| is_configuration(name)) {
        return Err(LocalError::NoConfiguration { path: directory });
    }
    Ok((directory, names))
}

/// Commits a directory that was [checked](check), and that has these names in it, to the bare repository `repository`, which
/// is created if it does not exist.
pub async fn take(directory: &Path, names: &[OsString], repository: &Path) -> Result<Snapshot, LocalError> {
    let store = SnapshotRepository::open(repository).await?;
    let (root, mut files) = store.contents(directory).await?;
    let inside = directory.strip_prefix(&root).unwrap_or(Path::new("")).to_owned();
    files.extend(names.iter().filter(|name| is_variable_file(name)).map(|name| inside.join(name)));
    files.retain(|path| is_included(path) && std::fs::symlink_metadata(root.join(path)).is_ok());

    let mut subdirectory = renamed(&root);
    let commit = store.commit(&root, &files, &subdirectory).await?;
    // Pushing an empty path would add a trailing slash.
    subdirectory.extend(&inside);
    let url = url::Url::from_file_path(&store.path)
        .map_err(|()| LocalError::NotADirectory { path: store.path.clone() })?;
    Ok(Snapshot {
        url: url.into(),
        commit,
        subdirectory: subdirectory.to_string_lossy().into_owned(),
        leaves_state_behind: names
            .iter()
            .any(|name| name.as_bytes().ends_with(b".tfstate") || name == "terraform.tfstate.d"),
    })
}

/// The path of `root` in the commit. A name that a runner refuses, or that it treats as an engine's own folder, is replaced
/// by a hash. Nothing in the commit refers to these names.
fn renamed(root: &Path) -> PathBuf {
    let is_allowed = |name: &OsStr| {
        let is_text = name.to_str().is_some_and(|text| !text.contains(char::is_control));
        let is_reserved = [".git", ".snapcd"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved));
        let bytes = name.as_bytes();
        is_text && !is_reserved && !bytes.starts_with(b".terraform") && !contains(bytes, b".tfstate")
    };
    let rename = |component| {
        let Component::Normal(name) = component else { return None };
        if is_allowed(name) {
            return Some(name.to_owned());
        }
        let hash = Sha256::digest(name.as_bytes());
        Some(OsString::from(hex(&hash[..8])))
    };
    root.components().filter_map(rename).collect()
}

#[derive(Debug)]
struct SnapshotRepository {
    path: PathBuf,
}

impl SnapshotRepository {
    async fn open(path: &Path) -> Result<Self, LocalError> {
        create_private_dir_all(path).map_err(failed("create", path))?;
        let path = path.canonicalize().map_err(failed("find", path))?;
        let store = Self { path };
        if !store.path.join("HEAD").exists() {
            let init = own_settings(git("create a repository")?);
            run(init.args(["init", "--quiet", "--bare", "--template="]).args([&store.path])).await?;
        }
        let info = store.path.join("info");
        create_private_dir_all(&info).map_err(failed("create", &info))?;
        let attributes = info.join("attributes");
        std::fs::write(&attributes, ATTRIBUTES).map_err(failed("write", &attributes))?;
        // A runner fetches the commit by its ID, because a later snapshot may have moved the branch.
        store.run(&["config", "uploadpack.allowAnySHA1InWant", "true"]).await?;
        Ok(store)
    }

    /// The root of the snapshot and the paths below it: the repository that contains `directory`, or only the directory if
    /// there is no repository or the repository ignores it.
    async fn contents(&self, directory: &Path) -> Result<(PathBuf, BTreeSet<PathBuf>), LocalError> {
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
            if path.as_os_str().as_bytes().ends_with(b"/") {
                list_repository(directory, path, &mut files).await?;
            } else {
                files.insert(path);
            }
        }
        if !holds_configuration(&files, Path::new("")) {
            return Err(LocalError::AllIgnored { path: directory.to_owned() });
        }
        Ok((directory.to_owned(), files))
    }

    /// Commits exactly these files, with `root` at `below`. A separate index allows concurrent snapshots.
    async fn commit(
        &self,
        root: &Path,
        files: &BTreeSet<PathBuf>,
        below: &Path,
    ) -> Result<String, LocalError> {
        let scratch = tempfile::tempdir_in(&self.path).map_err(failed("write to", &self.path))?;
        let index = scratch.path().join("index");
        let list = scratch.path().join("files");
        let (linked, names): (Vec<_>, Vec<_>) = files
            .iter()
            .map(|path| (path, linked_file(root, path)))
            .partition(|(_, linked)| linked.is_some());
        let names: Vec<&[u8]> = names.iter().map(|(path, _)| path.as_os_str().as_bytes()).collect();
        std::fs::write(&list, names.join(&0)).map_err(failed("write", &list))?;
        let add = self.git("add files")?.env("GIT_INDEX_FILE", &index).env("GIT_WORK_TREE", root);
        let add = add.current_dir(root).args(["update-index", "--add", "-z", "--stdin"]);
        run(add.stdin(File::open(&list).map_err(failed("read", &list))?)).await?;
        for (path, target) in linked.into_iter().filter_map(|(path, target)| Some((path, target?))) {
            let object = self.git("copy a file")?.args(["hash-object", "-w", "--no-filters", "--"]);
            let object = text(object.args([&target])).await?;
            let mode = if is_executable(&target) { "100755" } else { "100644" };
            let add = self.git("add a file")?.env("GIT_INDEX_FILE", &index);
            let add = add.args(["update-index", "--add", "--cacheinfo", mode, &object]);
            run(add.args([path])).await?;
        }

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

    async fn write_tree(&self, index: &Path) -> Result<String, LocalError> {
        text(self.git("write a tree")?.env("GIT_INDEX_FILE", index).args(["write-tree"])).await
    }

    fn git(&self, purpose: &str) -> Result<Tool, LocalError> {
        Ok(own_settings(git(purpose)?).env("GIT_DIR", &self.path))
    }

    async fn run(&self, arguments: &[&str]) -> Result<String, LocalError> {
        text(self.git("take a snapshot")?.args(arguments)).await
    }
}

/// The work tree that contains `directory`. The home directory does not count, because users who keep their dotfiles in git
/// do not want a snapshot of it.
async fn toplevel(directory: &Path) -> Result<Option<PathBuf>, LocalError> {
    let find = git("find the repository")?.current_dir(directory).args(["rev-parse", "--show-toplevel"]);
    let output = match run(find).await {
        Err(LocalError::Git(ProcessError::Failed { .. })) => return Ok(None),
        output => output?,
    };
    let root = PathBuf::from(OsStr::from_bytes(output.trim_ascii_end()));
    let home = dirs::home_dir().and_then(|home| home.canonicalize().ok());
    Ok((directory.starts_with(&root) && Some(&root) != home.as_ref()).then_some(root))
}

/// Adds the files of the repository at `root/inside` and of its nested repositories, relative to `root`.
async fn list_repository(
    root: &Path,
    inside: PathBuf,
    files: &mut BTreeSet<PathBuf>,
) -> Result<(), LocalError> {
    let mut repositories = vec![inside];
    while let Some(inside) = repositories.pop() {
        let list = git("list files")?.current_dir(&root.join(&inside));
        let list = list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for path in paths(&run(list).await?) {
            let path = inside.join(path);
            // git lists a submodule as one entry, and an untracked repository with a trailing slash. A submodule that is
            // not checked out is an empty directory without `.git`.
            match root.join(&path) {
                nested if !nested.is_dir() || nested.is_symlink() => _ = files.insert(path),
                nested if nested.join(".git").exists() => repositories.push(path),
                _ => {}
            }
        }
    }
    Ok(())
}

fn paths(list: &[u8]) -> impl Iterator<Item = PathBuf> {
    list.split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
}

fn holds_configuration(files: &BTreeSet<PathBuf>, directory: &Path) -> bool {
    files
        .iter()
        .any(|path| path.parent() == Some(directory) && path.file_name().is_some_and(is_configuration))
}

/// The file outside of `root` that a symlink leads to.
fn linked_file(root: &Path, path: &Path) -> Option<PathBuf> {
    let path = root.join(path);
    let target = path.is_symlink().then(|| path.canonicalize().ok()).flatten()?;
    (target.is_file() && !target.starts_with(root)).then_some(target)
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o100 != 0)
}

/// Whether an engine can run in a directory with this file.
fn is_configuration(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let suffixes: [&[u8]; 4] = [b".tf", b".tf.json", b".tofu", b".tofu.json"];
    name == b"Pulumi.yaml" || name == b"Pulumi.yml" || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// Whether terraform and tofu load variables from this file automatically.
fn is_variable_file(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let name = name.strip_suffix(b".json").unwrap_or(name);
    name == b"terraform.tfvars" || name.ends_with(b".auto.tfvars")
}

fn is_included(path: &Path) -> bool {
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

/// A git command that never prompts and ignores the repository of its caller.
fn git(purpose: &str) -> Result<Tool, LocalError> {
    let program = find_program("git", &[]).map_err(|_| LocalError::NoGit)?;
    let host = Inherited::of_this_process().into_variables().into_iter();
    Ok(Tool::new(program, purpose)
        .environment(host.filter(|(name, _)| !name.as_bytes().starts_with(b"GIT_")))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("LC_ALL", "C")
        // The directory may have another owner, because nothing in it is run.
        .args(["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]))
}

/// For the snapshot repository: no user settings, a fixed author, and a fixed date.
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

async fn run(tool: Tool) -> Result<Vec<u8>, LocalError> {
    Ok(tool.run(&CancellationToken::new()).await?.stdout()?)
}

async fn text(tool: Tool) -> Result<String, LocalError> {
    Ok(String::from_utf8_lossy(&run(tool).await?).trim().to_owned())
}

#[cfg(test)]
mod tests;
