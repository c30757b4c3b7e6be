//! Module directories: a module's source, its engine's state, and the runner's private files about it.
//!
//! ```text
//! {WorkingDirectory}/
//!   {stack}/{namespace}/{module}/     the module root: a checkout of one commit
//!     .git/hawser.json                which commit, and the folder that the registry named
//!     {subdirectory}/                 the init directory, working directory of every engine process
//!       .snapcd/                      the private folder, see [`PrivateFile`]
//!   .hawser/locks/{stack}/{namespace}/{module}.lock
//!   .hawser/checkout/{stack}/{namespace}/{module}/new-… the next revision while it is being prepared
//!                                                 /old   the previous one during the swap
//!   .hawser/rescued/{stack}/{namespace}/{module}/   states that are in no backend, see [`crate::tasks`] and [`backup`]
//! ```
//!
//! The subdirectory is the registry's folder (`//modules/vpc`) followed by the request's `sourceSubdirectory`. The module root
//! is always the whole repository, so that `../../shared` keeps its meaning.
//!
//! A folder may be replaced with a symlink at any time, so files below the module root are opened relative to its handle and
//! never by a path that was checked before, see [`crate::base::confined_dir`].

mod backend_note;
pub mod backup;
mod environment;
mod extra_files;
mod find;
mod last_task;
mod lock;
mod marker;
mod migrate_state;
mod names;
pub mod permissions;
mod staged_init;
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
pub use environment::check_variables;
pub use find::{closeness, find, workspaces};
use hawser_contract::Metadata;
pub use last_task::{EnginePlace, LastTask};
pub use lock::ModuleLock;
pub use migrate_state::is_stack_settings;
use names::PRIVATE_FOLDER;
pub use staged_init::STAGED;
pub use swap::sweep_all;
pub use tree::Tree;

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the {what} {name:?} cannot be used: {reason}")]
    Name { what: &'static str, name: String, reason: &'static str },
    #[error("{} points outside the module directory {}", .path.display(), .root.display())]
    Outside { path: PathBuf, root: PathBuf },
    #[error(
        "the source contains a symlink that points outside the module directory or into .git: {} -> {}. The engine would \
         follow it: remove it, or make it a relative path within the repository",
        .link.display(), .target.display()
    )]
    LinkOutside { link: PathBuf, target: PathBuf },
    #[error("the source has no folder {subdirectory:?}: check the module's source subdirectory")]
    NoSubdirectory { subdirectory: PathBuf },
    #[error(
        "the source has no folder {folder:?}, which the registry names for this module: check the version in the registry"
    )]
    NoRegistryFolder { folder: PathBuf },
    #[error("{} contains no module: no file that an engine reads, such as main.tf or Pulumi.yaml", .folder.display())]
    NoModule { folder: PathBuf },
    #[error("{} must be a folder, because the runner stores its own files there", .path.display())]
    NotPrivateFolder { path: PathBuf },
    #[error(
        "the new revision has another file or folder where the state file {} belongs: move that state, or \
         run a clean init to drop it",
        .path.display()
    )]
    StateBlocked { path: PathBuf },
    #[error("failed to write the extra file {path:?}: there is a folder with that name")]
    ExtraFileIsFolder { path: PathBuf },
    #[error("Init has not run for this module: its environment variables ({}) are missing", .path.display())]
    NotInitialized { path: PathBuf },
    #[error(
        "the file {} is damaged: run {}",
        .path.display(), if *.file == PrivateFile::ENVIRONMENT { "Init again" } else { "a clean init" }
    )]
    DamagedFile { file: PrivateFile, path: PathBuf, source: serde_json::Error },
    #[error("unknown module {name:?}: {} has {}", .root.display(), find::known(modules))]
    UnknownModule {
        name: String,
        root: PathBuf,
        /// Those that exist, the nearest first.
        modules: Vec<String>,
    },
    #[error("the name {name:?} fits several modules: {modules}")]
    AmbiguousModule { name: String, modules: String },
    #[error("{} is not a checkout of this runner", .path.display())]
    NoCheckout { path: PathBuf },
    #[error("the environment variable {name:?} cannot be set: {reason}")]
    EnvironmentVariable { name: String, reason: &'static str },
    #[error("the module {module} is in use by {holder}")]
    Busy { module: String, holder: String },
    #[error("failed to {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("a background thread failed to {action}")]
    Thread { action: &'static str, source: tokio::task::JoinError },
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl WorkspaceError {
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_cancelled())
    }

    /// The refusal of the policy, if that is the cause.
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

/// A file in a module's private folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateFile(&'static str);

impl PrivateFile {
    pub const ENVIRONMENT: Self = Self("snapcd.env");
    pub const INPUTS: Self = Self("inputs.tfvars");
    pub const INIT_VARIABLES: Self = Self("init.tfvars");
    pub const PLAN_VARIABLES: Self = Self("plan.tfvars");
    pub const DESTROY_VARIABLES: Self = Self("destroy.tfvars");
    pub const PLAN: Self = Self("plan.out");
    pub const DESTROY: Self = Self("destroy.out");
    pub const PLANNED: Self = Self("planned.json");
    pub const PLANNED_DESTROY: Self = Self("planned-destroy.json");
    pub const PULUMI_PLAN: Self = Self("plan.json");
    pub const DESTROY_PREVIEW: Self = Self("destroy_preview.json");
    pub const PULUMI_EXPORT: Self = Self("export.json");
    pub const OUTPUT: Self = Self("output.json");
    pub const SENSITIVE: Self = Self("sensitive.json");
    pub const ENGINE: Self = Self("engine.json");
    pub const BACKEND_SETTINGS: Self = Self("backend-settings.json");
    pub const LAST_TASK: Self = Self("last-task.json");
    pub const PULUMI_BACKEND: Self = Self("pulumi.json");
    pub const PULUMI_PARAMETERS: Self = Self("pulumi-parameters.json");
    pub const PULUMI_CREDENTIALS: Self = Self("credentials.json");
    pub const PULUMI_ACCOUNT: Self = Self("config.json");
    pub const INIT_SCRIPT: Self = Self("init.sh");
    pub const VALIDATE_SCRIPT: Self = Self("validate.sh");
    pub const PLAN_SCRIPT: Self = Self("plan.sh");
    pub const PLAN_DESTROY_SCRIPT: Self = Self("plan_destroy.sh");
    pub const APPLY_SCRIPT: Self = Self("apply.sh");
    pub const DESTROY_SCRIPT: Self = Self("destroy.sh");
    pub const OUTPUT_SCRIPT: Self = Self("output.sh");
    pub const EXTRA_FILES: Self = Self("extra-files.json");
    pub const ORIGINAL_FILES: Self = Self("original-files");

    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Whether a file with this name makes a folder a module.
pub type ModuleFiles<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

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
    lock_share: LockShare,
}

/// A share of the module's lock for background threads. Dropping a task does not stop its threads, so the module stays locked
/// until the last of them has ended.
type LockShare = Option<Arc<File>>;

impl Workspace {
    #[must_use]
    pub fn holding(mut self, share: Option<Arc<File>>) -> Self {
        self.lock_share = share;
        self
    }

    /// Checks the names; creates nothing.
    pub fn new(settings: &WorkingDirectorySettings, metadata: &Metadata) -> Result<Self, WorkspaceError> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|error| WorkspaceError::io("resolve", path, error))
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
            lock_share: None,
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

    /// Where the next revision is prepared.
    pub(crate) fn staging_dir(&self) -> &Path {
        &self.staging
    }

    /// For files that must survive the checkout. It may not exist yet.
    pub fn rescued_dir(&self) -> &Path {
        &self.rescued
    }

    /// Where the engine runs. Only [`tree`](Self::tree) checks that it exists and is inside the module root.
    pub fn init_dir(&self) -> PathBuf {
        let registry_folder = marker::Marker::read(&self.module_root).map(|marker| marker.folder());
        self.module_root.join(registry_folder.unwrap_or_default()).join(&self.subdirectory)
    }

    /// Opens the module's files.
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

    /// Writes a file of the private folder, with access for the current user only.
    pub fn write_private(&self, file: PrivateFile, contents: &[u8]) -> Result<PathBuf, WorkspaceError> {
        self.tree()?.write_private(file, contents)?;
        Ok(self.private_path(file))
    }
}

/// Refuses a file name that would lead out of its folder. `what` describes the name in the error.
pub fn check_file_name(what: &'static str, name: &str) -> Result<(), WorkspaceError> {
    names::relative_file(what, name).map(|_| ())
}
