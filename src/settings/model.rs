//! Every setting with its type, its default and what it is for. The schema and the documentation are made
//! from these types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use uuid::Uuid;

/// All settings of a runner, complete and checked.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Settings {
    pub runner: RunnerSettings,
    pub server: ServerSettings,
    #[serde(default)]
    pub working_directory: WorkingDirectorySettings,
    #[serde(default)]
    pub hooks_preapproval: HooksPreapprovalSettings,
    #[serde(default)]
    pub engine: EngineSettings,
    #[serde(default)]
    pub job_log_stream: JobLogStreamSettings,
    #[serde(default)]
    pub logging: LoggingSettings,
}

/// Who this runner is, and how much it does at once.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RunnerSettings {
    /// Identifier of the runner record on the server that this process binds to.
    pub id: Uuid,
    /// Identifier of the organization that the runner record belongs to.
    pub organization_id: Uuid,
    /// Name that tells the replicas of one runner record apart. Falls back to the host name.
    pub instance: String,
    /// The service principal that the runner authenticates as.
    pub credentials: CredentialSettings,
    /// How many steps (plans, applies, …) run at once. Revisions, refreshes and variables have a lane of their own.
    #[serde(default = "default_max_concurrent_steps")]
    #[schemars(range(min = 1))]
    pub max_concurrent_steps: u32,
    /// How long a shutdown waits for running steps before it interrupts them. Not set: as long as they take.
    #[serde(default)]
    pub drain_timeout_seconds: Option<u64>,
}

fn default_max_concurrent_steps() -> u32 {
    4
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct CredentialSettings {
    /// Client id of the service principal, without the organization in front of it.
    pub client_id: String,
    /// Client secret of the service principal. Secret: keep it out of files that others can read.
    #[schemars(with = "String")]
    pub client_secret: SecretString,
}

/// Where the server is and how to reach it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ServerSettings {
    /// Base URL of the server with scheme and port; a path prefix is fine.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub url: url::Url,
    /// PEM file with certificate authorities to trust besides the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The largest message in bytes that the server accepts (`MaximumReceiveMessageSize` there).
    #[serde(default = "default_max_message_bytes")]
    #[schemars(range(min = 4096))]
    pub max_message_bytes: usize,
}

fn default_max_message_bytes() -> usize {
    32 * 1024
}

/// Directories for module sources, engine state and scratch space. A leading `~` expands to the home directory.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct WorkingDirectorySettings {
    /// Root of the module directories and of the runner's own state.
    pub working_directory: PathBuf,
    /// Scratch space per job, empty between jobs.
    pub temp_directory: PathBuf,
}

impl Default for WorkingDirectorySettings {
    fn default() -> Self {
        Self { working_directory: "~/.snapcd/runner".into(), temp_directory: "~/.snapcd/runner/.temp".into() }
    }
}

/// Optional allow list of hook scripts, by content.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct HooksPreapprovalSettings {
    /// Refuse every hook whose text is not that of a file in the directory.
    pub enabled: bool,
    /// Directory with the approved hooks, searched recursively; file names do not matter.
    pub preapproved_hooks_directory: Option<PathBuf>,
}

/// How engine binaries are found.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct EngineSettings {
    /// Directories put in front of PATH when looking for terraform, tofu and pulumi.
    pub additional_binary_paths: Vec<PathBuf>,
}

/// How job logs are batched on their way to the server.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobLogStreamSettings {
    /// Entries that make a batch full.
    #[schemars(range(min = 1))]
    pub batch_size_limit: u32,
    /// Seconds after its first entry at which a batch is sent though it is not full.
    pub period_seconds: u64,
    /// Send the first entry after a silence at once.
    pub eagerly_emit_first_event: bool,
    /// Disk space in bytes that unsent logs may use. Not set: no cap. At the cap the oldest unsent lines of the
    /// largest step give way, and one entry says how many.
    pub max_unsent_bytes: Option<u64>,
}

impl Default for JobLogStreamSettings {
    fn default() -> Self {
        Self {
            batch_size_limit: 50,
            period_seconds: 5,
            eagerly_emit_first_event: true,
            max_unsent_bytes: None,
        }
    }
}

/// Filters of the runtime log on stdout.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoggingSettings {
    /// Category to minimum level; `Default` applies when nothing longer matches.
    pub log_level: BTreeMap<String, Level>,
}

/// Level names as .NET writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
pub enum Level {
    Trace,
    Debug,
    Information,
    Warning,
    Error,
    Critical,
    None,
}
