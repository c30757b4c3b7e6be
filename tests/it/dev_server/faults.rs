//! Deliberate faults of the hub.

use std::time::Duration;

use hawser_contract::Task;
use hawser_dev_server::{EmbeddedHub, Fault, JobSpec, JobState, Moment, Rubbish, Rule};
use serde_json::{Value, json};

use super::client::{Client, negotiate, post_form, query, token, token_form};
use super::hub;
use crate::support::eventually::in_time;

async fn with_task(hub: &EmbeddedHub) -> (Client, Value) {
    hub.submit(JobSpec::single(Task::Init, "x"));
    let mut client = Client::connect(hub, "a").await;
    let request = client.pushed("Init").await;
    (client, request["jobId"].clone())
}

#[tokio::test]
async fn calls_are_refused_a_number_of_times_and_then_accepted() {
    let hub = hub().await;
    let (mut client, job) = with_task(&hub).await;
    hub.misbehave(Rule::new(Moment::call("InitCompleted"), Fault::Refuse("try later".into())).times(4));
    for _ in 0..4 {
        let answer = client.call("InitCompleted", vec![job.clone()]).await;
        assert_eq!(answer, Err("try later".to_owned()));
    }
    assert_eq!(hub.jobs()[0].state, JobState::Running);
    client.call("InitCompleted", vec![job]).await.unwrap();
    assert_eq!(hub.jobs()[0].state, JobState::Completed);
}

#[tokio::test]
async fn a_connection_is_cut_before_or_after_the_call_is_processed() {
    for (fault, processed) in [(Fault::DropBefore, false), (Fault::DropAfter, true)] {
        let hub = hub().await;
        let (mut client, job) = with_task(&hub).await;
        hub.misbehave(Rule::new(Moment::Call(None), fault).skip(1));
        client.claim(&job, Task::Init).await.unwrap();
        let id = client.start("InitCompleted", vec![job]).await;
        assert_eq!(client.completion(&id).await, None, "no answer");
        in_time("the runner to disconnect", hub.runners_until(0)).await;
        assert_eq!(hub.jobs()[0].state == JobState::Completed, processed);
    }
}

#[tokio::test]
async fn an_answer_is_forgotten_lost_or_late() {
    let hub = hub().await;
    let (mut client, job) = with_task(&hub).await;
    hub.misbehave(Rule::new(Moment::call("InitCompleted"), Fault::Lose));
    hub.misbehave(Rule::new(Moment::call("InitCompleted"), Fault::Forget));
    hub.misbehave(Rule::new(Moment::call("InitCompleted"), Fault::Delay(Duration::from_millis(100))));
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.start("InitCompleted", vec![job.clone()]).await);
    }
    // Only the third is answered. It is a duplicate, because the second was processed.
    assert_eq!(client.message().await.unwrap()["invocationId"], json!(ids[2]));
    let duplicates = hub.all_events().iter().filter(|it| it.event.to_string().contains("duplicate")).count();
    assert_eq!(duplicates, 1);
}

#[tokio::test]
async fn a_close_message_states_whether_to_reconnect() {
    let hub = hub().await;
    for (error, allow_reconnect) in [(None, true), (Some("maintenance".to_owned()), false)] {
        let (mut client, job) = with_task(&hub).await;
        let fault = Fault::Close { error: error.clone(), allow_reconnect };
        hub.misbehave(Rule::new(Moment::call("InitCompleted"), fault));
        client.call("InitCompleted", vec![job]).await.unwrap();
        client.expect_close(error.as_deref(), allow_reconnect).await;
        in_time("the runner to disconnect", hub.runners_until(0)).await;
    }
    let mut client = Client::connect(&hub, "a").await;
    hub.close_connections(Some("bye"), true);
    client.expect_close(Some("bye"), true).await;
}

