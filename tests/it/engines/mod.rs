//! Whole jobs with each engine: Terraform, OpenTofu and Pulumi for real (`pulumi.rs`), and Pulumi's stand-in (see
//! `tests/standin`).

mod faults;
mod pulumi;
mod pulumi_backend;
mod pulumi_parameters;
mod terraform_variables;
mod tofu_plugins;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use hawser::engines::{Engine, EngineCommands, EngineError, Engines, ResultPaths};
use hawser::masking::{Rules, SecretStore};
use hawser::runner::{Options, Shutdown};
use hawser::script::EngineCommand;
use hawser::tasks::TaskError;
use hawser::workspace::PrivateFile;
use hawser_contract::requests::CancelKind;
use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitOptions, OutputValue, PlanData, PulumiArrayFlag, PulumiFlag,
    Success, Task, TaskRequest,
};
use hawser_dev_server::{JobKind, JobState};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::real_engines::terraform_and_tofu;
use crate::support::steps::{Bench, Interrupt, Ran};
use crate::support::world::{HAWSER, World, job};

#[track_caller]
fn counts(ran: Ran) -> PlanData {
    match ran.completed() {
        Success::Plan(data) => *data,
        other => panic!("{other:?}"),
    }
}

fn pulumi_init(bench: &Bench, flags: &[(PulumiFlag, Option<&str>)]) -> TaskRequest {
    TaskRequest::Engine(EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([(
                "PULUMI_HOME".to_owned(),
                bench.root.path().join("pulumi home").to_str().unwrap().to_owned(),
            )]),
            ..InitOptions::default()
        },
        flags: FlagLists {
            pulumi_flags: flags
                .iter()
                .map(|(flag, value)| Flag::new(*flag, *value))
                .collect::<Vec<_>>()
                .into(),
            ..FlagLists::default()
        },
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    })
}

fn pulumi_plan(parameters: &[(&str, &str)], flags: FlagLists) -> TaskRequest {
    let resolved_parameters =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    TaskRequest::Engine(EngineTask {
        flags,
        resolved_parameters,
        ..EngineTask::new(Task::Plan, EngineName::PULUMI)
    })
}

fn pulumi_apply() -> TaskRequest {
    let own = EngineTask::new(Task::ApplyFromPlan, EngineName::PULUMI);
    TaskRequest::Engine(own)
}

fn pulumi_output(flags: FlagLists) -> TaskRequest {
    TaskRequest::Engine(EngineTask { flags, ..EngineTask::new(Task::Output, EngineName::PULUMI) })
}

fn pulumi_module(program: &serde_json::Value) -> Bench {
    let program = program.to_string();
    Bench::new(&[("Pulumi.yaml", "name: standin\nruntime: yaml\n"), ("program.json", &program)])
        .with_standins()
}

