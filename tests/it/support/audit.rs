//! Reads the audit log.

use std::fs;

use serde_json::Value;
use uuid::Uuid;

use super::world::Runner;

/// All lines of the audit log. Panics if one is not complete.
pub(crate) fn audit_log(runner: &Runner) -> Vec<Value> {
    let text = fs::read_to_string(runner.working.join(".hawser/audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// The events of a job in their order in the log.
pub(crate) fn events(runner: &Runner, job: Uuid) -> Vec<String> {
    let is_of_job = |line: &Value| line["jobId"] == job.to_string();
    let summary = |line: &Value| {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        [text("event"), text("task"), text("rule"), text("result")].join(" ").trim_end().replace("  ", " ")
    };
    audit_log(runner).iter().filter(|line| is_of_job(line)).map(summary).collect()
}
