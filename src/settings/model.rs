//! Every setting with its type, its default and what it is for.
//!
//! This is the only place that names the keys. The schema is generated from these types, and the loader takes
//! its knowledge from the schema: which keys there are, what each may hold (`format`, `minimum`, `maximum`,
//! `enum`), which are required, which are secret (`writeOnly`). So a new field here is a new setting everywhere.
//! Numbers have an upper bound so that no arithmetic on times and sizes can overflow later.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use hawser_contract::Engine;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::SecretString;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::patterns::{BackendPattern, FilePattern, FlagName, ModulePattern, SourcePattern, VariablePattern};

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
    pub source: SourceSettings,
    #[serde(default)]
    pub policy: PolicySettings,
    #[serde(default)]
    pub audit: AuditSettings,
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
    #[schemars(with = "Option<String>")]
    pub instance: String,
    pub credentials: CredentialSettings,
    /// How many steps (plans, applies, …) run at once. Revisions, refreshes and variables have a lane of their own.
    #[serde(default = "default_max_concurrent_steps")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent_steps: u32,
    /// How long a shutdown waits for running steps before it interrupts them. Not set: as long as they take.
    #[serde(default)]
    #[schemars(range(max = 31_536_000))]
    pub drain_timeout_seconds: Option<u64>,
    /// How long an engine that was interrupted by a graceful cancel may take to end before it is killed.
    #[serde(default = "default_cancel_grace_seconds")]
    #[schemars(range(max = 31_536_000))]
    pub cancel_grace_seconds: u64,
}

fn default_cancel_grace_seconds() -> u64 {
    600
}

fn default_max_concurrent_steps() -> u32 {
    4
}

/// The service principal that the runner authenticates as.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct CredentialSettings {
    /// Client id of the service principal, without the organization in front of it.
    pub client_id: String,
    /// Client secret of the service principal. Secret: keep it out of files that others can read.
    #[schemars(with = "String", extend("writeOnly" = true))]
    pub client_secret: SecretString,
}

/// Where the server is and how to reach it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ServerSettings {
    /// Base URL of the server, `http` or `https`, with its port; a path prefix and a trailing slash are fine.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub url: url::Url,
    /// PEM file with certificate authorities to trust besides the system's.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "path"))]
    pub ca_file: Option<PathBuf>,
    /// The largest message in bytes that the server accepts (`MaximumReceiveMessageSize` there).
    #[serde(default = "default_max_message_bytes")]
    #[schemars(range(min = 4096, max = 1_073_741_824))]
    pub max_message_bytes: usize,
    /// Refuse to start with a `Url` that is plain `http` and not on this machine, instead of warning about it.
    #[serde(default)]
    pub refuse_plain_http: bool,
    /// Talk to any server whatever certificate it shows: everybody on the way can read the credentials and send tasks.
    #[serde(default)]
    pub dangerously_accept_any_certificate: bool,
}

fn default_max_message_bytes() -> usize {
    32 * 1024
}

/// Directories for module sources, engine state and scratch space. A leading `~` expands to the home directory,
/// and a relative path counts from the directory that the runner was started in.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct WorkingDirectorySettings {
    /// Root of the module directories and of the runner's own state.
    #[schemars(with = "String", extend("format" = "path"))]
    pub working_directory: PathBuf,
    /// Scratch space per job, empty between jobs.
    #[schemars(with = "String", extend("format" = "path"))]
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
    #[schemars(with = "Option<String>", extend("format" = "path"))]
    pub preapproved_hooks_directory: Option<PathBuf>,
}

