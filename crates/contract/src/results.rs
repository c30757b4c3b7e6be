//! Outcomes: how a step ended, and the call that reports it to the server.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::names::{Task, method};
use crate::requests::{CancelKind, SourceRefresh};

/// A method of the server with its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub method: String,
    pub arguments: Vec<Value>,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Completed(Success),
    Cancelled,
    Faulted(Fault),
}

/// An outcome without its payload. The method that reports it ends with its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OutcomeKind {
    Completed,
    Cancelled,
    Faulted,
}

/// The result of a completed task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Success {
    /// `GetModule`, `Init`, `Validate` and cancels have no result.
    Done,
    Revision(String),
    Variables(Option<VariableSet>),
    Plan(Box<PlanData>),
    /// Apply and destroy: the number of managed resources in the state.
    Resources(u64),
    Outputs(Option<OutputSet>),
}

/// Why a task failed: a sentence, details, and for apply and destroy the resource count if it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fault {
    pub message: String,
    pub details: String,
    pub resources: Option<u64>,
}

/// The push that an outcome answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Subject {
    /// A task of a job.
    Task { task: Task, job_id: Uuid },
    /// A refresh, which belongs to no job.
    SourceRefresh(SourceRefresh),
    /// A cancel of a job.
    Cancel { kind: CancelKind, job_id: Uuid },
}

/// The outcome of a step, stored until the server has acknowledged the call that reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepOutcome {
    pub subject: Subject,
    pub outcome: Outcome,
}

impl Fault {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl Outcome {
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Self::Completed(_) => OutcomeKind::Completed,
            Self::Cancelled => OutcomeKind::Cancelled,
            Self::Faulted(_) => OutcomeKind::Faulted,
        }
    }

    /// The outcome of a job's task.
    pub fn of(self, task: Task, job_id: Uuid) -> StepOutcome {
        StepOutcome { subject: Subject::Task { task, job_id }, outcome: self }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Subject {
    /// The name of the task, with which the method that reports its outcome starts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Task { task, .. } => task.name(),
            Self::SourceRefresh(_) => method::SOURCE_REFRESH,
            Self::Cancel { kind, .. } => kind.pushed_as(),
        }
    }

    /// The first arguments of the call, which identify what the outcome belongs to.
    pub fn identity(&self) -> Vec<Value> {
        match self {
            Self::Task { job_id, .. } | Self::Cancel { job_id, .. } => vec![json!(job_id)],
            Self::SourceRefresh(refresh) => vec![
                json!(refresh.source_url),
                json!(refresh.source_revision),
                json!(refresh.source_type),
                json!(refresh.source_revision_type),
            ],
        }
    }
}

impl StepOutcome {
    /// The answer to a cancel.
    pub fn of_cancel(kind: CancelKind, job_id: Uuid) -> Self {
        Self { subject: Subject::Cancel { kind, job_id }, outcome: Outcome::Completed(Success::Done) }
    }

    pub fn kind(&self) -> OutcomeKind {
        self.outcome.kind()
    }

    /// The method that reports this outcome.
    pub fn method(&self) -> String {
        format!("{}{}", self.subject.name(), self.kind())
    }

    /// The call that reports this outcome.
    pub fn call(&self) -> Call {
        let mut arguments = self.subject.identity();
        match &self.outcome {
            Outcome::Cancelled | Outcome::Completed(Success::Done) => {}
            Outcome::Completed(Success::Revision(revision)) => arguments.push(json!(revision)),
            Outcome::Completed(Success::Variables(set)) => arguments.push(json!(set)),
            Outcome::Completed(Success::Plan(data)) => arguments.push(json!(data)),
            Outcome::Completed(Success::Resources(count)) => arguments.push(json!(count)),
            Outcome::Completed(Success::Outputs(set)) => arguments.push(json!(set)),
            Outcome::Faulted(fault) => {
                arguments.extend([json!(fault.message), json!(fault.details)]);
                if matches!(self.subject, Subject::Task { task, .. } if task.applies()) {
                    arguments.push(json!(fault.resources));
                }
            }
        }
        Call { method: self.method(), arguments }
    }
}

/// The changes in a plan, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanData {
    pub total_count_after: u64,
    pub total_count_before: u64,
    pub total_changed_count: u64,
    pub total_unchanged_count: u64,
    pub create_count: u64,
    pub modify_count: u64,
    pub destroy_count: u64,
    pub recreate_count: u64,
    pub outputs_total_count: u64,
    pub outputs_total_changed_count: u64,
    pub outputs_total_unchanged_count: u64,
    pub outputs_create_count: u64,
    pub outputs_modify_count: u64,
    pub outputs_destroy_count: u64,
    pub outputs_recreate_count: u64,
    pub outputs_unchanged_list: Vec<String>,
    pub outputs_create_list: Vec<String>,
    pub outputs_modify_list: Vec<String>,
    pub outputs_destroy_list: Vec<String>,
    pub outputs_recreate_list: Vec<String>,
}

