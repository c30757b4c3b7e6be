//! Fetches a commit from its server: alone if the server allows that, otherwise with its history.

use std::path::Path;

use super::git::{IN_BARE, IN_CHECKOUT};
use super::{Fetcher, SourceError};
use crate::base::files::create_private_dir_all;
use crate::base::git_url::GitUrl;
use crate::base::process::ProcessError;

/// Nearly every requested commit is reachable from these.
const ALL_REFS: [&str; 2] = ["+refs/heads/*:refs/hawser/heads/*", "+refs/tags/*:refs/hawser/tags/*"];

/// Everything else that a server lists, such as pull requests.
const EVERY_REF: [&str; 1] = ["+refs/*:refs/hawser/every/*"];

impl Fetcher<'_> {
    /// Expands an abbreviated commit id, in a temporary copy of the history without the files (unless the server cannot
    /// filter them out).
    pub(super) async fn complete_commit(&self, url: &GitUrl, start: &str) -> Result<String, SourceError> {
        let failed = |source| SourceError::Folder { folder: self.scratch.clone(), source };
        create_private_dir_all(&self.scratch).map_err(failed)?;
        let folder = tempfile::Builder::new().prefix("history-").tempdir_in(&self.scratch).map_err(failed)?;
        // Only the refs show whether the repository uses SHA-1 or SHA-256.
        let refs = self.list_refs(url, &[], &[]).await?;
        self.init(folder.path(), refs.iter().any(|it| it.object.len() == 64), &[]).await?;
        let commit = format!("{}^{{commit}}", start.to_ascii_lowercase());
        let arguments = [IN_CHECKOUT, "rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
        for refs in [&ALL_REFS[..], &EVERY_REF] {
            let fetch = [IN_CHECKOUT, "fetch", "--quiet", "--filter=tree:0"];
            self.fetch(folder.path(), url, &fetch, refs).await?;
            match self.local(folder.path(), format!("find the commit {start}"), &arguments).await {
                Ok(output) => return Ok(output.text()?.trim().to_owned()),
                Err(SourceError::Git(ProcessError::Failed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(SourceError::UnknownCommit { revision: start.to_owned(), url: url.to_string() })
    }

    /// Fetches one commit into one of our own repositories. `keep` is the ref that keeps the commit in a cached repository,
    /// which is bare; `None` for a checkout.
    pub(super) async fn fetch_commit(
        &self,
        folder: &Path,
        keep: Option<&str>,
        url: &GitUrl,
        commit: &str,
    ) -> Result<(), SourceError> {
        let repository = if keep.is_some() { IN_BARE } else { IN_CHECKOUT };
        let refspec = keep.map_or_else(|| commit.to_owned(), |keep| format!("{commit}:{keep}"));
        let shallow = [repository, "fetch", "--quiet", "--no-prune", "--depth=1"];
        match self.fetch(folder, url, &shallow, &[&refspec]).await {
            Err(SourceError::Git(error @ ProcessError::Failed { .. })) => {
                error.to_string().lines().for_each(self.log);
            }
            other => return other.map(drop),
        }
        (self.log)(&format!("Fetching the whole history of {url} instead"));
        let mut whole = vec![repository, "fetch", "--quiet"];
        if keep.is_some() {
            // A branch `a` that is gone would block a new branch `a/b`.
            whole.push("--prune");
            // git takes the commits of earlier shallow fetches for the start of the history.
            if folder.join("shallow").exists() {
                whole.push("--unshallow");
            }
        }
        self.fetch(folder, url, &whole, &ALL_REFS).await?;
        if !self.has(folder, repository, commit).await? {
            // Last, because a server may have many thousands of these.
            (self.log)(&format!(
                "No branch or tag contains {commit}: fetching all other refs, such as pull requests"
            ));
            self.fetch(folder, url, &[repository, "fetch", "--quiet"], &EVERY_REF).await?;
            if !self.has(folder, repository, commit).await? {
                return Err(SourceError::UnknownCommit { revision: commit.to_owned(), url: url.to_string() });
            }
        }
        if let Some(keep) = keep {
            self.local(folder, format!("keep {commit}"), &[repository, "update-ref", keep, commit]).await?;
        }
        Ok(())
    }

    async fn has(&self, folder: &Path, repository: &str, commit: &str) -> Result<bool, SourceError> {
        let object = format!("{commit}^{{commit}}");
        let arguments = [repository, "cat-file", "-e", &object];
        match self.local(folder, format!("find {commit}"), &arguments).await {
            Err(SourceError::Git(ProcessError::Failed { .. })) => Ok(false),
            other => other.map(|_| true),
        }
    }
}
