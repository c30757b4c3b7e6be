//! Damaged step folders, scratch space, rescued states.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{CleanError, Cleaning, changed, folders_in, list};
use crate::base::files::remove_all;
use crate::step::{Scratch, StepFolder};

/// What the folders begin with in which a fetch looks for an abbreviated commit, or compares an old checkout.
const OF_FETCHES: [&str; 2] = ["history-", "compare-"];

impl Cleaning<'_> {
    /// The folders of all runners that have worked here.
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
                if !self.is_old(set_aside(&path)) {
                    self.keep(&path, "it was set aside not long ago, and somebody may want to look at it");
                    continue;
                }
                match lock(&path) {
                    None => self.keep(&path, "its script still runs"),
                    Some(_held) => self.take("a damaged step", &path, || remove_all(&path)),
                }
            }
        }
        Ok(())
    }

    pub(super) fn scratch(&mut self) -> Result<(), CleanError> {
        let temp = &self.folders.temp_directory;
        for store in self.stores()? {
            let steps = store.join("steps");
            let left = Scratch::left_behind(temp, &steps)
                .map_err(|source| CleanError::Look { path: steps.clone(), source })?;
            for path in left {
                self.take("scratch space without a step", &path, || remove_all(&path));
            }
        }
        for path in list(temp)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if OF_FETCHES.iter().any(|start| name.starts_with(start)) && self.is_old(changed(&path)) {
                self.take("a fetch that was cut short", &path, || remove_all(&path));
            }
        }
        Ok(())
    }
}

/// The lock of a step, unless somebody holds it or it cannot be told. Without a lock file no script was ever started,
/// and none is made: it would change the folder.
fn lock(step: &Path) -> Option<Option<File>> {
    let step = StepFolder::at(step);
    if step.lock_path().symlink_metadata().is_err() {
        return Some(None);
    }
    step.try_lock().ok().flatten().map(Some)
}

/// When a damaged folder was set aside, which its name says.
fn set_aside(damaged: &Path) -> SystemTime {
    let name = damaged.file_name().unwrap_or_default().to_string_lossy();
    let millis = name.rsplit_once('.').and_then(|(_, millis)| millis.parse().ok());
    let time = millis.and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    time.unwrap_or_else(|| changed(damaged))
}

/// A path that somebody named, if it is that of a rescued state.
pub(super) fn rescued(own: &Path, path: &Path) -> Result<PathBuf, CleanError> {
    let refuse = |reason: String| CleanError::NotRescued { path: path.to_owned(), reason };
    let real = std::fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
    let place = own.join("rescued");
    let inside = std::fs::canonicalize(&place).is_ok_and(|place| real.starts_with(&place) && real != place);
    if !inside {
        return Err(refuse(format!("it is not below {}", place.display())));
    }
    if !real.is_file() {
        return Err(refuse("it is no file: name each state".to_owned()));
    }
    Ok(real)
}
