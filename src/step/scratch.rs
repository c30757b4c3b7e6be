//! Scratch space: each step has a folder below `TempDirectory`, which is the `TMPDIR` of its script.
//!
//! ```text
//! {TempDirectory}/{hash of the store's path, 8 digits}-{hash of the step, 12 digits}/      (0700)
//! ```
//!
//! The folder is created empty when a step is prepared and removed when the step ends; the next start removes what a crash
//! leaves. Several runners may share a `TempDirectory`: only one runner at a time can hold a store, and it removes only
//! folders with the hash of its store. The name is short because engines create sockets in `TMPDIR`, and the path of a
//! socket is limited.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::StepFolder;
use crate::base::digest::hex;
use crate::base::files::{create_private_dir_all, remove_all};

/// The path of a socket has at most 108 bytes, including the engine's part.
const LONGEST_PATH: usize = 108 - 24;

/// The scratch space of a step, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn of(temp_directory: &Path, folder: &StepFolder) -> Self {
        let store = folder.path().parent().unwrap_or(Path::new(""));
        let step = digits(folder.name().as_bytes(), 6);
        // Scripts run in another directory.
        let root = std::path::absolute(temp_directory).unwrap_or_else(|_| temp_directory.to_owned());
        Self { path: root.join(format!("{}{step}", prefix(store))) }
    }

    /// Creates the folder, empty. Returns `None` if its path is too long for a socket: the script then uses the system's
    /// temporary directory.
    pub fn make(&self) -> io::Result<Option<&Path>> {
        if self.path.as_os_str().len() > LONGEST_PATH {
            return Ok(None);
        }
        self.remove()?;
        create_private_dir_all(&self.path)?;
        Ok(Some(&self.path))
    }

    pub fn remove(&self) -> io::Result<()> {
        remove_all(&self.path)
    }

    /// Removes the folders of steps that are no longer in `steps`, the folder of a store that the caller holds.
    pub fn sweep(temp_directory: &Path, steps: &Path) -> io::Result<()> {
        for path in Self::left_behind(temp_directory, steps)? {
            Self { path }.remove_or_warn();
        }
        Ok(())
    }

    /// The scratch folders of a store whose steps are no longer in `steps`, except for damaged steps with a running script.
    /// This is safe while a runner uses the store.
    pub fn left_behind(temp_directory: &Path, steps: &Path) -> io::Result<Vec<PathBuf>> {
        let prefix = prefix(steps);
        // The order matters: a step exists before its scratch space, so a scratch folder without a step is a leftover; and a
        // step that is set aside in the meantime is found in `steps` or in `damaged`. A missing `TempDirectory` has no leftovers.
        let entries = fs::read_dir(temp_directory).into_iter().flatten().flatten();
        let mut leftovers: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect();
        // Unreadable steps count too, because their scripts may be running.
        let mut active = HashSet::new();
        for entry in fs::read_dir(steps)? {
            active.insert(digits(StepFolder::at(entry?.path()).name().as_bytes(), 6));
        }
        active.extend(set_aside_and_running(steps).map(|name| digits(name.as_bytes(), 6)));
        leftovers.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.strip_prefix(&prefix).is_some_and(|step| active.contains(step))
        });
        leftovers.sort();
        Ok(leftovers)
    }

    pub fn remove_or_warn(&self) {
        if let Err(error) = self.remove() {
            warn!(path = %self.path.display(), %error, "failed to remove scratch space, the next start will retry");
        }
    }
}

/// Damaged steps whose lock is held or cannot be checked.
fn set_aside_and_running(steps: &Path) -> impl Iterator<Item = String> {
    let damaged = fs::read_dir(steps.with_file_name("damaged")).into_iter().flatten().flatten();
    damaged.map(|entry| StepFolder::at(entry.path())).filter_map(|folder| {
        // Without a lock file no script was started. `try_lock` would create the file.
        let was_driven = folder.lock_path().symlink_metadata().is_ok();
        if !was_driven || matches!(folder.try_lock(), Ok(Some(_))) {
            return None;
        }
        // The name of a damaged folder is the step's name and a time.
        folder.name().rsplit_once('.').map(|(step, _)| step.to_owned())
    })
}

/// The prefix of all scratch folders of a store.
fn prefix(store: &Path) -> String {
    // The prefix must not depend on the path by which the store was opened.
    let path = fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
    format!("{}-", digits(path.as_os_str().as_encoded_bytes(), 4))
}

fn digits(of: &[u8], bytes: usize) -> String {
    hex(&Sha256::digest(of)[..bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_created_empty_and_removed_with_its_contents() {
        let root = tempfile::tempdir().unwrap();
        let scratch = Scratch::of(&root.path().join("temp"), &StepFolder::at(root.path().join("steps/a")));
        scratch.remove().unwrap();
        let path = scratch.make().unwrap().unwrap().to_owned();
        fs::write(path.join("left"), "").unwrap();
        scratch.make().unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        scratch.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_sweep_keeps_active_steps_other_runners_and_unrelated_folders() {
        let root = tempfile::tempdir().unwrap();
        let temp = root.path().join("temp");
        let folder = |store: &str, name: &str| StepFolder::at(root.path().join(store).join(name));
        let living = folder("mine/steps", "living");
        fs::create_dir_all(living.path()).unwrap();
        let make = |folder: &StepFolder| Scratch::of(&temp, folder).make().unwrap().unwrap().to_owned();
        let (kept, gone) = (make(&living), make(&folder("mine/steps", "gone")));
        let others = make(&folder("others/steps", "gone"));
        // Both are damaged, and the script of one is still running.
        let set_aside = |name: &str| {
            let damaged = folder("mine/damaged", &format!("{name}.1793709296000"));
            fs::create_dir_all(damaged.path()).unwrap();
            fs::write(damaged.lock_path(), "").unwrap();
            (make(&folder("mine/steps", name)), damaged)
        };
        let ((running, driven), (ended, _)) = (set_aside("id.Running"), set_aside("id.Ended"));
        let _lock = driven.try_lock().unwrap().unwrap();
        let unrelated = temp.join("history-1");
        fs::create_dir(&unrelated).unwrap();

        Scratch::sweep(&temp, &root.path().join("mine/steps")).unwrap();

        assert!(kept.exists() && others.exists() && unrelated.exists() && running.exists());
        assert!(!gone.exists() && !ended.exists());
    }

    #[test]
    fn a_path_too_long_for_sockets_is_not_used() {
        let temp = Path::new("/tmp").join("x".repeat(100));
        assert_eq!(Scratch::of(&temp, &StepFolder::at("/steps/a")).make().unwrap(), None);
    }
}
