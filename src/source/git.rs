//! The git commands that sources need.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::refs::{self, Ref};
use super::submodules::{MAX_SUBMODULES, Wanted};
use super::url::{Login, PROTOCOLS, Remote, mask_url};
use super::{Fetcher, Log, SourceError};
use crate::files::create_private_dir_all;
use crate::process::{Output, ProcessError, Tool, find_program};

/// A repository with half a million refs lists this much.
const MAX_LIST: usize = 64 * 1024 * 1024;

/// Variables that would point git at another repository, or at a program that asks.
const NOT_INHERITED: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "SSH_ASKPASS",
];

/// Settings of every call: no hooks, no work in the background that outlives it, no advice among the errors.
const CONFIG: [&str; 10] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
    "-c",
    "advice.detachedHead=false",
];

/// Hands git the login of the URL. The text is fixed; what is secret is in the environment, which other users
/// of the machine cannot read.
const LOGIN_HELPER: &str = r#"!f() { test "$1" != get || printf 'username=%s\npassword=%s\n' "$HAWSER_GIT_USER" "$HAWSER_GIT_PASSWORD"; }; f"#;

impl Fetcher {
    pub(super) fn tool(&self, purpose: String) -> Result<Tool, SourceError> {
        let mut tool = Tool::new(find_program("git", &self.binary_paths)?, purpose)
            .args(CONFIG)
            .environment(self.host.clone().into_variables())
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            // Empty, not unset: unset makes git look for other programs that ask.
            .env("GIT_ASKPASS", "")
            .env("SSH_ASKPASS_REQUIRE", "never")
            .env("GCM_INTERACTIVE", "never")
            .env("GIT_ALLOW_PROTOCOL", PROTOCOLS)
            .envs(self.environment.iter().cloned())
            .clean_lines(mask_url);
        for name in NOT_INHERITED {
            tool = tool.env_remove(name);
        }
        // A redirect leads to a place that nobody has looked at.
        if self.allowed.is_set() {
            tool = tool.args(["-c", "http.followRedirects=false"]);
        }
        Ok(tool)
    }

    /// A call that talks to the server and runs in `folder`. Its ssh never asks ([`super::ssh`]). A login in the URL
    /// counts before the host's own helpers, as it would if git had found it there.
    async fn remote_tool(
        &self,
        purpose: String,
        remote: &Remote,
        folder: &Path,
        cancel: &CancellationToken,
    ) -> Result<Tool, SourceError> {
        let mut tool = self.tool(purpose)?.current_dir(folder);
        if let Some(Login { user, password: None, server }) = &remote.login {
            // The host's own helpers know the password for this name. It may be a token, so it is no argument either.
            tool = self.with_config(tool, &format!("credential.{server}.username"), user);
        }
        if let Some(Login { user, password: Some(password), server }) = &remote.login {
            let helper = |value: &str| format!("credential.{server}.helper={value}");
            tool = tool
                .args(["-c", &helper(""), "-c", &helper(LOGIN_HELPER)])
                .env("HAWSER_GIT_USER", user)
                .env("HAWSER_GIT_PASSWORD", password);
        }
        Ok(match self.ssh_command(folder, cancel).await? {
            Some(command) => tool.env("GIT_SSH_COMMAND", command),
            None => tool,
        })
    }

    /// One more setting of git, by way of its environment.
    fn with_config(&self, tool: Tool, key: &str, value: &str) -> Tool {
        let host = self.host.get("GIT_CONFIG_COUNT").and_then(|count| count.to_str()?.parse::<u32>().ok());
        let number = host.unwrap_or_default();
        tool.env("GIT_CONFIG_COUNT", (number + 1).to_string())
            .env(format!("GIT_CONFIG_KEY_{number}"), key)
            .env(format!("GIT_CONFIG_VALUE_{number}"), value)
    }

    pub(super) async fn list_refs(
        &self,
        url: &str,
        names: &[String],
        cancel: &CancellationToken,
    ) -> Result<Vec<Ref>, SourceError> {
        self.list(url, &["ls-remote", "--quiet"], names, cancel).await
    }

    pub(super) async fn list_tags(
        &self,
        url: &str,
        cancel: &CancellationToken,
    ) -> Result<Vec<Ref>, SourceError> {
        self.list(url, &["ls-remote", "--quiet", "--tags"], &[], cancel).await
    }

    async fn list(
        &self,
        url: &str,
        command: &[&str],
        names: &[String],
        cancel: &CancellationToken,
    ) -> Result<Vec<Ref>, SourceError> {
        let remote = Remote::new(url);
        // Outside of any repository whose configuration could get a say.
        let nowhere = Path::new("/");
        let output = self
            .remote_tool(format!("list the refs of {}", mask_url(url)), &remote, nowhere, cancel)
            .await?
            .args(command)
            .args(["--", &remote.url])
            .args(names)
            .timeout(self.list_timeout)
            .max_stdout(MAX_LIST)
            .run(cancel)
            .await?;
        refs::parse(&output.text())
            .map_err(|line| SourceError::UnreadableRefs { url: mask_url(url), line: mask_url(&line) })
    }

