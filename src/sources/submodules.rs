//! Submodules: what is fetched for them, and from where.
//!
//! We fetch them ourselves, as we fetch their parent, instead of through `git submodule`. So they get the same checks,
//! time-outs and cache, and nothing that `.gitmodules` says can run a program or set an option. Of each one only
//! `path`, `url` and `update = none` (leave it out) count. A commit without an entry stays an empty folder, as with git.
//!
//! - A relative URL counts from the parent's, with the parent's credentials. An absolute one gets none of them.
//! - Paths on this machine's disk (`file://` too) are for parents that are from there themselves. A repository on a
//!   server has no say in what is read here, whatever `protocol.file.allow` is; plain git refuses this by default.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::git::IN_CHECKOUT;
use super::{Fetcher, JobLog, SourceError};
use crate::base::git_url::{UrlError, mask_url};

/// Nobody nests this deep on purpose.
const MAX_DEPTH: usize = 16;

/// Of one checkout, at all depths. Large projects have one or two hundred.
pub(super) const MAX_SUBMODULES: usize = 500;

/// What `.gitmodules` says about one submodule.
#[derive(Debug, Default, PartialEq, Eq)]
struct SubmoduleEntry {
    path: Option<Vec<u8>>,
    url: Option<String>,
    left_out: bool,
}

/// A commit to check out. The URL may have a password in it, so there is no `Debug`.
pub(super) struct SubmoduleCommit {
    pub(super) url: String,
    pub(super) commit: String,
    pub(super) folder: PathBuf,
    /// The submodules on the way to it, each with its path in the one before.
    inside: Vec<String>,
}

impl SubmoduleCommit {
    pub(super) fn new(url: &str, commit: &str, folder: &Path) -> Self {
        let (url, commit, folder) = (url.to_owned(), commit.to_owned(), folder.to_owned());
        Self { url, commit, folder, inside: Vec::new() }
    }

    /// Says in which submodule it went wrong.
    pub(super) fn blame(&self, error: SourceError) -> SourceError {
        self.inside.iter().rev().fold(error, |error, path| in_submodule(path, error))
    }
}

fn in_submodule(path: &str, error: SourceError) -> SourceError {
    match error {
        SourceError::Cancelled => error,
        error => SourceError::Submodule { path: path.to_owned(), source: Box::new(error) },
    }
}

impl Fetcher {
    /// The submodules of a checkout.
    pub(super) async fn submodules(
        &self,
        parent: &SubmoduleCommit,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<Vec<SubmoduleCommit>, SourceError> {
        let folder = parent.folder.as_path();
        // A symlink would have git read another file.
        if !folder.join(".gitmodules").symlink_metadata().is_ok_and(|found| found.is_file()) {
            return Ok(Vec::new());
        }
        let list = [IN_CHECKOUT, "--work-tree=.", "ls-files", "--stage", "-z"];
        let listed = self.local(folder, "list the submodules".to_owned(), &list, cancel).await?;
        let commits = gitlinks(&listed.stdout()?);
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        let read = [IN_CHECKOUT, "config", "--blob", "HEAD:.gitmodules", "--list", "-z"];
        let read = self.local(folder, "read .gitmodules".to_owned(), &read, cancel).await?;
        let modules = parse(&read.stdout()?);
        let mut found = Vec::new();
        for (path, commit) in commits {
            let shown = String::from_utf8_lossy(&path).into_owned();
            let Some(module) = modules.iter().find(|module| module.path.as_ref() == Some(&path)) else {
                log(&format!("{shown:?} is a commit of another repository that .gitmodules does not name"));
                continue;
            };
            if module.left_out {
                log(&format!("The submodule {shown:?} is left out, as .gitmodules says"));
                continue;
            }
            let place = folder.join(OsStr::from_bytes(&path));
            let check = || {
                if parent.inside.len() == MAX_DEPTH {
                    return Err(SourceError::TooDeep(MAX_DEPTH));
                }
                check_place(folder, &place)?;
                Ok(absolute(&parent.url, module.url.as_deref().unwrap_or_default())?)
            };
            let url = check().map_err(|error| in_submodule(&shown, error))?;
            let inside = parent.inside.iter().cloned().chain([shown]).collect();
            found.push(SubmoduleCommit { url, commit, folder: place, inside });
        }
        Ok(found)
    }
}

/// Paths and commits of the submodules in a list of `git ls-files --stage -z`.
fn gitlinks(list: &[u8]) -> Vec<(Vec<u8>, String)> {
    let entry = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let words = std::str::from_utf8(&line[..tab]).ok()?;
        let commit = words.strip_prefix("160000 ")?.split(' ').next()?;
        Some((line[tab + 1..].to_vec(), commit.to_owned()))
    };
    list.split(|byte| *byte == 0).filter_map(entry).collect()
}

