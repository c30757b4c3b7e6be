//! The audit log: every task that was accepted, refused, cancelled, or finished, also across crashes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use hawser::base::digest::fingerprint;
use hawser::step::{Audited, StepFolder};
use hawser_contract::Task;
use hawser_contract::requests::CancelKind;
use hawser_dev_server::{JobKind, JobState};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::audit::{audit_log, events};
use crate::support::eventually::{LIMIT, eventually};
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::git::git_in;
use crate::support::world::{EMPTY, HAWSER, Runner, World, job, waiting};

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
    let first = world.messages(id).into_iter().find(|line| line.starts_with("terraform ")).unwrap();
    assert!(
        first.starts_with(&format!("terraform {} ", apply["engineVersion"].as_str().unwrap())),
        "{first}"
    );
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
    eventually("the hook runs", || world.path("cancelled.ran").exists()).await;
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
async fn a_finish_is_written_once_if_the_runner_is_killed_before_it_is_reported() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    fs::write(&gate, "").unwrap();
    world
        .hub
        .misbehave(Rule::new(Moment::call("ValidateCompleted"), Fault::Refuse("not now".into())).times(1000));
    let mut runner = world.runner("one");
    let id = world.hub.submit(waiting(&world, &url, "killed", &gate));
    step(&runner, id, Task::Validate, |it| it.path().join("outcome.json").exists()).await;
    runner.kill();
    world.hub.behave();
    runner.restart();
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    let events = events(&runner, id);
    assert_eq!(events[4..], ["accepted Validate", "finished Validate completed"], "{events:?}");
}

/// Waits for the folder of a job's task to meet a condition.
async fn step(runner: &Runner, id: Uuid, task: Task, condition: impl Fn(&StepFolder) -> bool) -> StepFolder {
    eventually(&format!("the {task} of {id} meets the condition"), || {
        runner.step(id, task).map(StepFolder::at).filter(&condition)
    })
    .await
}

/// Restores the folder that a runner leaves when it is killed after the event is written and before it is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_finish_that_a_kill_left_unrecorded_is_written_twice() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    fs::write(&gate, "").unwrap();
    world
        .hub
        .misbehave(Rule::new(Moment::call("ValidateCompleted"), Fault::Refuse("not now".into())).times(1000));
    let mut runner = world.runner("one");
    let id = world.hub.submit(waiting(&world, &url, "finished", &gate));
    let folder = step(&runner, id, Task::Validate, |it| it.path().join("outcome.json").exists()).await;
    runner.kill();
    let audited = folder.audited().unwrap().unwrap();
    assert_eq!(audited.finished.as_deref(), Some("ValidateCompleted"));
    folder.set_audited(&Audited { finished: None, ..audited }).unwrap();
    fs::remove_file(folder.path().join("outcome.json")).unwrap();

    world.hub.behave();
    runner.restart();
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    let recorded = events(&runner, id);
    let end = "finished Validate completed";
    assert_eq!(recorded[4..], ["accepted Validate", end, end], "{recorded:?}");
    // They differ only in time.
    let log = audit_log(&runner);
    let [.., first, second] = log.as_slice() else { panic!("{log:?}") };
    let (mut first, mut second) = (first.clone(), second.clone());
    let (written, again) = (first["time"].take(), second["time"].take());
    assert_eq!(first, second);
    assert!(written.as_str().unwrap() < again.as_str().unwrap(), "{written} {again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accept_that_a_kill_left_unrecorded_is_written_twice_and_its_finish_once() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let narrow = [("Runner__MaxConcurrentSteps", "1")];
    let mut runner = world.runner_with("one", &narrow);
    let first = world.hub.submit(waiting(&world, &url, "first", &gate));
    eventually("the hook runs", || world.path("first.ran").exists()).await;
    // This job waits for the slot.
    let id = world.hub.submit(waiting(&world, &url, "second", &gate));
    let is_recorded = |it: &StepFolder| it.audited().unwrap().is_some_and(|audited| audited.accepted);
    let folder = step(&runner, id, Task::GetModule, is_recorded).await;
    runner.kill();
    fs::remove_file(folder.path().join("audited.json")).unwrap();

    fs::write(&gate, "").unwrap();
    runner.restart();
    for id in [first, id] {
        let ended = world.ended(id).await;
        assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    }
    let recorded = events(&runner, id);
    assert_eq!(recorded[..3], ["accepted GetModule", "accepted GetModule", "finished GetModule completed"]);
    assert_eq!(recorded[3..].iter().collect::<HashSet<_>>().len(), recorded.len() - 3, "{recorded:?}");
}

