//! Bringing a commit here from its server: the one that is wanted alone where the server gives it out, otherwise with its history.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::git::{IN_BARE, IN_CHECKOUT};
use super::{Fetcher, JobLog, SourceError};
use crate::base::files::create_private_dir_all;
use crate::base::git_url::mask_url;
use crate::base::process::ProcessError;

/// What a commit that somebody wants is nearly always reachable from.
const ALL_REFS: [&str; 2] = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];

const ALL_REFS_KEPT: [&str; 2] = ["+refs/heads/*:refs/hawser/heads/*", "+refs/tags/*:refs/hawser/tags/*"];

/// Everything else that a server shows.
const EVERY_REF: [&str; 1] = ["+refs/*:refs/every/*"];

const EVERY_REF_KEPT: [&str; 1] = ["+refs/*:refs/hawser/every/*"];

/// Where a commit is fetched to.
#[derive(Clone, Copy)]
pub(super) struct FetchTarget<'a> {
    pub(super) folder: &'a Path,
    /// The ref that keeps the commit in a cache, which is bare; none for a checkout.
    pub(super) keep: Option<&'a str>,
}

impl Fetcher {
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
        let arguments = [IN_CHECKOUT, "rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
        for wanted in [&ALL_REFS[..], &EVERY_REF] {
            let fetch = [IN_CHECKOUT, "fetch", "--quiet", "--filter=tree:0"];
            self.fetch(folder.path(), url, &fetch, wanted, cancel).await?;
            match self.local(folder.path(), format!("find the commit {start}"), &arguments, cancel).await {
                Ok(output) => return Ok(output.text()?.trim().to_owned()),
                Err(SourceError::Git(ProcessError::Failed { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(SourceError::UnknownCommit { revision: start.to_owned(), url: mask_url(url) })
    }

    /// Brings one commit into a repository of ours.
    pub(super) async fn fetch_commit(
        &self,
        target: FetchTarget<'_>,
        url: &str,
        commit: &str,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), SourceError> {
        let FetchTarget { folder, keep } = target;
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
}
