use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{Flag, FlagLists, TerraformFlag};
use std::collections::BTreeMap;

fn common() -> Common {
    Common {
        job_id: Uuid::from_u128(1),
        organization_id: Uuid::from_u128(2),
        metadata: Metadata {
            stack_name: "stack".into(),
            namespace_name: "namespace".into(),
            module_name: "module".into(),
            module_id: Uuid::from_u128(3),
            source_subdirectory: None,
        },
        report_active_job_frequency_seconds: 60,
    }
}

fn source() -> Source {
    Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: "https://example.org/repo.git".into(),
        source_revision: "main".into(),
        source_definitive_revision: Some("abc".into()),
        source_semantic_version: None,
    }
}

fn every_task() -> Vec<TaskRequest> {
    let extra = ExtraFile {
        file_name: "extra.tf".into(),
        contents: "x".into(),
        overwrite: true,
        source: Value::Null,
    };
    let env = BTreeMap::from([("Path".to_owned(), "kept".to_owned())]);
    let tasks = Task::ALL.into_iter().map(|task| match task {
        Task::GetDefinitiveRevision => TaskRequest::GetDefinitiveRevision(source()),
        Task::GetModule => TaskRequest::GetModule(
            source(),
            GetModule { extra_files: vec![extra.clone()], ..GetModule::default() },
        ),
        task => {
            let mut request = EngineTask::new(task, EngineName::PULUMI);
            let flags = FlagLists {
                terraform_flags: vec![Flag::new(TerraformFlag::NoColor, None)].into(),
                ..FlagLists::default()
            };
            match task {
                Task::Init => request.init.resolved_env_vars = env.clone(),
                Task::Plan | Task::PlanDestroy => request.resolved_parameters = env.clone(),
                Task::Variables | Task::Output => request.extra_file_names = vec!["a".into()],
                _ => {}
            }
            if task != Task::Variables {
                request.before_hook = Some("before".into());
                request.after_hook = Some("after".into());
            }
            if !matches!(task, Task::Variables | Task::Validate) {
                request.flags = flags;
            }
            TaskRequest::Engine(request)
        }
    });
    tasks.collect()
}

/// Turns the first letter of every member name to upper case, as a server with other settings might.
fn pascal_case(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(name, value)| {
                    let is_map = name == "resolvedEnvVars" || name == "resolvedParameters";
                    let mut letters = name.chars();
                    let first = letters.next().map(|it| it.to_ascii_uppercase());
                    let name = first.into_iter().chain(letters).collect();
                    (name, if is_map { value } else { pascal_case(value) })
                })
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(pascal_case).collect(),
        other => other,
    }
}

#[test]
fn every_task_is_read_back_unchanged_in_any_case() {
    for task in every_task() {
        let method = task.task().pushed_as();
        let request = Request { common: common(), task };
        let written = request.write();
        for payload in [written.clone(), pascal_case(written)] {
            let Push::Task(read) = Push::read(method, &[payload]).unwrap() else { panic!("no task") };
            assert_eq!(*read, request);
        }
    }
}

#[test]
fn lists_and_objects_may_be_null_or_missing_and_unknown_members_are_ignored() {
    let mut payload = Request {
        common: common(),
        task: TaskRequest::Engine(EngineTask::new(Task::Init, EngineName::TOFU)),
    }
    .write();
    let members = payload.as_object_mut().unwrap();
    for name in ["flags", "resolvedEnvVars", "engine", "cleanInitEnabled", "reportActiveJobFrequencySeconds"]
    {
        members.insert(name.to_owned(), Value::Null);
    }
    members["backendConfiguration"] = json!({"terraformArrayFlags": null, "moduleBackendConfigs": null});
    members.remove("initBeforeHook");
    members.insert("somethingNew".to_owned(), json!({"a": [1, 2]}));
    Push::read("Init", &[payload]).unwrap();
}

#[test]
fn an_unreadable_payload_names_the_member_and_the_task_to_answer() {
    let mut payload = Request { common: common(), task: every_task().remove(1) }.write();
    payload["extraFiles"] = json!([{"fileName": 7}]);
    let Err(PushError::Unreadable { answer_to, reason, .. }) = Push::read("GetModule", &[payload]) else {
        panic!("was read")
    };
    assert_eq!(answer_to, Some((Task::GetModule, Uuid::from_u128(1))));
    assert!(reason.contains("extraFiles[0].fileName"), "{reason}");
}

#[test]
fn without_a_readable_job_id_no_task_can_be_answered() {
    for arguments in [vec![], vec![json!(1)], vec![json!({"jobId": "no guid"})], vec![json!({}), json!({})]] {
        let Err(PushError::Unreadable { answer_to, .. }) = Push::read("Plan", &arguments) else {
            panic!("was read")
        };
        assert_eq!(answer_to, None);
    }
    assert!(matches!(Push::read("Selfdestruct", &[]), Err(PushError::UnknownMethod { .. })));
}

#[test]
fn payload_errors_do_not_contain_values() {
    for variables in [json!("hush"), json!({"PASSWORD": ["hush"]}), json!({"PASSWORD": 40_417})] {
        let payload = json!({"jobId": Uuid::from_u128(1), "resolvedEnvVars": variables});
        let error = Push::read("Init", &[payload]).unwrap_err().to_string();
        assert!(error.contains("resolvedEnvVars") && error.contains("expected"), "{error}");
        assert!(!error.contains("hush") && !error.contains("40417"), "{error}");
    }
}

#[test]
fn both_cancels_are_read() {
    let job = Uuid::from_u128(9);
    for (method, kind) in [("CancelGraceful", CancelKind::Graceful), ("cancelKill", CancelKind::Kill)] {
        assert_eq!(Push::read(method, &[json!({"JobId": job})]).unwrap(), Push::Cancel(kind, job));
        assert_eq!(Push::read(method, &[json!(job)]).unwrap(), Push::Cancel(kind, job));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "jobId",
        "metadata",
        "stackName",
        "moduleId",
        "engine",
        "flags",
        "terraformFlags",
        "flag",
        "value",
        "sourceType",
        "extraFiles",
        "resolvedEnvVars",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!("00000000-0000-0000-0000-000000000001")),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_payload_makes_it_panic(
        method in prop::sample::select(vec!["Plan", "Init", "GetModule", "Input", "SourceRefresh", "CancelKill"]),
        arguments in prop::collection::vec(any_json(), 0..3),
    ) {
        let _ = Push::read(method, &arguments);
    }
}
