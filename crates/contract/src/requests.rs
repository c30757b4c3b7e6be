//! What the server pushes: the tasks of a job, source refreshes and cancels.
//!
//! A payload is one flat object. It is read in parts (what all tasks have, the source, the flag lists, the
//! task's own members), each from the same object, so that an error can name the member at fault.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::enums::{Engine, SourceRevisionType, SourceType};
use crate::flags::{FlagList, FlagLists, PulumiArrayFlag, PulumiFlag, TerraformArrayFlag, TerraformFlag};
use crate::names::{Task, method};
use crate::reading::{or_default, part, recase, string_map, without_value};

/// What every task of a job carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Common {
    pub job_id: Uuid,
    pub organization_id: Uuid,
    pub metadata: Metadata,
    /// How often a running task is reported again.
    #[serde(default = "default_report_frequency", deserialize_with = "frequency_or_default")]
    pub report_active_job_frequency_seconds: u64,
}

fn default_report_frequency() -> u64 {
    60
}

fn frequency_or_default<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(default_report_frequency))
}

/// Which module the task is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub stack_name: String,
    pub namespace_name: String,
    pub module_name: String,
    pub module_id: Uuid,
    #[serde(default)]
    pub source_subdirectory: Option<String>,
}

/// Where the module's source is and which revision of it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub source_type: SourceType,
    pub source_revision_type: SourceRevisionType,
    pub source_url: String,
    #[serde(default, deserialize_with = "or_default")]
    pub source_revision: String,
    #[serde(default)]
    pub source_definitive_revision: Option<String>,
    #[serde(default)]
    pub source_semantic_version: Option<String>,
}

/// `GetModule`, besides its [`Source`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModule {
    pub engine: Engine,
    #[serde(deserialize_with = "or_default")]
    pub clean_init_enabled: bool,
    #[serde(deserialize_with = "or_default")]
    pub extra_files: Vec<ExtraFile>,
}

/// A file that the server wants in the init directory beside the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtraFile {
    pub file_name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub contents: String,
    #[serde(default, deserialize_with = "or_default")]
    pub overwrite: bool,
    #[serde(default)]
    #[schemars(with = "Option<Value>")]
    pub source: Value,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Init {
    pub engine: Engine,
    pub init_before_hook: Option<String>,
    pub init_after_hook: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub backend_configuration: BackendConfiguration,
    #[serde(deserialize_with = "or_default")]
    pub flags: InitFlags,
    #[serde(deserialize_with = "or_default")]
    pub clean_init_enabled: bool,
    #[serde(deserialize_with = "string_map")]
    pub resolved_env_vars: BTreeMap<String, String>,
}

/// Backend settings, and for Init the flag lists as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendConfiguration {
    #[serde(deserialize_with = "or_default")]
    pub ignore_namespace_backend_configs: bool,
    #[serde(deserialize_with = "or_default")]
    pub namespace_backend_configs: Vec<BackendConfig>,
    #[serde(deserialize_with = "or_default")]
    pub module_backend_configs: Vec<BackendConfig>,
    pub terraform_flags: FlagList<TerraformFlag>,
    pub terraform_array_flags: FlagList<TerraformArrayFlag>,
    pub pulumi_flags: FlagList<PulumiFlag>,
    pub pulumi_array_flags: FlagList<PulumiArrayFlag>,
}

