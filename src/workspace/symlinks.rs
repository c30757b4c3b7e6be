//! Symlinks in a checkout. The engine follows all of them, so a revision is refused if one points outside the module
//! directory or into `.git`.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use super::WorkspaceError;
use super::names::{PRIVATE_FOLDER, is_git_folder};

/// The limit of the kernel: a longer chain of symlinks cannot be opened.
const MAX_FOLLOWED: usize = 40;

/// Checks a new checkout. Returns the folders and files with the name of the runner's private folder, which must not be trusted.
pub(super) fn check(root: &Path) -> Result<Vec<PathBuf>, WorkspaceError> {
    let mut reserved = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(below) = todo.pop() {
        let folder = root.join(&below);
        let failed = |error| WorkspaceError::io("list", &folder, error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
            let path = below.join(&name);
            if name == ".git" {
                continue;
            }
            if kind.is_symlink() && !stays_inside(root, &path).map_err(failed)? {
                let target = fs::read_link(root.join(&path)).map_err(failed)?;
                return Err(WorkspaceError::LinkOutside { link: path, target });
            }
            if name == PRIVATE_FOLDER {
                reserved.push(path);
            } else if kind.is_dir() {
                todo.push(path);
            }
        }
    }
    Ok(reserved)
}

/// Follows a symlink part by part. A missing part counts as a folder, because it may be created later.
fn stays_inside(root: &Path, link: &Path) -> io::Result<bool> {
    let mut at = PathBuf::new();
    let mut todo: Vec<OsString> = parts(link);
    let mut followed = 0;
    while let Some(part) = todo.pop() {
        if part == ".." {
            if !at.pop() {
                return Ok(false);
            }
            continue;
        }
        if is_git_folder(&part) {
            return Ok(false);
        }
        at.push(&part);
        match fs::read_link(root.join(&at)) {
            Ok(target) => {
                followed += 1;
                if followed > MAX_FOLLOWED {
                    return Ok(true);
                }
                if target.is_absolute() {
                    return Ok(false);
                }
                at.pop();
                todo.extend(parts(&target));
            }
            // Not a symlink, or missing.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => {}
            Err(error) if crate::base::confined_dir::is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |it: Component<'_>| match it {
        Component::CurDir => None,
        other => Some(other.as_os_str().to_owned()),
    };
    let mut parts: Vec<_> = path.components().filter_map(part).collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_symlink_that_leads_out_is_refused_and_others_are_allowed() {
        let good = [
            ("x", "file"),
            ("sub/x", "../file"),
            ("sub/deep/x", "../../sub/../file"),
            ("x", "."),
            ("x", "sub/missing"),
            ("x", "x"),
            ("sub/x", "..x"),
        ];
        let bad = [
            ("x", ".."),
            ("x", "/etc/passwd"),
            ("x", "/"),
            ("sub/x", "../.."),
            ("sub/x", "../../new/file"),
            ("x", "sub/deep/../../../y"),
            ("x", "missing/../../y"),
            ("x", "to-deep/../../../y"),
            ("x", ".git/config"),
            ("x", "sub/.GIT/x"),
            ("x", "chain"),
        ];
        for (links, is_good) in [(&good[..], true), (&bad[..], false)] {
            for (link, target) in links {
                let folder = tempfile::tempdir().unwrap();
                let root = folder.path().join("new");
                fs::create_dir_all(root.join("sub/deep")).unwrap();
                fs::create_dir_all(root.join(".git")).unwrap();
                fs::write(root.join("file"), "").unwrap();
                symlink("sub/deep", root.join("to-deep")).unwrap();
                symlink("/", root.join(".git/ignored")).unwrap();
                if *target == "chain" {
                    symlink("..", root.join("chain")).unwrap();
                }
                symlink(target, root.join(link)).unwrap();
                let checked = check(&root);
                assert_eq!(checked.is_ok(), is_good, "{link} -> {target}: {checked:?}");
                if let Err(error) = checked {
                    let text = error.to_string();
                    assert!(text.contains(target) && text.contains("relative path"), "{text}");
                }
            }
        }
    }

    #[test]
    fn files_with_the_name_of_the_private_folder_are_found_at_every_level() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/.snapcd/deep/.snapcd")).unwrap();
        fs::write(folder.path().join(".snapcd"), "").unwrap();
        let mut found = check(folder.path()).unwrap();
        found.sort();
        assert_eq!(found, [Path::new(".snapcd"), Path::new("a/.snapcd")]);
    }
}
