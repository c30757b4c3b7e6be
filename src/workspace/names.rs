//! Names and paths from the server, before they become paths on this machine.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::WorkspaceError;

/// File systems take 255 bytes, and the lock file's name is a little longer than the module's.
const LONGEST_NAME: usize = 240;

/// Names of folders beside the stacks that belong to the runner.
const RESERVED_BESIDE_STACKS: [&str; 4] = [".hawser", ".temp", "sourcecache", "plugincache"];

/// The runner's private folder in the init directory.
pub(super) const PRIVATE_FOLDER: &str = ".snapcd";

/// Whether git keeps its own files under this name.
pub(super) fn is_gits(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// A name that becomes exactly one folder.
pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), WorkspaceError> {
    let reason = if name.trim().is_empty() {
        "it is empty"
    } else if matches!(name, "." | "..") {
        "it would lead to another folder"
    } else if name.contains('/') {
        "it has a slash"
    } else if name.contains(char::is_control) {
        "it has control characters"
    } else if is_gits(OsStr::new(name)) {
        "git keeps its own files under that name"
    } else if name.len() > LONGEST_NAME {
        "it is longer than 240 bytes"
    } else {
        return Ok(());
    };
    Err(WorkspaceError::Name { what, name: name.to_owned(), reason })
}

/// As [`check_name`], and nothing that the runner itself keeps beside the stacks.
pub(super) fn check_stack_name(
    name: &str,
    working_directory: &Path,
    temp_directory: &Path,
) -> Result<(), WorkspaceError> {
    check_name("stack name", name)?;
    let temp = temp_directory.strip_prefix(working_directory).ok();
    let temp = temp.and_then(|below| below.components().next()).map(Component::as_os_str);
    let is_ours = RESERVED_BESIDE_STACKS.iter().any(|ours| ours.eq_ignore_ascii_case(name));
    if is_ours || temp == Some(OsStr::new(name)) {
        let reason = "the runner keeps files of its own under that name";
        return Err(WorkspaceError::Name { what: "stack name", name: name.to_owned(), reason });
    }
    Ok(())
}

/// A path that stays below where it starts; `.` and doubled slashes are taken out. Empty means the start itself.
pub(super) fn relative_path(what: &'static str, text: &str) -> Result<PathBuf, WorkspaceError> {
    let refuse = |reason| Err(WorkspaceError::Name { what, name: text.to_owned(), reason });
    if text.contains(char::is_control) {
        return refuse("it has control characters");
    }
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if is_gits(name) || name.eq_ignore_ascii_case(PRIVATE_FOLDER) => {
                return refuse("that folder is not for modules");
            }
            Component::Normal(name) => path.push(name),
            Component::ParentDir => return refuse("it has `..` in it"),
            Component::RootDir | Component::Prefix(_) => return refuse("it is an absolute path"),
        }
    }
    Ok(path)
}

/// The path of a file below where it starts.
pub(super) fn relative_file(what: &'static str, text: &str) -> Result<PathBuf, WorkspaceError> {
    let path = relative_path(what, text)?;
    if path.as_os_str().is_empty() || text.ends_with('/') || text.ends_with("/.") {
        let reason = "it names no file";
        return Err(WorkspaceError::Name { what, name: text.to_owned(), reason });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_folder() {
        for name in ["prod", "my stack", "a.b", ".dot", "ünï", "a\\b", "..."] {
            check_name("name", name).unwrap();
        }
        for name in
            ["", " ", ".", "..", "a/b", "/", "/etc", "../x", "a\0b", "a\nb", ".git", ".GIT", &"x".repeat(241)]
        {
            check_name("name", name).unwrap_err();
        }
    }

    #[test]
    fn what_the_runner_keeps_beside_the_stacks_is_no_stack() {
        let check = |name| check_stack_name(name, Path::new("/work"), Path::new("/work/scratch/deep"));
        for name in [".hawser", ".HAWSER", ".temp", "sourcecache", "plugincache", "scratch"] {
            check(name).unwrap_err();
        }
        check("hawser").unwrap();
        check("deep").unwrap();
    }

    #[test]
    fn relative_paths_stay_below_where_they_start() {
        for (text, path) in
            [("", ""), (".", ""), ("a", "a"), ("./a//b/", "a/b"), ("a/./b", "a/b"), ("..a", "..a")]
        {
            assert_eq!(relative_path("path", text).unwrap(), Path::new(path), "{text}");
        }
        for text in
            ["..", "a/../b", "../a", "a/..", "/a", "/", "a\0", "a\n", ".git", "a/.Git/hooks", ".snapcd/x"]
        {
            relative_path("path", text).unwrap_err();
        }
        for text in ["", ".", "a/", "a/.", "./"] {
            relative_file("path", text).unwrap_err();
        }
    }
}
