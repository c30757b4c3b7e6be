//! Submodules: which are fetched, and from where.
//!
//! The runner fetches them itself, like their parent, instead of through `git submodule`. So they get the same checks,
//! timeouts and cache, and nothing in `.gitmodules` can run a program or set an option. Only `path`, `url` and `update = none`
//! (skip it) are read. A commit without an entry stays an empty folder, as with git.
//!
//! - A relative URL is relative to the parent's, and has the parent's credentials. An absolute URL does not.
//! - A path on this machine's disk (or a `file` URL) is only allowed if the parent is on disk too. A repository on a server
//!   must not choose what is read here, even if `protocol.file.allow` allows it; plain git refuses this by default.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::git::IN_CHECKOUT;
use super::{Fetcher, SourceError};
use crate::base::git_url::{GitUrl, UrlError};

/// Deeper than any real project.
const MAX_DEPTH: usize = 16;

/// In one checkout, at all depths. Large projects have one or two hundred.
pub(super) const MAX_SUBMODULES: usize = 500;

/// One submodule in `.gitmodules`.
#[derive(Debug, Default, PartialEq, Eq)]
struct SubmoduleEntry {
    path: Option<Vec<u8>>,
    url: Option<String>,
    is_skipped: bool,
}

/// A commit to check out: that of a submodule, or the one that contains them all.
pub(super) struct SubmoduleCommit {
    pub(super) url: GitUrl,
    pub(super) commit: String,
    pub(super) folder: PathBuf,
    /// The submodules that contain it, from the outside in, each as its path in the one before.
    parents: Vec<String>,
}

impl SubmoduleCommit {
    pub(super) fn new(url: &GitUrl, commit: &str, folder: &Path) -> Self {
        Self { url: url.clone(), commit: commit.to_owned(), folder: folder.to_owned(), parents: Vec::new() }
    }

    /// The path of the submodule in the repository that contains it.
    pub(super) fn submodule(&self) -> Option<&str> {
        self.parents.last().map(String::as_str)
    }

    /// Adds the names of the submodules to an error.
    pub(super) fn locate_error(&self, error: SourceError) -> SourceError {
        self.parents.iter().rev().fold(error, |error, path| in_submodule(path, error))
    }
}

fn in_submodule(path: &str, error: SourceError) -> SourceError {
    match error {
        SourceError::Cancelled => error,
        error => SourceError::Submodule { path: path.to_owned(), source: Box::new(error) },
    }
}

impl Fetcher<'_> {
    /// The submodules of a checkout.
    pub(super) async fn submodules(
        &self,
        parent: &SubmoduleCommit,
    ) -> Result<Vec<SubmoduleCommit>, SourceError> {
        let folder = parent.folder.as_path();
        // git would follow a symlink.
        if !folder.join(".gitmodules").symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(Vec::new());
        }
        let list = [IN_CHECKOUT, "--work-tree=.", "ls-files", "--stage", "-z"];
        let listed = self.local(folder, "list the submodules".to_owned(), &list).await?;
        let commits = gitlinks(&listed.stdout()?);
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        let read = [IN_CHECKOUT, "config", "--blob", "HEAD:.gitmodules", "--list", "-z"];
        let read = self.local(folder, "read .gitmodules".to_owned(), &read).await?;
        let modules = parse(&read.stdout()?);
        let mut submodules = Vec::new();
        for (path, commit) in commits {
            let shown = String::from_utf8_lossy(&path).into_owned();
            let Some(module) = modules.iter().find(|module| module.path.as_ref() == Some(&path)) else {
                (self.log)(&format!("Skipping {shown:?}: .gitmodules has no entry for this submodule"));
                continue;
            };
            if module.is_skipped {
                (self.log)(&format!("Skipping the submodule {shown:?}: .gitmodules sets `update = none`"));
                continue;
            }
            let target = folder.join(OsStr::from_bytes(&path));
            let check = || {
                if parent.parents.len() == MAX_DEPTH {
                    return Err(SourceError::TooDeep(MAX_DEPTH));
                }
                check_target(folder, &target)?;
                Ok(absolute(&parent.url, module.url.as_deref().unwrap_or_default())?)
            };
            let url = check().map_err(|error| in_submodule(&shown, error))?;
            let parents = parent.parents.iter().cloned().chain([shown]).collect();
            submodules.push(SubmoduleCommit { url, commit, folder: target, parents });
        }
        Ok(submodules)
    }
}

/// Paths and commits of the submodules in the output of `git ls-files --stage -z`.
fn gitlinks(list: &[u8]) -> Vec<(Vec<u8>, String)> {
    let entry = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let words = std::str::from_utf8(&line[..tab]).ok()?;
        let commit = words.strip_prefix("160000 ")?.split(' ').next()?;
        Some((line[tab + 1..].to_vec(), commit.to_owned()))
    };
    list.split(|byte| *byte == 0).filter_map(entry).collect()
}

