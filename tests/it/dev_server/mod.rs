//! The embedded hub over real sockets, with a client that can violate the protocol.

mod cli;
mod client;
mod connection;
mod strictness;

use std::time::Duration;

use hawser_contract::requests::CancelKind;
use hawser_contract::{SourceRefresh, SourceRevisionType, SourceType, Task};
use hawser_dev_server::{
    EmbeddedHub, HubEvent, HubOptions, JobKind, JobSpec, JobState, LogKeeping, TaskState,
};
use serde_json::{Value, json};

use crate::support::eventually::in_time;
use client::Client;

async fn hub() -> EmbeddedHub {
    hub_with(|_| {}).await
}

async fn hub_with(change: impl FnOnce(&mut HubOptions)) -> EmbeddedHub {
    let mut options = HubOptions { conflict_grace: Duration::from_millis(200), ..HubOptions::default() };
    change(&mut options);
    EmbeddedHub::start(options).await.unwrap()
}

fn apply() -> JobSpec {
    JobSpec::new(JobKind::Apply, "https://example.org/x.git")
}

/// Valid arguments for the completion of a task.
fn completed(task: Task, job: &Value) -> Vec<Value> {
    let plan = json!({
        "totalCountAfter": 1, "totalCountBefore": 0, "totalChangedCount": 1, "totalUnchangedCount": 0,
        "createCount": 1, "modifyCount": 0, "destroyCount": 0, "recreateCount": 0, "outputsTotalCount": 0,
        "outputsTotalChangedCount": 0, "outputsTotalUnchangedCount": 0, "outputsCreateCount": 0,
        "outputsModifyCount": 0, "outputsDestroyCount": 0, "outputsRecreateCount": 0, "outputsUnchangedList": [],
        "outputsCreateList": [], "outputsModifyList": [], "outputsDestroyList": [], "outputsRecreateList": [],
    });
    match task {
        Task::GetDefinitiveRevision => vec![job.clone(), json!("c0ffee")],
        Task::GetModule | Task::Init | Task::Validate => vec![job.clone()],
        Task::Plan | Task::PlanDestroy => vec![job.clone(), plan],
        Task::ApplyFromPlan | Task::DestroyFromPlan => vec![job.clone(), json!(1)],
        Task::Variables => vec![job.clone(), Value::Null],
        Task::Output => {
            let output = json!({"name": "o", "sensitive": false, "type": "string", "value": "v", "fromExtraFile": false});
            let set =
                json!({"timestamp": 1_800_000_000_000_u64, "checksum": "0".repeat(64), "outputs": [output]});
            vec![job.clone(), set]
        }
    }
}

/// Receives the next push, which must be `task`, and completes it.
async fn complete_task(client: &mut Client, task: Task) -> Value {
    let request = client.pushed(task.pushed_as()).await;
    let job = request["jobId"].clone();
    client.claim(&job, task).await.unwrap();
    client.log(&request, task, &[&format!("{task} at work")]).await.unwrap();
    client.call(&format!("{task}Completed"), completed(task, &job)).await.unwrap();
    request
}

