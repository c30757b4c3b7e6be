//! Where a module's source is, and which commit of it is meant.
//!
//! The *definitive revision* is a full commit id. [`resolve`] finds it for what a request names:
//! - Git, Default: empty is the remote's HEAD; a full commit id is taken as it is; otherwise the branch of exactly
//!   that name, then the tag (peeled to its commit), in the order in which `git clone --branch` looks; `refs/…` is
//!   taken literally; an abbreviated commit id comes last, because it costs a fetch of the whole history.
//! - Git, SemanticVersionRange: the highest tag in the range, see [`version_range`].
//! - Registry: the registry names a Git repository ([`registry`]), a ref of it and perhaps a folder inside.
//!
//! git does the work, so credential helpers, ssh configuration and proxies behave as the operator is used to.
//! How it is called stands in `git`, what it is called for in `commits` (bring one here) and `checkout` (make a folder of one). A
//! checkout goes through a cache of repositories (`cache`, `cached_fetch`) and has its submodules (`submodules`).
//! git never asks for anything, no URL or revision reaches it as an option, and only its exit code decides.

mod cache;
mod cached_fetch;
mod checkout;
mod commits;
pub mod expiry;
mod git;
mod refs;
pub mod registry;
mod submodules;
pub mod version_range;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::base::git_url::{UrlError, mask_url};
use crate::base::process::{Inherited, NotFound, ProcessError};
use crate::masking::JobSecrets;
use crate::settings::Refusal;
use crate::settings::patterns::SourceRule;
pub(crate) use checkout::Tracked;
use hawser_contract::enums::WireEnum as _;
use hawser_contract::{Source, SourceRevisionType, SourceType};
pub use refs::{is_abbreviated_commit, is_commit};
pub use registry::RegistryError;
pub use version_range::RangeError;

/// Takes the lines that belong in the job's log.
pub type JobLog<'a> = &'a (dyn Fn(&str) + Send + Sync);

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("the source type {0} is not supported: known are Git and Registry")]
    NotSupported(&'static str),
    #[error("a semantic version range is not supported for the source type Registry")]
    RegistryRange,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the revision {revision:?} is no valid name of a branch, tag or commit")]
    InvalidRevision { revision: String },
    #[error("{url} has no branch or tag named {revision:?}, and it is no full commit id")]
    UnknownRevision { revision: String, url: String },
    #[error(
        "the commit {revision:?} is not found: no branch, tag or other ref of {url} leads to it{}",
        if is_commit(.revision) { "" } else { ", or the id is too short to be the only one" }
    )]
    UnknownCommit { revision: String, url: String },
    #[error("{url} has no HEAD: it is empty, or names a default branch that does not exist")]
    NoHead { url: String },
    #[error("{url} answered with a ref list that cannot be read: {line:?}")]
    UnreadableRefs { url: String, line: String },
    #[error("cannot use the folder {} for a fetch", .folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    #[error("the submodule {path:?} cannot be fetched: {source}")]
    Submodule { path: String, source: Box<SourceError> },
    #[error("submodules are nested more than {0} deep")]
    TooDeep(usize),
    #[error(
        "the checkout has more than {0} submodules in all, which is taken for a mistake: `update = none` in .gitmodules \
         leaves out those that are not needed"
    )]
    TooManySubmodules(usize),
    #[error("its place in the checkout is no empty folder")]
    NoPlace,
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

    /// The refusal behind it, if it is one.
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

/// A Git repository, what is wanted of it, and the folder inside it that the registry pointed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub url: String,
    pub revision: String,
    pub subdirectory: Option<String>,
}

/// What fetching needs of its surroundings.
#[derive(Debug, Clone)]
pub struct Fetcher {
    http: reqwest::Client,
    binary_paths: Vec<PathBuf>,
    scratch: PathBuf,
    host: Inherited,
    environment: Vec<(OsString, OsString)>,
    list_timeout: Duration,
    fetch_timeout: Duration,
    cache: Option<cache::Cache>,
    /// Whether the operator has chosen an ssh command; asked once.
    own_ssh: OnceCell<bool>,
    allowed: SourceRule,
    secrets: Option<JobSecrets>,
}

impl Fetcher {
    /// `binary_paths` is `Engine.AdditionalBinaryPaths`, `scratch` a folder for what is thrown away again.
    pub fn new(http: reqwest::Client, binary_paths: &[PathBuf], scratch: &Path) -> Self {
        Self {
            http,
            binary_paths: binary_paths.to_vec(),
            scratch: scratch.to_owned(),
            host: Inherited::of_this_process(),
            environment: Vec::new(),
            list_timeout: Duration::from_secs(120),
            fetch_timeout: Duration::from_secs(30 * 60),
            cache: None,
            own_ssh: OnceCell::new(),
            allowed: SourceRule::default(),
            secrets: None,
        }
    }

