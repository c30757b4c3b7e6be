//! Every setting with its type, its default, and its description.
//!
//! Only these types define the keys. The schema is generated from them, and the loader uses the schema: the keys, their values
//! (`format`, `minimum`, `maximum`, `enum`), which keys are required, and which are secret (`writeOnly`). A new field here is
//! a new setting everywhere. Numbers have an upper bound, so that arithmetic on times and sizes cannot overflow.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use hawser_contract::EngineName;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::SecretString;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::patterns::{BackendPattern, FilePattern, FlagName, ModulePattern, SourcePattern, VariablePattern};

/// All settings of a runner.
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

/// The identity of this runner, and how much it does at once.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RunnerSettings {
    /// Identifier of the runner record on the server.
    pub id: Uuid,
    /// Identifier of the organization that the runner record belongs to.
    pub organization_id: Uuid,
    /// Name that tells the replicas of one runner record apart. The server accepts one connection per name, and unsent results
    /// are stored under it, so choose a name that stays the same when a container is recreated. Not set: the host name.
    #[schemars(with = "Option<String>")]
    pub instance: String,
    pub credentials: CredentialSettings,
    /// How many steps (plans, applies, …) run at once. Revisions, refreshes, and variables do not count.
    #[serde(default = "default_max_concurrent_steps")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent_steps: u32,
    /// How long a drain waits for running steps before it interrupts them. Not set: until they finish.
    #[serde(default)]
    #[schemars(range(max = 31_536_000))]
    pub drain_timeout_seconds: Option<u64>,
    /// How long an engine may take to stop after a graceful cancel before it is killed.
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
    /// Client ID of the service principal, without the organization prefix.
    pub client_id: String,
    /// Client secret of the service principal. Keep it out of files that others can read.
    #[schemars(with = "String", extend("writeOnly" = true))]
    pub client_secret: SecretString,
}

/// Where the server is and how to reach it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ServerSettings {
    /// Base URL, `http` or `https`, with the port. A path prefix and a trailing slash are fine.
    #[schemars(with = "String", extend("format" = "uri"))]
    pub url: url::Url,
    /// PEM file with certificate authorities to trust in addition to the system's.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "path"))]
    pub ca_file: Option<PathBuf>,
    /// The largest message in bytes that the server accepts (`MaximumReceiveMessageSize` there).
    #[serde(default = "default_max_message_bytes")]
    #[schemars(range(min = 4096, max = 1_073_741_824))]
    pub max_message_bytes: usize,
    /// Refuse to start if `Url` is plain `http` to another machine. Otherwise the runner only warns.
    #[serde(default)]
    pub refuse_plain_http: bool,
    /// Accept any server certificate. Anyone on the network path can then read the credentials and send tasks.
    #[serde(default)]
    pub dangerously_accept_any_certificate: bool,
}

fn default_max_message_bytes() -> usize {
    32 * 1024
}

/// Directories for module sources, local state, and scratch space. A leading `~` expands to the home directory, and a relative
/// path is resolved against the directory that the runner was started in.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct WorkingDirectorySettings {
    /// Module directories, local state, caches, and the runner's step folders.
    #[schemars(with = "String", extend("format" = "path"))]
    pub working_directory: PathBuf,
    /// Scratch space. Each step gets a folder here as its `TMPDIR`; the folder is removed with the step.
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

/// How engines are found, and what they share.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct EngineSettings {
    /// Directories put in front of `PATH` when looking for an engine.
    #[schemars(schema_with = "paths")]
    pub additional_binary_paths: Vec<PathBuf>,
    /// Store each Terraform or OpenTofu provider once for all modules, in `plugincache` of the working directory.
    pub plugin_cache_enabled: bool,
    /// Environment variables of the host that engines and hooks get, such as `AWS_*`. Not set: all except the runner's own,
    /// which are never passed on. `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TMPDIR`, `TZ`, `LANG`, `LANGUAGE`, `LC_*`,
    /// `SSL_CERT_FILE`, and `SSL_CERT_DIR` always are. Name the proxy variables if engines need them. Git is not affected.
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
    /// Keep a bare copy of every repository in `sourcecache` of the working directory, so that only new commits are fetched.
    pub cache_enabled: bool,
    /// Disk space for these copies, in bytes. Beyond it, the least recently used copy is removed first.
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

