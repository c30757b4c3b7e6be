//! Finds the commit that a module's source means, and checks it out.
//!
//! The *definitive revision* is a full commit id. [`Fetcher::resolve`] finds it for the revision in a request:
//! - Git, Default: an empty revision is the remote's HEAD; a full commit id is used as it is; otherwise the branch of exactly
//!   that name, then the tag (peeled to its commit), in the order of `git clone --branch`; `refs/…` is used literally; an
//!   abbreviated commit id comes last, because it takes a fetch of the whole history.
//! - Git, SemanticVersionRange: the highest tag in the range, see [`version_range`].
//! - Registry: the registry names a Git repository ([`registry`]), a ref in it and perhaps a folder inside.
//!
//! The `git` program does the work, so credential helpers, ssh configuration and proxies behave as operators expect. `git`
//! calls it, `commits` fetches commits, and `checkout` writes their files. A checkout goes through a cache of repositories
//! (`cache`, `cached_fetch`) and includes its submodules (`submodules`). git never prompts, no URL or revision reaches it as
//! an option, and only its exit code decides.

mod cache;
mod cached_fetch;
mod checkout;
mod commits;
mod git;
mod refs;
pub mod registry;
mod submodules;
pub mod version_range;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::base::git_url::{GitUrl, UrlError};
use crate::base::process::{Inherited, NotFound, ProcessError};
use crate::masking::JobSecrets;
use crate::settings::Refusal;
use crate::settings::patterns::SourceRule;
pub use cache::{Cache, expired};
pub(crate) use checkout::Tracked;
use hawser_contract::enums::WireEnum as _;
use hawser_contract::{Source, SourceRevisionType, SourceType};
pub use refs::{is_abbreviated_commit, is_commit};
pub use registry::RegistryError;
pub use version_range::RangeError;

/// Receives the lines for the job's log.
pub type JobLog<'a> = &'a (dyn Fn(&str) + Send + Sync);

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("the source type {0} is not supported: use Git or Registry")]
    NotSupported(&'static str),
    #[error("the source type Registry does not support semantic version ranges")]
    RegistryRange,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the revision {revision:?} is not a valid name of a branch, tag or commit")]
    InvalidRevision { revision: String },
    #[error("{url} has no branch or tag named {revision:?}, and that is not a full commit id")]
    UnknownRevision { revision: String, url: String },
    #[error(
        "commit {revision:?} not found: no branch, tag or other ref of {url} contains it{}",
        if is_commit(.revision) { "" } else { ", or the abbreviated id is ambiguous" }
    )]
    UnknownCommit { revision: String, url: String },
    #[error("{url} has no HEAD: it is empty, or its default branch does not exist")]
    NoHead { url: String },
    #[error("{url} returned an invalid list of refs: {line:?}")]
    UnreadableRefs { url: String, line: String },
    #[error("failed to fetch into the folder {}", .folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    #[error("failed to fetch the submodule {path:?}: {source}")]
    Submodule { path: String, source: Box<SourceError> },
    #[error("submodules are nested more than {0} deep")]
    TooDeep(usize),
    #[error(
        "the checkout has more than {0} submodules: set `update = none` in .gitmodules for those that are not needed"
    )]
    TooManySubmodules(usize),
    #[error("its path in the checkout is not an empty folder")]
    NotEmptyFolder,
    #[error(transparent)]
    Refused(Refusal),
    #[error("cancelled")]
    Cancelled,
    #[error(transparent)]
    Git(ProcessError),
}

impl SourceError {
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }

    /// The refusal of the policy, if that is the cause.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Submodule { source, .. } => source.refusal(),
            _ => None,
        }
    }
}

impl From<ProcessError> for SourceError {
    fn from(error: ProcessError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { Self::Git(error) }
    }
}

impl From<NotFound> for SourceError {
    fn from(error: NotFound) -> Self {
        Self::Git(error.into())
    }
}

/// A Git repository, the revision in it, and the folder in it that a registry named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub url: GitUrl,
    pub revision: String,
    pub subdirectory: Option<String>,
}

