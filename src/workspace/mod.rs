//! Module directories: where a module's source, its engine's state and the runner's notes about it are.
//!
//! ```text
//! {WorkingDirectory}/
//!   {stack}/{namespace}/{module}/     the module root: a checkout of one commit
//!     .git/hawser.json                which commit, and the folder that the registry pointed at
//!     {subdirectory}/                 the init directory, cwd of every engine process
//!       .snapcd/                      the private folder, see [`PrivateFile`]
//!   .hawser/locks/{stack}/{namespace}/{module}.lock
//!   .hawser/checkout/{stack}/{namespace}/{module}/new   the next revision while it is made
//!                                                 /old   the last one while the two change places
//!   .hawser/rescued/{stack}/{namespace}/{module}/   states that no backend has, see [`crate::tasks`] and [`backup`]
//! ```
//!
//! The subdirectory is the registry's folder (`//modules/vpc`) followed by the request's `sourceSubdirectory`; the module
//! root is the whole repository either way, so that `../../shared` keeps its meaning.
//!
//! What was a folder at the last look may be a symlink by now, so files below the module root are opened from its handle and
//! never by a path that was checked before, see [`crate::base::confined_dir`].

mod backend_note;
pub mod backup;
mod environment;
mod extra_files;
mod lock;
mod migrate_state;
mod names;
pub mod permissions;
pub mod stored_state;
mod swap;
mod symlinks;
mod tree;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::settings::model::WorkingDirectorySettings;
use crate::sources::SourceError;
pub use backend_note::BackendNote;
use hawser_contract::Metadata;
pub use lock::ModuleLock;
use names::PRIVATE_FOLDER;
pub use tree::Tree;

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the {what} {name:?} cannot be used: {reason}")]
    Name { what: &'static str, name: String, reason: &'static str },
    #[error("{} leads out of the module's directory {}", .path.display(), .root.display())]
    Outside { path: PathBuf, root: PathBuf },
    #[error(
        "the source has a symlink that leads out of the module's directory, or into git's own files: {} -> {}. The engine \
         would follow it, wherever it stands: remove it from the repository, or let it lead to a place in the same \
         repository by a relative path",
        .link.display(), .target.display()
    )]
    LinkOutside { link: PathBuf, target: PathBuf },
    #[error("the source has no folder {subdirectory:?}: check the module's source subdirectory")]
    NoSubdirectory { subdirectory: PathBuf },
    #[error(
        "the source has no folder {folder:?}, which is where the registry says the module is: the version that it names may be \
         another one than its author meant"
    )]
    NoRegistryFolder { folder: PathBuf },
    #[error("{} has no module in it: no .tf, .tf.json, .tofu or .tofu.json file and no Pulumi.yaml", .folder.display())]
    NoModule { folder: PathBuf },
    #[error("{} is in the way of the runner's own folder", .path.display())]
    InTheWay { path: PathBuf },
    #[error(
        "the new revision has something else where the state file {} is: move that state, or ask for a clean init to drop it",
        .path.display()
    )]
    StateInTheWay { path: PathBuf },
    #[error("the extra file {name:?} cannot be put in place: there is a folder of that name")]
    ExtraFileIsFolder { name: String },
    #[error("the list of extra files {} is damaged: a clean init makes a new one", .path.display())]
    DamagedManifest { path: PathBuf, source: serde_json::Error },
    #[error("Init has not run for this module: its environment variables ({}) are not there", .path.display())]
    NotInitialised { path: PathBuf },
    #[error("the environment variables in {} are damaged: run Init again", .path.display())]
    DamagedEnvironment { path: PathBuf, source: serde_json::Error },
    #[error("the note of the backend settings {} is damaged: a clean init makes a new one", .path.display())]
    DamagedBackendSettings { path: PathBuf, source: serde_json::Error },
    #[error("the environment variable {name:?} cannot be set: {reason}")]
    EnvironmentVariable { name: String, reason: &'static str },
    #[error("the module {module} is in use by {holder}")]
    Busy { module: String, holder: String },
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("a background thread failed while it was to {action}")]
    Thread { action: &'static str, source: tokio::task::JoinError },
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl WorkspaceError {
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_cancelled())
    }

    /// The refusal behind it, if it is one.
    pub fn refusal(&self) -> Option<&crate::settings::Refusal> {
        match self {
            Self::Source(error) => error.refusal(),
            _ => None,
        }
    }

    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

/// What the runner keeps in a module's private folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateFile {
    Environment,
    Inputs,
    Plan,
    Destroy,
    PulumiPlan,
    DestroyPreview,
    PulumiExport,
    Output,
    Sensitive,
    BackendSettings,
    InitScript,
    ValidateScript,
    PlanScript,
    PlanDestroyScript,
    ApplyScript,
    DestroyScript,
    OutputScript,
    ExtraFiles,
    OriginalFiles,
}

