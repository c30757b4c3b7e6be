//! `.git/hawser.json`: what a checkout is a checkout of. It is inside `.git`, so it is swapped together with the files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::tree::Tree;
use super::{WorkspaceError, names};
use crate::base::confined_dir::{ConfinedRoot, read_limited};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    pub(super) commit: String,
    /// The id of the annotated tag that was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// The folder that the registry named.
    folder: String,
    /// The path of the init directory below the root.
    init: PathBuf,
}

const LARGEST_MARKER: u64 = 1024 * 1024;
pub(super) const GIT: &str = ".git";
const MARKER: &str = "hawser.json";

impl Marker {
    /// `id` is the id of the commit, or of an annotated tag of it.
    pub(super) fn new(commit: &str, id: &str, folder: &Path, init: &Path) -> Self {
        let (commit, tag) = (commit.to_owned(), (id != commit).then(|| id.to_owned()));
        Self { commit, tag, folder: folder.to_string_lossy().into_owned(), init: init.to_owned() }
    }

    pub(super) fn is_at(&self, id: &str) -> bool {
        self.commit == id || self.tag.as_deref() == Some(id)
    }

    pub(super) fn has_init(&self, folder: &Path, init: &Path) -> bool {
        self.folder() == folder && self.init == init
    }

    /// `None` if there is no checkout with a valid marker.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let git = ConfinedRoot::open(root).ok()?.folder(Path::new(GIT)).ok()?;
        let text = read_limited(git.open_file(OsStr::new(MARKER)).ok()?, LARGEST_MARKER).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn folder(&self) -> PathBuf {
        names::relative_path("registry folder", &self.folder).unwrap_or_default()
    }

    /// The path of the init directory below the folder of the registry.
    pub(super) fn subdirectory(&self) -> &Path {
        self.init.strip_prefix(self.folder()).unwrap_or(&self.init)
    }

    pub(super) fn write(&self, tree: &Tree) -> Result<(), WorkspaceError> {
        let write = || {
            let git = tree.inside().folder(Path::new(GIT))?;
            git.write(OsStr::new(MARKER), &serde_json::to_vec(self)?)
        };
        write().map_err(|error| tree.error("write", &Path::new(GIT).join(MARKER), error))
    }
}
