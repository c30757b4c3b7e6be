//! A hanging disk blocks neither signals nor cancels.

use std::fs;
use std::path::Path;

use hawser_contract::requests::CancelKind;
use hawser_dev_server::{HubEvent, JobState};
use rustix::process::Signal;

use super::{UnderWay, finds_steps, leaves_at_once, printing, runs, seen, under_way};
use crate::support::eventually::eventually;
use crate::support::world::{EMPTY, Runner, World};

/// Replaces a file with a pipe without a writer: reading it hangs, as on a network file system whose server is down.
fn hang(world: &World, file: &Path) {
    let pipe = world.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_even_if_a_thread_hangs() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("hangs", 1).await;
    let audited = folder.join("audited.json");
    fs::rename(&audited, world.path("audited.json")).unwrap();
    hang(&world, &audited);
    fs::write(&gate, "").unwrap();
    // The last action before the file is read.
    let scratch = runner.working.join(".temp");
    eventually("the step is concluded", || fs::read_dir(&scratch).unwrap().next().is_none()).await;

    leaves_at_once(&mut runner).await;

    fs::rename(world.path("audited.json"), &audited).unwrap();
    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "hangs"), 1);
    world.assert_no_violation();
}

/// The runtime has one worker thread, so blocking it would block signals.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_on_a_hanging_disk_does_not_block_signals() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let settings = [("Runner__MaxConcurrentSteps", "1"), ("TOKIO_WORKER_THREADS", "1")];
    let mut runner = world.runner_with("one", &settings);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let id = world.hub.submit(printing(&world, &url, "waits", 1, None));
    let waiting = eventually("its first task waits", || {
        runner.steps().into_iter().find(|step| step.to_string_lossy().contains(&id.to_string()))
    })
    .await;
    // Pushes are handled in order: once the next task is stored, this one is in the queue.
    let third = world.hub.submit(printing(&world, &url, "third", 1, None));
    eventually("the next task is stored", || {
        runner.steps().iter().any(|step| step.to_string_lossy().contains(&third.to_string()))
    })
    .await;
    hang(&world, &waiting.join("cancel.json"));
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is stored", || {
        runner.steps().iter().any(|step| step.to_string_lossy().contains("Cancel"))
    })
    .await;
    leaves_at_once(&mut runner).await;

    // It was not answered, so the next start does that.
    fs::remove_file(waiting.join("cancel.json")).unwrap();
    runner.restart();
    assert_eq!(world.ended(id).await.state, JobState::Cancelled);
    assert_eq!(runs(&world, "waits"), 0);
    fs::write(&gate, "").unwrap();
    for id in [first, third] {
        assert_eq!(world.ended(id).await.state, JobState::Completed);
    }
    world.assert_no_violation();
}

/// Waits until the runner handles SIGTERM.
async fn listens_for_signals(runner: &Runner) {
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", runner.pid())).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        (caught & (1 << (Signal::TERM.as_raw() - 1)) != 0).then_some(())
    };
    eventually("the runner listens for signals", caught).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_disk_hangs_at_start_exits_without_connecting() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("first", 10).await;
    runner.kill();
    eventually("the server knows that it is gone", || world.hub.runners().is_empty()).await;
    let request = folder.join("request.json");
    fs::rename(&request, world.path("request.json")).unwrap();
    hang(&world, &request);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    listens_for_signals(&next).await;
    let mut events = world.hub.events();
    while events.try_next().is_some() {}
    next.signal(Signal::TERM);
    assert!(next.exit().await.success(), "{}", next.log());
    assert!(next.log().contains("shutting down before start"), "{}", next.log());
    while let Some(event) = events.try_next() {
        assert!(!matches!(event.event, HubEvent::Connected { .. }), "{event:?}");
    }

    fs::rename(world.path("request.json"), &request).unwrap();
    runner.restart();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "first"), 1);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_even_if_the_disk_hangs_during_recovery() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("second", 10).await;
    runner.kill();
    // Read when a step is recovered, and not before.
    let audited = folder.join("audited.json");
    fs::rename(&audited, world.path("audited.json")).unwrap();
    hang(&world, &audited);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    finds_steps(&next).await;
    leaves_at_once(&mut next).await;

    fs::rename(world.path("audited.json"), &audited).unwrap();
    runner.restart();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "second"), 1);
    world.assert_no_violation();
}

/// The runtime has one worker thread, and reading the log blocks it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_even_if_the_only_thread_hangs() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("only", 10).await;
    eventually("the acknowledged position is saved", || folder.join("shipped").exists()).await;
    runner.kill();
    let log = folder.join("output.log");
    fs::rename(&log, world.path("output.log")).unwrap();
    hang(&world, &log);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    finds_steps(&next).await;
    leaves_at_once(&mut next).await;

    fs::rename(world.path("output.log"), &log).unwrap();
    runner.restart();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "only"), 1);
    world.assert_no_violation();
}