/// Reads a list of `git config --list -z`: a key, a line feed and a value each.
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
            b"update" => module.left_out = value == b"none",
            _ => {}
        }
    }
    modules.into_values().collect()
}

/// git has made an empty folder for it. No symlink may lead elsewhere on the way.
fn check_place(root: &Path, place: &Path) -> Result<(), SourceError> {
    let failed = |source| SourceError::Folder { folder: place.to_owned(), source };
    let real = |path: &Path| -> Result<PathBuf, SourceError> { path.canonicalize().map_err(failed) };
    let inside = place.strip_prefix(root).map_err(|_| SourceError::NoPlace)?;
    if real(place)? != real(root)?.join(inside) || place.read_dir().map_err(failed)?.next().is_some() {
        return Err(SourceError::NoPlace);
    }
    Ok(())
}

pub(super) fn is_on_disk(url: &str) -> bool {
    url.starts_with('/') || url.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("file://"))
}

/// The URL of a submodule of a repository at `parent`.
fn absolute(parent: &str, url: &str) -> Result<String, UrlError> {
    let refuse = |reason| Err(UrlError { url: mask_url(url), reason });
    if !(url.starts_with("./") || url.starts_with("../")) {
        if is_on_disk(url) && !is_on_disk(parent) {
            return refuse("it is on this machine's disk, and the repository that names it is not");
        }
        crate::base::git_url::check(url)?;
        return Ok(url.to_owned());
    }
    // What comes before the path cannot be left.
    let path_start = match parent.split_once("://") {
        Some((scheme, rest)) => scheme.len() + 3 + rest.find('/').unwrap_or(rest.len()),
        None if parent.starts_with('/') => 0,
        None => parent.find(':').map_or(parent.len(), |at| at + 1),
    };
    let (server, path) = parent.split_at(path_start);
    let is_scp = server.ends_with(':') && !server.contains("://");
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for part in url.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return refuse("it leads out of the server it counts from"),
            ".." => {}
            part => parts.push(part),
        }
    }
    let slash = if is_scp && !path.starts_with('/') { "" } else { "/" };
    let url = format!("{server}{slash}{}", parts.join("/"));
    crate::base::git_url::check(&url)?;
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_urls_count_from_the_parent_and_never_leave_its_server() {
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
    fn a_submodule_only_goes_into_an_empty_folder_of_its_own_parent() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        for path in [root.join("libs/a"), root.join("full/x"), outside.join("a")] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::os::unix::fs::symlink("libs/a", root.join("inner")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        check_place(&root, &root.join("libs/a")).unwrap();
        for path in ["link", "link/a", "inner", "full", "file", "missing", "../outside/a", "libs/../libs/a"] {
            assert!(check_place(&root, &root.join(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn entries_are_read_whatever_their_names() {
        let list = b"submodule.a.b/c.path\nlibs/c/\0submodule.a.b/c.url\n../c\0core.x\ny\0submodule.d.update\nnone\0flag\0";
        assert_eq!(
            parse(list),
            [
                SubmoduleEntry { path: Some(b"libs/c".to_vec()), url: Some("../c".into()), left_out: false },
                SubmoduleEntry { left_out: true, ..SubmoduleEntry::default() },
            ]
        );
        let list = b"100644 0123 0\tmain.tf\x00160000 4567 0\tlibs/\xffc\0";
        assert_eq!(gitlinks(list), [(b"libs/\xffc".to_vec(), "4567".to_owned())]);
    }
}