#[tokio::test]
async fn terraform_and_tofu_run_a_module_from_init_to_outputs() {
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[(
            "main.tf",
            "resource \"terraform_data\" \"x\" { input = 1 }\noutput \"x\" { value = terraform_data.x.output }\n",
        )])
        .with_engine(&engine);
        let task = |task| TaskRequest::Engine(EngineTask::new(task, engine.name.clone()));
        let ran = bench.run(task(Task::Init)).await;
        assert!(ran.log[0].1.starts_with(&format!("{} 1.", engine.name)), "{:#?}", ran.log);
        ran.completed();
        assert_eq!(counts(bench.run(task(Task::Plan)).await).create_count, 1);
        assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(1));
        match bench.run(task(Task::Output)).await.completed() {
            Success::Outputs(Some(set)) => assert_eq!(set.outputs[0].value, "1"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn pulumi_runs_a_program_from_init_to_destroy() {
    let bench = pulumi_module(&json!({
        "resources": {"a": {"value": 1}, "b": {"value": 1}, "c": {"replace": 1}, "d": {}},
        "outputs": {
            "text": {"config": "greeting"}, "number": 1.5, "list": [1, "a"], "object": {"k": true},
            "password": {"secret": "hush"},
        },
    }));
    let flags = [(PulumiFlag::LoginLocal, None), (PulumiFlag::StackName, Some("it's dev"))];
    let ran = bench.run(pulumi_init(&bench, &flags)).await;
    assert!(ran.log[0].1.starts_with("pulumi 3.142.0-standin ("), "{:#?}", ran.log);
    assert!(ran.says("Created stack 'it's dev'"), "{:#?}", ran.log);
    assert_eq!(ran.completed(), Success::Done);
    let validate = EngineTask::new(Task::Validate, EngineName::PULUMI);
    bench.run(TaskRequest::Engine(validate)).await.completed();
    let variables = EngineTask::new(Task::Variables, EngineName::PULUMI);
    assert_eq!(bench.run(TaskRequest::Engine(variables)).await.completed(), Success::Variables(None));

    let parameters = [("greeting", "\"it's \\\"so\\\" $HOME\""), ("password", "\"hunter2hunter2\"")];
    let flags = FlagLists {
        pulumi_flags: vec![Flag::new(PulumiFlag::Message, Some("two words"))].into(),
        pulumi_array_flags: vec![Flag::new(PulumiArrayFlag::Target, Some("urn:a"))].into(),
        ..FlagLists::default()
    };
    let ran = bench.run(pulumi_plan(&parameters, flags)).await;
    assert!(!ran.says("hunter2"), "{:#?}", ran.log);
    let data = counts(ran);
    assert_eq!((data.create_count, data.total_count_after, data.outputs_create_count), (4, 4, 5));
    assert_eq!(bench.run(pulumi_apply()).await.completed(), Success::Resources(4));

    let Success::Outputs(Some(set)) = bench.run(pulumi_output(FlagLists::default())).await.completed() else {
        panic!("no outputs")
    };
    let seen: Vec<_> = set
        .outputs
        .iter()
        .map(|it| (it.name.as_str(), it.kind.as_str(), it.value.as_str(), it.sensitive))
        .collect();
    assert_eq!(
        seen,
        [
            ("list", "tuple", "[1,\"a\"]", None),
            ("number", "number", "1.5", None),
            ("object", "object", "{\"k\":true}", None),
            ("password", "string", "[secret]", Some(true)),
            ("text", "string", "it's \"so\" $HOME", None),
        ]
    );

    let program = json!({"resources": {"a": {"value": 2}, "b": {"value": 1}, "c": {"replace": 2}, "e": {}}});
    fs::write(bench.module().join("program.json"), program.to_string()).unwrap();
    let data = counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    assert_eq!((data.create_count, data.modify_count, data.destroy_count), (1, 1, 1));
    assert_eq!((data.recreate_count, data.total_unchanged_count, data.outputs_destroy_count), (1, 1, 5));
    assert_eq!(bench.run(pulumi_apply()).await.completed(), Success::Resources(4));

    let own = EngineTask::new(Task::PlanDestroy, EngineName::PULUMI);
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert!(ran.says(" -  standin:index:Thing a delete"), "{:#?}", ran.log);
    let data = counts(ran);
    assert_eq!((data.destroy_count, data.total_count_before, data.total_count_after), (4, 4, 0));
    let own = EngineTask::new(Task::DestroyFromPlan, EngineName::PULUMI);
    let done = bench.run(TaskRequest::Engine(own)).await.completed();
    assert_eq!(done, Success::Resources(0));
}

/// When a supervisor has let go of the module before its runner is back, another runner may be quicker.
#[tokio::test]
async fn pulumi_results_do_not_depend_on_later_changes_to_the_module() {
    let bench = pulumi_module(&json!({"resources": {"a": {}}, "outputs": {"x": "mine"}}));
    let program = |program: serde_json::Value| {
        fs::write(bench.module().join("program.json"), program.to_string()).unwrap();
    };
    let plan_destroy = || {
        let own = EngineTask::new(Task::PlanDestroy, EngineName::PULUMI);
        TaskRequest::Engine(own)
    };
    let plan = || pulumi_plan(&[], FlagLists::default());
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();

    let planned = bench.executed(plan()).await;
    let applied = bench.executed(pulumi_apply()).await;
    let printed = bench.executed(pulumi_output(FlagLists::default())).await;
    let destroying = bench.executed(plan_destroy()).await;

    program(json!({"resources": {"a": {}, "b": {}, "c": {}}, "outputs": {"x": "of another"}}));
    assert_eq!(counts(bench.run(plan()).await).create_count, 2);
    assert_eq!(bench.run(pulumi_apply()).await.completed(), Success::Resources(3));
    bench.run(pulumi_output(FlagLists::default())).await.completed();
    assert_eq!(counts(bench.run(plan_destroy()).await).destroy_count, 3);

    // Safe to repeat, too.
    for _ in 0..2 {
        assert_eq!(counts(planned.concluded().await).create_count, 1);
        assert_eq!(applied.concluded().await.completed(), Success::Resources(1));
        match printed.concluded().await.completed() {
            Success::Outputs(Some(set)) => assert_eq!(set.outputs[0].value, "mine"),
            other => panic!("{other:?}"),
        }
        assert_eq!(counts(destroying.concluded().await).destroy_count, 1);
    }
    // The names that users know these files by.
    for (name, text) in [
        ("plan.json", "resourcePlans"),
        ("destroy_preview.json", "changeSummary"),
        ("export.json", "deployment"),
        ("output.json", "of another"),
    ] {
        let found = fs::read_to_string(bench.private(name)).unwrap();
        assert!(found.contains(text), "{name}: {found}");
    }
}

#[tokio::test]
async fn pulumi_results_are_reported_even_if_their_copies_fail() {
    let bench = pulumi_module(&json!({"resources": {"a": {}}, "outputs": {"x": "mine"}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let blocked = |file: &str| Some(format!("mkdir -p .snapcd/{file}/{file}"));
    let says = |ran: &Ran, file: &str| {
        let said = format!("failed to copy the result to {}", bench.private(file).display());
        assert!(ran.says(&said), "{:#?}", ran.log);
        fs::remove_dir_all(bench.private(file)).unwrap();
    };

    let apply_before_hook = blocked("export.json");
    let own = EngineTask {
        before_hook: apply_before_hook,
        ..EngineTask::new(Task::ApplyFromPlan, EngineName::PULUMI)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    says(&ran, "export.json");
    assert_eq!(ran.completed(), Success::Resources(1));

    let own = EngineTask {
        before_hook: blocked("output.json"),
        ..EngineTask::new(Task::Output, EngineName::PULUMI)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    says(&ran, "output.json");
    assert!(matches!(ran.completed(), Success::Outputs(Some(set)) if set.outputs[0].value == "mine"));

    let plan_destroy_before_hook = blocked("destroy_preview.json");
    let own = EngineTask {
        before_hook: plan_destroy_before_hook,
        ..EngineTask::new(Task::PlanDestroy, EngineName::PULUMI)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    says(&ran, "destroy_preview.json");
    assert_eq!(counts(ran).destroy_count, 1);

    // The private folder itself is not needed to say what became of the stack, either.
    let destroy_after_hook = Some("rm -rf .snapcd; : >.snapcd".to_owned());
    let own = EngineTask {
        after_hook: destroy_after_hook,
        ..EngineTask::new(Task::DestroyFromPlan, EngineName::PULUMI)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert_eq!(ran.completed(), Success::Resources(0));
}

#[tokio::test]
async fn a_failed_pulumi_update_reports_its_exit_code_and_resources() {
    let bench = pulumi_module(&json!({"resources": {"a": {}, "b": {"fail": true}}}));
    let fault = bench.run(pulumi_init(&bench, &[])).await.faulted();
    assert!(fault.message.contains("pulumi stack select failed with exit code 255"), "{fault:?}");
    assert!(fault.message.contains("PULUMI_ACCESS_TOKEN must be set"), "{fault:?}");

    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let fault = bench.run(pulumi_apply()).await.faulted();
    assert!(fault.message.contains("pulumi up failed with exit code 255"), "{fault:?}");
    assert_eq!(fault.resources, Some(1));
}

#[tokio::test]
async fn pending_operations_of_pulumi_are_reported_with_a_copy_of_the_state() {
    let bench = pulumi_module(&json!({"resources": {"a": {}, "b": {"fail": true, "pending": true}}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let fault = bench.run(pulumi_apply()).await.faulted();
    let urn = "creating urn:pulumi:snapcd::standin::standin:index:Thing::b";
    assert!(fault.message.contains("Pending operations (1)") && fault.message.contains(urn), "{fault:?}");
    assert!(fault.message.contains("`cd ") && fault.message.contains(" && pulumi refresh`"), "{fault:?}");
    assert!(fault.message.contains(bench.module().to_str().unwrap()), "{fault:?}");
    assert_eq!(fault.resources, Some(1));
    let kept: Vec<_> = fs::read_dir(bench.rescued()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(fault.message.contains(kept[0].to_str().unwrap()), "{fault:?}");
    let kept: serde_json::Value = serde_json::from_slice(&fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(kept["deployment"]["pending_operations"][0]["type"], "creating");
}

#[tokio::test]
async fn a_failed_update_reports_that_its_state_cannot_be_read() {
    let bench = pulumi_module(&json!({"resources": {"a": {}, "b": {"fail": true, "pending": true}}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let apply = |hook: &str| {
        let apply_before_hook = Some(hook.to_owned());
        let own = EngineTask {
            before_hook: apply_before_hook,
            ..EngineTask::new(Task::ApplyFromPlan, EngineName::PULUMI)
        };
        TaskRequest::Engine(own)
    };
    let no_export = "pulumi() { [[ \"$1 $2\" != \"stack export\" ]] || return 255; command pulumi \"$@\"; }";
    let fault = bench.run(apply(no_export)).await.faulted();
    assert!(fault.message.contains("pulumi up failed"), "{fault:?}");
    assert!(fault.message.contains("Failed to read the state of the stack"), "{fault:?}");
    assert!(
        fault.message.contains("`cd ") && fault.message.contains(" && pulumi stack export`"),
        "{fault:?}"
    );
    assert!(fault.message.contains(bench.module().to_str().unwrap()), "{fault:?}");
    // Where it never began there is nothing to read.
    let fault = bench.run(apply("exit 3")).await.faulted();
    assert!(!fault.message.contains("afterwards"), "{fault:?}");
}

#[tokio::test]
async fn a_locked_pulumi_stack_is_reported_with_its_lock() {
    let bench = pulumi_module(&json!({"resources": {"a": {}}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let lock = bench.root.path().join("pulumi home/locked");
    fs::write(&lock, "").unwrap();
    let fault = bench.run(pulumi_apply()).await.faulted();
    assert!(fault.message.contains("The stack is locked: file://"), "{fault:?}");
    assert!(fault.message.contains(lock.to_str().unwrap()), "{fault:?}");
    assert!(fault.message.contains("&& pulumi cancel`"), "{fault:?}");
    assert!(!bench.rescued().exists());
}

#[tokio::test]
async fn a_pulumi_token_is_read_from_a_private_file() {
    let bench = pulumi_module(&json!({"resources": {}}));
    let flags = [(PulumiFlag::LoginCloud, None), (PulumiFlag::OidcToken, Some("the token"))];
    bench.run(pulumi_init(&bench, &flags)).await.completed();
    let noted = fs::read(bench.private("credentials.json")).unwrap();
    let noted: serde_json::Value = serde_json::from_slice(&noted).unwrap();
    assert_eq!(noted["token"], "the token");
    assert!(!fs::read_to_string(bench.private("init.sh")).unwrap().contains("the token"));
}

#[tokio::test]
async fn an_unsupported_flag_fails_in_the_engine() {
    let bench = pulumi_module(&json!({"resources": {}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    let flags =
        FlagLists { pulumi_flags: vec![Flag::new(PulumiFlag::Remove, None)].into(), ..FlagLists::default() };
    let fault = bench.run(pulumi_plan(&[], flags)).await.faulted();
    assert!(fault.message.contains("unknown flag: --remove"), "{fault:?}");
}

#[tokio::test]
async fn a_graceful_cancel_lets_pulumi_stop_by_itself() {
    let bench =
        pulumi_module(&json!({"resources": {"a": {}, "b": {"slow": true, "pending": true}, "c": {}}}));
    bench.run(pulumi_init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(pulumi_plan(&[], FlagLists::default())).await);
    let interrupt = Interrupt { at: "creating b", kind: CancelKind::Graceful };
    let ran = bench.run_interrupted(pulumi_apply(), Some(interrupt)).await;
    assert!(ran.says("^C received; cancelling."), "{:#?}", ran.log);
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    assert!(ran.says("To check for pending_operations: `cd "), "{:#?}", ran.log);
}

/// Runs `main.sh` of the module with the name of the task.
#[derive(Debug)]
struct Shell;

impl Engine for Shell {
    fn name(&self) -> EngineName {
        "sh".parse().unwrap()
    }

    fn install_hint(&self) -> &'static str {
        "install a shell"
    }

    fn uses_file(&self, name: &str) -> bool {
        name == "main.sh"
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["-c", "echo 1.0"]
    }

    fn verb(&self, _task: Task) -> &'static str {
        "main.sh"
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        let mut command = EngineCommand::new(["sh", "main.sh", task.task.name()]);
        if task.task == Task::Output {
            command = command.stdout(paths.step(PrivateFile::OUTPUT.name()).into());
        }
        Ok(EngineCommands { engine: vec![command], ..EngineCommands::default() })
    }

    fn read_plan(&self, _task: Task, _paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        let data =
            PlanData { create_count: 1, total_changed_count: 1, total_count_after: 1, ..PlanData::default() };
        Ok((data, vec!["one resource".to_owned()]))
    }

    fn count_resources(&self, _paths: &ResultPaths) -> Result<u64, EngineError> {
        Ok(1)
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        let value = String::from_utf8_lossy(printed).trim().to_owned();
        let (name, kind) = ("printed".to_owned(), "string".to_owned());
        Ok(vec![OutputValue { name, kind, value, sensitive: None, from_extra_file: false }])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_engine_runs_a_whole_job_and_an_unknown_one_is_refused() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let world = World::new().await;
    let url = world.repository("repo", &[("main.sh", "echo \"ran $1\"\n")]);
    let identity = world.hub.identity();
    let settings = json!({
        "Runner": {
            "Id": identity.runner_id, "OrganizationId": identity.organization_id, "Instance": "one",
            "Credentials": {
                "ClientId": identity.client_id, "ClientSecret": identity.client_secret.expose_secret(),
            },
        },
        "Server": {"Url": world.hub.url()},
        "WorkingDirectory": {"WorkingDirectory": world.path("work"), "TempDirectory": world.path("temp")},
    });
    let options = Options {
        supervisor: HAWSER.into(),
        timing: hawser::connect::Timing::default(),
        engines: Engines::new(Engines::default().iter().cloned().chain([Arc::new(Shell) as Arc<dyn Engine>])),
    };
    let secrets = SecretStore::new(Rules::new(&Default::default()).unwrap());
    let (shutdown, asked) = tokio::sync::watch::channel(Shutdown::No);
    let settings = serde_json::from_value(settings).unwrap();
    let runner = tokio::spawn(hawser::runner::run(settings, secrets, options, asked, |_| {}));
    world.connected(1).await;

    let mut spec = job(JobKind::Apply, &url, "shell");
    spec.engine = Shell.name();
    let ran = world.hub.submit(spec.clone());
    let ended = world.ended(ran).await;
    let messages = world.messages(ran);
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{messages:#?}");
    assert_eq!(ended.plan.unwrap().create_count, 1);
    assert_eq!(ended.resources, Some(1));
    assert_eq!(ended.outputs.unwrap().outputs[0].value, "ran Output");
    for line in ["ran Init", "ran Validate", "ran Plan", "one resource", "ran ApplyFromPlan"] {
        assert!(messages.iter().any(|message| message == line), "{line}: {messages:#?}");
    }

    spec.engine = "ansible".parse().unwrap();
    let ended = world.ended(world.hub.submit(spec)).await;
    let JobState::Failed { error } = &ended.state else { panic!("{ended:#?}") };
    assert!(error.contains("ansible") && error.contains("pulumi, sh"), "{error}");
    shutdown.send_replace(Shutdown::Drain);
    runner.await.unwrap().unwrap();
}