/// Kills the runner as soon as a line appears, which is sometimes before the event is recorded in the step folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_as_soon_as_a_line_appears_loses_no_event() {
    const ROUNDS: usize = 8;
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let commit = git_in(Path::new(&url), &["rev-parse", "HEAD"]);
    let mut runner = world.runner("one");
    let place = runner.working.join(".hawser/audit.jsonl");
    let expected = ["accepted GetModule", "finished GetModule completed"];
    let mut repeats = 0;
    for round in 0..ROUNDS {
        world.connected(1).await;
        let mut spec = job(JobKind::Tasks(vec![Task::GetModule]), &url, &format!("round-{round}"));
        spec.source.source_definitive_revision = Some(commit.clone());
        let id = world.hub.submit(spec);
        // A busy loop on another thread: a pause would miss the moment.
        let (place, line) = (place.clone(), ["accepted", "finished"][round % 2]);
        let seen = tokio::task::spawn_blocking(move || {
            let (id, event) = (format!("\"jobId\":\"{id}\""), format!("\"event\":\"{line}\""));
            let started = Instant::now();
            while started.elapsed() < LIMIT {
                let text = fs::read_to_string(&place).unwrap_or_default();
                if text.lines().any(|line| line.contains(&id) && line.contains(&event)) {
                    return true;
                }
            }
            false
        });
        assert!(seen.await.unwrap(), "no line of {id}: {}", runner.log());
        runner.restart();
        assert_eq!(world.ended(id).await.state, JobState::Completed);
        let mut recorded = events(&runner, id);
        repeats += recorded.len() - expected.len();
        recorded.dedup();
        assert_eq!(recorded, expected, "round {round}");
    }
    println!("{repeats} duplicate lines in {ROUNDS} rounds");
    assert!(repeats <= ROUNDS, "{repeats} duplicate lines");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_is_reported_and_completed_while_the_step_folder_exists() {
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
    eventually("the outcome is on the disk", || {
        runner.step(id, Task::Validate).is_some_and(|step| step.join("outcome.json").exists())
    })
    .await;
    let log = runner.log();
    assert!(log.contains("failed to open audit log"), "{log}");
    let is_logged = |line: &str| {
        ["failed to write audit event", &file, &id.to_string(), "Finished", "Validate"]
            .iter()
            .all(|part| line.contains(part))
    };
    assert!(log.lines().any(is_logged), "{log}");
    runner.kill();

    fs::remove_dir(&place).unwrap();
    world.hub.behave();
    runner.restart();
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    let text = fs::read_to_string(&place).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recorded: Vec<_> = lines.iter().map(|line| (&line["event"], &line["task"])).collect();
    let validate = json!("Validate");
    assert_eq!(recorded, [(&json!("accepted"), &validate), (&json!("finished"), &validate)]);
    assert_eq!(lines[1]["exit"], json!({"code": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_private_regardless_of_the_umask() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let working = world.path("work-open");
    let log = world.path("open.log");
    let out = fs::File::create(&log).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 0000; exec \"$0\" run", HAWSER])
        .current_dir(world.dir.path())
        .env("WorkingDirectory__WorkingDirectory", &working)
        .env("WorkingDirectory__TempDirectory", working.join(".temp"))
        .envs(world.hub.identity().runner_variables(&world.hub.url(), "open"))
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out);
    let runner = Runner::start(command, working, log);
    let ended = world.ended(world.hub.submit(job(JobKind::Plan, &url, "open"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(!audit_log(&runner).is_empty());
    let mode = fs::metadata(runner.working.join(".hawser/audit.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}
