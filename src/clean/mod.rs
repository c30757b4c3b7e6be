//! Removes what old jobs have left in the working directory, beside a runner that works there.
//!
//! Always: step folders that were set aside as damaged and are old, scratch space whose step is gone, checkouts that were
//! prepared or swapped out and never cleared, and what an earlier clean did not finish. When asked: copies of repositories and
//! module directories that were not used for long. A module that holds state is only removed when that is asked for,
//! too, and a rescued state only when it is named. The plugin cache is left alone: modules run providers from it without
//! holding a lock.
//!
//! Nothing of a living job is touched. Every candidate is looked at under the lock that its users hold (step, module,
//! repository), and that lock is kept until it is gone; a module for which a step waits counts as living. A lock file itself is
//! never removed, and its time of change, which says when it was last used, stays as it was.

mod modules;
mod state;
mod steps;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use crate::base::files::remove_all;
use crate::settings::model::WorkingDirectorySettings;

#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error("there is no working directory {}: check WorkingDirectory.WorkingDirectory", path.display())]
    NoWorkingDirectory { path: PathBuf },
    #[error("{} is no rescued state: {reason}", path.display())]
    NotRescued { path: PathBuf, reason: String },
    #[error("cannot look into {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
}

/// What is to be cleaned.
#[derive(Debug, Clone)]
pub struct CleanOptions {
    /// Damaged steps, caches and modules count as old when they were not used for so long.
    pub older_than: Duration,
    pub caches: bool,
    pub modules: bool,
    /// Modules that hold state as well.
    pub with_state: bool,
    /// Rescued states, by their paths.
    pub rescued: Vec<PathBuf>,
    /// Otherwise everything is only looked at.
    pub remove: bool,
}

/// Something that was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    pub what: &'static str,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Something that looks like a leftover and stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptItem {
    pub path: PathBuf,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct Report {
    pub found: Vec<Leftover>,
    pub kept: Vec<KeptItem>,
    /// What could not be removed or looked at, and why.
    pub failed: Vec<String>,
}

impl Report {
    pub fn bytes(&self) -> u64 {
        self.found.iter().map(|found| found.bytes).sum()
    }
}

/// Looks for leftovers, and removes them when the order says so.
pub fn clean(
    folders: &WorkingDirectorySettings,
    order: &CleanOptions,
    now: SystemTime,
) -> Result<Report, CleanError> {
    let root = &folders.working_directory;
    if !root.is_dir() {
        return Err(CleanError::NoWorkingDirectory { path: root.clone() });
    }
    let own = root.join(".hawser");
    let rescued =
        order.rescued.iter().map(|path| steps::rescued(&own, path)).collect::<Result<Vec<_>, _>>()?;
    // A time before the beginning of time is older than everything.
    let before = now.checked_sub(order.older_than).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut cleaning = Cleaning { folders, order, own, before, report: Report::default() };
    cleaning.unfinished();
    cleaning.damaged_steps()?;
    cleaning.scratch()?;
    cleaning.checkouts()?;
    if order.caches {
        cleaning.repositories();
    }
    if order.modules {
        cleaning.modules()?;
    }
    for path in rescued {
        cleaning.take("a rescued state", &path, || remove_all(&path));
    }
    Ok(cleaning.report)
}

struct Cleaning<'a> {
    folders: &'a WorkingDirectorySettings,
    order: &'a CleanOptions,
    /// The runner's own folder in the working directory.
    own: PathBuf,
    /// What was last used before this is old.
    before: SystemTime,
    report: Report,
}

impl Cleaning<'_> {
    /// Where a folder is moved to, so that it is gone at once or not at all.
    fn gone(&self) -> PathBuf {
        self.own.join("gone")
    }

    fn take(&mut self, what: &'static str, path: &Path, removal: impl FnOnce() -> io::Result<()>) {
        let bytes = size(path);
        if self.order.remove
            && let Err(error) = removal()
        {
            return self.report.failed.push(format!("cannot remove {}: {error}", path.display()));
        }
        self.report.found.push(Leftover { what, path: path.to_owned(), bytes });
    }

    fn keep(&mut self, path: &Path, reason: impl Into<String>) {
        self.report.kept.push(KeptItem { path: path.to_owned(), reason: reason.into() });
    }

    fn is_old(&self, last_use: SystemTime) -> bool {
        last_use <= self.before
    }

    /// What an earlier clean had moved away and not removed yet.
    fn unfinished(&mut self) {
        for path in list(&self.gone()).unwrap_or_default() {
            self.take("a removal that was not finished", &path, || remove_all(&path));
        }
    }

    fn repositories(&mut self) {
        let folder = self.folders.working_directory.join("sourcecache");
        match crate::sources::expiry::expired(&folder, self.before, self.order.remove) {
            Ok(expired) => {
                for (path, bytes) in expired.gone {
                    self.report.found.push(Leftover { what: "a copy of a repository", path, bytes });
                }
                expired.busy.iter().for_each(|path| self.keep(path, "it is in use"));
            }
            Err(error) => self.report.failed.push(format!("cannot clean {}: {error}", folder.display())),
        }
    }
}

/// What is in a folder, in a fixed order; nothing when it is not there.
fn list(folder: &Path) -> Result<BTreeSet<PathBuf>, CleanError> {
    let failed = |source| CleanError::Look { path: folder.to_owned(), source };
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        entries => {
            let entries = entries.map_err(failed)?;
            entries.map(|entry| entry.map(|it| it.path()).map_err(failed)).collect()
        }
    }
}

/// The folders in a folder, without those behind symlinks.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>, CleanError> {
    let is_folder = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    Ok(list(folder)?.into_iter().filter(is_folder).collect())
}

/// Files may go while they are counted; then they take no space. What a symlink points at is not counted.
fn size(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
        }
        Ok(found) => found.len(),
        Err(_) => 0,
    }
}

fn changed(path: &Path) -> SystemTime {
    // Without a time it is as if it had been used just now: it stays.
    path.symlink_metadata().and_then(|found| found.modified()).unwrap_or_else(|_| SystemTime::now())
}
