//! How git is called: settings, environment, login and timeouts.
//!
//! `commits` fetches commits, `checkout` writes their files, and `cached_fetch` goes through the cache.
//!
//! git runs `ssh -o BatchMode=yes`, which fails instead of asking for a passphrase or about an unknown host. If the operator
//! has configured an ssh command (`GIT_SSH_COMMAND`, `GIT_SSH`, or `core.sshCommand` in the user's or the system's git
//! configuration), git uses that one. It runs without askpass and with an empty stdin, but may ask on a terminal.

use std::path::Path;
use std::time::Duration;

use super::refs::{self, Ref};
use super::{Fetcher, SourceError};
use crate::base::git_url::{ALLOWED_PROTOCOLS, GitUrl, Login, mask_url, mask_urls};
use crate::base::process::{ProcessError, ProgramOutput, Tool, find_program};

/// Naming the repository keeps git from searching the parent directories, and from checking who owns it: on some network
/// disks that is never the current user.
pub(super) const IN_CHECKOUT: &str = "--git-dir=.git";
pub(super) const IN_BARE: &str = "--git-dir=.";

const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// Long enough to check out a large repository on a slow disk.
pub(super) const LOCAL_TIMEOUT: Duration = Duration::from_secs(600);
/// Enough for a repository with half a million refs.
pub(super) const MAX_LIST: usize = 64 * 1024 * 1024;

/// Variables that would point git to another repository, or to a program that prompts.
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

/// Configuration for every call: no hooks, no background work that outlives it, no advice among the errors.
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

/// Passes the login of the URL to git. The secrets are in the environment, which other users of the machine cannot read.
const LOGIN_HELPER: &str = r#"!f() { test "$1" != get || printf 'username=%s\npassword=%s\n' "$HAWSER_GIT_USER" "$HAWSER_GIT_PASSWORD"; }; f"#;

