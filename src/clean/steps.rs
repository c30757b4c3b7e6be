//! Damaged steps, scratch space, and rescued states.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{CleanError, Cleaning, folders_in, list, modified};
use crate::base::files::remove_all;
use crate::step::{Scratch, StepFolder};

/// Prefixes of the temporary folders in which a fetch resolves an abbreviated commit or compares an old checkout.
const FETCH_PREFIXES: [&str; 2] = ["history-", "compare-"];

impl Cleaning<'_> {
    /// The step stores of all runners that have used this working directory.
    pub(super) fn stores(&self) -> Result<Vec<PathBuf>, CleanError> {
        let mut stores = Vec::new();
        for runner in folders_in(&self.own)? {
            stores.extend(folders_in(&runner)?.into_iter().filter(|store| store.join("steps").is_dir()));
        }
        Ok(stores)
    }

    pub(super) fn damaged_steps(&mut self) -> Result<(), CleanError> {
        for store in self.stores()? {
            for path in list(&store.join("damaged"))? {
                if !self.is_old(damaged_since(&path)) {
                    self.keep(&path, "a recently damaged step is kept for inspection");
                    continue;
                }
                match lock(&path) {
                    None => self.keep(&path, "its script is still running"),
                    Some(_lock) => self.remove("damaged step", &path, || remove_all(&path)),
                }
            }
        }
        Ok(())
    }

    pub(super) fn scratch(&mut self) -> Result<(), CleanError> {
        let temp = &self.folders.temp_directory;
        for store in self.stores()? {
            let steps = store.join("steps");
            let orphaned = Scratch::left_behind(temp, &steps)
                .map_err(|source| CleanError::List { path: steps.clone(), source })?;
            for path in orphaned {
                self.remove("scratch space without a step", &path, || remove_all(&path));
            }
        }
        for path in list(temp)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if FETCH_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && self.is_old(modified(&path)) {
                self.remove("interrupted fetch", &path, || remove_all(&path));
            }
        }
        Ok(())
    }
}

/// Locks a step. `None` if it is locked, or if that cannot be determined. Without a lock file no script was ever started,
/// and creating one would modify the folder.
fn lock(step: &Path) -> Option<Option<File>> {
    let step = StepFolder::at(step);
    if step.lock_path().symlink_metadata().is_err() {
        return Some(None);
    }
    step.try_lock().ok().flatten().map(Some)
}

/// When a step was moved to the damaged ones, which is part of its name.
fn damaged_since(damaged: &Path) -> SystemTime {
    let name = damaged.file_name().unwrap_or_default().to_string_lossy();
    let millis = name.rsplit_once('.').and_then(|(_, millis)| millis.parse().ok());
    let time = millis.and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    time.unwrap_or_else(|| modified(damaged))
}

/// Checks that a path from the command line is a rescued state.
pub(super) fn rescued(own: &Path, path: &Path) -> Result<PathBuf, CleanError> {
    let refuse = |reason: String| CleanError::NotRescued { path: path.to_owned(), reason };
    let real = std::fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
    let folder = own.join("rescued");
    let inside =
        std::fs::canonicalize(&folder).is_ok_and(|folder| real.starts_with(&folder) && real != folder);
    if !inside {
        return Err(refuse(format!("it is not in {}", folder.display())));
    }
    if !real.is_file() {
        return Err(refuse("it is not a file".to_owned()));
    }
    Ok(real)
}
