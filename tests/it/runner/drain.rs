//! Shutdown: running steps finish, waiting steps stay, and a second signal exits at once.

use std::fs;

use hawser_dev_server::JobState;
use rustix::process::Signal;

use super::{
    UnderWay, assert_complete, drain, drains, leaves_at_once, numbers, printing, refused, runs, seen,
    under_way,
};
use crate::support::eventually::eventually;
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::world::{EMPTY, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_the_running_step_ships_everything_and_exits_0() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "drained", 100, Some(&gate)));
    seen(&world, id, "begin").await;

    drain(&runner).await;
    assert!(runner.child.try_wait().unwrap().is_none());
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());

    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_complete(&numbers(&world.messages(id)), 100);
    assert!(runner.steps().is_empty());
    let log = runner.log();
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{log}"));
    let draining = line("draining, a second signal exits at once");
    assert!(draining.contains("running=1") && draining.contains("waiting=0"), "{log}");
    assert!(!line(" drained").contains("waiting"), "{log}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_although_a_result_is_refused_and_the_next_start_sends_it() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("refused", 10).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateCompleted"), refuse).always());
    fs::write(&gate, "").unwrap();
    refused(&world).await;
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let log = runner.log();
    let said = |line: &&str| line.contains("the next start ships the rest") && line.contains("is busy");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    assert_eq!(runner.steps().len(), 1, "{log}");

    world.hub.behave();
    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_complete(&numbers(&world.messages(id)), 10);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporarily_refused_result_is_shipped_before_a_drain_ends() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("moment", 1).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateCompleted"), refuse).times(4));
    drain(&runner).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert!(runner.steps().is_empty(), "{}", runner.log());
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_arrives_while_draining_is_kept_for_the_next_start() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, id, "begin").await;
    drain(&runner).await;
    let later = world.hub.submit(printing(&world, &url, "second", 1, None));
    eventually("the second job's task is stored", || runner.steps().len() == 2).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert_eq!(runner.steps().len(), 1);
    assert!(runner.log().contains("waiting=1"), "{}", runner.log());

    runner.restart();
    let ended = world.ended(later).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_drain_limit_the_step_is_interrupted_and_reported() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner_with("one", &[("Runner__DrainTimeoutSeconds", "1")]);
    let never = world.path("never");
    let id = world.hub.submit(printing(&world, &url, "limit", 1, Some(&never)));
    seen(&world, id, "begin").await;
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    assert!(runner.log().contains("DrainTimeoutSeconds"));
    // The server did not request it, so neither the job's log nor the audit log mentions a cancel.
    let messages = world.messages(id);
    let said: Vec<_> = messages.iter().filter(|line| line.contains("SIGTERM sent")).collect();
    assert!(said.len() == 1 && said[0].contains("the runner is shutting down"), "{messages:#?}");
    let audit = fs::read_to_string(runner.working.join(".hawser/audit.jsonl")).unwrap();
    let lines = audit.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let cancelled = lines.filter(|line| line["event"] == "cancelled").collect::<Vec<_>>();
    assert_eq!(cancelled.len(), 1, "{audit}");
    assert!(cancelled[0]["reason"].as_str().unwrap().contains("DrainTimeoutSeconds"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_signals_at_once_count_as_one_and_the_step_finishes() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "once", 10, Some(&gate)));
    seen(&world, id, "begin").await;
    // Two different signals: the system may merge two equal ones.
    runner.signal(Signal::STOP);
    runner.signal(Signal::TERM);
    runner.signal(Signal::INT);
    runner.signal(Signal::CONT);
    drains(&runner).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert!(!runner.log().contains("exiting now"), "{}", runner.log());
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    assert!(runner.steps().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_and_the_next_start_adopts_the_step() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "adopted", 100, Some(&gate)));
    seen(&world, id, "begin").await;
    leaves_at_once(&mut runner).await;

    runner.restart();
    world.connected(1).await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "adopted"), 1);
    assert_complete(&numbers(&world.messages(id)), 100);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_drain_limit_a_waiting_step_stays_and_an_absent_server_does_not_delay_the_exit() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let never = world.path("never");
    let settings = [("Runner__DrainTimeoutSeconds", "1"), ("Runner__MaxConcurrentSteps", "1")];
    let mut runner = world.runner_with("one", &settings);
    let running = world.hub.submit(printing(&world, &url, "running", 1, Some(&never)));
    seen(&world, running, "begin").await;
    let waiting = world.hub.submit(printing(&world, &url, "waiting", 1, None));
    eventually("the second job's task is stored", || runner.steps().len() == 2).await;
    world.hub.go_offline().await;
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert_eq!(runner.steps().len(), 2, "{}", runner.log());

    let _next = world.runner("one");
    world.hub.go_online().await;
    assert_eq!(world.ended(running).await.state, JobState::Cancelled);
    assert_eq!(world.ended(waiting).await.state, JobState::Completed);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_notified_after_the_recovery_and_of_the_drain() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let socket = std::os::unix::net::UnixDatagram::bind(world.path("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut heard = String::new();
    let mut hear = || {
        let mut datagram = [0; 1024];
        while let Ok(length) = socket.recv(&mut datagram) {
            heard.push_str(&String::from_utf8_lossy(&datagram[..length]));
            heard.push('\n');
        }
        heard.clone()
    };
    let notify = world.path("notify").display().to_string();
    let settings = [("NOTIFY_SOCKET", notify.as_str())];
    let mut runner = world.runner_with("one", &settings);
    eventually("it is ready", || hear().contains("READY=1")).await;
    let id = world.hub.submit(printing(&world, &url, "drained", 1, Some(&gate)));
    seen(&world, id, "begin").await;

    // A runner that cannot open the step folders was never ready.
    let ready = hear().matches("READY=1").count();
    let mut second = world.runner_with("one", &settings);
    assert!(!second.exit().await.success());
    assert_eq!(hear().matches("READY=1").count(), ready);

    runner.signal(Signal::TERM);
    eventually("the drain is reported", || {
        let heard = hear();
        heard.contains("STOPPING=1") && heard.contains("STATUS=shutting down; connected; 1 running")
    })
    .await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
}