/// What this runner refuses to do, regardless of the server. A list that is not set allows everything; an empty list allows
/// nothing. `*` matches any text.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicySettings {
    /// Engines that may run.
    pub allowed_engines: Option<Vec<EngineName>>,
    /// URLs that module sources may come from, with their scheme, such as `https://github.com/my-org/*`. Applies to registry
    /// answers and submodules too. `git@host:path` counts as `ssh://git@host/path`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_sources: Option<Vec<SourcePattern>>,
    /// Modules that may be worked on, as `stack/namespace/module`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_modules: Option<Vec<ModulePattern>>,
    /// Engine flags that may be used, by their names in the protocol: `Target`, `Parallelism`, `Var`.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_flags: Option<Vec<FlagName>>,
    /// Files that a server may add to a module, by their paths below its directory: `backend.tf`, `conf/*.yaml`. `*` does not
    /// match a slash. Such a file can contain code.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_extra_files: Option<Vec<FilePattern>>,
    /// Environment variables that a server may give to a module: `AWS_REGION`, `TF_VAR_*`. A variable can lead to code
    /// (`GIT_SSH_COMMAND`, `LD_PRELOAD`, `AWS_CONFIG_FILE`).
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_variables: Option<Vec<VariablePattern>>,
    /// Backend settings that a server may give to an init, by name or by name and value: `key`, `bucket=my-state-*`. A setting
    /// can lead to code (`shared_config_files`) and read the host's environment. For Pulumi: `CloudUrl`. A file of settings
    /// must be listed by its exact name.
    #[serde(deserialize_with = "parsed")]
    #[schemars(with = "Option<Vec<String>>", extend("default" = null))]
    pub allowed_backend_settings: Option<Vec<BackendPattern>>,
    /// Refuse applies and destroys, and an init that moves a state.
    pub plan_only: bool,
    /// Which hooks may run. `Preapproved`: those that match a file in `HooksPreapproval.PreapprovedHooksDirectory`, the same as
    /// `HooksPreapproval.Enabled`. `None`: refuse a task that has a hook.
    pub hooks: HookPolicy,
}

/// Parses every entry of a list.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(list: D) -> Result<Option<Vec<T>>, D::Error> {
    let Some(texts) = Option::<Vec<String>>::deserialize(list)? else { return Ok(None) };
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect::<Result<_, _>>().map(Some)
}

/// Which hooks may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookPolicy {
    #[default]
    All,
    Preapproved,
    None,
}

/// The record of what this runner was asked to do and what it did.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuditSettings {
    /// File for the audit log: one line of JSON for every task that is accepted, refused, cancelled, or finished, and for every
    /// command of `hawser exec`. Not set: `.hawser/audit.jsonl` in the working directory.
    #[schemars(with = "Option<String>", extend("format" = "path"))]
    pub file: Option<PathBuf>,
}

/// How job logs are sent, and what is masked in them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobLogStreamSettings {
    /// Entries that make a batch full.
    #[schemars(range(min = 1, max = 100_000))]
    pub batch_size_limit: u32,
    /// Age in seconds at which a batch is sent even if it is not full.
    #[schemars(range(max = 86_400))]
    pub period_seconds: u64,
    /// Send the first entry after a pause at once.
    pub eagerly_emit_first_event: bool,
    /// Disk space in bytes that unsent logs may use. Beyond it, the oldest lines of the largest step are dropped, and a log
    /// entry states how many. Not set: nothing is dropped.
    pub max_unsent_bytes: Option<u64>,
    /// Names of variables, backend settings, parameters, and outputs whose values are masked, case-insensitive. `*` matches any
    /// text, and `!` in front of a pattern excludes names again. Pulumi encrypts parameters with such names. A list replaces
    /// the default.
    pub redact_names: Vec<String>,
    /// More values to mask. Keep them out of files that others can read.
    #[schemars(schema_with = "secrets", extend("default" = []))]
    pub redact_values: Vec<SecretString>,
    /// Regular expressions for text to mask within a line.
    #[schemars(schema_with = "regexes", extend("default" = []))]
    pub redact_patterns: Vec<String>,
    /// Shorter values are never masked.
    #[schemars(range(min = 4, max = 1024))]
    pub redact_minimum_length: usize,
}

/// Typical names of secrets. Names such as `*_FILE` contain the location or the name of a secret, not the secret.
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

/// The runtime log on stdout.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoggingSettings {
    /// Minimum levels by module. The longest matching name counts, `Default` otherwise. `hawser::shipping` and
    /// `Hawser.Shipping` are the same name.
    pub log_level: BTreeMap<String, Level>,
}

/// Levels by their names in .NET.
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