#[tokio::test]
async fn a_job_runs_all_its_tasks_and_its_snapshot_has_the_results() {
    let hub = hub().await;
    let job = hub.submit(apply());
    assert_eq!(hub.job(job).unwrap().state, JobState::Queued);
    let mut client = Client::connect(&hub, "a").await;
    for task in JobKind::Apply.tasks() {
        let request = complete_task(&mut client, task).await;
        if task == Task::GetModule {
            assert_eq!(request["sourceDefinitiveRevision"], "c0ffee");
        }
    }
    let ended = in_time("the end of the job", hub.ended(job)).await;
    assert_eq!(ended.state, JobState::Completed);
    assert_eq!(ended.owner.as_deref(), Some("a"));
    assert_eq!(ended.plan.unwrap().create_count, 1);
    assert_eq!(ended.resources, Some(1));
    assert_eq!(ended.outputs.unwrap().outputs[0].value, "v");
    assert!(ended.tasks.iter().all(|task| task.state == TaskState::Completed && task.started_at.is_some()));
    let logs: Vec<_> = hub.logs(job, 0).iter().map(|entry| entry.message.to_string()).collect();
    let expected: Vec<_> = JobKind::Apply.tasks().iter().map(|task| format!("{task} at work")).collect();
    assert_eq!(logs, expected);
    assert_eq!(hub.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_destroy_plans_and_destroys() {
    let hub = hub().await;
    let mut client = Client::connect(&hub, "a").await;
    let job = hub.submit(JobSpec::new(JobKind::Destroy, "x"));
    for task in JobKind::Destroy.tasks() {
        complete_task(&mut client, task).await;
    }
    assert_eq!(in_time("the end of the job", hub.ended(job)).await.state, JobState::Completed);
}

#[tokio::test]
async fn three_runners_share_jobs_and_a_pinned_job_goes_to_its_runner() {
    let hub = hub().await;
    let mut a = Client::connect(&hub, "a").await;
    let mut b = Client::connect(&hub, "b").await;
    let mut c = Client::connect(&hub, "c").await;
    let job = hub.submit(apply());
    for client in [&mut a, &mut b, &mut c] {
        assert_eq!(client.pushed("GetDefinitiveRevision").await["jobId"], json!(job));
    }
    let first = Task::GetDefinitiveRevision;
    b.claim(&json!(job), first).await.unwrap();
    let lost = a.claim(&json!(job), first).await.unwrap_err();
    assert!(lost.contains("another runner"), "{lost}");
    a.call("GetDefinitiveRevisionCompleted", completed(first, &json!(job))).await.unwrap();
    assert_eq!(hub.job(job).unwrap().owner.as_deref(), Some("b"));
    b.call("GetDefinitiveRevisionCompleted", completed(first, &json!(job))).await.unwrap();
    assert_eq!(b.pushed("GetModule").await["jobId"], json!(job));

    let pinned = hub.submit(JobSpec { instance: Some("c".into()), ..apply() });
    assert_eq!(c.pushed("GetDefinitiveRevision").await["jobId"], json!(pinned));
    for client in [&mut a, &mut b] {
        client.expect_no_push().await;
    }
    assert_eq!(hub.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_reconnected_runner_gets_an_unreported_task_again() {
    let hub = hub().await;
    let job = hub.submit(apply());
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("GetDefinitiveRevision").await;
    drop(client);
    in_time("the runner to disconnect", hub.runners_until(0)).await;
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("GetDefinitiveRevision").await;
    client.claim(&json!(job), Task::GetDefinitiveRevision).await.unwrap();
    drop(client);
    in_time("the runner to disconnect", hub.runners_until(0)).await;
    let mut client = Client::connect(&hub, "a").await;
    client.expect_no_push().await;
}

#[tokio::test]
async fn a_running_task_is_pushed_again_with_redispatch_on_reconnect() {
    let hub = hub_with(|options| options.redispatch_on_reconnect = true).await;
    let job = hub.submit(apply());
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("GetDefinitiveRevision").await;
    client.claim(&json!(job), Task::GetDefinitiveRevision).await.unwrap();
    drop(client);
    in_time("the runner to disconnect", hub.runners_until(0)).await;
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("GetDefinitiveRevision").await;
    let again = |event: &HubEvent| matches!(event, HubEvent::Dispatched { again: true, .. }).then_some(());
    in_time("the event", hub.events().find(again)).await;
}

#[tokio::test]
async fn a_job_continues_after_its_runner_was_away() {
    let hub = hub().await;
    let job = hub.submit(apply());
    let mut client = Client::connect(&hub, "a").await;
    complete_task(&mut client, Task::GetDefinitiveRevision).await;
    client.pushed("GetModule").await;
    drop(client);
    in_time("the runner to disconnect", hub.runners_until(0)).await;
    let mut client = Client::connect(&hub, "a").await;
    for task in &JobKind::Apply.tasks()[1..] {
        complete_task(&mut client, *task).await;
    }
    assert_eq!(in_time("the end of the job", hub.ended(job)).await.state, JobState::Completed);
    hub.shutdown().await;
    client.expect_close(None, true).await;
}

#[tokio::test]
async fn a_cancel_is_pushed_and_its_answer_is_an_event() {
    let hub = hub().await;
    let job = hub.submit(apply());
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("GetDefinitiveRevision").await;
    client.claim(&json!(job), Task::GetDefinitiveRevision).await.unwrap();
    hub.cancel(job, CancelKind::Graceful).unwrap();
    assert_eq!(client.pushed("CancelGraceful").await, json!({"jobId": job}));
    client.call("CancelGracefulCompleted", vec![json!(job)]).await.unwrap();
    hub.cancel(job, CancelKind::Kill).unwrap();
    client.pushed("CancelKill").await;
    client.call("CancelKillCompleted", vec![json!(job)]).await.unwrap();
    client.call("GetDefinitiveRevisionCancelled", vec![json!(job)]).await.unwrap();
    assert_eq!(in_time("the end of the job", hub.ended(job)).await.state, JobState::Cancelled);
    let killed = |event: &HubEvent| {
        matches!(event, HubEvent::CancelAnswered { kind: CancelKind::Kill, .. }).then_some(())
    };
    in_time("the event", hub.events().find(killed)).await;
    hub.cancel(job, CancelKind::Kill).unwrap_err();

    let queued = hub.submit(JobSpec { instance: Some("absent".into()), ..apply() });
    hub.cancel(queued, CancelKind::Graceful).unwrap();
    assert_eq!(hub.job(queued).unwrap().state, JobState::Cancelled);
}

#[tokio::test]
async fn a_refresh_is_pushed_and_its_answer_is_an_event() {
    let hub = hub().await;
    let mut client = Client::connect(&hub, "a").await;
    let refresh = SourceRefresh {
        organization_id: hub.identity().organization_id,
        source_url: "u".into(),
        source_revision: "main".into(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    hub.refresh(refresh, None).unwrap();
    assert_eq!(client.pushed("SourceRefresh").await["sourceUrl"], "u");
    let answer = vec![json!("u"), json!("main"), json!(0), json!(0), json!("abc")];
    client.call("SourceRefreshCompleted", answer).await.unwrap();
    let ended = |event: &HubEvent| match event {
        HubEvent::RefreshEnded { result, .. } => Some(result.clone()),
        _ => None,
    };
    assert_eq!(in_time("the event", hub.events().find(ended)).await, Ok("abc".to_owned()));
}

#[tokio::test]
async fn a_client_can_be_invoked_and_returns_a_result() {
    let hub = hub().await;
    let mut client = Client::connect(&hub, "a").await;
    let (answer, ()) = tokio::join!(hub.invoke("a", "Ask", vec![json!(1)]), async {
        let invocation = client.invoked().await;
        let id = invocation["invocationId"].as_str().unwrap().to_owned();
        client.send(&json!({"type": 3, "invocationId": id, "result": {"four": 4}})).await;
    });
    assert_eq!(answer.unwrap(), Ok(json!({"four": 4})));
    hub.invoke("absent", "Ask", vec![]).await.unwrap_err();
}

#[tokio::test]
async fn logs_are_counted_and_observed_without_being_kept() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let seen = std::sync::Arc::new(AtomicU64::new(0));
    let counter = std::sync::Arc::clone(&seen);
    let hub = hub_with(|options| {
        options.logs = LogKeeping::Observe(std::sync::Arc::new(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
    })
    .await;
    let job = hub.submit(apply());
    let mut client = Client::connect(&hub, "a").await;
    let request = client.pushed("GetDefinitiveRevision").await;
    client.claim(&json!(job), Task::GetDefinitiveRevision).await.unwrap();
    let lines: Vec<String> = (0..50).map(|line| format!("line {line}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for _ in 0..100 {
        client.log(&request, Task::GetDefinitiveRevision, &lines).await.unwrap();
    }
    let summary = hub.job(job).unwrap().logs;
    assert_eq!((summary.count, summary.last.as_deref()), (5000, Some("line 49")));
    assert_eq!(seen.load(Ordering::Relaxed), 5000);
    assert!(hub.logs(job, 0).is_empty());
    let entries = hub.all_events().iter().filter(|it| matches!(it.event, HubEvent::Log(_))).count();
    assert_eq!(entries, 0);
}
