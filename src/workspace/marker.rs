//! `.git/hawser.json`: what a checkout is a checkout of. It is inside `.git`, so it is swapped together with the files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::tree::Tree;
use super::{WorkspaceError, names};
use crate::base::confined_dir::{ConfinedRoot, read_limited};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    version: u32,
    pub(super) commit: String,
    /// The id of the annotated tag that was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
    /// The folder that the registry named.
    folder: String,
    /// The init directories that may contain extra files.
    pub(super) extra_files_in: BTreeSet<PathBuf>,
}

/// A checkout with a different version is fetched again.
const VERSION: u32 = 1;
const LARGEST_MARKER: u64 = 1024 * 1024;
pub(super) const GIT: &str = ".git";
const MARKER: &str = "hawser.json";

impl Marker {
    pub(super) fn new(commit: &str, folder: &Path, init: &Path) -> Self {
        let folder = folder.to_string_lossy().into_owned();
        let extra_files_in = BTreeSet::from([init.to_owned()]);
        Self { version: VERSION, commit: commit.to_owned(), tag: None, folder, extra_files_in }
    }

    pub(super) fn is_current_version(&self) -> bool {
        self.version == VERSION
    }

    pub(super) fn is_at(&self, id: &str) -> bool {
        self.commit == id || self.tag.as_deref() == Some(id)
    }

    /// `None` if there is no checkout with a valid marker.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let git = ConfinedRoot::open(root).ok()?.folder(Path::new("")).ok()?.folder(OsStr::new(GIT)).ok()?;
        let text = read_limited(git.open_file(OsStr::new(MARKER)).ok()?, LARGEST_MARKER).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn folder(&self) -> PathBuf {
        names::relative_path("registry folder", &self.folder).unwrap_or_default()
    }

    pub(super) fn write(&self, tree: &Tree) -> Result<(), WorkspaceError> {
        let path = Path::new(GIT).join(MARKER);
        let failed = |error| tree.error("write", &path, error);
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let root = tree.inside().folder(Path::new("")).map_err(failed)?;
        root.folder(OsStr::new(GIT)).and_then(|git| git.write(OsStr::new(MARKER), &text)).map_err(failed)
    }
}
