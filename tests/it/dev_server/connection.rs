//! Token, negotiation, handshake, pings and limits.

use std::time::Duration;

use hawser_contract::Task;
use hawser_dev_server::{HubEvent, JobSpec};
use serde_json::{Value, json};

use super::client::{Client, entry, http, negotiate, post_form, query, token, token_form, upgrade};
use super::{hub, hub_with};
use crate::support::eventually::in_time;

#[tokio::test]
async fn a_token_is_only_issued_for_a_valid_form() {
    let hub = hub_with(|options| options.token_lifetime = Duration::from_secs(90)).await;
    let url = format!("{}/connect/token", hub.url());
    let answer: Value = post_form(&url, &token_form(&hub)).await.json().await.unwrap();
    assert_eq!(answer["expires_in"], 90);
    for (name, status, error) in [
        ("grant_type", 400, "unsupported_grant_type"),
        ("scope", 400, "invalid_scope"),
        ("client_id", 401, "invalid_client"),
        ("client_secret", 401, "invalid_client"),
    ] {
        let mut form = token_form(&hub);
        form.iter_mut().find(|(key, _)| *key == name).unwrap().1 = "wrong".into();
        let response = post_form(&url, &form).await;
        assert_eq!(response.status(), status);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"], error);
        assert!(!answer["error_description"].as_str().unwrap().is_empty());
    }
    let response = http().post(&url).json(&json!({"grant_type": "client_credentials"})).send().await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn a_refused_negotiation_has_a_reason() {
    let hub = hub().await;
    let good = token(&hub).await;
    let id = uuid::Uuid::new_v4().to_string();
    let changed = |name: &str, value: &str| {
        let mut query = query(&hub, "a");
        query.iter_mut().find(|(key, _)| *key == name).unwrap().1 = value.to_owned();
        query
    };
    let cases = [
        ("nonsense", query(&hub, "a"), 401, "token"),
        (&good, changed("organization_id", &id), 403, id.as_str()),
        (&good, changed("runner_id", &id), 404, id.as_str()),
        (&good, changed("runner_id", "x"), 400, "GUID"),
        (&good, changed("runner_instance", " "), 400, "runner_instance"),
    ];
    for (token, query, status, reason) in cases {
        for response in [negotiate(&hub, token, &query).await, upgrade(&hub, token, &query).await] {
            assert_eq!(response.status(), status);
            assert!(response.text().await.unwrap().contains(reason));
        }
    }
    let mut query = query(&hub, "a");
    query.push(("id", "made-up".to_owned()));
    assert_eq!(upgrade(&hub, &good, &query).await.status(), 404);
}

#[tokio::test]
async fn a_second_runner_with_the_same_name_is_refused_even_if_it_negotiated_first() {
    let hub = hub().await;
    let token = token(&hub).await;
    let mut query = query(&hub, "a");
    query.push(("negotiateVersion", "1".to_owned()));
    let early: Value = negotiate(&hub, &token, &query).await.json().await.unwrap();
    let _first = Client::connect(&hub, "a").await;
    let late = negotiate(&hub, &token, &query).await;
    assert_eq!(late.status(), 409);
    let reason = late.text().await.unwrap();
    assert!(reason.contains("instance \"a\" is already connected"), "{reason}");
    query.push(("id", early["connectionToken"].as_str().unwrap().to_owned()));
    let late = upgrade(&hub, &token, &query).await;
    assert_eq!(late.status(), 409);
    assert_eq!(hub.runners(), ["a"]);
}

#[tokio::test]
async fn the_token_may_come_in_the_query_and_the_negotiation_may_be_skipped() {
    let hub = hub().await;
    let mut query = query(&hub, "a");
    query.push(("access_token", token(&hub).await));
    let url = super::client::with_query("/runnerhub/negotiate", &hub, &query);
    let answer: Value = http().post(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["negotiateVersion"], 0);
    assert_eq!(answer["availableTransports"][0]["transport"], "WebSockets");
    let token = query.last().unwrap().1.clone();
    assert_eq!(upgrade(&hub, &token, &query).await.status(), 101);
}

#[tokio::test]
async fn only_the_json_protocol_is_accepted_in_the_handshake() {
    let hub = hub().await;
    for (request, part) in [
        (json!({"protocol": "messagepack", "version": 1}), "messagepack"),
        (json!({"protocol": "json", "version": 7}), "7"),
        (json!({"type": 6}), "handshake"),
    ] {
        let mut client = Client::open(&hub, "a").await;
        client.send(&request).await;
        let answer = client.message().await.unwrap();
        assert!(answer["error"].as_str().unwrap().contains(part), "{answer}");
        client.expect_end().await;
    }
    assert!(hub.runners().is_empty());
    let hub = hub_with(|options| options.handshake_timeout = Duration::from_millis(200)).await;
    let mut silent = Client::open(&hub, "a").await;
    silent.expect_end().await;
    assert!(hub.runners().is_empty());
}

#[tokio::test]
async fn messages_may_be_joined_in_a_frame_or_split_over_several() {
    let hub = hub().await;
    let job = hub.submit(JobSpec::single(Task::Init, "x"));
    let mut client = Client::open(&hub, "a").await;
    let call = |id: &str| {
        let runner = hub.identity().runner_id;
        json!({"type": 1, "invocationId": id, "target": "ReportRunningTask", "arguments": [job, "Init", runner, "a"]})
    };
    // The first message is in the frame of the handshake.
    client
        .send_raw(&format!("{{\"protocol\":\"json\",\"version\":1}}\u{1e}{}\u{1e}", json!({"type": 6})))
        .await;
    assert_eq!(client.message().await, Some(json!({})));
    client.pushed("Init").await;
    client.send_raw(&format!("{}\u{1e}{}\u{1e}", call("one"), call("two"))).await;
    let text = format!("{}\u{1e}", call("three"));
    let (head, tail) = text.split_at(20);
    client.send_raw(head).await;
    client.send_raw(tail).await;
    for id in ["one", "two", "three"] {
        assert_eq!(
            client.message().await.unwrap()["invocationId"],
            id,
            "answers have the order of the calls"
        );
    }
    assert_eq!(hub.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn an_idle_hub_pings_and_disconnects_a_silent_client() {
    let hub = hub_with(|options| {
        options.keep_alive = Duration::from_millis(50);
        options.client_timeout = Duration::from_secs(5);
    })
    .await;
    let mut client = Client::connect(&hub, "a").await;
    assert_eq!(client.message().await, Some(json!({"type": 6})));
    client.expect_end().await;
    let gone = |event: &HubEvent| match event {
        HubEvent::Disconnected { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    assert!(in_time("the event", hub.events().find(gone)).await.contains("silent"));
}

#[tokio::test]
async fn messages_are_limited_to_32_kib() {
    let hub = hub().await;
    hub.submit(JobSpec::single(Task::Init, "x"));
    let mut client = Client::connect(&hub, "a").await;
    let request = client.pushed("Init").await;
    let message = |filler: usize| {
        let entries = json!([[entry(&request, Task::Init, &"x".repeat(filler))]]);
        format!(
            "{}\u{1e}",
            json!({"type": 1, "invocationId": "big", "target": "AddLogs", "arguments": entries})
        )
    };
    let filler = 32 * 1024 - message(0).len();
    assert_eq!(message(filler).len(), 32 * 1024);
    client.send_raw(&message(filler)).await;
    assert_eq!(client.completion("big").await, Some(Ok(Value::Null)));
    assert_eq!(hub.violations(), Vec::<String>::new());
    client.send_raw(&message(filler + 1)).await;
    client.expect_close(Some("longer than"), true).await;
    assert_eq!(hub.violations().len(), 1);
}

#[tokio::test]
async fn a_close_message_states_whether_to_reconnect() {
    let hub = hub().await;
    for (error, allow_reconnect) in [(None, true), (Some("maintenance"), false)] {
        let mut client = Client::connect(&hub, "a").await;
        hub.close_connections(error, allow_reconnect);
        client.expect_close(error, allow_reconnect).await;
        in_time("the runner to disconnect", hub.runners_until(0)).await;
    }
}

#[tokio::test]
async fn a_connection_is_closed_when_its_token_expires() {
    let hub = hub_with(|options| {
        // Long enough to connect on a busy machine.
        options.token_lifetime = Duration::from_secs(4);
        options.close_on_token_expiry = true;
    })
    .await;
    let mut client = Client::connect(&hub, "a").await;
    client.expect_close(Some("token"), true).await;
}