impl BackendConfiguration {
    pub fn flag_lists(&self) -> FlagLists {
        FlagLists {
            terraform_flags: self.terraform_flags.clone(),
            terraform_array_flags: self.terraform_array_flags.clone(),
            pulumi_flags: self.pulumi_flags.clone(),
            pulumi_array_flags: self.pulumi_array_flags.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendConfig {
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub value: String,
}

/// Deprecated switches of Init, still honoured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitFlags {
    #[serde(deserialize_with = "or_default")]
    pub auto_upgrade_enabled: bool,
    #[serde(deserialize_with = "or_default")]
    pub auto_reconfigure_enabled: bool,
    #[serde(deserialize_with = "or_default")]
    pub auto_migrate_enabled: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Validate {
    pub engine: Engine,
    pub validate_before_hook: Option<String>,
    pub validate_after_hook: Option<String>,
}

/// Variable discovery, pushed as `Input`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Input {
    pub engine: Engine,
    #[serde(deserialize_with = "or_default")]
    pub extra_file_names: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Plan {
    pub engine: Engine,
    pub plan_before_hook: Option<String>,
    pub plan_after_hook: Option<String>,
    #[serde(deserialize_with = "string_map")]
    pub resolved_parameters: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanDestroy {
    pub engine: Engine,
    pub plan_destroy_before_hook: Option<String>,
    pub plan_destroy_after_hook: Option<String>,
    #[serde(deserialize_with = "string_map")]
    pub resolved_parameters: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApplyFromPlan {
    pub engine: Engine,
    pub apply_before_hook: Option<String>,
    pub apply_after_hook: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DestroyFromPlan {
    pub engine: Engine,
    pub destroy_before_hook: Option<String>,
    pub destroy_after_hook: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Output {
    pub engine: Engine,
    pub output_before_hook: Option<String>,
    pub output_after_hook: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub extra_file_names: Vec<String>,
}

/// Asks what a source's revision points at now; belongs to no job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceRefresh {
    pub organization_id: Uuid,
    pub source_url: String,
    #[serde(default, deserialize_with = "or_default")]
    pub source_revision: String,
    pub source_type: SourceType,
    pub source_revision_type: SourceRevisionType,
}

impl SourceRefresh {
    pub fn source(&self) -> Source {
        Source {
            source_type: self.source_type,
            source_revision_type: self.source_revision_type,
            source_url: self.source_url.clone(),
            source_revision: self.source_revision.clone(),
            source_definitive_revision: None,
            source_semantic_version: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CancelRequest {
    pub job_id: Uuid,
}

/// How a job is to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CancelKind {
    /// Interrupt the engine as Ctrl-C would.
    Graceful,
    /// End the whole process tree now.
    Kill,
}

impl CancelKind {
    pub fn pushed_as(self) -> &'static str {
        match self {
            Self::Graceful => method::CANCEL_GRACEFUL,
            Self::Kill => method::CANCEL_KILL,
        }
    }

    pub fn completed_method(self) -> &'static str {
        match self {
            Self::Graceful => method::CANCEL_GRACEFUL_COMPLETED,
            Self::Kill => method::CANCEL_KILL_COMPLETED,
        }
    }
}

/// A task with what all tasks have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub common: Common,
    pub task: TaskRequest,
}

/// The members that each task has of its own, in the parts in which they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskRequest {
    GetDefinitiveRevision(Source),
    GetModule(Source, GetModule),
    Init(Init),
    Validate(Validate),
    Variables(Input),
    Plan(Plan, FlagLists),
    PlanDestroy(PlanDestroy, FlagLists),
    ApplyFromPlan(ApplyFromPlan, FlagLists),
    DestroyFromPlan(DestroyFromPlan, FlagLists),
    Output(Output, FlagLists),
}

impl TaskRequest {
    pub fn task(&self) -> Task {
        match self {
            Self::GetDefinitiveRevision(_) => Task::GetDefinitiveRevision,
            Self::GetModule(..) => Task::GetModule,
            Self::Init(_) => Task::Init,
            Self::Validate(_) => Task::Validate,
            Self::Variables(_) => Task::Variables,
            Self::Plan(..) => Task::Plan,
            Self::PlanDestroy(..) => Task::PlanDestroy,
            Self::ApplyFromPlan(..) => Task::ApplyFromPlan,
            Self::DestroyFromPlan(..) => Task::DestroyFromPlan,
            Self::Output(..) => Task::Output,
        }
    }
}

impl Request {
    fn read(task: Task, value: &Value) -> Result<Self, serde_path_to_error::Error<serde_json::Error>> {
        let request = match task {
            Task::GetDefinitiveRevision => TaskRequest::GetDefinitiveRevision(part(value)?),
            Task::GetModule => TaskRequest::GetModule(part(value)?, part(value)?),
            Task::Init => TaskRequest::Init(part(value)?),
            Task::Validate => TaskRequest::Validate(part(value)?),
            Task::Variables => TaskRequest::Variables(part(value)?),
            Task::Plan => TaskRequest::Plan(part(value)?, part(value)?),
            Task::PlanDestroy => TaskRequest::PlanDestroy(part(value)?, part(value)?),
            Task::ApplyFromPlan => TaskRequest::ApplyFromPlan(part(value)?, part(value)?),
            Task::DestroyFromPlan => TaskRequest::DestroyFromPlan(part(value)?, part(value)?),
            Task::Output => TaskRequest::Output(part(value)?, part(value)?),
        };
        Ok(Self { common: part(value)?, task: request })
    }

    /// The one flat object that goes over the wire, as the server writes it.
    pub fn write(&self) -> Value {
        let mut object = Map::new();
        let mut add = |part: Result<Value, serde_json::Error>| {
            if let Ok(Value::Object(members)) = part {
                object.extend(members);
            }
        };
        add(serde_json::to_value(&self.common));
        match &self.task {
            TaskRequest::GetDefinitiveRevision(source) => add(serde_json::to_value(source)),
            TaskRequest::GetModule(source, own) => {
                add(serde_json::to_value(source));
                add(serde_json::to_value(own));
            }
            TaskRequest::Init(own) => add(serde_json::to_value(own)),
            TaskRequest::Validate(own) => add(serde_json::to_value(own)),
            TaskRequest::Variables(own) => add(serde_json::to_value(own)),
            TaskRequest::Plan(own, flags) => {
                add(serde_json::to_value(own));
                add(serde_json::to_value(flags));
            }
            TaskRequest::PlanDestroy(own, flags) => {
                add(serde_json::to_value(own));
                add(serde_json::to_value(flags));
            }
            TaskRequest::ApplyFromPlan(own, flags) => {
                add(serde_json::to_value(own));
                add(serde_json::to_value(flags));
            }
            TaskRequest::DestroyFromPlan(own, flags) => {
                add(serde_json::to_value(own));
                add(serde_json::to_value(flags));
            }
            TaskRequest::Output(own, flags) => {
                add(serde_json::to_value(own));
                add(serde_json::to_value(flags));
            }
        }
        Value::Object(object)
    }
}

/// Anything that the server pushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    Task(Box<Request>),
    SourceRefresh(SourceRefresh),
    Cancel(CancelKind, Uuid),
}

/// Why a pushed message could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("unknown method {method:?}")]
    UnknownMethod { method: String },
    #[error("the payload of {method} cannot be read: {reason}")]
    Unreadable {
        method: String,
        /// Set when the answer can be that task's `…Faulted`.
        answer_to: Option<(Task, Uuid)>,
        reason: String,
    },
}

impl Push {
    pub fn read(method: &str, arguments: &[Value]) -> Result<Self, PushError> {
        enum Known {
            Task(Task),
            Refresh,
            Cancel(CancelKind),
        }
        let known = if let Some(task) = Task::from_pushed(method) {
            Known::Task(task)
        } else if method.eq_ignore_ascii_case(method::SOURCE_REFRESH) {
            Known::Refresh
        } else if method.eq_ignore_ascii_case(method::CANCEL_GRACEFUL) {
            Known::Cancel(CancelKind::Graceful)
        } else if method.eq_ignore_ascii_case(method::CANCEL_KILL) {
            Known::Cancel(CancelKind::Kill)
        } else {
            return Err(PushError::UnknownMethod { method: method.to_owned() });
        };

        let value = match arguments {
            [value @ Value::Object(_)] => recase(value.clone()),
            // CancelGraceful and CancelKill with the bare id in place of the object are understood too.
            [Value::String(id)] if matches!(known, Known::Cancel(_)) => serde_json::json!({ "jobId": id }),
            other => {
                return Err(PushError::Unreadable {
                    method: method.to_owned(),
                    answer_to: None,
                    reason: format!("expected one object argument, got {} argument(s)", other.len()),
                });
            }
        };
        let unreadable = |task: Option<Task>| {
            let job_id = value.get("jobId").and_then(Value::as_str).and_then(|id| id.parse().ok());
            let answer_to = task.zip(job_id);
            let method = method.to_owned();
            move |error: serde_path_to_error::Error<serde_json::Error>| PushError::Unreadable {
                method,
                answer_to,
                reason: format!("at {}: {}", error.path(), without_value(error.inner())),
            }
        };
        match known {
            Known::Task(task) => Request::read(task, &value)
                .map(|request| Self::Task(Box::new(request)))
                .map_err(unreadable(Some(task))),
            Known::Refresh => part(&value).map(Self::SourceRefresh).map_err(unreadable(None)),
            Known::Cancel(kind) => part::<CancelRequest>(&value)
                .map(|cancel| Self::Cancel(kind, cancel.job_id))
                .map_err(unreadable(None)),
        }
    }
}

#[cfg(test)]
mod tests;
