//! The data directory of `hawser hub`, so that runners and `hawser job` keep working after a restart.
//!
//! The directory (0700) contains these files, all 0600 and written atomically:
//!
//! | file | content |
//! |---|---|
//! | `.gitignore` | excludes the directory from a repository that it may be in |
//! | `identity.json` | the runner record, its credentials, and the token of the admin API |
//! | `lock` | locked by the running hub, to prevent a second one |
//! | `listening.json` | `url` of the running hub; removed when it stops |

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, random_secret};

const IDENTITY: &str = "identity.json";
const LISTENING: &str = "listening.json";
const LOCK: &str = "lock";

/// The lock file must not be created through a symlink.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();
const IGNORE: &str = ".gitignore";

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("failed to read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is damaged: {source}")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("failed to write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("another hawser hub is using the data directory {directory}{}", url.as_ref().map(|url| format!(", at {url}")).unwrap_or_default())]
    InUse { directory: PathBuf, url: Option<String> },
}

/// The identity of a hub, and the token with which jobs are submitted to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HubData {
    #[serde(flatten)]
    pub identity: Identity,
    pub admin_token: String,
    /// The file with the secrets, if other users could read it until now.
    #[serde(skip)]
    pub was_open: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct ListeningFile {
    url: String,
}

impl HubData {
    pub fn generate() -> Self {
        Self { identity: Identity::generate(), admin_token: random_secret(), was_open: None }
    }

    /// Whether a hub has been started with this directory before.
    pub fn is_in(directory: &Path) -> bool {
        directory.join(IDENTITY).exists()
    }

    /// Reads the data, if a hub has been started with this directory before.
    pub fn load(directory: &Path) -> Result<Option<Self>, DataError> {
        read(&directory.join(IDENTITY))
    }

    /// Locks the directory against a second hub until the file is dropped.
    pub fn lock(directory: &Path) -> Result<File, DataError> {
        let path = directory.join(LOCK);
        let open = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(NO_FOLLOW)
                .open(&path)
        };
        let file = match create_private(directory).and_then(|()| open()) {
            Ok(file) => file,
            Err(source) => return Err(DataError::Write { path, source }),
        };
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let url = listening_url(directory).unwrap_or_default();
                Err(DataError::InUse { directory: directory.to_owned(), url })
            }
            Err(TryLockError::Error(source)) => Err(DataError::Write { path, source }),
        }
    }

    /// Also restricts the permissions of existing files.
    pub fn load_or_create(directory: &Path) -> Result<Self, DataError> {
        let known = Self::load(directory)?;
        keep_out_of_git(directory)?;
        match known {
            Some(data) => Ok(Self { was_open: make_private(directory.join(IDENTITY))?, ..data }),
            None => {
                let data = Self::generate();
                write(directory, IDENTITY, &data)?;
                Ok(data)
            }
        }
    }
}

/// The URL of the hub that uses this directory, as recorded there.
pub fn listening_url(directory: &Path) -> Result<Option<String>, DataError> {
    Ok(read::<ListeningFile>(&directory.join(LISTENING))?.map(|file| file.url))
}

/// Records where the hub listens, until it is dropped.
#[derive(Debug)]
pub struct ListeningNote(PathBuf);

impl ListeningNote {
    pub fn write(directory: &Path, url: &str) -> Result<Self, DataError> {
        write(directory, LISTENING, &ListeningFile { url: url.to_owned() })?;
        Ok(Self(directory.join(LISTENING)))
    }
}

impl Drop for ListeningNote {
    fn drop(&mut self) {
        // A leftover file makes `hawser job` report that the hub does not answer.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DataError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DataError::Read { path: path.to_owned(), source }),
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|source| DataError::Damaged { path: path.to_owned(), source })
}

fn write(directory: &Path, name: &str, value: &impl Serialize) -> Result<(), DataError> {
    let path = directory.join(name);
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| DataError::Write { path: path.clone(), source: error.into() })?;
    write_text(path, directory, &format!("{text}\n"))
}

fn write_text(path: PathBuf, directory: &Path, text: &str) -> Result<(), DataError> {
    let written = || -> io::Result<()> {
        create_private(directory)?;
        // A temporary file is created with mode 0600 and keeps it when renamed.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    };
    written().map_err(|source| DataError::Write { path, source })
}

/// The secrets must not be committed or copied with a repository's files. An existing file is left alone.
fn keep_out_of_git(directory: &Path) -> Result<(), DataError> {
    let path = directory.join(IGNORE);
    if path.symlink_metadata().is_ok() { Ok(()) } else { write_text(path, directory, "*\n") }
}

/// Makes a file private to its owner. Returns its path if it was not.
fn make_private(path: PathBuf) -> Result<Option<PathBuf>, DataError> {
    use std::os::unix::fs::PermissionsExt;
    let result = || -> io::Result<bool> {
        // Through the handle, because the path may be replaced.
        let file = File::open(&path)?;
        let mut permissions = file.metadata()?.permissions();
        let open = permissions.mode() & 0o077 != 0;
        if open {
            permissions.set_mode(0o600);
            file.set_permissions(permissions)?;
        }
        Ok(open)
    };
    match result() {
        Ok(open) => Ok(open.then_some(path)),
        Err(source) => Err(DataError::Write { path, source }),
    }
}

fn create_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_restart_reads_the_same_identity_and_the_file_is_private() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("hub");
        assert!(HubData::load(&directory).unwrap().is_none());
        let first = HubData::load_or_create(&directory).unwrap();
        let second = HubData::load_or_create(&directory).unwrap();
        assert_eq!(first.identity.runner_id, second.identity.runner_id);
        assert_eq!(
            first.identity.client_secret.expose_secret(),
            second.identity.client_secret.expose_secret()
        );
        assert_eq!(first.admin_token, second.admin_token);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join(IDENTITY)), 0o600);
    }

    #[test]
    fn the_listening_url_is_removed_with_the_hub() {
        let home = tempfile::tempdir().unwrap();
        let note = ListeningNote::write(home.path(), "http://127.0.0.1:1").unwrap();
        assert_eq!(listening_url(home.path()).unwrap().as_deref(), Some("http://127.0.0.1:1"));
        drop(note);
        assert_eq!(listening_url(home.path()).unwrap(), None);
    }

    #[test]
    fn an_identity_readable_by_others_is_made_private_and_reported_once() {
        let home = tempfile::tempdir().unwrap();
        let identity = home.path().join(IDENTITY);
        assert_eq!(HubData::load_or_create(home.path()).unwrap().was_open, None);
        for mode in [0o644, 0o660, 0o604] {
            std::fs::set_permissions(&identity, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(HubData::load_or_create(home.path()).unwrap().was_open.as_ref(), Some(&identity));
            assert_eq!(identity.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(HubData::load_or_create(home.path()).unwrap().was_open, None);
        }
    }

    #[test]
    fn a_missing_gitignore_is_created_and_an_existing_one_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let ignore = home.path().join(IGNORE);
        HubData::load_or_create(home.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&ignore).unwrap(), "*\n");
        std::fs::remove_file(&ignore).unwrap();
        HubData::load_or_create(home.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&ignore).unwrap(), "*\n");
        std::fs::write(&ignore, "mine\n").unwrap();
        HubData::load_or_create(home.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&ignore).unwrap(), "mine\n");
    }

    #[test]
    fn a_damaged_identity_is_reported_and_not_replaced() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(IDENTITY), "{}").unwrap();
        let error = HubData::load_or_create(home.path()).unwrap_err().to_string();
        assert!(error.contains(IDENTITY), "{error}");
    }
}
