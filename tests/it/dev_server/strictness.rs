//! Every mistake of a runner is answered with an error and recorded.

use hawser_contract::Task;
use hawser_dev_server::{EmbeddedHub, HubEvent, JobSpec};
use serde_json::{Value, json};

use super::client::{Client, entry};
use super::hub;
use crate::support::eventually::in_time;

async fn with_task(hub: &EmbeddedHub) -> (Client, Value) {
    hub.submit(JobSpec::single(Task::Init, "x"));
    let mut client = Client::connect(hub, "a").await;
    let request = client.pushed("Init").await;
    client.claim(&request["jobId"], Task::Init).await.unwrap();
    (client, request)
}

#[tokio::test]
async fn every_wrong_call_is_answered_with_an_error_and_recorded() {
    let hub = hub().await;
    let (mut client, request) = with_task(&hub).await;
    let job = request["jobId"].clone();
    let runner = json!(hub.identity().runner_id);
    let unknown = json!(uuid::Uuid::new_v4());
    let mut incomplete = entry(&request, Task::Init, "x");
    incomplete.as_object_mut().unwrap().remove("tags");
    let mut foreign = entry(&request, Task::Init, "x");
    foreign["stackName"] = json!("other");
    let other_task = entry(&request, Task::Plan, "x");
    let wrong: Vec<(&str, Vec<Value>)> = vec![
        ("NoSuchMethod", vec![]),
        ("InitCompleted", vec![]),
        ("InitCompleted", vec![json!(job.as_str().unwrap().to_uppercase())]),
        ("InitCompleted", vec![unknown.clone()]),
        ("InitCompleted", vec![job.clone(), json!(null)]),
        ("PlanCompleted", vec![job.clone(), json!({})]),
        ("GetModuleCompleted", vec![job.clone()]),
        ("InitFaulted", vec![job.clone(), json!(""), json!("")]),
        ("ReportRunningTask", vec![job.clone(), json!("Plan"), runner.clone(), json!("a")]),
        ("ReportRunningTask", vec![job.clone(), json!("Init"), runner.clone(), json!("b")]),
        ("ReportRunningTask", vec![job.clone(), json!("Init"), unknown.clone(), json!("a")]),
        ("ReportRunningTask", vec![unknown, json!("Init"), runner, json!("a")]),
        ("AddLogs", vec![json!([])]),
        ("AddLogs", vec![json!([incomplete])]),
        ("AddLogs", vec![json!([foreign])]),
        ("AddLogs", vec![json!([other_task])]),
        ("CancelGracefulCompleted", vec![job.clone()]),
        ("SourceRefreshCompleted", vec![json!("u"), json!("r"), json!(0), json!(0), json!("abc")]),
    ];
    for (count, (method, arguments)) in wrong.into_iter().enumerate() {
        let error = client.call(method, arguments.clone()).await;
        assert!(error.is_err(), "{method} {arguments:?} was accepted");
        assert_eq!(hub.violations().len(), count + 1, "{method}: {error:?}");
    }
    // The job is not affected.
    client.call("InitCompleted", vec![job]).await.unwrap();
}

#[tokio::test]
async fn a_duplicate_result_is_acknowledged_and_later_logs_are_refused() {
    let hub = hub().await;
    let (mut client, request) = with_task(&hub).await;
    let job = request["jobId"].clone();
    client.call("InitCompleted", vec![job.clone()]).await.unwrap();
    client.call("InitCompleted", vec![job.clone()]).await.unwrap();
    assert_eq!(hub.violations(), Vec::<String>::new());
    let twice = |event: &HubEvent| matches!(event, HubEvent::DuplicateResult { .. }).then_some(());
    in_time("the event", hub.events().find(twice)).await;
    client.log(&request, Task::Init, &["late"]).await.unwrap_err();
    assert_eq!(hub.violations().len(), 1);
}

#[tokio::test]
async fn messages_that_runners_must_not_send_are_recorded() {
    let hub = hub().await;
    let (mut client, request) = with_task(&hub).await;
    client.send(&json!({"type": 3, "invocationId": "stray"})).await;
    client.send(&json!({"type": 8, "sequenceId": 1})).await;
    let arguments = json!([request["jobId"], "Init", hub.identity().runner_id, "a"]);
    client.send(&json!({"type": 1, "target": "ReportRunningTask", "arguments": arguments})).await;
    client.send(&json!({"type": 4, "invocationId": "s", "target": "Stream", "arguments": []})).await;
    assert!(client.completion("s").await.unwrap().is_err());
    assert_eq!(hub.violations().len(), 4, "{:?}", hub.violations());
    client.send_raw("{ this is no JSON \u{1e}").await;
    client.expect_close(Some("JSON"), true).await;
    assert_eq!(hub.violations().len(), 5);
}