    /// Where credentials go that are met on the way: a registry may name a repository with a password of its own.
    #[must_use]
    pub fn secrets(mut self, secrets: JobSecrets) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// What git inherits of the host's environment.
    #[must_use]
    pub fn host_environment(mut self, host: Inherited) -> Self {
        self.host = host;
        self
    }

    /// Fetches from these places only, whoever names another: a request, a registry or a repository's submodules.
    #[must_use]
    pub fn allow_only(mut self, allowed: SourceRule) -> Self {
        self.allowed = allowed;
        self
    }

    /// Sets a variable for every git process.
    #[must_use]
    #[cfg(feature = "testing")]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// How long one transfer may take.
    #[must_use]
    pub fn fetch_timeout(mut self, timeout: Duration) -> Self {
        self.fetch_timeout = timeout;
        self
    }

    /// Keeps what is fetched in a folder that may be shared between processes, up to this many bytes.
    #[must_use]
    pub fn cache(mut self, folder: &Path, max_bytes: u64) -> Self {
        self.cache = Some(cache::Cache::new(folder, max_bytes));
        self
    }

    /// The repository behind a source; asks the registry when there is one.
    pub async fn locate(
        &self,
        source: &Source,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<Location, SourceError> {
        self.allowed.judge(&source.source_url).map_err(SourceError::Refused)?;
        let location = match source.source_type {
            SourceType::Git => Location {
                url: source.source_url.trim().to_owned(),
                revision: source.source_revision.trim().to_owned(),
                subdirectory: None,
            },
            SourceType::Registry
                if source.source_revision_type == SourceRevisionType::SemanticVersionRange =>
            {
                return Err(SourceError::RegistryRange);
            }
            SourceType::Registry => {
                let judge = |place: &str| self.allowed.judge(place).map_err(SourceError::Refused);
                let asked =
                    registry::download(&self.http, &source.source_url, &source.source_revision, judge);
                let (location, sent_on) = tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Err(SourceError::Cancelled),
                    location = asked => location?,
                };
                if let Some(secrets) = &self.secrets {
                    secrets.learn_credentials(&location.url);
                }
                for place in sent_on.iter().chain([&source.source_url]) {
                    registry::check_place(place, &location.url)?;
                }
                log(&format!("The registry names {} at {:?}", mask_url(&location.url), location.revision));
                location
            }
            other => return Err(SourceError::NotSupported(other.name())),
        };
        crate::base::git_url::check(&location.url)?;
        self.allowed.judge(&location.url).map_err(SourceError::Refused)?;
        Ok(location)
    }

    /// The commit that a located source means now.
    pub async fn definitive(
        &self,
        location: &Location,
        kind: SourceRevisionType,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, SourceError> {
        match kind {
            SourceRevisionType::Default => self.resolve_default(location, log, cancel).await,
            SourceRevisionType::SemanticVersionRange => self.resolve_range(location, log, cancel).await,
        }
    }

    async fn resolve_default(
        &self,
        location: &Location,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, SourceError> {
        let Location { url, revision, .. } = location;
        if is_commit(revision) {
            return Ok(revision.to_ascii_lowercase());
        }
        if !revision.is_empty() && !refs::is_valid_name(revision) {
            return Err(SourceError::InvalidRevision { revision: revision.clone() });
        }
        let listed = self.list_refs(url, &refs::candidates(revision), cancel).await?;
        let shown = mask_url(url);
        if let Some((name, commit)) = refs::choose(&listed, revision) {
            log(&format!("{name} of {shown} is at {commit}"));
            return Ok(commit);
        }
        if revision.is_empty() || revision == "HEAD" {
            return Err(SourceError::NoHead { url: shown });
        }
        if !is_abbreviated_commit(revision) {
            return Err(SourceError::UnknownRevision { revision: revision.clone(), url: shown });
        }
        log(&format!("No branch or tag {revision:?}: looking for a commit in the history of {shown}"));
        self.complete_commit(url, revision, cancel).await
    }

    async fn resolve_range(
        &self,
        location: &Location,
        log: JobLog<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, SourceError> {
        let Location { url, revision, .. } = location;
        let range = version_range::Range::parse(revision)?;
        let tags = refs::tags(&self.list_tags(url, cancel).await?);
        let shown = mask_url(url);
        let (tag, commit) = range.highest(&tags).ok_or_else(|| range.no_match(&tags, &shown))?;
        log(&format!("The highest tag of {shown} in {revision} is {tag}, at {commit}"));
        Ok(commit.to_owned())
    }
}

/// The definitive revision of a source, as `GetDefinitiveRevision` and `SourceRefresh` ask for it.
pub async fn resolve(
    source: &Source,
    fetcher: &Fetcher,
    log: JobLog<'_>,
    cancel: &CancellationToken,
) -> Result<String, SourceError> {
    let location = fetcher.locate(source, log, cancel).await?;
    fetcher.definitive(&location, source.source_revision_type, log, cancel).await
}
