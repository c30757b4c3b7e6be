//! Folders that were there before, with modes that let others in: narrowed where they are ours, named where not.
//!
//! What the runner makes is private from the start ([`crate::base::files`]). But the working directory may come from an earlier
//! runner, from an image or from a volume. Whoever may not enter the folders in it can reach nothing below, so the first
//! level is enough. The working directory itself is the operator's and may be for others to list.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::settings::model::WorkingDirectorySettings;

/// Others may use the providers that are kept there, but not change them.
const SHARED: &str = "plugincache";
const OF_OTHERS: u32 = 0o077;
const WRITE_OF_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Takes the rights of others from the folders in the working directory. Returns what was done, and what the operator
/// has to see to.
pub fn narrow(settings: &WorkingDirectorySettings) -> Narrowed {
    let mut narrowed = Narrowed::default();
    let WorkingDirectorySettings { working_directory, temp_directory } = settings;
    for (setting, path) in [
        ("WorkingDirectory.WorkingDirectory", working_directory),
        ("WorkingDirectory.TempDirectory", temp_directory),
    ] {
        // What is not there yet will be made, and is private then.
        let Ok(found) = fs::metadata(path) else { continue };
        if found.mode() & WRITE_OF_OTHERS != 0 && found.mode() & STICKY == 0 {
            narrowed.warnings.push(format!(
                "{setting} ({}) can be written to by others (mode {:o}), who could put folders of their own in the \
                 runner's way: chmod go-w it",
                path.display(),
                found.mode() & 0o7777
            ));
        }
    }
    for entry in fs::read_dir(working_directory).into_iter().flatten().flatten() {
        let (path, Ok(found)) = (entry.path(), entry.metadata()) else { continue };
        let excess = if entry.file_name() == SHARED { WRITE_OF_OTHERS } else { OF_OTHERS };
        if !found.is_dir() || found.mode() & excess == 0 {
            continue;
        }
        match take(&path, &found, excess) {
            Ok(()) => narrowed.done.push(format!(
                "{} was open to others (mode {:o}) and is private now",
                path.display(),
                found.mode() & 0o7777
            )),
            Err(error) => narrowed.warnings.push(format!(
                "{} is open to others (mode {:o}), and that cannot be changed: {error}",
                path.display(),
                found.mode() & 0o7777
            )),
        }
    }
    narrowed
}

fn take(path: &Path, found: &Metadata, excess: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o7777 & !excess))
}

/// What came of [`narrow`], in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Narrowed {
    pub done: Vec<String>,
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn folders_of_an_earlier_runner_are_narrowed_and_strangers_behind_symlinks_are_not() {
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
