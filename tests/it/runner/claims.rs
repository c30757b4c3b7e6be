//! The claim: nothing with side effects runs before the server has answered it.

use std::fs;

use hawser_contract::Task;
use hawser_dev_server::{HubEvent, JobKind, JobSpec, JobState};
use rustix::process::Signal;
use serde_json::json;
use uuid::Uuid;

use super::scripted::{Scripted, accepted, message, refused};
use super::{UnderWay, drain, runs, under_way};
use crate::support::audit;
use crate::support::eventually::eventually;
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::world::{EMPTY, Runner, World, job};

const NOT_RUN: &str = "claim refused, task not run";

fn refuse_claims(world: &World) {
    let refuse = Fault::Refuse("another runner has this job".into());
    world.hub.misbehave(Rule::new(Moment::call("ReportRunningTask"), refuse).always());
}

fn not_run(runner: &Runner) -> usize {
    runner.log().matches(NOT_RUN).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_whose_claim_is_refused_never_runs() {
    let world = World::new().await;
    let ran = world.path("ran");
    let module = format!(
        "resource \"terraform_data\" \"it\" {{\n  provisioner \"local-exec\" {{\n    command = \"echo run >> '{}'\"\n  }}\n}}\n",
        ran.display()
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "apply");
    spec.needs_approval = true;
    spec.hooks.apply_before = Some(format!("echo hook >> '{}'", ran.display()));
    let id = world.hub.submit(spec);
    eventually("the plan is ready", || world.hub.job(id).unwrap().state == JobState::AwaitingApproval).await;

    refuse_claims(&world);
    world.hub.approve(id).unwrap();
    eventually("the runner gives up", || not_run(&runner) == 1).await;
    eventually("the folder is removed", || runner.steps().is_empty()).await;
    let log = runner.log();
    let line = log.lines().find(|line| line.contains(NOT_RUN)).unwrap();
    let job_id = id.to_string();
    for part in
        ["WARN", "local/local/apply", &job_id, "ApplyFromPlan", "reason=\"another runner has this job\""]
    {
        assert!(line.contains(part), "{part} is in {line}");
    }
    assert!(!ran.exists(), "{}", fs::read_to_string(&ran).unwrap());
    let reported = |task: Task| {
        let events = world.hub.all_events();
        events
            .iter()
            .filter(|it| matches!(&it.event, HubEvent::Result { task: of, .. } if *of == task))
            .count()
    };
    assert_eq!(reported(Task::ApplyFromPlan), 0);
    // The folder is removed first.
    eventually("the audit event is written", || {
        audit::events(&runner, id).last().is_some_and(|last| last == "finished ApplyFromPlan notRun")
    })
    .await;

    // The server pushes the task again, and now it runs.
    world.hub.behave();
    world.hub.drop_connections();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(fs::read_to_string(&ran).unwrap(), "hook\nrun\n");
    assert_eq!(reported(Task::ApplyFromPlan), 1);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_that_get_a_broadcast_exactly_one_runs_it() {
    const JOBS: usize = 10;
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let runners = ["one", "two"].map(|name| world.runner(name));
    world.connected(2).await;
    for number in 0..JOBS {
        let mut spec = JobSpec::single(Task::GetModule, &url);
        spec.module_name = format!("module-{number}");
        let id = world.hub.submit(spec);
        assert_eq!(world.ended(id).await.state, JobState::Completed);
    }
    eventually("the other replica gives up", || runners.iter().map(not_run).sum::<usize>() == JOBS).await;
    for number in 0..JOBS {
        let fetched = |it: &&Runner| it.working.join(format!("local/local/module-{number}/main.tf")).exists();
        assert_eq!(runners.iter().filter(fetched).count(), 1, "module {number}");
    }
    let events = world.hub.all_events();
    let results = events.iter().filter(|it| matches!(it.event, HubEvent::Result { .. })).count();
    assert_eq!(results, JOBS);
    let late =
        |it: &HubEvent| matches!(it, HubEvent::ClaimLost { method, .. } if method != "ReportRunningTask");
    assert!(!events.iter().any(|it| late(&it.event)), "the loser reports nothing");
    eventually("every folder is removed", || runners.iter().all(|it| it.steps().is_empty())).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_claim_blocks_its_task_and_is_repeated_after_a_reconnect() {
    let mut scripted = Scripted::start().await;
    let [first, second] = [1, 2].map(Uuid::from_u128);
    scripted.peer.write(&message(&scripted.push(first))).await;
    scripted.claim().await;
    // Another task runs meanwhile.
    scripted.peer.write(&message(&scripted.push(second))).await;
    let (_, job, acknowledgement) = scripted.result().await;
    assert_eq!(job, json!(second));
    scripted.peer.write(&acknowledgement).await;
    let mut scripted = scripted.reconnect().await;
    let claim = scripted.claim().await;
    assert_eq!(claim["arguments"][0], json!(first));
    scripted.peer.write(&accepted(&claim)).await;
    let (method, job, _) = scripted.result().await;
    assert_eq!((method.as_str(), job), ("GetDefinitiveRevisionCompleted", json!(first)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_claim_is_repeated_when_the_task_is_pushed_again() {
    let mut scripted = Scripted::start().await;
    let push = message(&scripted.push(Uuid::from_u128(1)));
    for _ in 0..3 {
        scripted.peer.write(&push).await;
        scripted.claim().await;
    }
    scripted.peer.write(&push).await;
    let claim = scripted.claim().await;
    scripted.peer.write(&accepted(&claim)).await;
    assert_eq!(scripted.result().await.0, "GetDefinitiveRevisionCompleted");
    assert_eq!(scripted.started(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passing_refusal_of_the_claim_delays_the_task() {
    let mut scripted = Scripted::start().await;
    scripted.peer.write(&message(&scripted.push(Uuid::from_u128(1)))).await;
    for _ in 0..2 {
        let claim = scripted.claim().await;
        scripted.peer.write(&refused(&claim)).await;
    }
    let claim = scripted.claim().await;
    scripted.peer.write(&accepted(&claim)).await;
    assert_eq!(scripted.result().await.0, "GetDefinitiveRevisionCompleted");
    assert_eq!(not_run(&scripted.runner), 0);
}

/// A push that comes while the runner gives up a step is not swallowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_right_behind_the_last_refusal_of_the_claim_is_claimed() {
    let mut scripted = Scripted::start().await;
    let push = message(&scripted.push(Uuid::from_u128(1)));
    for in_one_frame in [true, false, true, false] {
        scripted.peer.write(&push).await;
        for _ in 0..3 {
            let claim = scripted.claim().await;
            scripted.peer.write(&refused(&claim)).await;
        }
        let last = refused(&scripted.claim().await);
        if in_one_frame {
            scripted.peer.write(&format!("{last}{push}")).await;
        } else {
            scripted.peer.write(&last).await;
            scripted.peer.write(&push).await;
        }
        let (method, _, acknowledgement) = scripted.result().await;
        assert_eq!(method, "GetDefinitiveRevisionCompleted");
        scripted.peer.write(&acknowledgement).await;
    }
    assert_eq!(scripted.started(), 4);
    eventually("the folders are removed", || scripted.runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_a_step_whose_claim_is_unanswered() {
    let mut scripted = Scripted::start().await;
    let id = Uuid::from_u128(1);
    scripted.peer.write(&message(&scripted.push(id))).await;
    scripted.claim().await;
    let cancel = json!({"type": 1, "target": "CancelGraceful", "arguments": [{"jobId": id}]});
    scripted.peer.write_json(&cancel).await;
    let mut methods = Vec::new();
    for _ in 0..2 {
        let (method, _, acknowledgement) = scripted.result().await;
        scripted.peer.write(&acknowledgement).await;
        methods.push(method);
    }
    methods.sort();
    assert_eq!(methods, ["CancelGracefulCompleted", "GetDefinitiveRevisionCancelled"]);
    assert_eq!(scripted.started(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_claim_does_not_hold_a_drain_and_the_next_start_claims_again() {
    let mut scripted = Scripted::start().await;
    scripted.peer.write(&message(&scripted.push(Uuid::from_u128(1)))).await;
    scripted.claim().await;
    scripted.runner.signal(Signal::TERM);
    assert_eq!(scripted.peer.gone().await, Some(1000));
    assert!(scripted.runner.exit().await.success(), "{}", scripted.runner.log());
    assert!(scripted.runner.log().contains("waiting=1"), "{}", scripted.runner.log());

    scripted.restart().await;
    let claim = scripted.claim().await;
    scripted.peer.write(&accepted(&claim)).await;
    assert_eq!(scripted.result().await.0, "GetDefinitiveRevisionCompleted");
}

/// As when another replica has run the task in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waited_for_a_drain_does_not_run_without_its_claim() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("first", 1).await;
    drain(&runner).await;
    let url = world.path("repo").display().to_string();
    let mut spec = JobSpec::single(Task::GetModule, &url);
    spec.module_name = "later".to_owned();
    world.hub.submit(spec);
    eventually("the second job's task is stored", || runner.steps().len() == 2).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert_eq!(world.ended(id).await.state, JobState::Completed);

    refuse_claims(&world);
    runner.restart();
    eventually("the runner gives up", || not_run(&runner) > 0).await;
    assert!(!runner.working.join("local/local/later/main.tf").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_script_runs_does_not_end_because_of_a_refusal() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("adopted", 10).await;
    runner.kill();
    refuse_claims(&world);
    runner.restart();
    eventually("the report is refused", || runner.log().contains("server refused report of running task"))
        .await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!((runs(&world, "adopted"), not_run(&runner)), (1, 0));
}

/// As if the first one could not be removed when its claim was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_step_with_a_successor_is_removed_at_start_and_not_claimed() {
    let mut scripted = Scripted::start().await;
    scripted.peer.write(&message(&scripted.push(Uuid::from_u128(1)))).await;
    scripted.claim().await;
    scripted.runner.kill();
    let [withdrawn] = scripted.runner.steps().try_into().unwrap();
    let name = withdrawn.file_name().unwrap().to_str().unwrap();
    let successor = withdrawn.with_file_name(format!("00001000.{}", name.split_once('.').unwrap().1));
    fs::create_dir(&successor).unwrap();
    fs::copy(withdrawn.join("request.json"), successor.join("request.json")).unwrap();

    scripted.restart().await;
    let claim = scripted.claim().await;
    eventually("the first one is removed", || scripted.runner.steps() == [successor.clone()]).await;
    scripted.peer.write(&accepted(&claim)).await;
    let (method, _, acknowledgement) = scripted.result().await;
    assert_eq!(method, "GetDefinitiveRevisionCompleted");
    scripted.peer.write(&acknowledgement).await;
    eventually("the folders are removed", || scripted.runner.steps().is_empty()).await;
    assert_eq!(scripted.started(), 1);
}

/// The lock of the module cannot be opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_be_prepared_reports_no_fault_without_its_claim() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let runner = world.runner("one");
    world.connected(1).await;
    fs::create_dir_all(runner.working.join(".hawser/locks/local/local/locked.lock")).unwrap();
    refuse_claims(&world);
    let mut spec = JobSpec::single(Task::GetModule, &url);
    spec.module_name = "locked".to_owned();
    let id = world.hub.submit(spec);
    eventually("the folder is removed", || not_run(&runner) > 0 && runner.steps().is_empty()).await;
    let reported = |it: &HubEvent| matches!(it, HubEvent::Result { .. });
    assert!(!world.hub.all_events().iter().any(|it| reported(&it.event)));

    // The server pushes the task again.
    world.hub.behave();
    world.hub.drop_connections();
    let ended = world.ended(id).await;
    assert!(matches!(ended.state, JobState::Failed { .. }), "{ended:#?}");
}