/// How engine binaries are found, and what they share.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct EngineSettings {
    /// Directories put in front of PATH when looking for terraform, tofu and pulumi.
    #[schemars(schema_with = "paths")]
    pub additional_binary_paths: Vec<PathBuf>,
    /// Keep the providers of terraform and tofu once for all modules, in `plugincache` of the working directory.
    pub plugin_cache_enabled: bool,
    /// Names of the host's environment variables that engines and hooks get, `*` standing for any text. Not set: all
    /// but the runner's own. `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TMPDIR`, `TZ`, `LANG`, `LANGUAGE`, `LC_*`,
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR` are always there, proxies only when they are named. Not for git.
    pub environment_allow_list: Option<Vec<String>>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self { additional_binary_paths: Vec::new(), plugin_cache_enabled: true, environment_allow_list: None }
    }
}

/// How module sources are fetched.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct SourceSettings {
    /// Keep a bare copy of every repository in `{WorkingDirectory}/sourcecache`, so that only what is new is fetched.
    pub cache_enabled: bool,
    /// Disk space in bytes that these copies may use. Beyond it the least recently used goes first.
    #[schemars(range(max = 1_125_899_906_842_624_u64))]
    pub cache_max_bytes: u64,
    /// How long one transfer from a Git server may take.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub fetch_timeout_seconds: u64,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self { cache_enabled: true, cache_max_bytes: 5 * 1024 * 1024 * 1024, fetch_timeout_seconds: 1800 }
    }
}

/// What this runner refuses to do, whatever a server asks for. A list that is not set allows everything, an empty
/// one nothing. `*` stands for any text.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicySettings {
    /// The engines that may be run.
    pub allowed_engines: Option<Vec<Engine>>,
    /// URLs that module sources may come from, with their scheme: those of requests, of registries' answers and of
    /// submodules. `git@host:path` counts as `ssh://git@host/path`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_sources: Option<Vec<SourcePattern>>,
    /// Modules that may be worked on, as `stack/namespace/module`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_modules: Option<Vec<ModulePattern>>,
    /// Flags that may stand on an engine's command line, as in the contract: `Target`, `Parallelism`, `Var`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_flags: Option<Vec<FlagName>>,
    /// Files that a server may add to a module, by their names and paths below its directory: `backend.tf`, `conf/*.yaml`.
    /// `*` stays between two slashes. Such a file can be code.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_extra_files: Option<Vec<FilePattern>>,
    /// Names of environment variables that a server may give to a module: `AWS_REGION`, `TF_VAR_*`. A variable can be
    /// code (`GIT_SSH_COMMAND`, `LD_PRELOAD`, `AWS_CONFIG_FILE`).
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_variables: Option<Vec<VariablePattern>>,
    /// Backend settings that a server may give to an init, by name or with the values that they may have: `key`,
    /// `bucket=my-state-*`. A setting can be code (`shared_config_files`) and read the host's environment. For Pulumi:
    /// `CloudUrl`. A file of settings counts by its exact name.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_backend_settings: Option<Vec<BackendPattern>>,
    /// Refuse applies and destroys, and an init that moves a state; everything before them is done.
    pub plan_only: bool,
    /// Which hooks are run. `Preapproved`: those that match a file of `HooksPreapproval.PreapprovedHooksDirectory`, as
    /// `HooksPreapproval.Enabled` has it too. `None`: a task with a hook is refused.
    pub hooks: HookPolicy,
}

/// Every entry as the type that requests are compared with.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(list: D) -> Result<Option<Vec<T>>, D::Error> {
    let Some(texts) = Option::<Vec<String>>::deserialize(list)? else { return Ok(None) };
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect::<Result<_, _>>().map(Some)
}

/// Which hooks are run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookPolicy {
    #[default]
    All,
    Preapproved,
    None,
}

/// The record of what was asked of this runner and what it did.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuditSettings {
    /// File to which one line of JSON is appended for every task that is accepted, refused, cancelled or finished. Not
    /// set: `audit.jsonl` in `.hawser` of the working directory.
    #[schemars(with = "Option<String>", extend("format" = "path"))]
    pub file: Option<PathBuf>,
}

