//! Cancels: carried out, answered, and remembered across restarts.

use std::fs;
use std::path::Path;

use hawser_contract::Task;
use hawser_contract::requests::CancelKind;
use hawser_dev_server::{HubEvent, HubOptions, JobKind, JobState, Recorded};
use uuid::Uuid;

use super::{UnderWay, finds_steps, printing, refused, seen, under_way};
use crate::support::eventually::{eventually, in_time};
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::world::{EMPTY, World, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_cancel_reaches_the_engine_and_is_reported_after_all_processes_ended() {
    let world = World::new().await;
    let pid_file = world.path("sleeper.pid");
    let command = format!("echo $$ > '{}'; echo started; exec sleep 600", pid_file.display());
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "cancelled"));
    eventually("the provisioner sleeps", || world.messages(id).iter().any(|line| line.ends_with("started")))
        .await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let sleeper = fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new(&format!("/proc/{}", sleeper.trim())).exists(), "the provisioner still runs");
    let messages = world.messages(id).join("\n");
    assert!(messages.to_lowercase().contains("interrupt"), "{messages}");
    assert!(!messages.contains("Two interrupts"), "{messages}");
    let state = fs::read(runner.working.join("local/local/cancelled/terraform.tfstate")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(state["resources"][0]["name"], "slow", "{state:#}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_the_whole_tree_including_processes_outside_the_group() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let _runner = world.runner("one");
    let pid_file = world.path("daemon.pid");
    let mut spec = printing(&world, &url, "killed", 1, None);
    spec.hooks.validate_before = Some(format!(
        "trap '' INT TERM\nsetsid bash -c 'trap \"\" INT TERM; echo $$ > \"{}\"; while true; do sleep 1; done' &\necho begin\nwhile true; do sleep 1; done",
        pid_file.display()
    ));
    let id = world.hub.submit(spec);
    seen(&world, id, "begin").await;
    let daemon = eventually("the daemon runs", || {
        fs::read_to_string(&pid_file).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    world.hub.cancel(id, CancelKind::Kill).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    assert!(!Path::new(&format!("/proc/{}", daemon.trim())).exists(), "the daemon still runs");
    let answered =
        |event: &Recorded| matches!(event.event, HubEvent::CancelAnswered { kind: CancelKind::Kill, .. });
    eventually("the cancel is answered", || world.hub.all_events().iter().any(answered)).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_survives_a_restart_of_the_runner() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("cancelled", 1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is recorded", || folder.join("cancel.json").exists()).await;
    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    world.assert_no_violation();
}

/// As on a full disk: the cancel can be neither stored nor recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_script_without_a_record_and_is_answered() {
    let UnderWay { world, runner: _runner, id, folder, .. } = under_way("cancelled", 1).await;
    // A symlink to itself: not even root can read or replace it.
    std::os::unix::fs::symlink("cancel.json", folder.join("cancel.json")).unwrap();
    let new = folder.parent().unwrap().with_file_name("new");
    fs::remove_dir(&new).unwrap();
    fs::write(&new, "").unwrap();
    // The answer is repeated.
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("CancelGracefulCompleted"), refuse));
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let is_answer =
        |event: &Recorded| matches!(&event.event, HubEvent::CancelAnswered { job, .. } if *job == id);
    eventually("the cancel is answered", || world.hub.all_events().iter().any(is_answer)).await;
    world.assert_no_violation();
}

/// The runner died between storing a cancel and recording it in the steps.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_carries_out_and_answers_an_accepted_cancel() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("cancelled", 1).await;
    runner.kill();
    let taken = folder.parent().unwrap().join(format!("00001000.{id}.CancelGraceful"));
    fs::create_dir(&taken).unwrap();
    let request = serde_json::json!({"version": 1, "is": {
        "received": "2026-11-03T12:00:00Z", "method": "CancelGraceful", "payload": {"jobId": id},
    }});
    fs::write(taken.join("request.json"), request.to_string()).unwrap();

    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    // This hub did not request the cancel, and records that.
    eventually("the cancel is answered", || {
        let answer = |event: &Recorded| match &event.event {
            HubEvent::CancelAnswered { job, .. } => *job == id,
            HubEvent::Violation { method, .. } => method == "CancelGracefulCompleted",
            _ => false,
        };
        world.hub.all_events().iter().any(answer)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_step_is_cancelled_at_once_and_never_claimed() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "1")]);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let waiting = world.hub.submit(printing(&world, &url, "waiting", 1, None));
    eventually("the second job's task is stored", || runner.steps().len() == 2).await;
    world.hub.cancel(waiting, CancelKind::Graceful).unwrap();
    let ended = world.ended(waiting).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let claimed = |event: &Recorded| matches!(event.event, HubEvent::Running { job, .. } if job == waiting);
    assert!(!world.hub.all_events().iter().any(claimed));
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(first).await.state, JobState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_for_an_unknown_job_is_answered() {
    let world = World::new().await;
    let _runner = world.runner("one");
    world.connected(1).await;
    let mut events = world.hub.events();
    let unknown = Uuid::from_u128(42);
    world.hub.push("one", "CancelGraceful", vec![serde_json::json!({"jobId": unknown})]).unwrap();
    // A strict hub does not know the job either, but it records the call.
    let called = events.find(|event| match event {
        HubEvent::CancelAnswered { job, .. } if *job == unknown => Some(()),
        HubEvent::UnknownJob { job, .. } if *job == unknown => Some(()),
        HubEvent::Violation { method, .. } if method == "CancelGracefulCompleted" => Some(()),
        _ => None,
    });
    in_time("the cancel is answered", called).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cancel_is_answered_even_while_an_earlier_answer_is_in_flight() {
    let world = World::with(HubOptions { acknowledge_unknown_jobs: true, ..HubOptions::default() }).await;
    let runner = world.runner("one");
    world.connected(1).await;
    let unknown = Uuid::from_u128(42);
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("CancelGracefulCompleted"), refuse));
    let cancel = || {
        world.hub.push("one", "CancelGraceful", vec![serde_json::json!({"jobId": unknown})]).unwrap();
    };
    cancel();
    // The answer was refused and will be sent again.
    refused(&world).await;
    cancel();
    eventually("both are answered", || {
        let answered =
            |event: &Recorded| matches!(event.event, HubEvent::UnknownJob { job, .. } if job == unknown);
        world.hub.all_events().iter().filter(|event| answered(event)).count() == 2
    })
    .await;
    eventually("the folders are removed", || runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_does_not_change_the_result_of_a_finished_script() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("done", 1).await;
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || folder.join("exit.json").exists()).await;

    // Another process works in the module's directory.
    let lock = runner.working.join(".hawser/locks/local/local/done.lock");
    let lock = fs::OpenOptions::new().write(true).open(lock).unwrap();
    eventually("the supervisor has released the lock", || lock.try_lock().ok()).await;
    runner.restart();
    finds_steps(&runner).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is recorded", || folder.join("cancel.json").exists()).await;
    drop(lock);

    let result = eventually("the step's result arrives", || {
        world.hub.all_events().into_iter().find_map(|event| match event.event {
            HubEvent::Result { task: Task::Validate, call, .. } => Some(call.method),
            _ => None,
        })
    })
    .await;
    assert_eq!(result, "ValidateCompleted");
}
