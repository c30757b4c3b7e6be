//! Stacks of the real Pulumi: locks, the default stack, and stacks of `hawser local`. Also the packages of a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use hawser::tasks::TaskError;
use hawser_contract::requests::CancelKind;
use hawser_contract::{EngineName, EngineTask, PulumiFlag, Task, TaskRequest};
use hawser_dev_server::{JobKind, JobState};

use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::real_engines::{RealEngine, real};
use crate::support::steps::{Bench, Interrupt};
use crate::support::world::{HAWSER, World, job};

#[tokio::test]
async fn after_a_kill_the_lock_is_reported_and_the_operations_behind_it_are_not() {
    let Some(bench) = pulumi_module("") else { return };
    let gate = bench.root.path().join("gate").display().to_string();
    bench.write(
        "Pulumi.yaml",
        &format!(
            "name: program\nruntime: yaml\nresources:\n  slow: {{type: 'hawser:index:Thing', properties: {{gate: '{gate}'}}}}\n"
        ),
    );
    let flags = || pulumi_flags(&[(PulumiFlag::StackName, Some("dev"))], &[]);
    bench.run(pulumi_init(&bench, &[(PulumiFlag::StackName, Some("dev"))])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], flags())).await.completed();
    // While Pulumi writes the state, a kill would destroy it.
    let saved = "(until pulumi stack export --stack dev 2>/dev/null | grep -q '\"creating\"'; do sleep 0.1; done; echo saved it) &";
    let mut apply = EngineTask::new(Task::ApplyFromPlan, EngineName::PULUMI);
    (apply.flags, apply.before_hook) = (flags(), Some(saved.to_owned()));
    let kill = Interrupt { at: "saved it", kind: CancelKind::Kill };
    let ran = bench.run_interrupted(TaskRequest::Engine(apply), Some(kill)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    assert!(ran.says("Pulumi was killed, so the stack is probably still locked"), "{:#?}", ran.log);
    assert!(ran.says("pulumi cancel dev`"), "{:#?}", ran.log);

    fs::write(gate, "").unwrap();
    let fault = bench.run(pulumi_task(Task::ApplyFromPlan, flags())).await.faulted();
    assert!(fault.message.contains("The stack is locked: file://"), "{fault:?}");
    assert!(fault.message.contains("pulumi cancel dev`"), "{fault:?}");
    assert!(!fault.message.contains("Pending operations"), "{fault:?}");
    assert!(!bench.rescued().exists());
}

/// The variables that give a job a state of its own in a folder.
fn variables(folder: &Path) -> [(&'static str, String); 3] {
    let state = folder.join("state");
    fs::create_dir_all(&state).unwrap();
    [
        ("PULUMI_HOME", folder.join("pulumi-home").display().to_string()),
        ("PULUMI_BACKEND_URL", format!("file://{}", state.display())),
        ("PULUMI_CONFIG_PASSPHRASE", "a long passphrase".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_outputs_are_masked_in_later_jobs_and_a_shared_default_stack_is_warned_about() {
    let Some(RealEngine { folder, .. }) = real(EngineName::PULUMI) else { return };
    let world = World::new().await;
    let program = "name: program\nruntime: yaml\noutputs:\n  hidden: {'fn::secret': hush-hush-text}\n  plain: some-text\n";
    let url = world.repository("repo", &[("Pulumi.yaml", program)]);
    let _runner = world.runner_with("one", &[("Engine__AdditionalBinaryPaths__0", folder.to_str().unwrap())]);
    world.connected(1).await;
    let spec = |kind, module| {
        let mut spec = job(kind, &url, module);
        spec.engine = EngineName::PULUMI;
        spec.env_vars = variables(world.dir.path()).map(|(name, value)| (name.to_owned(), value)).into();
        spec
    };
    let first = world.hub.submit(spec(JobKind::Apply, "a"));
    let ended = world.ended(first).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let outputs = ended.outputs.unwrap().outputs;
    let seen: Vec<_> = outputs.iter().map(|it| (it.value.as_str(), it.sensitive)).collect();
    assert_eq!(seen, [("hush-hush-text", Some(true)), ("some-text", Some(false))]);
    assert!(!world.messages(first).iter().any(|line| line.contains("is also used by")));

    let tasks = || JobKind::Tasks(vec![Task::GetDefinitiveRevision, Task::GetModule, Task::Init]);
    let mut second = spec(tasks(), "a");
    second.hooks.init_before = Some("echo it is hush-hush-text and some-text".to_owned());
    let second = world.hub.submit(second);
    assert_eq!(world.ended(second).await.state, JobState::Completed);
    let messages = world.messages(second);
    assert!(messages.iter().any(|line| line == "it is *** and some-text"), "{messages:#?}");

    let other = world.hub.submit(spec(tasks(), "b"));
    assert_eq!(world.ended(other).await.state, JobState::Completed);
    let messages = world.messages(other);
    let warning = "the stack snapcd of the project program is also used by local/local/a";
    assert!(messages.iter().any(|line| line.contains(warning)), "{messages:#?}");
    world.assert_no_violation();
}

/// Runs `hawser local` on a directory of a folder.
fn local(folder: &Path, engine: &RealEngine, arguments: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(HAWSER);
    command.arg("local").arg(folder.join("module")).args(arguments).current_dir(folder);
    command.env("HAWSER_LOCAL_DIR", folder.join("data")).envs(variables(folder));
    command.env("PATH", format!("{}:{path}", engine.folder.display()));
    command.output().unwrap()
}

#[test]
fn hawser_local_finds_the_engine_and_uses_the_named_stack() {
    let Some(engine) = real(EngineName::PULUMI) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (folder, module) = (folder.path(), folder.path().join("module"));
    fs::create_dir(&module).unwrap();
    let program = "name: program\nruntime: yaml\nconfig: {text: {type: string, default: none}}\noutputs: {said: '${text}'}\n";
    fs::write(module.join("Pulumi.yaml"), program).unwrap();
    // The link of a virtual environment, which the runner would refuse.
    fs::create_dir_all(module.join("venv/bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", module.join("venv/bin/python")).unwrap();

    let done = local(folder, &engine, &["--yes", "--stack", "dev", "--var", "text=[hello"]);
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && out.contains("[hello"), "{done:?}");
    assert!(folder.join("state/.pulumi/stacks/program/dev.json").exists());

    fs::remove_file(module.join("Pulumi.yaml")).unwrap();
    fs::write(module.join("main.tf"), "").unwrap();
    let done = local(folder, &engine, &["--yes", "--stack", "dev"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(64) && err.contains("has no stacks"), "{done:?}");
}

#[tokio::test]
async fn missing_packages_of_a_program_are_installed_by_init() {
    let Some(engine) = real(EngineName::PULUMI) else { return };
    let files = [("Pulumi.yaml", "name: program\nruntime: nodejs\n"), ("package.json", "{}")];
    let bench = Bench::new(&files).with_engine(&engine);
    // There is no language host for Node in the tests.
    let fault = bench.run(pulumi_init(&bench, &[])).await.faulted();
    assert!(fault.message.contains("pulumi install failed"), "{fault:?}");
    fs::create_dir(bench.module().join("node_modules")).unwrap();
    bench.run(pulumi_init(&bench, &[])).await.completed();
}