    /// Finds the one commit that an abbreviated id stands for, in a throw-away copy of the history without
    /// the files (servers that cannot leave them out send them).
    pub(super) async fn complete_commit(
        &self,
        url: &str,
        start: &str,
        cancel: &CancellationToken,
    ) -> Result<String, SourceError> {
        let failed = |source| SourceError::Folder { folder: self.scratch.clone(), source };
        create_private_dir_all(&self.scratch).map_err(failed)?;
        let folder = tempfile::Builder::new().prefix("history-").tempdir_in(&self.scratch).map_err(failed)?;
        // How long ids are is up to the repository, and only its refs tell.
        let refs = self.list_refs(url, &[], cancel).await?;
        self.init(folder.path(), refs.iter().any(|it| it.object.len() == 64), cancel).await?;
        let commit = format!("{}^{{commit}}", start.to_ascii_lowercase());
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
        for wanted in [&ALL_REFS[..], &EVERY_REF] {
            let fetch = ["fetch", "--quiet", "--filter=tree:0"];
            self.fetch(folder.path(), url, &fetch, wanted, cancel).await?;
            match self.local(folder.path(), format!("find the commit {start}"), &arguments, cancel).await {
                Ok(output) => return Ok(output.text().trim().to_owned()),
                Err(SourceError::Git(ProcessError::Failed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(SourceError::UnknownCommit { revision: start.to_owned(), url: mask_url(url) })
    }

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
        super::url::check(url)?;
        self.allowed.judge(url).map_err(SourceError::Refused)?;
        if !refs::is_commit(commit) {
            return Err(SourceError::InvalidRevision { revision: commit.to_owned() });
        }
        log(&format!("Cloning {} at {commit}", mask_url(url)));
        self.init(folder, commit.len() == 64, cancel).await?;
        let filled = match &self.cache {
            Some(cache) => self.fill_from_cache(cache, url, commit, folder, log, cancel).await?,
            None => false,
        };
        if !filled {
            self.fetch_commit(Target { folder, keep: None }, url, commit, log, cancel).await?;
        }
        let checkout = ["checkout", "--quiet", "--force", "--detach", commit];
        self.local(folder, format!("check out {commit}"), &checkout, cancel).await?;
        self.submodules(wanted, log, cancel).await
    }

    /// Brings one commit into a repository of ours.
    pub(super) async fn fetch_commit(
        &self,
        target: Target<'_>,
        url: &str,
        commit: &str,
        log: Log<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        let Target { folder, keep } = target;
        let place = if keep.is_some() { IN_BARE } else { IN_CHECKOUT };
        let wanted = keep.map_or_else(|| commit.to_owned(), |keep| format!("{commit}:{keep}"));
        let shallow = [place, "fetch", "--quiet", "--no-prune", "--depth=1"];
        match self.fetch(folder, url, &shallow, &[&wanted], cancel).await {
            Err(SourceError::Git(error @ ProcessError::Failed { .. })) => {
                error.to_string().lines().for_each(log);
            }
            other => return other.map(drop),
        }
        log(&format!("Fetching the whole history of {} instead", mask_url(url)));
        let mut whole = vec![place, "fetch", "--quiet"];
        let mut all = &ALL_REFS;
        if keep.is_some() {
            // A name that became the folder of another would be in its way.
            whole.push("--prune");
            all = &ALL_REFS_KEPT;
            // What was fetched alone before would be taken for the end of the history.
            if folder.join("shallow").exists() {
                whole.push("--unshallow");
            }
        }
        self.fetch(folder, url, &whole, all, cancel).await?;
        if !self.has(folder, place, commit, cancel).await? {
            // A server may have many thousands of these, so they come last.
            log(&format!(
                "{commit} is on no branch or tag: fetching all other refs (pull requests, say) too"
            ));
            let every = if keep.is_some() { &EVERY_REF_KEPT } else { &EVERY_REF };
            self.fetch(folder, url, &[place, "fetch", "--quiet"], every, cancel).await?;
            if !self.has(folder, place, commit, cancel).await? {
                return Err(SourceError::UnknownCommit { revision: commit.to_owned(), url: mask_url(url) });
            }
        }
        if let Some(keep) = keep {
            self.local(folder, format!("keep {commit}"), &[place, "update-ref", keep, commit], cancel)
                .await?;
        }
        Ok(())
    }

    async fn has(
        &self,
        folder: &Path,
        place: &str,
        commit: &str,
        cancel: &CancellationToken,
    ) -> Result<bool, SourceError> {
        let object = format!("{commit}^{{commit}}");
        let arguments = [place, "cat-file", "-e", &object];
        match self.local(folder, format!("find {commit}"), &arguments, cancel).await {
            Err(SourceError::Git(ProcessError::Failed { .. })) => Ok(false),
            other => other.map(|_| true),
        }
    }

    async fn init(&self, folder: &Path, sha256: bool, cancel: &CancellationToken) -> Result<(), SourceError> {
        let format = if sha256 { "--object-format=sha256" } else { "--object-format=sha1" };
        let arguments = ["init", "--quiet", "--template=", "--initial-branch=main", format];
        self.local(folder, "make a repository".to_owned(), &arguments, cancel).await?;
        Ok(())
    }

    pub(super) async fn fetch(
        &self,
        folder: &Path,
        url: &str,
        command: &[&str],
        wanted: &[&str],
        cancel: &CancellationToken,
    ) -> Result<Output, SourceError> {
        let remote = Remote::new(url);
        let tool = self.remote_tool(format!("fetch {}", mask_url(url)), &remote, folder, cancel).await?;
        let tool = tool
            .args(command)
            .args(["--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--", &remote.url])
            .args(wanted)
            .timeout(self.fetch_timeout);
        Ok(tool.run(cancel).await?)
    }

    /// A call inside a repository of ours.
    pub(super) async fn local(
        &self,
        folder: &Path,
        purpose: String,
        arguments: &[&str],
        cancel: &CancellationToken,
    ) -> Result<Output, SourceError> {
        let tool = self.tool(purpose)?.current_dir(folder).args(arguments);
        Ok(tool.timeout(LOCAL_TIMEOUT).max_stdout(MAX_LIST).run(cancel).await?)
    }

    /// The files that a checkout has from its commit and that are still as they were there, with their paths
    /// below `root`, those of its submodules included. Nothing when `root` is no checkout.
    pub(crate) async fn unchanged_files(
        &self,
        root: &Path,
        cancel: &CancellationToken,
    ) -> Result<HashSet<PathBuf>, SourceError> {
        if !root.join(".git").is_dir() {
            return Ok(HashSet::new());
        }
        let list = async |more: &[&str]| {
            // Named outright, so that git does not go looking for a repository further up.
            let fixed = [IN_CHECKOUT, "--work-tree=.", "ls-files", "-z"];
            let arguments: Vec<&str> = fixed.iter().chain(more).copied().collect();
            self.local(root, "list the files of the old checkout".to_owned(), &arguments, cancel).await
        };
        let (all, modified) = match (list(&[]).await, list(&["--modified"]).await) {
            (Ok(all), Ok(modified)) => (all, modified),
            (Err(SourceError::Cancelled), _) | (_, Err(SourceError::Cancelled)) => {
                return Err(SourceError::Cancelled);
            }
            // A damaged repository says nothing about its files; then all of them count as changed.
            _ => return Ok(HashSet::new()),
        };
        let all = split_paths(&all.stdout);
        let modified = split_paths(&modified.stdout);
        let mut unchanged: HashSet<PathBuf> = all.difference(&modified).cloned().collect();
        if root.join(".gitmodules").exists() {
            for inside in all.iter().filter(|path| root.join(path).join(".git").is_dir()) {
                let below = Box::pin(self.unchanged_files(&root.join(inside), cancel)).await?;
                unchanged.extend(below.into_iter().map(|path| inside.join(path)));
            }
        }
        Ok(unchanged)
    }
}

/// Where a commit is fetched to.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) folder: &'a Path,
    /// The ref that keeps the commit in a cache, which is bare; none for a checkout.
    pub(super) keep: Option<&'a str>,
}

/// The repository is named outright, so that git never goes looking for one further up.
pub(super) const IN_CHECKOUT: &str = "--git-dir=.git";
pub(super) const IN_BARE: &str = "--git-dir=.";

const LOCAL_TIMEOUT: Duration = Duration::from_secs(600);
/// What a commit that somebody wants is nearly always reachable from.
const ALL_REFS: [&str; 2] = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];

const ALL_REFS_KEPT: [&str; 2] = ["+refs/heads/*:refs/hawser/heads/*", "+refs/tags/*:refs/hawser/tags/*"];

/// Everything else that a server shows.
const EVERY_REF: [&str; 1] = ["+refs/*:refs/every/*"];

const EVERY_REF_KEPT: [&str; 1] = ["+refs/*:refs/hawser/every/*"];

fn split_paths(list: &[u8]) -> HashSet<PathBuf> {
    list.split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| OsStr::from_bytes(path).into())
        .collect()
}
