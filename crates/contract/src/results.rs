//! What the runner tells the server: one call per outcome of a task.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::names::{Task, method};
use crate::requests::SourceRefresh;

/// A method of the server with its arguments: what is journaled until the server has acknowledged it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub method: String,
    pub arguments: Vec<Value>,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Completed(Success),
    Cancelled,
    Faulted(Fault),
}

/// What a completed task has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum Success {
    /// `GetModule`, `Init` and `Validate` say nothing but that they are done.
    Done,
    Revision(String),
    Variables(Option<VariableSet>),
    Plan(Box<PlanData>),
    /// Apply and destroy: how many managed resources the state holds now.
    Resources(u64),
    Outputs(Option<OutputSet>),
}

/// Why a task failed: a sentence, details, and for apply and destroy the resource count if it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fault {
    pub message: String,
    pub details: String,
    pub resources: Option<u64>,
}

impl Fault {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl Outcome {
    /// The call that tells the server of this outcome.
    pub fn call(&self, task: Task, job_id: Uuid) -> Call {
        let counts_resources = matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan);
        match self {
            Self::Completed(success) => {
                let mut arguments = vec![json!(job_id)];
                match success {
                    Success::Done => {}
                    Success::Revision(revision) => arguments.push(json!(revision)),
                    Success::Variables(set) => arguments.push(json!(set)),
                    Success::Plan(data) => arguments.push(json!(data)),
                    Success::Resources(count) => arguments.push(json!(count)),
                    Success::Outputs(set) => arguments.push(json!(set)),
                }
                Call { method: format!("{task}Completed"), arguments }
            }
            Self::Cancelled => Call { method: format!("{task}Cancelled"), arguments: vec![json!(job_id)] },
            Self::Faulted(fault) => {
                let mut arguments = vec![json!(job_id), json!(fault.message), json!(fault.details)];
                if counts_resources {
                    arguments.push(json!(fault.resources));
                }
                Call { method: format!("{task}Faulted"), arguments }
            }
        }
    }
}

impl Call {
    /// The message and the details of a fault, wherever its arguments have them. None for any other call: what those
    /// tell, and the source that a refresh repeats, is data that the server needs as it is.
    pub fn fault_texts(&mut self) -> impl Iterator<Item = &mut String> {
        let first = match self.method.as_str() {
            method::SOURCE_REFRESH_FAULTED => 4,
            method if method.ends_with("Faulted") => 1,
            _ => self.arguments.len(),
        };
        self.arguments.iter_mut().skip(first).filter_map(|argument| match argument {
            Value::String(text) => Some(text),
            _ => None,
        })
    }
}

impl SourceRefresh {
    fn identity(&self) -> Vec<Value> {
        vec![
            json!(self.source_url),
            json!(self.source_revision),
            json!(self.source_type),
            json!(self.source_revision_type),
        ]
    }

    pub fn completed(&self, definitive_revision: &str) -> Call {
        let mut arguments = self.identity();
        arguments.push(json!(definitive_revision));
        Call { method: method::SOURCE_REFRESH_COMPLETED.to_owned(), arguments }
    }

    pub fn faulted(&self, fault: &Fault) -> Call {
        let mut arguments = self.identity();
        arguments.extend([json!(fault.message), json!(fault.details)]);
        Call { method: method::SOURCE_REFRESH_FAULTED.to_owned(), arguments }
    }
}

/// What a plan would do, in numbers.
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
    /// Strings as they are, everything else as compact JSON.
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
    fn each_outcome_is_the_call_that_the_contract_names() {
        let job = Uuid::from_u128(1);
        let completed = |task, success| Outcome::Completed(success).call(task, job);
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
        let call = Outcome::Cancelled.call(Task::DestroyFromPlan, job);
        assert_eq!((call.method.as_str(), call.arguments), ("DestroyFromPlanCancelled", vec![json!(job)]));
        let call = fault.call(Task::Plan, job);
        assert_eq!(call.arguments, [json!(job), json!("m"), json!("d")]);
        let call = fault.call(Task::DestroyFromPlan, job);
        assert_eq!(call.arguments, [json!(job), json!("m"), json!("d"), json!(3)]);
    }

    #[test]
    fn plan_data_has_the_members_of_the_contract() {
        let written = json!(PlanData::default());
        let members: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members.len(), 20);
        assert!(members.contains(&"totalUnchangedCount") && members.contains(&"outputsRecreateList"));
    }
}
