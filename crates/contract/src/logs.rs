//! The log entry: one line of a job's output on its way to the server.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::enums::{self, LogLevel};
use crate::names::Task;

/// One entry of `AddLogs`. All members are present, and there are no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogEntry {
    pub job_id: Uuid,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub timestamp: Timestamp,
    /// The same for all entries of a batch.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub batch_time_stamp: Timestamp,
    #[serde(deserialize_with = "Option::deserialize")]
    pub stack_id: Option<Uuid>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub namespace_id: Option<Uuid>,
    pub module_id: Uuid,
    pub stack_name: String,
    pub namespace_name: String,
    pub module_name: String,
    #[serde(deserialize_with = "enums::read_number")]
    pub level: LogLevel,
    pub message: String,
    #[schemars(with = "String")]
    pub task_name: Task,
    #[serde(deserialize_with = "Option::deserialize")]
    pub tags: Option<BTreeMap<String, String>>,
}
