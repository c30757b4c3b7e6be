//! Restricts access to existing folders that are open to other users.
//!
//! Everything that the runner creates is private from the start ([`crate::base::files`]). But the working directory may come from
//! an earlier runner, an image or a volume. Users who cannot enter the folders in it cannot reach anything below them, so the
//! first level is enough. The working directory itself is the operator's and may be readable by others.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::settings::model::WorkingDirectorySettings;

/// Other users may read the providers in this folder, but not change them.
const SHARED: &str = "plugincache";
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Removes the permissions of other users from the folders in the working directory.
pub fn narrow(settings: &WorkingDirectorySettings) -> Narrowed {
    let mut narrowed = Narrowed::default();
    let WorkingDirectorySettings { working_directory, temp_directory } = settings;
    for (setting, path) in [
        ("WorkingDirectory.WorkingDirectory", working_directory),
        ("WorkingDirectory.TempDirectory", temp_directory),
    ] {
        // A missing folder will be private when it is created.
        let Ok(metadata) = fs::metadata(path) else { continue };
        if metadata.mode() & OTHERS_WRITE != 0 && metadata.mode() & STICKY == 0 {
            narrowed.warnings.push(format!(
                "{setting} ({}) is writable by other users (mode {:o}), who could replace folders of the runner: run chmod \
                 go-w on it",
                path.display(),
                metadata.mode() & 0o7777
            ));
        }
    }
    for entry in fs::read_dir(working_directory).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        let excess = if entry.file_name() == SHARED { OTHERS_WRITE } else { OTHERS };
        if !metadata.is_dir() || metadata.mode() & excess == 0 {
            continue;
        }
        let mode = metadata.mode() & 0o7777;
        match fs::set_permissions(&path, Permissions::from_mode(mode & !excess)) {
            Ok(()) => narrowed.done.push(format!(
                "{} was open to other users (mode {mode:o}) and is private now",
                path.display()
            )),
            Err(error) => narrowed.warnings.push(format!(
                "failed to restrict access to {}, which is open to other users (mode {mode:o}): {error}",
                path.display()
            )),
        }
    }
    narrowed
}

/// The result of [`narrow`], as messages for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Narrowed {
    pub done: Vec<String>,
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn set(path: &Path, mode: u32) {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn existing_folders_are_narrowed_but_not_through_symlinks() {
        let root = tempfile::tempdir().unwrap();
        let (work, elsewhere) = (root.path().join("work"), root.path().join("elsewhere"));
        for (name, mode) in [("stack", 0o755), (".hawser", 0o2777), ("plugincache", 0o777), ("mine", 0o700)] {
            set(&work.join(name), mode);
        }
        set(&elsewhere, 0o755);
        std::os::unix::fs::symlink(&elsewhere, work.join("link")).unwrap();
        fs::set_permissions(&work, Permissions::from_mode(0o755)).unwrap();
        let settings =
            WorkingDirectorySettings { working_directory: work.clone(), temp_directory: "/tmp".into() };

        let narrowed = narrow(&settings);

        assert_eq!((narrowed.done.len(), narrowed.warnings.len()), (3, 0), "{narrowed:?}");
        let modes = [("stack", 0o700), (".hawser", 0o2700), ("plugincache", 0o755), ("mine", 0o700)];
        for (name, expected) in modes {
            assert_eq!(mode(&work.join(name)), expected, "{name}");
        }
        assert_eq!((mode(&work), mode(&elsewhere)), (0o755, 0o755));
        assert_eq!(narrow(&settings), Narrowed::default());

        fs::set_permissions(&work, Permissions::from_mode(0o775)).unwrap();
        let warned = narrow(&settings).warnings;
        assert!(
            warned[0].contains("WorkingDirectory.WorkingDirectory") && warned[0].contains("775"),
            "{warned:?}"
        );
    }
}
