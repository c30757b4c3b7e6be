//! The contract as a JSON Schema document (`hawser schema hub`).

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::names::method;
use crate::requests::{CancelRequest, Common, GetModule, Source, SourceRefresh};
use crate::{EngineTask, LogEntry, OutputSet, PlanData, Task, VariableSet};

/// Describes all messages: `pushes` maps each pushed method to its argument, `calls` maps each called method to its list of
/// arguments.
pub fn hub_schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut pushes = Map::new();
    for task in Task::ALL {
        pushes.insert(task.pushed_as().to_owned(), push_schema(task, &mut generator));
    }
    pushes.insert(method::SOURCE_REFRESH.to_owned(), of::<SourceRefresh>(&mut generator));
    pushes.insert(method::CANCEL_GRACEFUL.to_owned(), of::<CancelRequest>(&mut generator));
    pushes.insert(method::CANCEL_KILL.to_owned(), of::<CancelRequest>(&mut generator));

    let mut calls = Map::new();
    for task in Task::ALL {
        calls.insert(format!("{task}Completed"), arguments(&completed(task, &mut generator)));
        calls.insert(format!("{task}Cancelled"), arguments(&[guid()]));
        calls.insert(format!("{task}Faulted"), arguments(&faulted(task)));
    }
    let refresh = [
        text(),
        text(),
        of::<crate::SourceType>(&mut generator),
        of::<crate::SourceRevisionType>(&mut generator),
    ];
    let refresh_and = |more: &[Value]| arguments(&[&refresh, more].concat());
    calls.insert(method::SOURCE_REFRESH_COMPLETED.to_owned(), refresh_and(&[text()]));
    calls.insert(method::SOURCE_REFRESH_FAULTED.to_owned(), refresh_and(&[text(), text()]));
    let entries = of::<Vec<LogEntry>>(&mut generator);
    calls.insert(method::ADD_LOGS.to_owned(), arguments(&[entries]));
    calls.insert(method::REPORT_RUNNING_TASK.to_owned(), arguments(&[guid(), text(), guid(), text()]));
    calls.insert(method::CANCEL_GRACEFUL_COMPLETED.to_owned(), arguments(&[guid()]));
    calls.insert(method::CANCEL_KILL_COMPLETED.to_owned(), arguments(&[guid()]));

    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The runner hub contract",
        "description": "Payloads of the methods that the server pushes, and the argument lists of those that the runner calls.",
        "type": "object",
        "properties": {
            "pushes": { "type": "object", "properties": pushes },
            "calls": { "type": "object", "properties": calls },
        },
        "$defs": generator.take_definitions(true),
    })
}

fn push_schema(task: Task, generator: &mut SchemaGenerator) -> Value {
    let own = match task {
        Task::GetDefinitiveRevision => vec![of::<Source>(generator)],
        Task::GetModule => vec![of::<Source>(generator), of::<GetModule>(generator)],
        _ => EngineTask::schema(task, generator),
    };
    let all: Vec<Value> = std::iter::once(of::<Common>(generator)).chain(own).collect();
    json!({ "allOf": all })
}

fn completed(task: Task, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut arguments = vec![guid()];
    match task {
        Task::GetDefinitiveRevision => arguments.push(text()),
        Task::GetModule | Task::Init | Task::Validate => {}
        Task::Variables => arguments.push(of::<Option<VariableSet>>(generator)),
        Task::Plan | Task::PlanDestroy => arguments.push(of::<PlanData>(generator)),
        Task::ApplyFromPlan | Task::DestroyFromPlan => {
            arguments.push(json!({"type": "integer", "minimum": 0}));
        }
        Task::Output => arguments.push(of::<Option<OutputSet>>(generator)),
    }
    arguments
}

fn faulted(task: Task) -> Vec<Value> {
    let mut arguments = vec![guid(), text(), text()];
    if matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan) {
        arguments.push(json!({"type": ["integer", "null"], "minimum": 0}));
    }
    arguments
}

fn arguments(items: &[Value]) -> Value {
    let count = items.len();
    json!({ "type": "array", "prefixItems": items, "minItems": count, "maxItems": count })
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn guid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

fn text() -> Value {
    json!({ "type": "string" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Outcome, Success};

    #[test]
    fn the_published_hub_schema_matches_the_types() {
        let published = include_str!("../../../schema/hub.schema.json");
        assert_eq!(
            published,
            format!("{:#}\n", hub_schema()),
            "schema/hub.schema.json is out of date; run: cargo run -- schema hub > schema/hub.schema.json"
        );
    }

    #[test]
    fn every_answer_has_the_arguments_of_the_contract() {
        let schema = hub_schema();
        let count = |method: &str| schema["properties"]["calls"]["properties"][method]["maxItems"].as_u64();
        for task in Task::ALL {
            assert_eq!(count(&format!("{task}Cancelled")), Some(1), "{task}");
            let (completed, faulted) = match task {
                Task::GetModule | Task::Init | Task::Validate => (1, 3),
                Task::ApplyFromPlan | Task::DestroyFromPlan => (2, 4),
                _ => (2, 3),
            };
            assert_eq!(count(&format!("{task}Completed")), Some(completed), "{task}");
            assert_eq!(count(&format!("{task}Faulted")), Some(faulted), "{task}");
        }
        assert_eq!(count("SourceRefreshCompleted"), Some(5));
        assert_eq!(count("SourceRefreshFaulted"), Some(6));
        assert_eq!(count("ReportRunningTask"), Some(4));
        assert_eq!(count("AddLogs"), Some(1));
    }

    #[test]
    fn the_hub_schema_accepts_valid_calls_and_rejects_invalid_ones() {
        let schema = hub_schema();
        let validator_of = |method: &str| {
            let call = &schema["properties"]["calls"]["properties"][method];
            jsonschema::validator_for(&json!({ "$defs": schema["$defs"], "allOf": [call] })).unwrap()
        };
        let job = uuid::Uuid::nil();
        for task in Task::ALL {
            let call = Outcome::Faulted(Fault::new("why")).of(task, job).call();
            assert!(validator_of(&call.method).is_valid(&json!(call.arguments)), "{task}");
        }
        let plan = Success::Plan(Box::default());
        let mut call = Outcome::Completed(plan).of(Task::Plan, job).call();
        let validator = validator_of(&call.method);
        assert!(validator.is_valid(&json!(call.arguments)), "{call:?}");
        call.arguments[1]["createCount"] = json!("one");
        assert!(!validator.is_valid(&json!(call.arguments)));
        call.arguments.pop();
        assert!(!validator.is_valid(&json!(call.arguments)));
    }
}
