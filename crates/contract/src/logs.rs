//! The log entry: one line of a job's output on its way to the server.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::enums::LogLevel;

/// One entry of `AddLogs`. Strings are borrowed where possible: floods pass through here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogEntry<'a> {
    pub job_id: Uuid,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub timestamp: Timestamp,
    /// The same for all entries of a batch.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub batch_time_stamp: Timestamp,
    #[serde(default)]
    pub stack_id: Option<Uuid>,
    #[serde(default)]
    pub namespace_id: Option<Uuid>,
    pub module_id: Uuid,
    pub stack_name: Cow<'a, str>,
    pub namespace_name: Cow<'a, str>,
    pub module_name: Cow<'a, str>,
    pub level: LogLevel,
    pub message: Cow<'a, str>,
    pub task_name: Cow<'a, str>,
    #[serde(default)]
    pub tags: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
}
