//! The audit log: every task that was accepted, refused, cancelled or finished, over crashes too.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use hawser::contract::requests::CancelKind;
use hawser::embedded_hub::{Fault, JobKind, JobState, Moment, Rule};
use hawser::hooks::fingerprint;
use serde_json::{Value, json};

use super::{EMPTY, audit_log, events, waiting};
use crate::support::git::git_in;
use crate::support::world::{HAWSER, Runner, World, job, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_apply_is_recorded_in_order_with_commit_version_hooks_and_exit() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let commit = git_in(Path::new(&url), &["rev-parse", "HEAD"]);
    let runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "whole");
    let hook = "echo very-secret-hook > /dev/null";
    spec.hooks.apply_after = Some(format!("{hook}\r\n"));
    spec.env_vars.insert("API_TOKEN".into(), "very-secret-value".into());
    let id = world.hub.submit(spec);
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");

    let tasks = [
        "GetDefinitiveRevision",
        "GetModule",
        "Init",
        "Validate",
        "Variables",
        "Plan",
        "ApplyFromPlan",
        "Output",
    ];
    let expected: Vec<String> = tasks
        .iter()
        .flat_map(|task| [format!("accepted {task}"), format!("finished {task} completed")])
        .collect();
    assert_eq!(events(&runner, id), expected);
    let log = audit_log(&runner);
    let line = |event: &str, task: &str| -> Value {
        log.iter().find(|line| line["event"] == event && line["task"] == task).unwrap().clone()
    };
    for task in tasks {
        let finished = line("finished", task);
        assert_eq!(finished["sourceCommit"], commit.as_str(), "{finished}");
        assert_eq!(finished["stack"], "local", "{finished}");
        assert_eq!(finished["instance"], "one", "{finished}");
        for name in ["time", "organizationId", "namespace", "module", "moduleId", "runner"] {
            assert!(finished[name].is_string(), "{name}: {finished}");
        }
        let has_script = !["GetDefinitiveRevision", "GetModule", "Variables"].contains(&task);
        assert_eq!(finished["exit"], if has_script { json!({"code": 0}) } else { Value::Null }, "{finished}");
        assert_eq!(finished["engineVersion"].is_string(), has_script, "{finished}");
    }
    let apply = line("finished", "ApplyFromPlan");
    assert_eq!(apply["hooks"], json!({"ApplyAfterHook": fingerprint(hook)}));
    assert_eq!(line("accepted", "ApplyFromPlan")["hooks"], apply["hooks"]);
    let said = world.messages(id).into_iter().find(|line| line.starts_with("terraform ")).unwrap();
    assert!(said.starts_with(&format!("terraform {} ", apply["engineVersion"].as_str().unwrap())), "{said}");
    assert_eq!(line("accepted", "GetModule")["sourceUrl"], url.as_str());
    let text = fs::read_to_string(runner.working.join(".hawser/audit.jsonl")).unwrap();
    assert!(!text.contains("very-secret"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_failure_are_recorded_with_their_exits() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let never = world.path("never");
    let runner = world.runner("one");
    let id = world.hub.submit(waiting(&world, &url, "cancelled", &never));
    until("the hook runs", || world.path("cancelled.ran").exists().then_some(())).await;
    world.hub.cancel(id, CancelKind::Kill).unwrap();
    assert_eq!(world.ended(id).await.state, JobState::Cancelled);
    assert_eq!(
        events(&runner, id)[4..],
        ["accepted Validate", "cancelled Validate", "finished Validate cancelled"]
    );
    let log = audit_log(&runner);
    let of =
        |event: &str| log.iter().find(|line| line["event"] == event && line["task"] == "Validate").unwrap();
    assert_eq!(of("cancelled")["cancel"], "kill");
    assert!(of("finished")["exit"].is_object(), "{}", of("finished"));

    let mut spec = waiting(&world, &url, "failing", &never);
    spec.hooks.validate_before = Some("exit 7".into());
    let id = world.hub.submit(spec);
    assert!(matches!(world.ended(id).await.state, JobState::Failed { .. }));
    let last = audit_log(&runner).pop().unwrap();
    assert_eq!((&last["result"], &last["exit"]), (&json!("faulted"), &json!({"code": 7})), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_between_the_end_of_a_task_and_its_report_records_it_once() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    fs::write(&gate, "").unwrap();
    world
        .hub
        .misbehave(Rule::new(Moment::call("ValidateCompleted"), Fault::Refuse("not now".into())).times(1000));
    let mut runner = world.runner("one");
    let id = world.hub.submit(waiting(&world, &url, "killed", &gate));
    until("the outcome is on the disk", || {
        runner
            .steps()
            .iter()
            .any(|step| step.ends_with(format!("{id}.Validate")) && step.join("outcome.json").exists())
            .then_some(())
    })
    .await;
    runner.kill();
    world.hub.behave();
    let runner = world.runner("one");
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    let events = events(&runner, id);
    assert_eq!(events[4..], ["accepted Validate", "finished Validate completed"], "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_is_said_and_caught_up_with_while_the_step_is_here() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let (gate, place) = (world.path("gate"), world.path("audit.jsonl"));
    fs::write(&gate, "").unwrap();
    fs::create_dir(&place).unwrap();
    let file = place.display().to_string();
    world
        .hub
        .misbehave(Rule::new(Moment::call("ValidateCompleted"), Fault::Refuse("not now".into())).times(1000));
    let mut runner = world.runner_with("one", &[("Audit__File", &file)]);
    let id = world.hub.submit(waiting(&world, &url, "unwritten", &gate));
    until("the outcome is on the disk", || {
        runner
            .steps()
            .iter()
            .any(|step| step.ends_with(format!("{id}.Validate")) && step.join("outcome.json").exists())
            .then_some(())
    })
    .await;
    let log = runner.log();
    assert!(log.contains(&format!("the audit log {file} cannot be opened")), "{log}");
    assert!(log.contains(&format!("Validate of job {id} was finished")), "{log}");
    runner.kill();

    fs::remove_dir(&place).unwrap();
    world.hub.behave();
    let _again = world.runner_with("one", &[("Audit__File", &file)]);
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    let text = fs::read_to_string(&place).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines.iter().map(|line| (&line["event"], &line["task"])).collect();
    let validate = json!("Validate");
    assert_eq!(told, [(&json!("accepted"), &validate), (&json!("finished"), &validate)]);
    assert_eq!(lines[1]["exit"], json!({"code": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_private_whatever_the_umask() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let working = world.path("work-open");
    let log = world.path("open.log");
    let out = fs::File::create(&log).unwrap();
    let child = Command::new("sh")
        .args(["-c", "umask 0000; exec \"$0\" run", HAWSER])
        .current_dir(world.dir.path())
        .env("WorkingDirectory__WorkingDirectory", &working)
        .env("WorkingDirectory__TempDirectory", working.join(".temp"))
        .envs(world.hub.identity().runner_variables(&world.hub.url(), "open"))
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let runner = Runner { child, working, log };
    let ended = world.ended(world.hub.submit(job(JobKind::Plan, &url, "open"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(!audit_log(&runner).is_empty());
    let mode = fs::metadata(runner.working.join(".hawser/audit.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}
