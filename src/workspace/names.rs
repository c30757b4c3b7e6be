//! Checks names and paths from the server before they become paths on this machine.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::WorkspaceError;

/// File systems allow 255 bytes, and the name of the lock file is a little longer than the module's.
const LONGEST_NAME: usize = 240;

/// Folders of the runner next to the stacks.
const RESERVED_STACK_NAMES: [&str; 4] = [".hawser", ".temp", "sourcecache", "plugincache"];

/// The runner's private folder in the init directory.
pub(super) const PRIVATE_FOLDER: &str = ".snapcd";

/// Whether this is `.git`, also on file systems that ignore case.
pub(super) fn is_git_folder(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// Checks a name that becomes exactly one folder.
pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), WorkspaceError> {
    let reason = if name.trim().is_empty() {
        "it is empty"
    } else if matches!(name, "." | "..") {
        "it would lead to a different folder"
    } else if name.contains('/') {
        "it contains a slash"
    } else if name.contains(char::is_control) {
        "it contains control characters"
    } else if is_git_folder(OsStr::new(name)) {
        "the name is reserved for git"
    } else if name.len() > LONGEST_NAME {
        "it is longer than 240 bytes"
    } else {
        return Ok(());
    };
    Err(WorkspaceError::Name { what, name: name.to_owned(), reason })
}

/// The same for a stack, which must not have the name of a folder of the runner.
pub(super) fn check_stack_name(
    name: &str,
    working_directory: &Path,
    temp_directory: &Path,
) -> Result<(), WorkspaceError> {
    check_name("stack name", name)?;
    let temp = temp_directory.strip_prefix(working_directory).ok();
    let temp = temp.and_then(|below| below.components().next()).map(Component::as_os_str);
    let is_reserved = RESERVED_STACK_NAMES.iter().any(|reserved| reserved.eq_ignore_ascii_case(name));
    if is_reserved || temp == Some(OsStr::new(name)) {
        let reason = "the name is reserved for the runner";
        return Err(WorkspaceError::Name { what: "stack name", name: name.to_owned(), reason });
    }
    Ok(())
}

/// A relative path that cannot leave its folder, normalized. Empty means the folder itself.
pub(super) fn relative_path(what: &'static str, text: &str) -> Result<PathBuf, WorkspaceError> {
    let refuse = |reason| Err(WorkspaceError::Name { what, name: text.to_owned(), reason });
    if text.contains(char::is_control) {
        return refuse("it contains control characters");
    }
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if is_git_folder(name) || name.eq_ignore_ascii_case(PRIVATE_FOLDER) => {
                return refuse("that folder is reserved");
            }
            Component::Normal(name) => path.push(name),
            Component::ParentDir => return refuse("it contains `..`"),
            Component::RootDir | Component::Prefix(_) => return refuse("it is an absolute path"),
        }
    }
    Ok(path)
}

/// The same for a file.
pub(super) fn relative_file(what: &'static str, text: &str) -> Result<PathBuf, WorkspaceError> {
    let path = relative_path(what, text)?;
    if path.as_os_str().is_empty() || text.ends_with('/') || text.ends_with("/.") {
        let reason = "it is not the name of a file";
        return Err(WorkspaceError::Name { what, name: text.to_owned(), reason });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_exactly_one_folder() {
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
    fn folders_of_the_runner_are_not_valid_stack_names() {
        let check = |name| check_stack_name(name, Path::new("/work"), Path::new("/work/scratch/deep"));
        for name in [".hawser", ".HAWSER", ".temp", "sourcecache", "plugincache", "scratch"] {
            check(name).unwrap_err();
        }
        check("hawser").unwrap();
        check("deep").unwrap();
    }

    #[test]
    fn relative_paths_stay_inside_their_folder() {
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
