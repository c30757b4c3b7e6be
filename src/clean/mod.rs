//! Removes the leftovers of old jobs from the working directory, even while a runner is using it.
//!
//! Always removed: old damaged steps, scratch space without a step, interrupted checkouts, and unfinished removals of an
//! earlier clean. On request: cached repositories and module directories that have not been used for a while. A module
//! with state is removed only on explicit request, and a rescued state only by its path. The plugin cache is never
//! removed, because modules run providers from it without holding a lock.
//!
//! Running jobs are never affected. Every candidate is checked and removed under the lock that its users hold (step,
//! module, repository), and a module that a step is waiting for is in use. Lock files are never removed, and keep their
//! modification time, which records the last use.

mod modules;
mod state;
mod steps;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use jiff::{Span, SpanRelativeTo};

use crate::base::files::remove_all;
use crate::settings::model::WorkingDirectorySettings;

#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error("the working directory {} does not exist: check WorkingDirectory.WorkingDirectory", path.display())]
    NoWorkingDirectory { path: PathBuf },
    #[error("{} is not a rescued state: {reason}", path.display())]
    NotRescued { path: PathBuf, reason: String },
    #[error("cannot list {}: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
}

/// What to remove. The descriptions are the help of the command.
#[derive(Debug, Clone, clap::Args)]
pub struct CleanOptions {
    /// Remove the leftovers instead of only listing them
    #[arg(long = "yes")]
    pub remove: bool,
    /// Minimum age of damaged steps, caches, and modules since their last use (90m, 12h, 30d, 8w)
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = age)]
    pub older_than: Duration,
    /// Also remove old cached repositories
    #[arg(long)]
    pub caches: bool,
    /// Also remove old module directories, except those that contain state
    #[arg(long)]
    pub modules: bool,
    /// Also remove old module directories that contain state; their resources keep existing without any record of them
    #[arg(long, requires = "modules")]
    pub with_state: bool,
    /// Also remove this rescued state; can be repeated
    #[arg(long, value_name = "PATH")]
    pub rescued: Vec<PathBuf>,
}

fn age(text: &str) -> Result<Duration, String> {
    let span = text.parse::<Span>().and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    span.ok()
        .and_then(|span| Duration::try_from(span).ok())
        .ok_or_else(|| "expected a number and a unit, such as 90m, 12h, 30d, or 8w".to_owned())
}

/// Something that was removed, or would be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    pub what: &'static str,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Something that looks like a leftover but is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptItem {
    pub path: PathBuf,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct Report {
    pub leftovers: Vec<Leftover>,
    pub kept: Vec<KeptItem>,
    /// Errors while listing or removing.
    pub failed: Vec<String>,
}

/// Finds leftovers, and removes them with `options.remove`.
pub fn clean(
    folders: &WorkingDirectorySettings,
    options: &CleanOptions,
    now: SystemTime,
) -> Result<Report, CleanError> {
    let root = &folders.working_directory;
    if !root.is_dir() {
        return Err(CleanError::NoWorkingDirectory { path: root.clone() });
    }
    let own = root.join(".hawser");
    let rescued =
        options.rescued.iter().map(|path| steps::rescued(&own, path)).collect::<Result<Vec<_>, _>>()?;
    let before = now.checked_sub(options.older_than).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut cleaning = Cleaning { folders, options, own, before, report: Report::default() };
    cleaning.unfinished_removals();
    cleaning.damaged_steps()?;
    cleaning.scratch()?;
    cleaning.checkouts()?;
    if options.caches {
        cleaning.repositories();
    }
    if options.modules {
        cleaning.modules()?;
    }
    for path in rescued {
        cleaning.remove("rescued state", &path, || remove_all(&path));
    }
    Ok(cleaning.report)
}

struct Cleaning<'a> {
    folders: &'a WorkingDirectorySettings,
    options: &'a CleanOptions,
    /// The runner's folder in the working directory.
    own: PathBuf,
    /// Anything last used before this is old.
    before: SystemTime,
    report: Report,
}

impl Cleaning<'_> {
    /// Folders are moved here first, so that a removal is atomic.
    fn trash(&self) -> PathBuf {
        self.own.join("gone")
    }

    fn remove(&mut self, what: &'static str, path: &Path, removal: impl FnOnce() -> io::Result<()>) {
        let bytes = size(path);
        if self.options.remove
            && let Err(error) = removal()
        {
            return self.report.failed.push(format!("cannot remove {}: {error}", path.display()));
        }
        self.report.leftovers.push(Leftover { what, path: path.to_owned(), bytes });
    }

    fn keep(&mut self, path: &Path, reason: impl Into<String>) {
        self.report.kept.push(KeptItem { path: path.to_owned(), reason: reason.into() });
    }

    fn is_old(&self, last_use: SystemTime) -> bool {
        last_use <= self.before
    }

    fn unfinished_removals(&mut self) {
        for path in list(&self.trash()).unwrap_or_default() {
            self.remove("unfinished removal", &path, || remove_all(&path));
        }
    }

    fn repositories(&mut self) {
        let folder = self.folders.working_directory.join("sourcecache");
        match crate::sources::expired(&folder, self.before, self.options.remove) {
            Ok(expired) => {
                for (path, bytes) in expired.unused {
                    self.report.leftovers.push(Leftover { what: "cached repository", path, bytes });
                }
                expired.busy.iter().for_each(|path| self.keep(path, "in use"));
            }
            Err(error) => self.report.failed.push(format!("cannot clean {}: {error}", folder.display())),
        }
    }
}

/// The entries of a folder in a fixed order; empty if the folder does not exist.
fn list(folder: &Path) -> Result<BTreeSet<PathBuf>, CleanError> {
    let failed = |source| CleanError::List { path: folder.to_owned(), source };
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        entries => {
            let entries = entries.map_err(failed)?;
            entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
        }
    }
}

/// The subfolders of a folder, without symlinks.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>, CleanError> {
    let is_folder = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    Ok(list(folder)?.into_iter().filter(is_folder).collect())
}

/// Files that disappear in the meantime count as empty. Targets of symlinks are not counted.
fn size(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
        }
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    }
}

fn modified(path: &Path) -> SystemTime {
    // Without a time, assume that it was just used.
    path.symlink_metadata().and_then(|metadata| metadata.modified()).unwrap_or_else(|_| SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_need_a_number_and_a_unit() {
        assert_eq!(age("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(age("2w"), Ok(Duration::from_secs(14 * 86_400)));
        assert_eq!(age("0s"), Ok(Duration::ZERO));
        for text in ["", "d", "30", "-1d", "1y", "99999999999999999999d", "9999999999999999999w", "1é"] {
            assert!(age(text).is_err(), "{text}");
        }
    }
}
