//! Copies of repositories that nobody has used for long.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use super::cache::{Cache, size};
use crate::base::lock::LockMode;

#[derive(Debug, Default)]
pub struct Expired {
    /// With their sizes in bytes.
    pub gone: Vec<(PathBuf, u64)>,
    /// Old, but somebody uses them at this moment.
    pub busy: Vec<PathBuf>,
}

/// Finds the copies in a cache's folder that were last used before a moment, and removes them if that is wanted.
pub fn expired(folder: &Path, before: SystemTime, remove: bool) -> io::Result<Expired> {
    let mut expired = Expired::default();
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(expired),
        files => files?,
    };
    let cache = Cache::new(folder, 0);
    for name in files.filter_map(|file| file.ok()?.file_name().into_string().ok()) {
        let Some(name) = name.strip_suffix(".git") else { continue };
        let entry = cache.named(name);
        if entry.last_use() > before {
            continue;
        }
        let Some(_held) = entry.try_lock(LockMode::Alone)? else {
            expired.busy.push(entry.folder);
            continue;
        };
        let bytes = size(&entry.folder);
        if remove {
            entry.discard()?;
        }
        expired.gone.push((entry.folder, bytes));
    }
    expired.gone.sort();
    Ok(expired)
}