impl PrivateFile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Environment => "snapcd.env",
            Self::Inputs => "inputs.tfvars",
            Self::Plan => "plan.out",
            Self::Destroy => "destroy.out",
            Self::PulumiPlan => "plan.json",
            Self::DestroyPreview => "destroy_preview.json",
            Self::PulumiExport => "export.json",
            Self::Output => "output.json",
            Self::Sensitive => "sensitive.json",
            Self::BackendSettings => "backend-settings.json",
            Self::InitScript => "init.sh",
            Self::ValidateScript => "validate.sh",
            Self::PlanScript => "plan.sh",
            Self::PlanDestroyScript => "plan_destroy.sh",
            Self::ApplyScript => "apply.sh",
            Self::DestroyScript => "destroy.sh",
            Self::OutputScript => "output.sh",
            Self::ExtraFiles => "extra-files.json",
            Self::OriginalFiles => "original-files",
        }
    }
}

/// One module's directories.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// `stack/namespace/module`, for messages.
    module: String,
    module_root: PathBuf,
    staging: PathBuf,
    lock_file: PathBuf,
    rescued: PathBuf,
    subdirectory: PathBuf,
    held: swap::HeldLock,
}

impl Workspace {
    /// Gives the threads that work in the module a share of its lock, so that it is not free before the last has ended, even
    /// when nobody waits for them any more.
    #[must_use]
    pub fn holding(mut self, share: Option<Arc<File>>) -> Self {
        self.held = share;
        self
    }

    /// Checks the names; creates nothing.
    pub fn new(settings: &WorkingDirectorySettings, metadata: &Metadata) -> Result<Self, WorkspaceError> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| WorkspaceError::io("find the place of", path, error))
        };
        let working_directory = absolute(&settings.working_directory)?;
        let Metadata { stack_name, namespace_name, module_name, .. } = metadata;
        names::check_stack_name(stack_name, &working_directory, &absolute(&settings.temp_directory)?)?;
        names::check_name("namespace name", namespace_name)?;
        names::check_name("module name", module_name)?;
        let subdirectory = metadata.source_subdirectory.as_deref().unwrap_or_default();
        let subdirectory = names::relative_path("source subdirectory", subdirectory)?;

        let below = Path::new(stack_name).join(namespace_name);
        let own = working_directory.join(".hawser");
        Ok(Self {
            module: format!("{stack_name}/{namespace_name}/{module_name}"),
            module_root: working_directory.join(&below).join(module_name),
            staging: own.join("checkout").join(&below).join(module_name),
            lock_file: own.join("locks").join(&below).join(format!("{module_name}.lock")),
            rescued: own.join("rescued").join(&below).join(module_name),
            subdirectory,
            held: None,
        })
    }

    /// `stack/namespace/module`.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The checkout.
    pub fn module_root(&self) -> &Path {
        &self.module_root
    }

    /// Where the next revision is made.
    pub(crate) fn staging_dir(&self) -> &Path {
        &self.staging
    }

    /// Where files are kept that must survive the checkout. It may not be there yet.
    pub fn rescued_dir(&self) -> &Path {
        &self.rescued
    }

    /// Where the engine runs. Whether it is there, and inside the module root whatever symlinks there are, [`tree`](Self::tree) says.
    pub fn init_dir(&self) -> PathBuf {
        let registry_folder = swap::Marker::read(&self.module_root).map(|marker| marker.folder());
        self.module_root.join(registry_folder.unwrap_or_default()).join(&self.subdirectory)
    }

    /// The module's files, opened.
    pub fn tree(&self) -> Result<Tree, WorkspaceError> {
        let init_dir = self.init_dir();
        let init = init_dir.strip_prefix(&self.module_root).unwrap_or(&init_dir);
        Tree::open(&self.module_root, init, &self.module_root)
    }

    /// `.snapcd` in the init directory.
    pub fn private_dir(&self) -> PathBuf {
        self.init_dir().join(PRIVATE_FOLDER)
    }

    pub fn private_path(&self, file: PrivateFile) -> PathBuf {
        self.private_dir().join(file.name())
    }

    /// Writes a file of the private folder, readable by nobody else.
    pub fn write_private(&self, file: PrivateFile, contents: &[u8]) -> Result<PathBuf, WorkspaceError> {
        self.tree()?.write_private(file, contents)?;
        Ok(self.private_path(file))
    }
}

/// Refuses a file name that would lead out of the folder that it counts from. `what` says whose name it is.
pub fn check_file_name(what: &'static str, name: &str) -> Result<(), WorkspaceError> {
    names::relative_file(what, name).map(|_| ())
}

/// Whether a file makes the folder that it is in a module.
fn is_module_file(name: &str) -> bool {
    let is_code = [".tf", ".tf.json", ".tofu", ".tofu.json"].iter().any(|ending| name.ends_with(ending));
    is_code || matches!(name, "Pulumi.yaml" | "Pulumi.yml")
}
