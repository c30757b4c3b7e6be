//! Reads the calls of runners strictly.
//!
//! A real server is lenient. This one is strict, so that mistakes of a runner fail its tests: arguments must be exactly
//! what the types of the contract would write. That includes their number, lowercase GUIDs, integers for enums, nulls, and
//! no unknown members. Plan counts must add up. The orchestrator checks what depends on the job.

use hawser_contract::names::method;
use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Fault, LogEntry, Outcome, OutputSet, PlanData, Success, Task, VariableSet};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

/// A valid call of a runner.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    Running { job: Uuid, task: Task, runner: Uuid, instance: String },
    Logs(Vec<LogEntry>),
    Outcome { job: Uuid, task: Task, outcome: Outcome, call: Call },
    CancelAnswered { job: Uuid, kind: CancelKind },
    Refreshed { source: Vec<Value>, result: Result<String, Fault> },
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
            method::ADD_LOGS => call.logs(),
            method::REPORT_RUNNING_TASK => {
                let (job, task, runner, instance) = call.read()?;
                Ok(Self::Running { job, task, runner, instance })
            }
            method::CANCEL_GRACEFUL_COMPLETED => call.cancel_answer(CancelKind::Graceful),
            method::CANCEL_KILL_COMPLETED => call.cancel_answer(CancelKind::Kill),
            method::SOURCE_REFRESH_COMPLETED => {
                let (url, revision, kind, revision_kind, result): (_, _, _, _, String) = call.read()?;
                call.not_blank("definitiveRevision", &result)?;
                Ok(Self::Refreshed { source: vec![url, revision, kind, revision_kind], result: Ok(result) })
            }
            method::SOURCE_REFRESH_FAULTED => {
                let (url, revision, kind, revision_kind, message, details) = call.read()?;
                let fault = Fault { message, details, resources: None };
                call.not_blank("message", &fault.message)?;
                Ok(Self::Refreshed { source: vec![url, revision, kind, revision_kind], result: Err(fault) })
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
    fn parse<T: DeserializeOwned>(self) -> Result<T, ReportError> {
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

    /// Reads arguments that must be exactly what the same types would write.
    fn read<T: DeserializeOwned + Serialize>(self) -> Result<T, ReportError> {
        let read: T = self.parse()?;
        let actual: Value = self.parse()?;
        match serde_json::to_value(&read) {
            Ok(expected) if expected != actual => {
                Err(self.inconsistent(format!("the arguments are {actual} instead of {expected}")))
            }
            _ => Ok(read),
        }
    }

    fn inconsistent(self, reason: impl Into<String>) -> ReportError {
        ReportError::Inconsistent { method: self.method.to_owned(), reason: reason.into() }
    }

    fn not_blank(self, name: &str, value: &str) -> Result<(), ReportError> {
        if value.trim().is_empty() { Err(self.inconsistent(format!("{name} is blank"))) } else { Ok(()) }
    }

    fn logs(self) -> Result<Report, ReportError> {
        let (entries,): (Vec<LogEntry>,) = self.parse()?;
        let Some(first) = entries.first() else { return Err(self.inconsistent("the batch is empty")) };
        if entries.iter().any(|entry| entry.batch_time_stamp != first.batch_time_stamp) {
            return Err(self.inconsistent("the entries of a batch have different batchTimeStamps"));
        }
        Ok(Report::Logs(entries))
    }

    fn cancel_answer(self, kind: CancelKind) -> Result<Report, ReportError> {
        let (job,) = self.read()?;
        Ok(Report::CancelAnswered { job, kind })
    }

    /// `{task}Completed`, `{task}Cancelled` or `{task}Faulted`.
    fn outcome(self) -> Result<Report, ReportError> {
        let named = |ending: &str| self.method.strip_suffix(ending).and_then(Task::from_name);
        let (task, (job, outcome)) = if let Some(task) = named("Completed") {
            let (job, success) = self.completed(task)?;
            (task, (job, Outcome::Completed(success)))
        } else if let Some(task) = named("Cancelled") {
            let (job,) = self.read()?;
            (task, (job, Outcome::Cancelled))
        } else if let Some(task) = named("Faulted") {
            (task, self.faulted(task)?)
        } else {
            return Err(ReportError::UnknownMethod { method: self.method.to_owned() });
        };
        let call = outcome.clone().of(task, job).call();
        Ok(Report::Outcome { job, task, outcome, call })
    }

    fn completed(self, task: Task) -> Result<(Uuid, Success), ReportError> {
        Ok(match task {
            Task::GetModule | Task::Init | Task::Validate => {
                let (job,) = self.read()?;
                (job, Success::Done)
            }
            Task::GetDefinitiveRevision => {
                let (job, revision): (_, String) = self.read()?;
                self.not_blank("definitiveRevision", &revision)?;
                (job, Success::Revision(revision))
            }
            Task::Variables => {
                let (job, set): (_, Option<VariableSet>) = self.read()?;
                set.iter().try_for_each(|set| self.check_variables(set))?;
                (job, Success::Variables(set))
            }
            Task::Plan | Task::PlanDestroy => {
                let (job, data): (_, PlanData) = self.read()?;
                self.check_plan(&data)?;
                (job, Success::Plan(Box::new(data)))
            }
            Task::ApplyFromPlan | Task::DestroyFromPlan => {
                let (job, count) = self.read()?;
                (job, Success::Resources(count))
            }
            Task::Output => {
                let (job, set): (_, Option<OutputSet>) = self.read()?;
                set.iter().try_for_each(|set| self.check_outputs(set))?;
                (job, Success::Outputs(set))
            }
        })
    }

    fn faulted(self, task: Task) -> Result<(Uuid, Outcome), ReportError> {
        let (job, message, details, resources) = if task.applies() {
            self.read()?
        } else {
            let (job, message, details) = self.read()?;
            (job, message, details, None)
        };
        let fault = Fault { message, details, resources };
        self.not_blank("message", &fault.message)?;
        Ok((job, Outcome::Faulted(fault)))
    }

    fn check_plan(self, plan: &PlanData) -> Result<(), ReportError> {
        let length = |names: &[String]| u64::try_from(names.len()).unwrap_or(u64::MAX);
        let changed = plan.create_count + plan.modify_count + plan.destroy_count + plan.recreate_count;
        let kept = plan.total_unchanged_count + plan.modify_count + plan.recreate_count;
        let lists = [
            ("outputsCreateCount", plan.outputs_create_count, length(&plan.outputs_create_list)),
            ("outputsModifyCount", plan.outputs_modify_count, length(&plan.outputs_modify_list)),
            ("outputsDestroyCount", plan.outputs_destroy_count, length(&plan.outputs_destroy_list)),
            ("outputsRecreateCount", plan.outputs_recreate_count, length(&plan.outputs_recreate_list)),
        ];
        let outputs_changed = lists.iter().map(|(_, count, _)| count).sum();
        let outputs_unchanged = plan.outputs_total_unchanged_count;
        let sums = [
            ("totalCountAfter", plan.total_count_after, kept + plan.create_count),
            ("totalCountBefore", plan.total_count_before, kept + plan.destroy_count),
            ("totalChangedCount", plan.total_changed_count, changed),
            ("outputsTotalChangedCount", plan.outputs_total_changed_count, outputs_changed),
            ("outputsTotalCount", plan.outputs_total_count, outputs_changed + outputs_unchanged),
            ("outputsTotalUnchangedCount", outputs_unchanged, length(&plan.outputs_unchanged_list)),
        ];
        match sums.into_iter().chain(lists).find(|(_, reported, sum)| reported != sum) {
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
            assert!(error.contains("InitCompleted"), "{error}");
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
        let source = vec![json!("url"), json!("main"), json!(0), json!(0)];
        assert_eq!(report, Report::Refreshed { source, result: Ok("abc".into()) });
        refused("SourceRefreshCompleted", &json!(["url", "main", 0, 0, 1]));
        refused("SourceRefreshFaulted", &json!(["url", "main", 0, 0, "message"]));
        refused("SourceRefreshFaulted", &json!(["url", "main", 0, 0, " ", ""]));
    }
}
