//! Names and paths from the server, before they become paths on this machine.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::WorkspaceError;

/// File systems take 255 bytes, and the lock file's name is a little longer than the module's.
const LONGEST_NAME: usize = 240;

/// Names of folders beside the stacks that belong to the runner.
const RESERVED_BESIDE_STACKS: [&str; 4] = [".hawser", ".temp", "sourcecache", "plugincache"];

/// The runner's private folder in the init directory.
pub(super) const PRIVATE_FOLDER: &str = ".snapcd";

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
            Component::Normal(name) if name == ".git" || name == PRIVATE_FOLDER => {
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

/// Follows symlinks and says where `path` really is, if that is inside `root` and not among git's own files.
/// Both must exist.
pub(super) fn inside(root: &Path, path: &Path) -> Result<PathBuf, WorkspaceError> {
    let real = |path: &Path| path.canonicalize().map_err(|error| WorkspaceError::io("find", path, error));
    let (real_root, real_path) = (real(root)?, real(path)?);
    match real_path.strip_prefix(&real_root) {
        Ok(below) if below.components().all(|component| component.as_os_str() != ".git") => Ok(real_path),
        _ => Err(WorkspaceError::Outside { path: path.to_owned(), root: root.to_owned() }),
    }
}

/// The real place of a file that may not exist yet, below `start`; folders on the way may be missing, but none may
/// lead out of `root`. A symlink at the end is not followed.
pub(super) fn place_inside(root: &Path, start: &Path, file: &Path) -> Result<PathBuf, WorkspaceError> {
    let mut folder = inside(root, start)?;
    let mut exists = true;
    for component in file.parent().into_iter().flat_map(Path::components) {
        folder.push(component);
        if exists {
            match folder.symlink_metadata() {
                Ok(_) => folder = inside(root, &folder)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => exists = false,
                Err(error) => return Err(WorkspaceError::io("look at", &folder, error)),
            }
        }
    }
    Ok(folder.join(file.file_name().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_stay_one_folder() {
        for name in ["prod", "my stack", "a.b", ".dot", "ünï", "a\\b", "..."] {
            check_name("name", name).unwrap();
        }
        for name in ["", " ", ".", "..", "a/b", "/", "/etc", "../x", "a\0b", "a\nb", &"x".repeat(241)] {
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
            ["..", "a/../b", "../a", "a/..", "/a", "/", "a\0", "a\n", ".git", "a/.git/hooks", ".snapcd/x"]
        {
            relative_path("path", text).unwrap_err();
        }
        for text in ["", ".", "a/", "a/.", "./"] {
            relative_file("path", text).unwrap_err();
        }
    }

    #[test]
    fn symlinks_that_lead_out_are_refused_and_others_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join(".git")).unwrap();
        std::fs::create_dir_all(folder.path().join("rootless")).unwrap();
        symlink("a", root.join("in")).unwrap();
        symlink("..", root.join("out")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("../rootless", root.join("near")).unwrap();
        symlink(".git", root.join("git")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();

        let real = root.canonicalize().unwrap();
        assert_eq!(inside(&root, &root.join("in/b")).unwrap(), real.join("a/b"));
        assert_eq!(place_inside(&root, &root, Path::new("in/new/x")).unwrap(), real.join("a/new/x"));
        assert_eq!(place_inside(&root, &root, Path::new("etc")).unwrap(), real.join("etc"));
        for path in ["out", "etc", "near", "git", "dangling"] {
            inside(&root, &root.join(path)).unwrap_err();
            place_inside(&root, &root, &Path::new(path).join("new/x")).unwrap_err();
        }
    }
}
