//! Finds programs in the operator's own folders and then in PATH.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot find the program {name:?}: looked in {} (PATH, with Engine.AdditionalBinaryPaths in front of it)",
    list(.looked_in)
)]
pub struct NotFound {
    pub name: String,
    pub looked_in: Vec<PathBuf>,
}

fn list(folders: &[PathBuf]) -> String {
    if folders.is_empty() {
        return "no folder".to_owned();
    }
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Finds an executable file by its name, in `first` and then in PATH.
pub fn find_program(name: &str, first: &[PathBuf]) -> Result<PathBuf, NotFound> {
    find_in(name, folders(first, std::env::var_os("PATH").as_deref()))
}

/// Finds an executable file by its name in these folders only, as a script with this PATH would.
pub fn find_only_in(name: &str, path: &[PathBuf]) -> Result<PathBuf, NotFound> {
    find_in(name, folders(path, None))
}

/// The value of PATH with which a child finds programs as [`find_program`] does. If a folder has a colon in its name,
/// PATH cannot hold it, and the inherited value is used.
pub fn search_path(first: &[PathBuf]) -> OsString {
    let inherited = std::env::var_os("PATH");
    std::env::join_paths(folders(first, inherited.as_deref())).unwrap_or(inherited.unwrap_or_default())
}

fn folders(first: &[PathBuf], path: Option<&OsStr>) -> Vec<PathBuf> {
    let inherited = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let mut seen = HashSet::new();
    first
        .iter()
        .cloned()
        .chain(inherited)
        // To a shell an empty or relative entry depends on the current folder, which may be a checkout.
        .filter(|folder| folder.is_absolute() && seen.insert(folder.clone()))
        .collect()
}

fn find_in(name: &str, looked_in: Vec<PathBuf>) -> Result<PathBuf, NotFound> {
    let is_plain_name = !name.is_empty() && !name.contains('/');
    looked_in
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| is_plain_name && is_program(path))
        .ok_or_else(|| NotFound { name: name.to_owned(), looked_in })
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn additional_folders_come_before_path_and_only_executable_files_count() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str, mode| {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("tool"), "").unwrap();
            std::fs::set_permissions(folder.join("tool"), PermissionsExt::from_mode(mode)).unwrap();
            folder
        };
        let (plain, mine, path) = (make("plain", 0o644), make("mine", 0o755), make("path", 0o755));
        let both = folders(&[plain.clone(), mine.clone()], Some(path.as_os_str()));
        assert_eq!(find_in("tool", both), Ok(mine.join("tool")));
        assert_eq!(folders(&["rel".into()], Some(OsStr::new(".::/a:../b:c"))), [Path::new("/a")]);
    }

    #[test]
    fn a_folder_is_searched_and_listed_once() {
        let twice =
            folders(&["/bin".into(), "/opt/".into()], Some(OsStr::new("/usr/bin:/bin/:/usr/bin:/opt")));
        let error = find_in("no-such-tool", twice).unwrap_err().to_string();
        assert!(error.contains("looked in /bin, /opt/, /usr/bin ("), "{error}");
    }

    #[test]
    fn the_error_for_a_missing_program_lists_the_folders() {
        let error = find_program("no-such-tool", &["/opt/engines".into()]).unwrap_err().to_string();
        assert!(error.contains("no-such-tool") && error.contains("/opt/engines"), "{error}");
        find_program("../bin/sh", &["/bin".into()]).unwrap_err();
        find_program("", &["/bin".into()]).unwrap_err();
    }
}
