//! Which backend and stack Pulumi works on: those that the module's own Init chose.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use hawser_contract::{
    EngineName, EngineTask, FlagLists, InitOptions, PulumiFlag, Success, Task, TaskRequest,
};

use crate::support::pulumi::{pulumi_flags, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::real_engines::real;
use crate::support::steps::Bench;

const PROGRAM: &str = "resources: {a: {type: 'pulumi:index:Stash', properties: {input: one}}}\n";

type Flags<'a> = &'a [(PulumiFlag, Option<&'a str>)];

/// The variables that all modules of one runner share: the home is where Pulumi keeps its login.
fn shared(home: &Path) -> BTreeMap<String, String> {
    [("PULUMI_HOME", home.to_str().unwrap()), ("PULUMI_CONFIG_PASSPHRASE", "a long passphrase")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn init(home: &Path, flags: Flags<'_>) -> TaskRequest {
    TaskRequest::Engine(EngineTask {
        init: InitOptions { resolved_env_vars: shared(home), ..InitOptions::default() },
        flags: pulumi_flags(flags, &[]),
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    })
}

/// A folder for the states of a module, as a URL.
fn backend(bench: &Bench) -> String {
    let folder = bench.root.path().join("state");
    fs::create_dir_all(&folder).unwrap();
    format!("file://{}", folder.display())
}

/// The number of stashes in the stored state of a stack; `None` if there is no such stack.
fn stored_in(bench: &Bench, stack: &str) -> Option<usize> {
    let file = bench.root.path().join(format!("state/.pulumi/stacks/program/{stack}.json"));
    let state: serde_json::Value = serde_json::from_slice(&fs::read(file).ok()?).unwrap();
    let resources = state["checkpoint"]["latest"]["resources"].as_array().cloned().unwrap_or_default();
    Some(resources.iter().filter(|it| it["type"] == "pulumi:index:Stash").count())
}

fn stored(bench: &Bench) -> Option<usize> {
    stored_in(bench, "snapcd")
}

async fn apply(bench: &Bench) {
    bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
}

#[tokio::test]
async fn a_destroy_uses_the_backend_of_its_own_module() {
    let (Some(staging), Some(prod)) = (pulumi_module(PROGRAM), pulumi_module(PROGRAM)) else { return };
    let home = tempfile::tempdir().unwrap();
    for bench in [&staging, &prod] {
        let url = backend(bench);
        bench.run(init(home.path(), &[(PulumiFlag::CloudUrl, Some(&url))])).await.completed();
        apply(bench).await;
        assert_eq!(stored(bench), Some(1));
    }
    // Prod was the last to log in.
    staging.run(pulumi_plan(Task::PlanDestroy, &[], FlagLists::default())).await.completed();
    let destroyed = staging.run(pulumi_task(Task::DestroyFromPlan, FlagLists::default())).await.completed();
    assert_eq!(destroyed, Success::Resources(0));
    assert_eq!((stored(&staging), stored(&prod)), (Some(0), Some(1)));
    let output = prod.run(pulumi_task(Task::Output, FlagLists::default())).await;
    assert!(output.result.is_ok(), "{output:?}");
}

/// Runs Pulumi as the operator of the host does.
fn as_operator(home: &Path, arguments: &[&str]) {
    let pulumi = real(EngineName::PULUMI).unwrap().folder.join("pulumi");
    let output = Command::new(pulumi).args(arguments).envs(shared(home)).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

#[tokio::test]
async fn a_module_that_logs_in_leaves_the_login_of_the_operator_alone() {
    let (Some(own), Some(other)) = (pulumi_module(PROGRAM), pulumi_module(PROGRAM)) else { return };
    let home = tempfile::tempdir().unwrap();
    as_operator(home.path(), &["login", &backend(&own)]);
    let login = || fs::read_to_string(home.path().join("credentials.json")).unwrap();
    let before = login();

    let url = backend(&other);
    other.run(init(home.path(), &[(PulumiFlag::CloudUrl, Some(&url))])).await.completed();
    assert_eq!(login(), before);
    // Without a login flag, the login of the operator applies.
    own.run(init(home.path(), &[])).await.completed();
    assert_eq!((stored(&own), stored(&other)), (Some(0), Some(0)));
    apply(&other).await;
    apply(&own).await;
    assert_eq!((stored(&own), stored(&other)), (Some(1), Some(1)));
    assert_eq!(login(), before);
    // Plugins are not downloaded for each module.
    assert!(!own.private("plugins").exists() && !other.private("plugins").exists());
}

#[tokio::test]
async fn later_tasks_use_the_stack_of_init_even_if_another_one_is_selected() {
    let Some(bench) = pulumi_module(PROGRAM) else { return };
    let home = tempfile::tempdir().unwrap();
    let url = backend(&bench);
    let flags = [(PulumiFlag::CloudUrl, Some(url.as_str())), (PulumiFlag::StackName, Some("prod"))];
    bench.run(init(home.path(), &flags)).await.completed();
    let select = "pulumi stack select other --create --non-interactive";
    let plan = EngineTask {
        before_hook: Some(select.to_owned()),
        ..EngineTask::new(Task::Plan, EngineName::PULUMI)
    };
    bench.run(TaskRequest::Engine(plan)).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
    assert_eq!((stored_in(&bench, "prod"), stored_in(&bench, "other")), (Some(1), Some(0)));
}

#[tokio::test]
async fn create_stack_false_does_not_create() {
    let Some(bench) = pulumi_module(PROGRAM) else { return };
    let home = tempfile::tempdir().unwrap();
    let url = backend(&bench);
    let login = (PulumiFlag::CloudUrl, Some(url.as_str()));
    let off = (PulumiFlag::CreateStack, Some("false"));
    let fault = bench.run(init(home.path(), &[login, off])).await.faulted();
    assert!(fault.message.contains("pulumi stack select failed"), "{fault:?}");
    assert_eq!(stored(&bench), None);
    bench.run(init(home.path(), &[login])).await.completed();
    bench.run(init(home.path(), &[login, off])).await.completed();
    assert_eq!(stored(&bench), Some(0));
}
