//! Pulumi's stand-in: which command failed, and stacks that a destroy removes.

use hawser_contract::{PulumiArrayFlag, PulumiFlag};

use super::*;

const ENGINE: EngineName = EngineName::PULUMI;

fn module(program: &serde_json::Value) -> Bench {
    let program = program.to_string();
    Bench::new(&[("Pulumi.yaml", "name: standin\nruntime: yaml\n"), ("program.json", &program)])
        .with_standins()
}

fn init(bench: &Bench, flags: &[(PulumiFlag, Option<&str>)]) -> TaskRequest {
    let home = bench.root.path().join("pulumi home").to_str().unwrap().to_owned();
    TaskRequest::Engine(EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("PULUMI_HOME".to_owned(), home)]),
            ..InitOptions::default()
        },
        flags: given(flags, &[]),
        ..EngineTask::new(Task::Init, ENGINE)
    })
}

fn given(flags: &[(PulumiFlag, Option<&str>)], targets: &[&str]) -> FlagLists {
    let flags = flags.iter().map(|(flag, value)| Flag::new(*flag, *value));
    let targets = targets.iter().map(|urn| Flag::new(PulumiArrayFlag::Target, Some(urn)));
    FlagLists {
        pulumi_flags: flags.collect::<Vec<_>>().into(),
        pulumi_array_flags: targets.collect::<Vec<_>>().into(),
        ..FlagLists::default()
    }
}

fn plan(parameters: &[(&str, &str)], flags: FlagLists) -> TaskRequest {
    let resolved_parameters =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    TaskRequest::Engine(EngineTask { flags, resolved_parameters, ..EngineTask::new(Task::Plan, ENGINE) })
}

fn plan_destroy(flags: FlagLists) -> TaskRequest {
    TaskRequest::Engine(EngineTask { flags, ..EngineTask::new(Task::PlanDestroy, ENGINE) })
}

fn destroy(flags: FlagLists, after: Option<&str>) -> TaskRequest {
    let destroy_after_hook = after.map(str::to_owned);
    let own = EngineTask { after_hook: destroy_after_hook, ..EngineTask::new(Task::DestroyFromPlan, ENGINE) };
    TaskRequest::Engine(EngineTask { flags, ..own })
}

/// A program that was applied.
async fn applied(program: &serde_json::Value) -> Bench {
    let bench = module(program);
    bench.run(init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    counts(bench.run(plan(&[], FlagLists::default())).await);
    let own = EngineTask::new(Task::ApplyFromPlan, ENGINE);
    bench.run(TaskRequest::Engine(own)).await.completed();
    bench
}

fn stack_exists(bench: &Bench) -> bool {
    bench.root.path().join("pulumi home/stack-snapcd.json").exists()
}

#[tokio::test]
async fn the_fault_names_the_command_that_failed() {
    let bench = module(&json!({"resources": {"a": {}}, "outputs": {"x": {"config": "key"}}}));
    let token = (PulumiFlag::OidcToken, Some("file:///no/such/token"));
    let fault = bench.run(init(&bench, &[(PulumiFlag::LoginCloud, None), token])).await.faulted();
    assert!(fault.message.starts_with("pulumi login failed with exit code 255: open"), "{fault:?}");

    bench.run(init(&bench, &[(PulumiFlag::LoginLocal, None)])).await.completed();
    let nowhere = given(&[(PulumiFlag::ConfigFile, Some("no/such/config.yaml"))], &[]);
    let fault = bench.run(plan(&[("key", "\"hush\"")], nowhere)).await.faulted();
    let said = "pulumi config set failed with exit code 255: open no/such/config.yaml";
    assert!(fault.message.starts_with(said) && !fault.message.contains("hush"), "{fault:?}");

    fs::rename(bench.module().join("program.json"), bench.module().join("elsewhere")).unwrap();
    let fault = bench.run(plan(&[("key", "1")], FlagLists::default())).await.faulted();
    assert!(fault.message.starts_with("pulumi preview failed with exit code 255"), "{fault:?}");

    // The preview reads a separate configuration file.
    fs::rename(bench.module().join("elsewhere"), bench.module().join("program.json")).unwrap();
    let own = given(&[(PulumiFlag::ConfigFile, Some("own.yaml")), (PulumiFlag::Diff, Some("false"))], &[]);
    counts(bench.run(plan(&[("key", "\"from the file\"")], own)).await);
    let planned = fs::read_to_string(bench.private("plan.json")).unwrap();
    assert!(planned.contains("from the file"), "{planned}");
}

#[tokio::test]
async fn a_destroy_that_removes_the_stack_succeeds_with_no_resources() {
    let bench = applied(&json!({"resources": {"a": {}, "b": {}}})).await;
    let remove = || given(&[(PulumiFlag::Remove, None)], &[]);
    // The real one would fail here, or remove an empty stack for a preview.
    let ran = bench.run(plan_destroy(remove())).await;
    assert!(ran.says("ignoring Pulumi flag Remove: it does not apply to PlanDestroy"), "{:#?}", ran.log);
    assert_eq!(counts(ran).destroy_count, 2);
    assert!(stack_exists(&bench));
    let ran = bench.run(destroy(remove(), None)).await;
    assert!(!ran.says("no stack selected"), "{:#?}", ran.log);
    assert_eq!(ran.completed(), Success::Resources(0));
    assert!(!stack_exists(&bench));

    // A hook that fails afterwards does not make the stack one that could not be read.
    let bench = applied(&json!({"resources": {"a": {}}})).await;
    let fault = bench.run(destroy(remove(), Some("exit 3"))).await.faulted();
    assert_eq!(fault.message, "pulumi destroy succeeded, but DestroyAfterHook failed with exit code 3");
}

#[tokio::test]
async fn a_stack_that_remains_despite_remove_is_counted() {
    let bench = applied(&json!({"resources": {"a": {}, "b": {}}})).await;
    let urn = "urn:pulumi:snapcd::standin::standin:index:Thing::a";
    let one = given(&[(PulumiFlag::Remove, None)], &[urn]);
    assert_eq!(bench.run(destroy(one, None)).await.completed(), Success::Resources(1));
    assert!(stack_exists(&bench));
    let off = given(&[(PulumiFlag::Remove, Some("false"))], &[]);
    assert_eq!(bench.run(destroy(off, None)).await.completed(), Success::Resources(0));
    assert!(stack_exists(&bench));
}

#[tokio::test]
async fn a_failed_destroy_with_remove_counts_the_remaining_resources() {
    let bench = applied(&json!({"resources": {"a": {}, "b": {}}})).await;
    let stack = bench.root.path().join("pulumi home/stack-snapcd.json");
    let state = fs::read_to_string(&stack).unwrap().replace("\"b\": {}", "\"b\": {\"fail\": true}");
    fs::write(&stack, state).unwrap();
    let fault = bench.run(destroy(given(&[(PulumiFlag::Remove, None)], &[]), None)).await.faulted();
    assert!(fault.message.starts_with("pulumi destroy failed with exit code 255"), "{fault:?}");
    assert_eq!(fault.resources, Some(2));
}
