//! Reads the calls of runners strictly.
//!
//! A real server is lenient. This one is strict, so that mistakes of a runner fail its tests: it checks the number and
//! types of arguments, that GUIDs are lowercase and hyphenated, enums are integers, log entries have all members
//! (including nulls) and no others, and plan counts add up. The orchestrator checks what depends on the job.

mod strict;

use hawser_contract::names::method;
use hawser_contract::requests::CancelKind;
use hawser_contract::{
    Call, Fault, LogEntry, Outcome, OutputSet, PlanData, SourceRevisionType, SourceType, Success, Task,
    VariableSet,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use strict::{Guid, Number, StrictEntry};

/// A valid call of a runner.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    Running { job: Uuid, task: Task, runner: Uuid, instance: String },
    Logs(Vec<LogEntry<'static>>),
    Outcome { job: Uuid, task: Task, outcome: Outcome, call: Call },
    CancelAnswered { job: Uuid, kind: CancelKind },
    Refreshed(Refreshed),
}

/// The answer to a SourceRefresh, identified by the members of the request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refreshed {
    pub(super) source_url: String,
    pub(super) source_revision: String,
    pub(super) source_type: SourceType,
    pub(super) source_revision_type: SourceRevisionType,
    pub(super) result: Result<String, Fault>,
}

impl Refreshed {
    fn new(
        source_url: String,
        source_revision: String,
        Number(source_type): Number<SourceType>,
        Number(source_revision_type): Number<SourceRevisionType>,
        result: Result<String, Fault>,
    ) -> Self {
        Self { source_url, source_revision, source_type, source_revision_type, result }
    }
}

/// The outcome in a call that the hub has accepted, so reading it again cannot fail.
pub fn outcome_of(call: &Call) -> Outcome {
    let read = serde_json::value::to_raw_value(&call.arguments)
        .ok()
        .and_then(|arguments| Report::read(&call.method, &arguments).ok());
    match read {
        Some(Report::Outcome { outcome, .. }) => outcome,
        _ => Outcome::Faulted(Fault::new(format!("failed to read {}", call.method))),
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    #[error("unknown method {method:?}")]
    UnknownMethod { method: String },
    #[error("invalid arguments of {method} at {at}: {reason}")]
    Arguments { method: String, at: String, reason: String },
    #[error("{method}: {reason}")]
    Inconsistent { method: String, reason: String },
}

impl Report {
    /// Reads a call. `arguments` is a JSON list.
    pub(super) fn read(method: &str, arguments: &RawValue) -> Result<Self, ReportError> {
        let call = CallText { method, arguments };
        match method {
            method::ADD_LOGS => logs(call),
            method::REPORT_RUNNING_TASK => {
                let (job, task, runner, instance): (Guid, Task, Guid, String) = call.read()?;
                Ok(Self::Running { job: job.0, task, runner: runner.0, instance })
            }
            method::CANCEL_GRACEFUL_COMPLETED => call.cancel_answer(CancelKind::Graceful),
            method::CANCEL_KILL_COMPLETED => call.cancel_answer(CancelKind::Kill),
            method::SOURCE_REFRESH_COMPLETED => {
                let (url, revision, kind, revision_kind, result): (_, _, _, _, String) = call.read()?;
                call.not_blank("definitiveRevision", &result)?;
                Ok(Self::Refreshed(Refreshed::new(url, revision, kind, revision_kind, Ok(result))))
            }
            method::SOURCE_REFRESH_FAULTED => {
                let (url, revision, kind, revision_kind, message, details) = call.read()?;
                let fault = Fault { message, details, resources: None };
                call.not_blank("message", &fault.message)?;
                Ok(Self::Refreshed(Refreshed::new(url, revision, kind, revision_kind, Err(fault))))
            }
            _ => call.outcome(),
        }
    }
}

#[derive(Clone, Copy)]
struct CallText<'a> {
    method: &'a str,
    arguments: &'a RawValue,
}