#[tokio::test]
async fn rubbish_is_sent_on_request_and_after_a_call() {
    let hub = hub().await;
    let (mut client, job) = with_task(&hub).await;
    hub.misbehave(Rule::new(Moment::call("InitCompleted"), Fault::Send(Rubbish::UnknownType)));
    client.call("InitCompleted", vec![job]).await.unwrap();
    assert_eq!(client.message().await.unwrap()["type"], 99);
    hub.send_rubbish("a", Rubbish::UnknownMethod).unwrap();
    assert_eq!(client.message().await.unwrap()["target"], "NoSuchMethod");
    hub.send_rubbish("a", Rubbish::NotAMessage).unwrap();
    assert_eq!(client.message().await.unwrap(), json!([1, "two", null]));
    hub.send_rubbish("a", Rubbish::Text("{\"type\":".into())).unwrap();
    hub.send_rubbish("a", Rubbish::Bytes(b"6}\x1e".to_vec())).unwrap();
    assert_eq!(client.message().await.unwrap(), json!({"type": 6}));
    hub.push("a", "Anything", vec![json!(1), json!(2)]).unwrap();
    assert_eq!(client.invoked().await["arguments"], json!([1, 2]));
}

#[tokio::test]
async fn pushes_are_lost_or_cut_off() {
    let hub = hub().await;
    hub.misbehave(Rule::new(Moment::push("Init"), Fault::Lose).towards("a"));
    hub.misbehave(Rule::new(Moment::push("Init"), Fault::DropAfter).towards("a"));
    hub.submit(JobSpec::single(Task::Init, "x"));
    let mut client = Client::connect(&hub, "a").await;
    client.expect_no_push().await;
    hub.drop_connections();
    in_time("the runner to disconnect", hub.runners_until(0)).await;
    let mut client = Client::connect(&hub, "a").await;
    client.pushed("Init").await;
    client.expect_end().await;
}

#[tokio::test]
async fn a_stalled_connection_hangs_and_its_name_can_be_used_again() {
    for fault in [Fault::StopReading, Fault::Stall] {
        let hub = hub().await;
        let (mut client, job) = with_task(&hub).await;
        hub.misbehave(Rule::new(Moment::call("ReportRunningTask"), fault.clone()));
        let arguments = vec![job.clone(), json!("Init"), json!(hub.identity().runner_id), json!("a")];
        let id = client.start("ReportRunningTask", arguments).await;
        if fault == Fault::StopReading {
            client.completion(&id).await.unwrap().unwrap();
        }
        client.start("InitCompleted", vec![job.clone()]).await;
        let answer = tokio::time::timeout(Duration::from_millis(150), client.message()).await;
        assert!(answer.is_err(), "unexpected message: {answer:?}");
        assert_eq!(hub.jobs()[0].state, JobState::Running);
        let mut client = Client::connect(&hub, "a").await;
        client.call("InitCompleted", vec![job]).await.unwrap();
    }
}

#[tokio::test]
async fn tokens_negotiations_and_handshakes_fail_on_request() {
    let hub = hub().await;
    let url = format!("{}/connect/token", hub.url());
    hub.misbehave(Rule::new(Moment::Token, Fault::Refuse("busy".into())));
    hub.misbehave(Rule::new(Moment::Negotiate, Fault::Refuse("not now".into())));
    hub.misbehave(Rule::new(Moment::Handshake, Fault::Refuse("go away".into())));
    assert_eq!(post_form(&url, &token_form(&hub)).await.status(), 503);
    let token = token(&hub).await;
    let response = negotiate(&hub, &token, &query(&hub, "a")).await;
    assert_eq!((response.status().as_u16(), response.text().await.unwrap()), (503, "not now".to_owned()));
    let mut client = Client::open(&hub, "a").await;
    client.send(&json!({"protocol": "json", "version": 1})).await;
    assert_eq!(client.message().await, Some(json!({"error": "go away"})));
    client.expect_end().await;
    hub.misbehave(Rule::new(Moment::Token, Fault::Refuse("busy".into())).always());
    hub.behave();
    Client::connect(&hub, "a").await;
}
