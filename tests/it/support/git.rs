//! Real Git repositories for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository with a work tree in a temporary folder. Its first branch is `main`.
#[derive(Debug)]
pub(crate) struct Repo {
    folder: tempfile::TempDir,
}

impl Repo {
    pub(crate) fn empty() -> Self {
        let repo = Self { folder: tempfile::tempdir().unwrap() };
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo
    }

    /// Has one commit with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let repo = Self::empty();
        repo.commit(files);
        repo
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// Writes the files, commits everything, and returns the commit's id.
    pub(crate) fn commit(&self, files: &[(&str, &str)]) -> String {
        for (path, contents) in files {
            let path = self.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        self.git(&["add", "--all", "--force"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message=a change"]);
        self.head()
    }

    pub(crate) fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs git in the repository and returns what it printed.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git_in(self.path(), arguments)
    }

    /// Makes the repository unreachable, like a server that is down.
    pub(crate) fn vanish(&self) -> PathBuf {
        let elsewhere = self.path().join(".git-vanished");
        fs::rename(self.path().join(".git"), &elsewhere).unwrap();
        elsewhere
    }
}

pub(crate) fn git_in(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "Test"), ("GIT_AUTHOR_EMAIL", "test@example.org")])
        .envs([("GIT_COMMITTER_NAME", "Test"), ("GIT_COMMITTER_EMAIL", "test@example.org")])
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