impl CallText<'_> {
    /// Reads the arguments. A tuple requires exactly as many as it has members.
    fn read<T: DeserializeOwned>(self) -> Result<T, ReportError> {
        // Tracking the path is slow, so it is only done after a failure.
        if let Ok(read) = serde_json::from_str(self.arguments.get()) {
            return Ok(read);
        }
        let mut text = serde_json::Deserializer::from_str(self.arguments.get());
        serde_path_to_error::deserialize(&mut text).map_err(|error| ReportError::Arguments {
            method: self.method.to_owned(),
            at: error.path().to_string(),
            reason: error.inner().to_string(),
        })
    }

    fn inconsistent(self, reason: impl Into<String>) -> ReportError {
        ReportError::Inconsistent { method: self.method.to_owned(), reason: reason.into() }
    }

    fn not_blank(self, name: &str, value: &str) -> Result<(), ReportError> {
        if value.trim().is_empty() { Err(self.inconsistent(format!("{name} is blank"))) } else { Ok(()) }
    }

    fn cancel_answer(self, kind: CancelKind) -> Result<Report, ReportError> {
        let (job,): (Guid,) = self.read()?;
        Ok(Report::CancelAnswered { job: job.0, kind })
    }

    /// `{task}Completed`, `{task}Cancelled` or `{task}Faulted`.
    fn outcome(self) -> Result<Report, ReportError> {
        let unknown = || ReportError::UnknownMethod { method: self.method.to_owned() };
        let named = |ending: &str| self.method.strip_suffix(ending).and_then(Task::from_name);
        let (task, (job, outcome)) = if let Some(task) = named("Completed") {
            (task, self.completed(task)?)
        } else if let Some(task) = named("Cancelled") {
            let (job,): (Guid,) = self.read()?;
            (task, (job, Outcome::Cancelled))
        } else {
            let task = named("Faulted").ok_or_else(unknown)?;
            (task, self.faulted(task)?)
        };
        let arguments: Vec<Value> = self.read()?;
        let call = Call { method: self.method.to_owned(), arguments };
        Ok(Report::Outcome { job: job.0, task, outcome, call })
    }

    fn completed(self, task: Task) -> Result<(Guid, Outcome), ReportError> {
        let (job, success) = match task {
            Task::GetModule | Task::Init | Task::Validate => {
                let (job,): (Guid,) = self.read()?;
                (job, Success::Done)
            }
            Task::GetDefinitiveRevision => {
                let (job, revision): (Guid, String) = self.read()?;
                self.not_blank("definitiveRevision", &revision)?;
                (job, Success::Revision(revision))
            }
            Task::Variables => {
                let (job, set): (Guid, Option<VariableSet>) = self.read()?;
                if let Some(set) = &set {
                    self.check_variables(set)?;
                }
                (job, Success::Variables(set))
            }
            Task::Plan | Task::PlanDestroy => {
                let (job, data): (Guid, PlanData) = self.read()?;
                self.check_plan(&data)?;
                (job, Success::Plan(Box::new(data)))
            }
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                let (job, count): (Guid, u64) = self.read()?;
                (job, Success::Resources(count))
            }
            Task::Output => {
                let (job, set): (Guid, Option<OutputSet>) = self.read()?;
                if let Some(set) = &set {
                    self.check_outputs(set)?;
                }
                (job, Success::Outputs(set))
            }
        };
        Ok((job, Outcome::Completed(success)))
    }

    fn faulted(self, task: Task) -> Result<(Guid, Outcome), ReportError> {
        let (job, fault) = if matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan) {
            let (job, message, details, resources): (Guid, String, String, Option<u64>) = self.read()?;
            (job, Fault { message, details, resources })
        } else {
            let (job, message, details): (Guid, String, String) = self.read()?;
            (job, Fault { message, details, resources: None })
        };
        self.not_blank("message", &fault.message)?;
        Ok((job, Outcome::Faulted(fault)))
    }

    fn check_plan(self, data: &PlanData) -> Result<(), ReportError> {
        let list = |names: &Vec<String>| u64::try_from(names.len()).unwrap_or(u64::MAX);
        let stay = data.total_unchanged_count + data.modify_count + data.recreate_count;
        let outputs_changed = data.outputs_create_count
            + data.outputs_modify_count
            + data.outputs_destroy_count
            + data.outputs_recreate_count;
        let sums = [
            ("totalCountAfter", data.total_count_after, stay + data.create_count),
            ("totalCountBefore", data.total_count_before, stay + data.destroy_count),
            (
                "totalChangedCount",
                data.total_changed_count,
                data.create_count + data.modify_count + data.destroy_count + data.recreate_count,
            ),
            ("outputsTotalChangedCount", data.outputs_total_changed_count, outputs_changed),
            (
                "outputsTotalCount",
                data.outputs_total_count,
                outputs_changed + data.outputs_total_unchanged_count,
            ),
            (
                "outputsTotalUnchangedCount",
                data.outputs_total_unchanged_count,
                list(&data.outputs_unchanged_list),
            ),
            ("outputsCreateCount", data.outputs_create_count, list(&data.outputs_create_list)),
            ("outputsModifyCount", data.outputs_modify_count, list(&data.outputs_modify_list)),
            ("outputsDestroyCount", data.outputs_destroy_count, list(&data.outputs_destroy_list)),
            ("outputsRecreateCount", data.outputs_recreate_count, list(&data.outputs_recreate_list)),
        ];
        match sums.into_iter().find(|(_, reported, sum)| reported != sum) {
            Some((name, reported, sum)) => {
                Err(self.inconsistent(format!("{name} is {reported}, but the others add up to {sum}")))
            }
            None => Ok(()),
        }
    }

    fn check_outputs(self, set: &OutputSet) -> Result<(), ReportError> {
        self.check_checksum(&set.checksum, set.timestamp)?;
        set.outputs.iter().try_for_each(|output| {
            self.not_blank("an output's name", &output.name)?;
            self.not_blank("an output's type", &output.kind)
        })
    }

    fn check_variables(self, set: &VariableSet) -> Result<(), ReportError> {
        self.check_checksum(&set.checksum, set.timestamp)?;
        if set.variables.is_empty() {
            return Err(self.inconsistent("a set without variables must be null"));
        }
        set.variables.iter().try_for_each(|variable| self.not_blank("a variable's name", &variable.name))
    }

    fn check_checksum(self, checksum: &str, timestamp: i64) -> Result<(), ReportError> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if checksum.len() != 64 || !checksum.bytes().all(hex) {
            return Err(self.inconsistent(format!("checksum {checksum:?} is not a lowercase hex SHA-256")));
        }
        // Seconds instead of milliseconds would be in January 1970.
        if timestamp < 1_000_000_000_000 {
            return Err(
                self.inconsistent(format!("timestamp {timestamp} is not a Unix time in milliseconds"))
            );
        }
        Ok(())
    }
}