/// How job logs are batched on their way to the server, and what is masked in them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobLogStreamSettings {
    /// Entries that make a batch full.
    #[schemars(range(min = 1, max = 100_000))]
    pub batch_size_limit: u32,
    /// Seconds after its first entry at which a batch is sent though it is not full.
    #[schemars(range(max = 86_400))]
    pub period_seconds: u64,
    /// Send the first entry after a silence at once.
    pub eagerly_emit_first_event: bool,
    /// Disk space in bytes that unsent logs may use. Not set: no cap. At the cap the oldest unsent lines of the
    /// largest step give way, and one entry says how many.
    pub max_unsent_bytes: Option<u64>,
    /// Names of environment variables, backend settings, parameters and outputs whose values are masked, `*` standing for
    /// any text, in any case. A name with `!` in front is taken out again.
    pub redact_names: Vec<String>,
    /// More values to mask. Secret: keep them out of files that others can read.
    #[schemars(schema_with = "secrets", extend("default" = []))]
    pub redact_values: Vec<SecretString>,
    /// Regular expressions; what they match within a line is masked too.
    #[schemars(schema_with = "regexes", extend("default" = []))]
    pub redact_patterns: Vec<String>,
    /// A value shorter than this is never masked.
    #[schemars(range(min = 4, max = 1024))]
    pub redact_minimum_length: usize,
}

/// What names of secrets look like. `_FILE` and its like say where a secret is or what it is called, not what it is.
const SECRET_NAMES: [&str; 41] = [
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*_PASS",
    "*_PWD",
    "*TOKEN*",
    "*CREDENTIAL*",
    "*_CREDS",
    "*APIKEY*",
    "*ACCESSKEY",
    "*PRIVATE*KEY*",
    "*_KEY",
    "*_PAT",
    "*_DSN",
    "*_AUTH",
    "*_JWT",
    "*CONNECTION_STRING*",
    "*SAS_URL*",
    "*WEBHOOK_URL*",
    "ARM_CLIENT_CERTIFICATE",
    "!*_FILE",
    "!*_PATH",
    "!*_DIR",
    "!*_URI",
    "!*_ENDPOINT",
    "!*_NAME",
    "!*_ARN",
    "!*_TYPE",
    "!*_KEY_ID",
    "!*_TTL",
    "!*_LENGTH",
    "!*_EXPIR*",
    "!*_ISSUER",
    "!*_AUDIENCE",
    "!*TOKEN*_URL",
    "!*STATE_KEY",
    "!*PARTITION_KEY",
    "!*SORT_KEY",
    "!*PUBLIC*KEY*",
    "!GOOGLE_APPLICATION_CREDENTIALS",
];

impl Default for JobLogStreamSettings {
    fn default() -> Self {
        Self {
            batch_size_limit: 50,
            period_seconds: 5,
            eagerly_emit_first_event: true,
            max_unsent_bytes: None,
            redact_names: SECRET_NAMES.map(str::to_owned).into(),
            redact_values: Vec::new(),
            redact_patterns: Vec::new(),
            redact_minimum_length: 6,
        }
    }
}

/// Filters of the runtime log on stdout.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoggingSettings {
    /// Category to minimum level. The longest category that a module's name begins with counts, `Default` where
    /// there is none. `hawser::shipping` and `Hawser.Shipping` are the same category.
    pub log_level: BTreeMap<String, Level>,
}

/// Level names as .NET writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Level {
    Trace,
    Debug,
    Information,
    Warning,
    Error,
    Critical,
    None,
}

/// A list in the schema, of texts with more to say about each.
fn list_of(item: &Value) -> Schema {
    json_schema!({ "type": "array", "items": item })
}

/// `format` tells the loader to expand `~` and to make each path absolute.
fn paths(_: &mut SchemaGenerator) -> Schema {
    list_of(&json!({ "type": "string", "format": "path" }))
}

/// `format` tells the loader to check each expression.
fn regexes(_: &mut SchemaGenerator) -> Schema {
    list_of(&json!({ "type": "string", "format": "regex" }))
}

/// `writeOnly` tells the loader never to show them.
fn secrets(_: &mut SchemaGenerator) -> Schema {
    list_of(&json!({ "type": "string", "writeOnly": true }))
}
