//! Scratch space: a folder of its own below `TempDirectory` for each step, which its script finds as `TMPDIR`.
//!
//! ```text
//! {TempDirectory}/{which store, 8 digits}-{which step, 12 digits}/      (0700)
//! ```
//!
//! It is made empty when a step is prepared and removed when the step ends; what a crash leaves is removed at the next
//! start. Several runners may share a `TempDirectory`: the first digits stand for the place of the store, which only
//! one runner at a time can hold, so nobody touches the folders of another. The name is short because engines make
//! their sockets in `TMPDIR`, and the path of a socket has little room.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::StepFolder;
use crate::base::files::{create_private_dir_all, remove_all};

/// The path of a socket has at most 108 bytes; the engine's own part needs some of it.
const LONGEST_PATH: usize = 108 - 24;

/// The scratch space of a step. It holds nothing open and need not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn of(temp_directory: &Path, folder: &StepFolder) -> Self {
        let store = folder.path().parent().unwrap_or(Path::new(""));
        let step = digits(folder.name().as_bytes(), 6);
        // Scripts run elsewhere, where a relative path would lead somewhere else.
        let place = std::path::absolute(temp_directory).unwrap_or_else(|_| temp_directory.to_owned());
        Self { path: place.join(format!("{}{step}", prefix(store))) }
    }

    /// Makes the folder, empty. None when its path is so long that an engine could not make a socket in it: the
    /// script is then better off with the system's own place.
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

    /// Removes what steps have left that are no longer in `steps`, the folder of a store that the caller holds.
    pub fn sweep(temp_directory: &Path, steps: &Path) -> io::Result<()> {
        for path in Self::left_behind(temp_directory, steps)? {
            Self { path }.remove_or_warn();
        }
        Ok(())
    }

    /// The scratch folders of a store whose steps are in `steps` no more, nor set aside with a script that still runs. A
    /// runner may hold the store and work in it.
    pub fn left_behind(temp_directory: &Path, steps: &Path) -> io::Result<Vec<PathBuf>> {
        let prefix = prefix(steps);
        // In this order: a step is there before its scratch space is, so what has none later has ended; and one that is
        // set aside meanwhile is seen in the one place or in the other. Without the folder there is nothing left in it.
        let entries = fs::read_dir(temp_directory).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect();
        // Whatever is there counts, also what could not be read: its script may still run.
        let mut kept = HashSet::new();
        for entry in fs::read_dir(steps)? {
            kept.insert(digits(StepFolder::at(entry?.path()).name().as_bytes(), 6));
        }
        kept.extend(set_aside_and_running(steps).map(|name| digits(name.as_bytes(), 6)));
        found.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.strip_prefix(&prefix).is_some_and(|step| kept.contains(step))
        });
        found.sort();
        Ok(found)
    }

    pub fn remove_or_warn(&self) {
        if let Err(error) = self.remove() {
            warn!("cannot remove {}: {error}; the next start tries again", self.path.display());
        }
    }
}

/// The steps of damaged folders whose lock somebody holds, or of which that cannot be told.
fn set_aside_and_running(steps: &Path) -> impl Iterator<Item = String> {
    let damaged = fs::read_dir(steps.with_file_name("damaged")).into_iter().flatten().flatten();
    damaged.map(|entry| StepFolder::at(entry.path())).filter_map(|folder| {
        // Without a lock file no script was ever started, and none is made: it would change the folder.
        let was_driven = folder.lock_path().symlink_metadata().is_ok();
        if !was_driven || matches!(folder.try_lock(), Ok(Some(_))) {
            return None;
        }
        // The time of that stands behind the step's name.
        folder.name().rsplit_once('.').map(|(step, _)| step.to_owned())
    })
}

/// What the names of all scratch folders of a store begin with.
fn prefix(store: &Path) -> String {
    // The same store must have the same name whatever path leads to it.
    let place = fs::canonicalize(store).unwrap_or_else(|_| store.to_owned());
    format!("{}-", digits(place.as_os_str().as_encoded_bytes(), 4))
}

fn digits(of: &[u8], bytes: usize) -> String {
    Sha256::digest(of).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_made_empty_and_removed_with_all_that_is_in_it() {
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
    fn a_sweep_leaves_living_steps_other_runners_and_strangers_alone() {
        let root = tempfile::tempdir().unwrap();
        let temp = root.path().join("temp");
        let folder = |store: &str, name: &str| StepFolder::at(root.path().join(store).join(name));
        let living = folder("mine/steps", "living");
        fs::create_dir_all(living.path()).unwrap();
        let made = |folder: &StepFolder| Scratch::of(&temp, folder).make().unwrap().unwrap().to_owned();
        let (kept, gone) = (made(&living), made(&folder("mine/steps", "gone")));
        let others = made(&folder("others/steps", "gone"));
        // Both were set aside, and the script of one still runs.
        let set_aside = |name: &str| {
            let damaged = folder("mine/damaged", &format!("{name}.1793709296000"));
            fs::create_dir_all(damaged.path()).unwrap();
            fs::write(damaged.lock_path(), "").unwrap();
            (made(&folder("mine/steps", name)), damaged)
        };
        let ((running, driven), (ended, _)) = (set_aside("id.Running"), set_aside("id.Ended"));
        let _lock = driven.try_lock().unwrap().unwrap();
        let stranger = temp.join("history-1");
        fs::create_dir(&stranger).unwrap();

        Scratch::sweep(&temp, &root.path().join("mine/steps")).unwrap();

        assert!(kept.exists() && others.exists() && stranger.exists() && running.exists());
        assert!(!gone.exists() && !ended.exists());
    }

    #[test]
    fn a_place_too_deep_for_sockets_is_not_used() {
        let temp = Path::new("/tmp").join("x".repeat(100));
        assert_eq!(Scratch::of(&temp, &StepFolder::at("/steps/a")).make().unwrap(), None);
    }
}