fn logs(call: CallText<'_>) -> Result<Report, ReportError> {
    let (entries,): (Vec<StrictEntry>,) = call.read()?;
    let Some(first) = entries.first() else { return Err(call.inconsistent("the batch is empty")) };
    let batch = first.batch_time_stamp;
    if let Some(other) = entries.iter().find(|entry| entry.batch_time_stamp != batch) {
        let other = other.batch_time_stamp;
        return Err(
            call.inconsistent(format!("the batch has different batchTimeStamps: {batch} and {other}"))
        );
    }
    Ok(Report::Logs(entries.into_iter().map(StrictEntry::into_entry).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::{Outcome, OutputValue, Variable};
    use serde_json::json;

    const JOB: &str = "6f1d3c1e-27a5-4a6e-9a2f-0d5f2b1c7a10";

    fn read(method: &str, arguments: &Value) -> Result<Report, ReportError> {
        let raw = RawValue::from_string(arguments.to_string()).unwrap();
        Report::read(method, &raw)
    }

    #[track_caller]
    fn refused(method: &str, arguments: &Value) -> String {
        read(method, arguments).unwrap_err().to_string()
    }

    fn entry() -> Value {
        json!({
            "jobId": JOB, "timestamp": "2026-11-16T00:00:00.5Z", "batchTimeStamp": "2026-11-16T00:00:01+00:00",
            "stackId": null, "namespaceId": null, "moduleId": JOB, "stackName": "s", "namespaceName": "n",
            "moduleName": "m", "level": 2, "message": "hello", "taskName": "Plan", "tags": null,
        })
    }

    #[test]
    fn every_outcome_can_be_read_back() {
        let checksum = "0".repeat(64);
        let job: Uuid = JOB.parse().unwrap();
        let outputs = OutputSet {
            timestamp: 1_800_000_000_000,
            checksum: checksum.clone(),
            outputs: vec![OutputValue {
                name: "o".into(),
                sensitive: None,
                kind: "string".into(),
                value: String::new(),
                from_extra_file: false,
            }],
        };
        let variables = VariableSet {
            module_id: job,
            timestamp: 1_800_000_000_000,
            checksum,
            variables: vec![Variable {
                name: "v".into(),
                kind: None,
                description: None,
                sensitive: false,
                nullable: true,
                from_extra_file: false,
            }],
        };
        for task in Task::ALL {
            let successes = match task {
                Task::GetDefinitiveRevision => vec![Success::Revision("abc".into())],
                Task::GetModule | Task::Init | Task::Validate => vec![Success::Done],
                Task::Variables => {
                    vec![Success::Variables(None), Success::Variables(Some(variables.clone()))]
                }
                Task::Plan | Task::PlanDestroy => vec![Success::Plan(Box::default())],
                Task::ApplyFromPlan | Task::DestroyFromPlan => vec![Success::Resources(3)],
                Task::Output => vec![Success::Outputs(None), Success::Outputs(Some(outputs.clone()))],
            };
            let resources = matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan).then_some(1);
            let fault = Fault { message: "m".into(), details: "d".into(), resources };
            let outcomes = successes.into_iter().map(Outcome::Completed);
            for outcome in outcomes.chain([Outcome::Cancelled, Outcome::Faulted(fault)]) {
                let call = outcome.clone().of(task, job).call();
                let report = read(&call.method, &json!(call.arguments)).unwrap();
                assert_eq!(report, Report::Outcome { job, task, outcome, call });
            }
        }
    }

    #[test]
    fn the_number_of_arguments_must_be_exact() {
        refused("InitCompleted", &json!([]));
        refused("InitCompleted", &json!([JOB, 1]));
        refused("InitFaulted", &json!([JOB, "message"]));
        refused("ApplyFromPlanFaulted", &json!([JOB, "message", "trace"]));
        read("ApplyFromPlanFaulted", &json!([JOB, "message", "trace", null])).unwrap();
        refused("VariablesCompleted", &json!([JOB]));
        refused("ReportRunningTask", &json!([JOB, "Plan", JOB]));
    }

    #[test]
    fn a_guid_must_be_lowercase_and_hyphenated() {
        for id in [JOB.to_uppercase(), JOB.replace('-', ""), format!("{{{JOB}}}"), String::new()] {
            let error = refused("InitCompleted", &json!([id]));
            assert!(error.contains("InitCompleted") && error.contains("GUID"), "{error}");
        }
    }

    #[test]
    fn an_unknown_method_or_one_in_another_case_is_refused() {
        for name in ["InputCompleted", "initCompleted", "InitDone", "Completed", "addLogs", ""] {
            assert!(refused(name, &json!([JOB])).contains("unknown method"));
        }
    }

    #[test]
    fn a_log_entry_has_all_members_and_no_others() {
        assert!(
            matches!(read("AddLogs", &json!([[entry()]])), Ok(Report::Logs(entries)) if entries.len() == 1)
        );
        let names: Vec<String> = entry().as_object().unwrap().keys().cloned().collect();
        for name in names {
            let mut less = entry();
            less.as_object_mut().unwrap().remove(&name);
            let error = refused("AddLogs", &json!([[less]]));
            assert!(error.contains(&name), "{error}");
        }
        let mut more = entry();
        more["extra"] = json!(1);
        refused("AddLogs", &json!([[more]]));
    }

    #[test]
    fn log_entries_have_numbers_for_levels_known_tasks_and_one_batch_time() {
        for (name, wrong) in [
            ("level", json!("Information")),
            ("level", json!(6)),
            ("taskName", json!("Input")),
            ("timestamp", json!("2026-11-16T00:00:00")),
            ("tags", json!({"a": 1})),
            ("message", json!(null)),
        ] {
            let mut changed = entry();
            changed[name] = wrong;
            let error = refused("AddLogs", &json!([[changed]]));
            assert!(error.contains(name), "{error}");
        }
        let mut later = entry();
        later["batchTimeStamp"] = json!("2026-11-16T00:00:02Z");
        assert!(refused("AddLogs", &json!([[entry(), later]])).contains("batchTimeStamp"));
        assert!(refused("AddLogs", &json!([[]])).contains("empty"));
    }

    #[test]
    fn plan_counts_must_add_up() {
        let mut data =
            PlanData { create_count: 1, total_count_after: 1, total_changed_count: 1, ..PlanData::default() };
        read("PlanCompleted", &json!([JOB, data])).unwrap();
        data.total_count_after = 2;
        assert!(refused("PlanCompleted", &json!([JOB, data])).contains("totalCountAfter"));
        data.total_count_after = 1;
        data.outputs_create_list.push("o".into());
        assert!(refused("PlanCompleted", &json!([JOB, data])).contains("outputsCreateCount"));
    }

    #[test]
    fn the_answer_to_a_refresh_repeats_its_request() {
        let report = read("SourceRefreshCompleted", &json!(["url", "main", 0, 0, "abc"])).unwrap();
        assert!(matches!(report, Report::Refreshed(it) if it.result == Ok("abc".into())));
        refused("SourceRefreshCompleted", &json!(["url", "main", "Git", 0, "abc"]));
        refused("SourceRefreshFaulted", &json!(["url", "main", 0, 0, "message"]));
        refused("SourceRefreshFaulted", &json!(["url", "main", 0, 0, " ", ""]));
    }
}