/// The outputs of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputSet {
    /// Unix time in milliseconds.
    pub timestamp: i64,
    /// Lowercase hex SHA-256 of the engine's raw output JSON.
    pub checksum: String,
    pub outputs: Vec<OutputValue>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputValue {
    pub name: String,
    pub sensitive: Option<bool>,
    #[serde(rename = "type")]
    pub kind: String,
    /// Strings are unchanged. Everything else is compact JSON.
    pub value: String,
    pub from_extra_file: bool,
}

/// The variables that a module declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VariableSet {
    pub module_id: Uuid,
    /// Unix time in milliseconds.
    pub timestamp: i64,
    pub checksum: String,
    pub variables: Vec<Variable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub description: Option<String>,
    pub sensitive: bool,
    pub nullable: bool,
    pub from_extra_file: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_becomes_the_call_of_the_contract() {
        let job = Uuid::from_u128(1);
        let completed = |task, success| Outcome::Completed(success).of(task, job).call();
        let fault = Outcome::Faulted(Fault { message: "m".into(), details: "d".into(), resources: Some(3) });

        let call = completed(Task::Variables, Success::Variables(None));
        assert_eq!(
            (call.method.as_str(), call.arguments),
            ("VariablesCompleted", vec![json!(job), json!(null)])
        );
        let call = completed(Task::ApplyFromPlan, Success::Resources(2));
        assert_eq!(
            (call.method.as_str(), call.arguments),
            ("ApplyFromPlanCompleted", vec![json!(job), json!(2)])
        );
        let call = completed(Task::Validate, Success::Done);
        assert_eq!((call.method.as_str(), call.arguments), ("ValidateCompleted", vec![json!(job)]));
        let call = Outcome::Cancelled.of(Task::DestroyFromPlan, job).call();
        assert_eq!((call.method.as_str(), call.arguments), ("DestroyFromPlanCancelled", vec![json!(job)]));
        let call = fault.clone().of(Task::Plan, job).call();
        assert_eq!(call.arguments, [json!(job), json!("m"), json!("d")]);
        let call = fault.of(Task::DestroyFromPlan, job).call();
        assert_eq!(call.arguments, [json!(job), json!("m"), json!("d"), json!(3)]);
    }

    #[test]
    fn a_refresh_repeats_its_source_and_a_cancel_its_job() {
        let refresh = SourceRefresh {
            organization_id: Uuid::nil(),
            source_url: "https://host/r".to_owned(),
            source_revision: "main".to_owned(),
            source_type: crate::SourceType::Git,
            source_revision_type: crate::SourceRevisionType::Default,
        };
        let subject = Subject::SourceRefresh(refresh.clone());
        let source = subject.identity();
        assert_eq!(source[0], json!(refresh.source_url));
        let outcome = Outcome::Completed(Success::Revision("abc".into()));
        let call = StepOutcome { subject: subject.clone(), outcome }.call();
        assert_eq!(call.method, "SourceRefreshCompleted");
        assert_eq!(call.arguments, [source.as_slice(), &[json!("abc")]].concat());
        let call = StepOutcome { subject, outcome: Outcome::Faulted(Fault::new("m")) }.call();
        assert_eq!(call.method, "SourceRefreshFaulted");
        assert_eq!(call.arguments, [source.as_slice(), &[json!("m"), json!("")]].concat());
        let call = StepOutcome::of_cancel(CancelKind::Kill, Uuid::nil()).call();
        assert_eq!((call.method.as_str(), call.arguments), ("CancelKillCompleted", vec![json!(Uuid::nil())]));
    }

    #[test]
    fn a_stored_outcome_is_read_back_unchanged() {
        let outcomes = [
            Outcome::Completed(Success::Plan(Box::default())).of(Task::Plan, Uuid::nil()),
            Outcome::Completed(Success::Variables(None)).of(Task::Variables, Uuid::nil()),
            Outcome::Faulted(Fault { resources: Some(3), ..Fault::new("m") })
                .of(Task::ApplyFromPlan, Uuid::nil()),
            Outcome::Cancelled.of(Task::Init, Uuid::nil()),
            StepOutcome::of_cancel(CancelKind::Graceful, Uuid::nil()),
        ];
        for outcome in outcomes {
            let stored = serde_json::to_string(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<StepOutcome>(&stored).unwrap(), outcome, "{stored}");
        }
    }

    #[test]
    fn plan_data_has_the_members_of_the_contract() {
        let written = json!(PlanData::default());
        let members: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members.len(), 20);
        assert!(members.contains(&"totalUnchangedCount") && members.contains(&"outputsRecreateList"));
    }
}
