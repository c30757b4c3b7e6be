//! Step folders that are damaged, removed, or temporarily unreadable.

use std::fs;
use std::path::Path;

use hawser_contract::requests::CancelKind;
use hawser_dev_server::{HubEvent, HubOptions, JobState, Recorded};
use rustix::process::Signal;
use uuid::Uuid;

use super::{
    UnderWay, assert_complete, cannot_look, numbers, printing, refused, runs, seen, supervisor_pid,
    under_way, validate_folder,
};
use crate::support::eventually::eventually;
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::world::{EMPTY, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_step_folder_is_set_aside_and_other_steps_continue() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("good", 10).await;
    runner.kill();
    let bad = folder.parent().unwrap().join("refresh.0123456789ab");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("request.json"), "{ not json").unwrap();

    runner.restart();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(!bad.exists());
    assert!(runner.log().contains("set aside"), "{}", runner.log());
}

/// After a downgrade.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_a_newer_version_is_left_alone_and_a_push_of_its_task_is_a_new_step() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner("one");
    let lose = Rule::new(Moment::call("ReportRunningTask"), Fault::Lose);
    world.hub.misbehave(lose);
    let id = world.hub.submit(printing(&world, &url, "newer", 1, None));
    refused(&world).await;
    runner.kill();
    let [folder] = runner.steps().try_into().unwrap();
    let request = folder.join("request.json");
    let newer = fs::read_to_string(&request).unwrap().replace("\"version\": 1", "\"version\": 1000");
    fs::write(&request, &newer).unwrap();

    // The hub pushes the unclaimed task again.
    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(fs::read_to_string(&request).unwrap(), newer);
    eventually("the other folders are removed", || runner.steps() == [folder.clone()]).await;
    let log = runner.log();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let said = |line: &&str| line.contains("WARN") && line.contains(name) && line.contains("newer version");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    assert!(!log.contains("set aside"), "{log}");
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "it does not hold a drain");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_step_folder_blocks_neither_other_steps_nor_a_drain() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let never = world.path("never");
    let mut runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "1")]);
    let id = world.hub.submit(printing(&world, &url, "removed", 1, Some(&never)));
    seen(&world, id, "begin").await;
    let folder = validate_folder(&runner).await;
    let supervisor = supervisor_pid(&folder);
    eventually("the acknowledged position is saved", || folder.join("shipped").exists()).await;
    // Atomically: the runner and the supervisor use the folder.
    fs::rename(&folder, world.path("removed")).unwrap();
    rustix::process::kill_process(supervisor, Signal::KILL).unwrap();

    // Its slot is free again.
    let other = world.hub.submit(printing(&world, &url, "other", 1, None));
    assert_eq!(world.ended(other).await.state, JobState::Completed);
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let log = runner.log();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let said = |line: &&str| line.contains("ERROR") && line.contains(name) && line.contains("disappeared");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
}

/// Replaces a file of a step folder by a socket, which is as unreadable as a file is with too many open files.
fn block(world: &World, file: &Path) {
    // The path of a socket must be short.
    let socket = world.path("s");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    fs::rename(&socket, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporarily_unreadable_step_is_recovered_later() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("later", 10).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);

    runner.restart();
    cannot_look(&runner).await;
    world.connected(1).await;
    fs::write(&gate, "").unwrap();
    eventually("the script has ended", || folder.join("exit.json").exists()).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "later"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    eventually("the folder is removed", || runner.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_on_a_missing_disk_is_not_treated_as_damaged() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("away", 10).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);
    let next = world.runner_with("one", &[("Logging__LogLevel__Default", "Debug")]);
    cannot_look(&next).await;

    let steps = folder.parent().unwrap();
    let away = steps.with_file_name("away");
    fs::rename(steps, &away).unwrap();
    eventually("the folder is read again", || next.log().contains("the disk is not available")).await;
    fs::rename(&away, steps).unwrap();
    fs::remove_file(&blocked).unwrap();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "away"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    assert!(!next.log().contains("set aside"), "{}", next.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_step_whose_folder_is_temporarily_unreadable() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("later", 1).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);

    runner.restart();
    cannot_look(&runner).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the script has ended", || folder.join("exit.json").exists()).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    eventually("the folders are removed", || runner.steps().is_empty()).await;
    world.assert_no_violation();
}

/// A cancel is answered only once it is recorded in every folder: otherwise a crash would lose it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_cannot_be_recorded_is_retried() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let one_slot = [("Runner__MaxConcurrentSteps", "1")];
    let mut runner = world.runner_with("one", &one_slot);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let id = world.hub.submit(printing(&world, &url, "waits", 1, None));
    let waiting = eventually("its first task waits", || {
        runner.steps().into_iter().find(|step| step.to_string_lossy().contains(&id.to_string()))
    })
    .await;
    runner.kill();
    let blocked = waiting.join("cancel.json");
    block(&world, &blocked);

    runner.restart();
    cannot_look(&runner).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("it cannot be recorded", || runner.log().contains("failed to record cancel, retrying")).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(first).await.state, JobState::Completed);
    assert_eq!(runs(&world, "waits"), 0);
    eventually("the folders are removed", || runner.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_folder_was_damaged_is_reported() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("damaged", 1).await;
    runner.kill();
    fs::write(folder.join("request.json"), "{ not json").unwrap();

    runner.restart();
    let ended = world.ended(id).await;
    fs::write(&gate, "").unwrap();
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome") && error.message.contains("damaged"), "{error:?}");
    assert_eq!(runs(&world, "damaged"), 1);
    eventually("the answer's folder is removed", || runner.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_folder_is_damaged_at_run_time_is_reported() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("damaged", 1).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);
    runner.restart();
    cannot_look(&runner).await;
    world.connected(1).await;

    fs::write(folder.join("request.json"), "{ not json").unwrap();
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    fs::write(&gate, "").unwrap();
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome") && error.message.contains("damaged"), "{error:?}");
    assert_eq!(runs(&world, "damaged"), 1);
    eventually("the answer's folder is removed", || runner.steps().is_empty()).await;
    world.assert_no_violation();
}

/// An answer has no log, and without its outcome only the name of its folder is left.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_damaged_while_it_is_refused_is_reported() {
    let world = World::with(HubOptions { acknowledge_unknown_jobs: true, ..HubOptions::default() }).await;
    let runner = world.runner("one");
    world.connected(1).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateFaulted"), refuse).always());
    let unknown = Uuid::from_u128(42);
    // A payload that cannot be read.
    world.hub.push("one", "Validate", vec![serde_json::json!({"jobId": unknown, "metadata": 7})]).unwrap();
    refused(&world).await;
    let [folder] = runner.steps().try_into().unwrap();
    fs::write(folder.join("outcome.json"), "{ not json").unwrap();
    eventually("the folder is set aside, and there is an answer for it", || {
        let outcome = fs::read_to_string(runner.steps().first()?.join("outcome.json")).ok()?;
        outcome.contains("unknown outcome: the runner's record of this task was damaged").then_some(())
    })
    .await;
    assert!(runner.log().contains("damaged step folder set aside"), "{}", runner.log());
    world.hub.behave();
    eventually("the server gets the answer", || {
        let told =
            |event: &Recorded| matches!(event.event, HubEvent::UnknownJob { job, .. } if job == unknown);
        world.hub.all_events().iter().any(told)
    })
    .await;
    eventually("the answer's folder is removed", || runner.steps().is_empty()).await;
}
