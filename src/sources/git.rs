//! How git is called: with which settings and variables, with whose login, for how long.
//!
//! What is done with it stands elsewhere: `commits` brings commits here, `checkout` makes folders of them, `cached_fetch` goes by
//! way of the cache.
//!
//! git runs `ssh -o BatchMode=yes`, which fails instead of asking for a passphrase or about an unknown host. An ssh command
//! that the operator has chosen (`GIT_SSH_COMMAND`, `GIT_SSH`, or `core.sshCommand` in the user's or the system's settings of
//! git) is left alone. It runs without askpass and with an empty stdin, but may ask on a terminal.

use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::refs::{self, Ref};
use super::{Fetcher, SourceError};
use crate::base::git_url::{Login, PROTOCOLS, Remote, mask_url, mask_urls};
use crate::base::process::{ProcessError, ProgramOutput, Tool, find_program};

/// The repository is named outright, so that git never goes looking for one further up, and does not ask who owns it: on
/// some network disks it is never the one who runs git.
pub(super) const IN_CHECKOUT: &str = "--git-dir=.git";
pub(super) const IN_BARE: &str = "--git-dir=.";

/// What a call inside a repository of ours may take: the checkout of a large one on a slow disk.
pub(super) const LOCAL_TIMEOUT: Duration = Duration::from_secs(600);
/// A repository with half a million refs lists this much.
pub(super) const MAX_LIST: usize = 64 * 1024 * 1024;

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
        Ok(self.prepared(Tool::new(find_program("git", &self.binary_paths)?, purpose)))
    }

    fn prepared(&self, tool: Tool) -> Tool {
        let mut tool = tool
            .args(CONFIG)
            .environment(self.host.clone().into_variables())
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            // Empty, not unset: unset makes git look for other programs that ask.
            .env("GIT_ASKPASS", "")
            .env("SSH_ASKPASS_REQUIRE", "never")
            .env("GCM_INTERACTIVE", "never")
            .env("GIT_ALLOW_PROTOCOL", PROTOCOLS)
            // A server of plain files cannot leave anything out, and git would ask it again and again for what it takes for
            // left out, each time by one more process.
            .env("GIT_NO_LAZY_FETCH", "1")
            .envs(self.environment.iter().cloned())
            .clean_lines(mask_urls);
        for name in NOT_INHERITED {
            tool = tool.env_remove(name);
        }
        // A redirect leads to a place that nobody has looked at.
        if self.allowed.is_set() {
            tool = tool.args(["-c", "http.followRedirects=false"]);
        }
        tool
    }

    /// A call that talks to the server and runs in `folder`. A login in the URL counts before the host's own helpers, as it would if git had found it there.
    async fn remote_tool(
        &self,
        purpose: String,
        remote: &Remote,
        folder: &Path,
        cancel: &CancellationToken,
    ) -> Result<Tool, SourceError> {
        let tool = self.tool(purpose)?;
        self.with_login(tool, remote, folder, cancel).await
    }

    async fn with_login(
        &self,
        tool: Tool,
        remote: &Remote,
        folder: &Path,
        cancel: &CancellationToken,
    ) -> Result<Tool, SourceError> {
        let mut tool = tool.current_dir(folder);
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
        let own_ssh = *self.own_ssh.get_or_try_init(|| self.has_own_ssh(cancel)).await?;
        Ok(if own_ssh { tool } else { tool.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes") })
    }

    /// Whether the operator has chosen the ssh that git runs. `GIT_SSH_COMMAND` would override the choice.
    async fn has_own_ssh(&self, cancel: &CancellationToken) -> Result<bool, SourceError> {
        let is_set =
            |name| self.host.get(name).is_some() || self.environment.iter().any(|(own, _)| own == name);
        if is_set("GIT_SSH_COMMAND") || is_set("GIT_SSH") {
            return Ok(true);
        }
        let asked = self.tool("read core.sshCommand".to_owned())?.current_dir(Path::new("/"));
        match asked.args(["config", "--get", "core.sshCommand"]).run(cancel).await {
            Ok(_) => Ok(true),
            // It is not set.
            Err(ProcessError::Failed { status, .. }) if status.code() == Some(1) => Ok(false),
            Err(error) => Err(error.into()),
        }
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
        refs::parse(&output.text()?)
            .map_err(|line| SourceError::UnreadableRefs { url: mask_url(url), line: mask_urls(&line) })
    }

    pub(super) async fn init(
        &self,
        folder: &Path,
        sha256: bool,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
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
    ) -> Result<ProgramOutput, SourceError> {
        let remote = Remote::new(url);
        let tool = self.remote_tool(format!("fetch {}", mask_url(url)), &remote, folder, cancel).await?;
        let tool = tool
            .args(command)
            .args(["--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--", &remote.url])
            .args(wanted)
            .timeout(self.fetch_timeout);
        Ok(tool.run(cancel).await?)
    }

    /// Says where a checkout is from: filters such as that of Git LFS ask for it, and so do hooks and modules.
    pub(super) async fn name_origin(
        &self,
        folder: &Path,
        url: &str,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        let mut origin = Remote::new(url).url;
        // It stays on the disk, and what is secret in it does not.
        if mask_url(&origin) != origin {
            origin.truncate(origin.find('?').unwrap_or(origin.len()));
            origin = mask_url(&origin);
        }
        let arguments = [IN_CHECKOUT, "config", "remote.origin.url", &origin];
        self.local(folder, "note the origin of the checkout".to_owned(), &arguments, cancel).await?;
        Ok(())
    }

    /// Fills the work tree of a checkout. Its files get the modes that a plain clone gives them, as they may end up in
    /// packages that are made of them; nobody else reaches them through the folders above. A filter may have to fetch some.
    pub(super) async fn write_files(
        &self,
        folder: &Path,
        url: &str,
        commit: &str,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        let git = find_program("git", &self.binary_paths)?;
        let tool = self.prepared(Tool::with_usual_modes(git, format!("check out {commit}")));
        let tool = self.with_login(tool, &Remote::new(url), folder, cancel).await?;
        tool.args([IN_CHECKOUT, "--work-tree=.", "checkout", "--quiet", "--force", "--detach", commit])
            .timeout(self.fetch_timeout.max(LOCAL_TIMEOUT))
            .run(cancel)
            .await?;
        Ok(())
    }

    /// A call inside a repository of ours.
    pub(super) async fn local(
        &self,
        folder: &Path,
        purpose: String,
        arguments: &[&str],
        cancel: &CancellationToken,
    ) -> Result<ProgramOutput, SourceError> {
        let tool = self.tool(purpose)?.current_dir(folder).args(arguments);
        Ok(tool.timeout(LOCAL_TIMEOUT).max_stdout(MAX_LIST).run(cancel).await?)
    }
}
