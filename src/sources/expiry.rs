//! Cached repositories that were not used for a long time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::Cache;
use crate::base::lock::LockMode;

#[derive(Debug, Default)]
pub struct Expired {
    /// With their sizes in bytes.
    pub unused: Vec<(PathBuf, u64)>,
    /// Expired, but in use right now.
    pub busy: Vec<PathBuf>,
}

/// Finds the repositories of a cache that were last used before `before`, and deletes them if `remove` is set.
pub fn expired(folder: &Path, before: SystemTime, remove: bool) -> io::Result<Expired> {
    let mut expired = Expired::default();
    let entries = match Cache::new(folder, 0).entries() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(expired),
        entries => entries?,
    };
    for entry in entries.into_iter().filter(|entry| entry.last_use() <= before) {
        let Some(_lock) = entry.try_lock(LockMode::Alone)? else {
            expired.busy.push(entry.folder);
            continue;
        };
        let bytes = entry.size();
        if remove {
            entry.discard()?;
        }
        expired.unused.push((entry.folder, bytes));
    }
    expired.unused.sort();
    Ok(expired)
}