/// Fetches from Git servers and registries, for one task.
#[derive(Clone)]
pub struct Fetcher<'a> {
    pub http: reqwest::Client,
    /// `Engine.AdditionalBinaryPaths`.
    pub binary_paths: Vec<PathBuf>,
    /// A folder for temporary files.
    pub scratch: PathBuf,
    /// The part of the host's environment that git inherits.
    pub host: Inherited,
    /// The timeout for one transfer.
    pub fetch_timeout: Duration,
    pub cache: Option<Cache>,
    /// Applies to requests, registries and submodules.
    pub allowed: SourceRule,
    /// Where to report credentials found on the way: a registry may answer with a URL that contains a password.
    pub secrets: Option<JobSecrets>,
    pub log: JobLog<'a>,
    pub cancel: CancellationToken,
    /// Whether the operator has configured an ssh command; looked up once.
    pub own_ssh: OnceCell<bool>,
}

impl fmt::Debug for Fetcher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

impl<'a> Fetcher<'a> {
    /// Without a cache, a policy or secrets.
    pub fn new(http: reqwest::Client, scratch: PathBuf, log: JobLog<'a>, cancel: CancellationToken) -> Self {
        Self {
            http,
            binary_paths: Vec::new(),
            scratch,
            host: Inherited::of_this_process(),
            fetch_timeout: Duration::from_secs(30 * 60),
            cache: None,
            allowed: SourceRule::default(),
            secrets: None,
            log,
            cancel,
            own_ssh: OnceCell::new(),
        }
    }

    fn check_allowed(&self, url: &str) -> Result<(), SourceError> {
        self.allowed.check(url).map_err(SourceError::Refused)
    }

    /// The repository of a source; asks the registry if it is in one.
    pub async fn locate(&self, source: &Source) -> Result<Location, SourceError> {
        let Source { source_url, source_revision, .. } = source;
        self.check_allowed(source_url)?;
        match source.source_type {
            SourceType::Git => {
                let (url, revision) = (GitUrl::parse(source_url.trim())?, source_revision.trim().to_owned());
                Ok(Location { url, revision, subdirectory: None })
            }
            SourceType::Registry
                if source.source_revision_type == SourceRevisionType::SemanticVersionRange =>
            {
                Err(SourceError::RegistryRange)
            }
            SourceType::Registry => {
                let check = |url: &str| self.check_allowed(url);
                let (module, redirects) = tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return Err(SourceError::Cancelled),
                    answer = registry::download(&self.http, source_url, source_revision, check) => answer?,
                };
                if let Some(secrets) = &self.secrets {
                    secrets.learn_credentials(&module.url);
                }
                let url = GitUrl::parse(&module.url)?;
                for registry in redirects.iter().chain([source_url]) {
                    registry::check_disk_access(registry, &url)?;
                }
                (self.log)(&format!("The registry names {url} at {:?}", module.revision));
                self.check_allowed(&module.url)?;
                Ok(Location { url, revision: module.revision, subdirectory: module.subdirectory })
            }
            other => Err(SourceError::NotSupported(other.name())),
        }
    }

    /// The commit that the revision of a location means now.
    pub async fn definitive(
        &self,
        location: &Location,
        kind: SourceRevisionType,
    ) -> Result<String, SourceError> {
        let Location { url, revision, .. } = location;
        if kind == SourceRevisionType::SemanticVersionRange {
            let range = version_range::Range::parse(revision)?;
            let tags = refs::tags(&self.list_refs(url, &["--tags"], &[]).await?);
            let (tag, commit) = range.highest(&tags).ok_or_else(|| range.no_match(&tags, url))?;
            (self.log)(&format!("The highest tag of {url} in {revision} is {tag}"));
            return Ok(commit.to_owned());
        }
        if is_commit(revision) {
            return Ok(revision.to_ascii_lowercase());
        }
        if !revision.is_empty() && !refs::is_valid_name(revision) {
            return Err(SourceError::InvalidRevision { revision: revision.clone() });
        }
        let refs = self.list_refs(url, &[], &refs::candidates(revision)).await?;
        if let Some((name, commit)) = refs::choose(&refs, revision) {
            (self.log)(&format!("Using {name} of {url}"));
            return Ok(commit);
        }
        if revision.is_empty() || revision == "HEAD" {
            return Err(SourceError::NoHead { url: url.to_string() });
        }
        if !is_abbreviated_commit(revision) {
            return Err(SourceError::UnknownRevision { revision: revision.clone(), url: url.to_string() });
        }
        (self.log)(&format!(
            "No branch or tag is named {revision:?}: searching the history of {url} for a commit"
        ));
        self.complete_commit(url, revision).await
    }

    /// The definitive revision of a source, for `GetDefinitiveRevision` and `SourceRefresh`.
    pub async fn resolve(&self, source: &Source) -> Result<String, SourceError> {
        let location = self.locate(source).await?;
        self.definitive(&location, source.source_revision_type).await
    }
}