impl Fetcher<'_> {
    pub(super) fn tool(&self, purpose: String) -> Result<Tool, SourceError> {
        Ok(self.prepared(Tool::new(find_program("git", &self.binary_paths)?, purpose)))
    }

    fn prepared(&self, tool: Tool) -> Tool {
        let mut tool = tool
            .args(CONFIG)
            .environment(self.host.clone().into_variables())
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            // Empty, not unset: if it is unset, git looks for other programs that prompt.
            .env("GIT_ASKPASS", "")
            .env("SSH_ASKPASS_REQUIRE", "never")
            .env("GCM_INTERACTIVE", "never")
            .env("GIT_ALLOW_PROTOCOL", ALLOWED_PROTOCOLS)
            // A server of plain files ignores filters. git would then fetch the filtered objects again and again, with one more
            // process each time.
            .env("GIT_NO_LAZY_FETCH", "1")
            .clean_lines(mask_urls);
        for name in NOT_INHERITED {
            tool = tool.env_remove(name);
        }
        // The policy has not checked the target of a redirect.
        if self.allowed.is_set() {
            tool = tool.args(["-c", "http.followRedirects=false"]);
        }
        tool
    }

    /// Adds the login of the URL, which takes precedence over the host's credential helpers, as it does in plain git.
    async fn with_login(&self, tool: Tool, url: &GitUrl) -> Result<Tool, SourceError> {
        let tool = match url.login() {
            None => tool,
            // The host's credential helpers know the password for this user. The user may be a token, so it must not be an
            // argument.
            Some(Login { user, password: None, server }) => {
                self.with_config(tool, &format!("credential.{server}.username"), &user)
            }
            Some(Login { user, password: Some(password), server }) => {
                let helper = |value: &str| format!("credential.{server}.helper={value}");
                tool.args(["-c", &helper(""), "-c", &helper(LOGIN_HELPER)])
                    .env("HAWSER_GIT_USER", user)
                    .env("HAWSER_GIT_PASSWORD", password)
            }
        };
        let own_ssh = *self.own_ssh.get_or_try_init(|| self.has_own_ssh()).await?;
        Ok(if own_ssh { tool } else { tool.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes") })
    }

    /// Whether the operator has configured an ssh command, which `GIT_SSH_COMMAND` would override.
    async fn has_own_ssh(&self) -> Result<bool, SourceError> {
        let is_set = |name| self.host.get(name).is_some();
        if is_set("GIT_SSH_COMMAND") || is_set("GIT_SSH") {
            return Ok(true);
        }
        let tool = self.tool("read core.sshCommand".to_owned())?.current_dir(Path::new("/"));
        match tool.args(["config", "--get", "core.sshCommand"]).run(&self.cancel).await {
            Ok(_) => Ok(true),
            // Not set.
            Err(ProcessError::Failed { status, .. }) if status.code() == Some(1) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a git setting through the environment.
    fn with_config(&self, tool: Tool, key: &str, value: &str) -> Tool {
        let host = self.host.get("GIT_CONFIG_COUNT").and_then(|count| count.to_str()?.parse::<u32>().ok());
        let number = host.unwrap_or_default();
        tool.env("GIT_CONFIG_COUNT", (number + 1).to_string())
            .env(format!("GIT_CONFIG_KEY_{number}"), key)
            .env(format!("GIT_CONFIG_VALUE_{number}"), value)
    }

    /// Runs `git ls-remote` with these arguments.
    pub(super) async fn list_refs(
        &self,
        url: &GitUrl,
        options: &[&str],
        names: &[String],
    ) -> Result<Vec<Ref>, SourceError> {
        // Outside of any repository, so that no repository's configuration applies.
        let tool = self.tool(format!("list the refs of {url}"))?.current_dir(Path::new("/"));
        let output = self
            .with_login(tool, url)
            .await?
            .args(["ls-remote", "--quiet"])
            .args(options)
            .args(["--", &url.argument()])
            .args(names)
            .timeout(LIST_TIMEOUT)
            .max_stdout(MAX_LIST)
            .run(&self.cancel)
            .await?;
        refs::parse(&output.text()?)
            .map_err(|line| SourceError::UnreadableRefs { url: url.to_string(), line: mask_urls(&line) })
    }

    pub(super) async fn init(
        &self,
        folder: &Path,
        sha256: bool,
        options: &[&str],
    ) -> Result<(), SourceError> {
        let format = if sha256 { "--object-format=sha256" } else { "--object-format=sha1" };
        let arguments =
            [&["init", "--quiet", "--template=", "--initial-branch=main", format], options].concat();
        self.local(folder, "create a repository".to_owned(), &arguments).await?;
        Ok(())
    }

    pub(super) async fn fetch(
        &self,
        folder: &Path,
        url: &GitUrl,
        command: &[&str],
        refs: &[&str],
    ) -> Result<ProgramOutput, SourceError> {
        let tool = self.tool(format!("fetch {url}"))?.current_dir(folder);
        let tool = self
            .with_login(tool, url)
            .await?
            .args(command)
            .args(["--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--", &url.argument()])
            .args(refs)
            .timeout(self.fetch_timeout);
        Ok(tool.run(&self.cancel).await?)
    }

    /// Records the origin of a checkout, which Git LFS, hooks and modules read.
    pub(super) async fn set_origin(&self, folder: &Path, url: &GitUrl) -> Result<(), SourceError> {
        let mut origin = url.argument();
        // The origin stays on disk, so it must not contain secrets.
        if mask_url(&origin) != origin {
            origin.truncate(origin.find('?').unwrap_or(origin.len()));
            origin = mask_url(&origin);
        }
        let arguments = [IN_CHECKOUT, "config", "remote.origin.url", &origin];
        self.local(folder, "record the origin of the checkout".to_owned(), &arguments).await?;
        Ok(())
    }

    /// Writes the work tree of a checkout. The files get the modes of a plain clone, because packages may be built from them;
    /// the folders above keep other users out. A filter may have to fetch some of the files.
    pub(super) async fn write_files(
        &self,
        folder: &Path,
        url: &GitUrl,
        commit: &str,
    ) -> Result<(), SourceError> {
        let git = find_program("git", &self.binary_paths)?;
        let tool = self.prepared(Tool::with_usual_modes(git, format!("check out {commit}")));
        let tool = self.with_login(tool.current_dir(folder), url).await?;
        tool.args([IN_CHECKOUT, "--work-tree=.", "checkout", "--quiet", "--force", "--detach", commit])
            .timeout(self.fetch_timeout.max(LOCAL_TIMEOUT))
            .run(&self.cancel)
            .await?;
        Ok(())
    }

    /// A call inside one of our own repositories.
    pub(super) async fn local(
        &self,
        folder: &Path,
        purpose: String,
        arguments: &[&str],
    ) -> Result<ProgramOutput, SourceError> {
        let tool = self.tool(purpose)?.current_dir(folder).args(arguments);
        Ok(tool.timeout(LOCAL_TIMEOUT).max_stdout(MAX_LIST).run(&self.cancel).await?)
    }
}
