//! What the server pushes: the tasks of a job, source refreshes and cancels.
//!
//! A payload is one flat object. It is read in parts (common members, source, members of the task), each from the
//! same object, so that an error can name the member.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::engine_task::{EngineTask, Hook};
use crate::enums::{EngineName, SourceRevisionType, SourceType};
use crate::names::{Task, method};
use crate::reading::{MemberError, members, normalize, part};

/// The members that every task of a job has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Common {
    pub job_id: Uuid,
    pub organization_id: Uuid,
    pub metadata: Metadata,
    /// How often a running task is reported again.
    #[serde(default = "default_report_frequency")]
    pub report_active_job_frequency_seconds: u64,
}

fn default_report_frequency() -> u64 {
    60
}

/// The module of the task.
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

/// The source of the module, and the requested revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub source_type: SourceType,
    pub source_revision_type: SourceRevisionType,
    pub source_url: String,
    #[serde(default)]
    pub source_revision: String,
    #[serde(default)]
    pub source_definitive_revision: Option<String>,
    #[serde(default)]
    pub source_semantic_version: Option<String>,
}

/// The members of `GetModule` besides its [`Source`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetModule {
    pub engine: EngineName,
    pub clean_init_enabled: bool,
    pub extra_files: Vec<ExtraFile>,
}

/// A file to add to the init directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtraFile {
    pub file_name: String,
    #[serde(default)]
    pub contents: String,
    #[serde(default)]
    pub overwrite: bool,
    #[serde(default)]
    #[schemars(with = "Option<Value>")]
    pub source: Value,
}

/// Asks which commit a revision points to now. Belongs to no job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceRefresh {
    pub organization_id: Uuid,
    pub source_url: String,
    #[serde(default)]
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

/// How to stop a job.
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
}

/// A task with the members that all tasks have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub common: Common,
    pub task: TaskRequest,
}

/// The members of a task, besides those that all tasks have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "`Push` boxes the whole request")]
pub enum TaskRequest {
    GetDefinitiveRevision(Source),
    GetModule(Source, GetModule),
    Engine(EngineTask),
}

impl TaskRequest {
    pub fn task(&self) -> Task {
        match self {
            Self::GetDefinitiveRevision(_) => Task::GetDefinitiveRevision,
            Self::GetModule(..) => Task::GetModule,
            Self::Engine(task) => task.task,
        }
    }

    /// The engine that the task names. Only `GetDefinitiveRevision` names none.
    pub fn engine(&self) -> Option<&EngineName> {
        match self {
            Self::GetDefinitiveRevision(_) => None,
            Self::GetModule(_, module) => Some(&module.engine),
            Self::Engine(task) => Some(&task.engine),
        }
    }

    pub fn engine_task(&self) -> Option<&EngineTask> {
        match self {
            Self::Engine(task) => Some(task),
            _ => None,
        }
    }

    pub fn hooks(&self) -> [Option<Hook<'_>>; 2] {
        self.engine_task().map_or([None, None], EngineTask::hooks)
    }

    pub fn source(&self) -> Option<&Source> {
        match self {
            Self::GetDefinitiveRevision(source) | Self::GetModule(source, _) => Some(source),
            Self::Engine(_) => None,
        }
    }
}

impl Request {
    fn read(task: Task, value: &Value) -> Result<Self, MemberError> {
        let request = match task {
            Task::GetDefinitiveRevision => TaskRequest::GetDefinitiveRevision(part(value)?),
            Task::GetModule => TaskRequest::GetModule(part(value)?, part(value)?),
            _ => TaskRequest::Engine(EngineTask::read(task, value)?),
        };
        Ok(Self { common: part(value)?, task: request })
    }

    /// The flat object that the server sends.
    pub fn write(&self) -> Value {
        let mut object = members(&self.common);
        match &self.task {
            TaskRequest::GetDefinitiveRevision(source) => object.extend(members(source)),
            TaskRequest::GetModule(source, module) => {
                object.extend(members(source));
                object.extend(members(module));
            }
            TaskRequest::Engine(task) => object.extend(task.write()),
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

/// Why a pushed message cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("unknown method {method:?}")]
    UnknownMethod { method: String },
    #[error("failed to read the payload of {method}: {reason}")]
    Unreadable {
        method: String,
        /// The task that can be answered with `…Faulted`, if it is known.
        answer_to: Option<(Task, Uuid)>,
        reason: String,
    },
}

impl Push {
    /// Reads a pushed message. Method names are matched in any case.
    pub fn read(method: &str, arguments: &[Value]) -> Result<Self, PushError> {
        let is = |name: &str| method.eq_ignore_ascii_case(name);
        let task = Task::from_pushed(method);
        let cancel = [CancelKind::Graceful, CancelKind::Kill].into_iter().find(|kind| is(kind.pushed_as()));
        if task.is_none() && cancel.is_none() && !is(method::SOURCE_REFRESH) {
            return Err(PushError::UnknownMethod { method: method.to_owned() });
        }
        let value = match arguments {
            [value @ Value::Object(_)] => normalize(value.clone()),
            // A cancel may have the bare ID in place of the object.
            [Value::String(id)] if cancel.is_some() => serde_json::json!({ "jobId": id }),
            other => {
                let reason = format!("expected one object argument, got {} argument(s)", other.len());
                return Err(PushError::Unreadable { method: method.to_owned(), answer_to: None, reason });
            }
        };
        let read = match (task, cancel) {
            (Some(task), _) => Request::read(task, &value).map(|request| Self::Task(Box::new(request))),
            (_, Some(kind)) => part(&value).map(|CancelRequest { job_id }| Self::Cancel(kind, job_id)),
            _ => part(&value).map(Self::SourceRefresh),
        };
        read.map_err(|error| {
            let job_id = value.get("jobId").and_then(Value::as_str).and_then(|id| id.parse().ok());
            let (method, reason) = (method.to_owned(), error.to_string());
            PushError::Unreadable { method, answer_to: task.zip(job_id), reason }
        })
    }
}

#[cfg(test)]
mod tests;
