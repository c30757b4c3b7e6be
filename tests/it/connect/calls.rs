//! Calls and pushes over an open connection.

use hawser_signalr::{CallError, ConnectionStatus};
use serde_json::{Value, json};

use super::{Client, SECRET, endpoint, timing};
use crate::support::eventually::in_time;
use crate::support::scripted_hub::ScriptedHub;

#[tokio::test]
async fn the_requests_that_open_a_connection_follow_the_contract() {
    let mut hub = ScriptedHub::start().await;
    let url = format!("http://{}/a/prefix/", hub.address);
    let client = Client::with(endpoint(&url), timing());
    let _peer = hub.connection().await;
    client.connected(1).await;

    let token = &hub.seen("")[0];
    assert_eq!((token.method.as_str(), token.uri.as_str()), ("POST", "/a/prefix/connect/token"));
    assert_eq!(token.headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!(token.headers["accept"], "application/json");
    assert_eq!(token.authorization(), "", "the credentials are in the body");
    let form: Vec<(String, String)> =
        url::form_urlencoded::parse(token.body.as_bytes()).into_owned().collect();
    let value = |name: &str| &form.iter().find(|(key, _)| key == name).unwrap().1;
    assert_eq!(value("grant_type"), "client_credentials");
    assert_eq!(value("scope"), "snapcd_scope");
    assert_eq!(value("client_id"), "6f9619ff-8b86-d011-b42d-00c04fc964ff:the-client");
    assert_eq!(value("client_secret"), SECRET);

    let query = "organization_id=6f9619ff-8b86-d011-b42d-00c04fc964ff\
                 &runner_id=11111111-2222-3333-4444-555555555555&runner_instance=b%C3%BCro%201";
    let negotiate = &hub.seen("")[1];
    assert_eq!(negotiate.method, "POST");
    assert_eq!(negotiate.uri, format!("/a/prefix/runnerhub/negotiate?{query}&negotiateVersion=1"));
    assert_eq!(negotiate.authorization(), "Bearer token-1");
    let upgrade = &hub.seen("")[2];
    assert_eq!(upgrade.method, "GET");
    assert_eq!(upgrade.uri, format!("/a/prefix/runnerhub?{query}&id=a%2Bb%2Fc%3D"));
    assert_eq!(upgrade.authorization(), "Bearer token-1");
    assert_eq!(hub.seen("").len(), 3);
}

#[tokio::test]
async fn pipelined_calls_are_sent_in_order_and_each_gets_its_own_answer() {
    let mut hub = ScriptedHub::start().await;
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;

    let mut pending = Vec::new();
    for number in 0..200 {
        pending.push(client.hub.start("AddLogs", format!("[{number}]")).await.unwrap());
    }
    let mut ids = Vec::new();
    for number in 0..200 {
        let call = peer.read_call().await;
        assert_eq!((&call["type"], &call["target"]), (&json!(1), &json!("AddLogs")));
        assert_eq!(call["arguments"], json!([number]));
        ids.push(call["invocationId"].clone());
    }
    // The answers arrive in another order, split over frames or joined in one.
    let answers: String = ids
        .iter()
        .enumerate()
        .rev()
        .map(|(number, id)| match number % 3 {
            0 => format!("{}\u{1e}", json!({"type": 3, "invocationId": id, "result": number})),
            1 => format!("{}\u{1e}", json!({"type": 3, "invocationId": id, "error": format!("no {number}")})),
            _ => format!("{}\u{1e}{{\"type\":6}}\u{1e}", json!({"type": 3, "invocationId": id})),
        })
        .collect();
    for part in answers.as_bytes().chunks(701) {
        peer.write(std::str::from_utf8(part).unwrap()).await;
    }
    for (number, call) in pending.into_iter().enumerate() {
        let expected = match number % 3 {
            0 => Ok(json!(number)),
            1 => Err(CallError::Refused(format!("no {number}"))),
            _ => Ok(Value::Null),
        };
        assert_eq!(in_time("an answer", call.answer()).await, expected);
    }
}

#[tokio::test]
async fn invocations_of_the_server_are_answered_and_pushes_are_not() {
    let mut hub = ScriptedHub::start().await;
    let mut client = Client::start(hub.address);
    let mut peer = hub.connection().await;

    peer.write_json(&json!({"type": 1, "target": "Plan", "arguments": [{"jobId": "j"}]})).await;
    let push = client.push().await;
    assert_eq!(push.target, "Plan");
    assert_eq!(push.arguments, [json!({"jobId": "j"})]);
    assert!(push.reply.is_none());

    for (id, answer, expected) in [
        ("s-0", Ok(json!(null)), json!({"type": 3, "invocationId": "s-0", "result": null})),
        ("s-1", Ok(json!({"a": 1})), json!({"type": 3, "invocationId": "s-1", "result": {"a": 1}})),
        ("s-2", Err("cannot".to_owned()), json!({"type": 3, "invocationId": "s-2", "error": "cannot"})),
    ] {
        peer.write_json(&json!({"type": 1, "target": "Ask", "arguments": [], "invocationId": id})).await;
        client.push().await.reply.unwrap().answer(answer);
        assert_eq!(peer.read_call().await, expected);
    }
    peer.write_json(&json!({"type": 1, "target": "Ask", "arguments": [], "invocationId": "s-3"})).await;
    drop(client.push().await);
    let answer = peer.read_call().await;
    assert_eq!(answer["invocationId"], "s-3");
    assert!(answer["error"].is_string(), "{answer}");
}

#[tokio::test]
async fn a_call_beyond_the_size_limit_fails_and_the_connection_stays_open() {
    let mut hub = ScriptedHub::start().await;
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    let large = "x".repeat(32 * 1024);
    let answer = in_time("an answer", client.hub.invoke("AddLogs", (large,))).await;
    assert!(matches!(answer, Err(CallError::TooLarge { limit: 32_768, .. })), "{answer:?}");

    let call = client.hub.start("M", "[]".to_owned()).await.unwrap();
    let id = peer.read_call().await["invocationId"].clone();
    peer.write_json(&json!({"type": 3, "invocationId": id})).await;
    assert_eq!(in_time("an answer", call.answer()).await, Ok(Value::Null));
}

#[tokio::test]
async fn a_push_of_many_megabytes_arrives() {
    let mut hub = ScriptedHub::start().await;
    let mut client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    let contents = "ä".repeat(4 * 1024 * 1024);
    peer.write_json(&json!({"type": 1, "target": "GetModule", "arguments": [contents]})).await;
    assert_eq!(client.push().await.arguments, [json!(contents)]);
}

#[tokio::test]
async fn stopping_closes_the_websocket() {
    let mut hub = ScriptedHub::start().await;
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    drop(client.stop);
    assert_eq!(peer.gone().await, Some(1000));
    in_time("the end of the session", client.task).await.unwrap();
    assert_eq!(*client.hub.status().borrow(), ConnectionStatus::Stopped);
    assert_eq!(client.hub.invoke("M", ()).await, Err(CallError::Disconnected));
}