/// Parses the output of `git config --list -z`: each entry is a key, a line feed and a value.
fn parse(list: &[u8]) -> Vec<SubmoduleEntry> {
    let mut modules: BTreeMap<Vec<u8>, SubmoduleEntry> = BTreeMap::new();
    for entry in list.split(|byte| *byte == 0) {
        let Some(end) = entry.iter().position(|byte| *byte == b'\n') else { continue };
        let (key, value) = (&entry[..end], &entry[end + 1..]);
        let Some(rest) = key.strip_prefix(b"submodule.") else { continue };
        let Some(dot) = rest.iter().rposition(|byte| *byte == b'.') else { continue };
        let module = modules.entry(rest[..dot].to_vec()).or_default();
        match &rest[dot + 1..] {
            b"path" => module.path = Some(value.strip_suffix(b"/").unwrap_or(value).to_vec()),
            b"url" => module.url = Some(String::from_utf8_lossy(value).into_owned()),
            b"update" => module.is_skipped = value == b"none",
            _ => {}
        }
    }
    modules.into_values().collect()
}

/// git has created an empty folder for the submodule. The path to it must not contain symlinks.
fn check_target(root: &Path, target: &Path) -> Result<(), SourceError> {
    let failed = |source| SourceError::Folder { folder: target.to_owned(), source };
    let real = |path: &Path| -> Result<PathBuf, SourceError> { path.canonicalize().map_err(failed) };
    let below = target.strip_prefix(root).map_err(|_| SourceError::NotEmptyFolder)?;
    if real(target)? != real(root)?.join(below) || target.read_dir().map_err(failed)?.next().is_some() {
        return Err(SourceError::NotEmptyFolder);
    }
    Ok(())
}

/// The URL of a submodule of the repository at `parent`.
fn absolute(parent: &GitUrl, url: &str) -> Result<GitUrl, UrlError> {
    let refuse = |reason| Err(UrlError::new(url, reason));
    if !(url.starts_with("./") || url.starts_with("../")) {
        return match GitUrl::parse(url)? {
            url if !url.is_on_disk() || parent.is_on_disk() => Ok(url),
            _ => refuse("it is on this machine's disk, but its parent repository is not"),
        };
    }
    let mut segments: Vec<&str> = parent.path().split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in url.split('/') {
        match segment {
            "" | "." => {}
            ".." if segments.pop().is_none() => return refuse("it points outside the parent's server"),
            ".." => {}
            segment => segments.push(segment),
        }
    }
    let slash = if parent.is_scp() && !parent.path().starts_with('/') { "" } else { "/" };
    parent.with_path(format!("{slash}{}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_urls_stay_on_the_server_of_the_parent() {
        let absolute =
            |parent, url| absolute(&GitUrl::parse(parent).unwrap(), url).map(|url| url.with_credentials());
        for (parent, url, expected) in [
            ("https://host/org/repo.git", "../lib.git", "https://host/org/lib.git"),
            ("https://u:p@host/org/repo/", "../../other/lib", "https://u:p@host/other/lib"),
            ("https://host/org/repo", "./lib", "https://host/org/repo/lib"),
            ("git@host:org/repo.git", "../lib.git", "git@host:org/lib.git"),
            ("git@host:repo.git", "../lib.git", "git@host:lib.git"),
            ("git@host:/srv/repo", "../lib", "git@host:/srv/lib"),
            ("ssh://git@host:22/org/repo", "../lib", "ssh://git@host:22/org/lib"),
            ("file:///srv/repo", "../lib", "file:///srv/lib"),
            ("/srv/repo", "../lib", "/srv/lib"),
            ("https://host/a", "git@other:x", "git@other:x"),
            ("/srv/repo", "file:///srv/lib", "file:///srv/lib"),
        ] {
            assert_eq!(absolute(parent, url).as_deref(), Ok(expected), "{parent} {url}");
        }
        for (parent, url) in [
            ("https://host/org/repo", "../../../evil"),
            ("git@host:repo", "../../x"),
            ("https://host/r", "/etc"),
            ("git@host:r", "file:///srv/r"),
            ("https://host/r", "FILE:///srv/r"),
            ("https://host/r", "--upload-pack=x"),
            ("https://host/r", "ext::sh -c date"),
            ("https://host/r", "lib"),
            ("https://host/r", ""),
            ("/srv/r", "../a\nb"),
        ] {
            assert!(absolute(parent, url).is_err(), "{parent} {url}");
        }
    }

    #[test]
    fn a_submodule_is_only_checked_out_into_an_empty_folder_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        for path in [root.join("libs/a"), root.join("full/x"), outside.join("a")] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::os::unix::fs::symlink("libs/a", root.join("inner")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        check_target(&root, &root.join("libs/a")).unwrap();
        for path in ["link", "link/a", "inner", "full", "file", "missing", "../outside/a", "libs/../libs/a"] {
            assert!(check_target(&root, &root.join(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn entries_are_parsed_with_unusual_names() {
        let list = b"submodule.a.b/c.path\nlibs/c/\0submodule.a.b/c.url\n../c\0core.x\ny\0submodule.d.update\nnone\0flag\0";
        assert_eq!(
            parse(list),
            [
                SubmoduleEntry {
                    path: Some(b"libs/c".to_vec()),
                    url: Some("../c".into()),
                    is_skipped: false
                },
                SubmoduleEntry { is_skipped: true, ..SubmoduleEntry::default() },
            ]
        );
        let list = b"100644 0123 0\tmain.tf\x00160000 4567 0\tlibs/\xffc\0";
        assert_eq!(gitlinks(list), [(b"libs/\xffc".to_vec(), "4567".to_owned())]);
    }
}
