//! Reconnects after cuts, stalls and protocol errors.

use std::time::Duration;

use hawser_signalr::{CallError, ConnectionStatus};
use serde_json::json;

use super::{Client, endpoint, timing};
use crate::support::eventually::{eventually, in_time};
use crate::support::relay::Relay;
use crate::support::scripted_hub::{Answer, ScriptedHub};

#[tokio::test]
async fn a_cut_fails_every_pending_call_and_the_client_reconnects() {
    let mut hub = ScriptedHub::start().await;
    let relay = Relay::start(hub.address).await;
    let client = Client::start(relay.address());
    for round in 1..=5 {
        let mut peer = hub.connection().await;
        client.connected(round).await;
        let mut pending = Vec::new();
        for _ in 0..3 {
            pending.push(client.hub.start("M", "[]".to_owned()).await.unwrap());
        }
        peer.read_call().await;
        relay.cut();
        for call in pending {
            assert_eq!(in_time("an answer", call.answer()).await, Err(CallError::Disconnected));
        }
    }
    let _peer = hub.connection().await;
    assert_eq!(client.connected(6).await, 6);
}

#[tokio::test]
async fn the_client_reconnects_after_refused_connections() {
    let mut hub = ScriptedHub::start().await;
    let relay = Relay::start(hub.address).await;
    relay.refuse();
    let client = Client::start(relay.address());
    client.problem().await;
    relay.resume();
    let _peer = hub.connection().await;
    client.connected(1).await;
}

#[tokio::test]
async fn the_client_reconnects_to_a_server_with_a_new_address() {
    let mut first = ScriptedHub::start().await;
    let relay = Relay::start(first.address).await;
    let client = Client::start(relay.address());
    let _peer = first.connection().await;
    client.connected(1).await;
    let mut second = ScriptedHub::start().await;
    relay.lead_to(second.address);
    relay.cut();
    let _peer = second.connection().await;
    client.connected(2).await;
}

#[tokio::test]
async fn a_stalled_network_is_detected_and_the_client_reconnects() {
    let mut hub = ScriptedHub::start().await;
    let relay = Relay::start(hub.address).await;
    let mut impatient = timing();
    impatient.session.ping_after = Duration::from_millis(100);
    impatient.session.server_timeout = Duration::from_secs(5);
    impatient.request_timeout = Duration::from_secs(5);
    let client = Client::with(endpoint(&format!("http://{}", relay.address())), impatient);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    let call = client.hub.start("M", "[]".to_owned()).await.unwrap();
    peer.read_call().await;
    relay.stall();
    assert_eq!(in_time("an answer", call.answer()).await, Err(CallError::Disconnected));
    let problem = client.problem_with("timed out: check").await;
    assert!(problem.contains("Server.Url"), "{problem}");
    relay.resume();
    // Attempts that started before the stall may still succeed first.
    let serving = async {
        let mut peers = Vec::new();
        loop {
            peers.push(hub.connection().await);
        }
    };
    tokio::select! {
        _ = client.connected(2) => {}
        () = serving => {}
    }
}

#[tokio::test]
async fn an_active_server_stays_connected_and_receives_pings() {
    let mut hub = ScriptedHub::start().await;
    let mut lively = timing();
    lively.session.ping_after = Duration::from_millis(50);
    lively.session.server_timeout = Duration::from_secs(10);
    let client = Client::with(endpoint(&format!("http://{}", hub.address)), lively);
    let mut peer = hub.connection().await;
    for _ in 0..5 {
        assert_eq!(peer.read().await, json!({"type": 6}));
        peer.write_json(&json!({"type": 6})).await;
    }
    assert_eq!(client.connected(1).await, 1);
}

#[tokio::test]
async fn the_client_reconnects_after_any_protocol_error() {
    let mut hub = ScriptedHub::start().await;
    let client = Client::start(hub.address);
    let rubbish = [
        "nonsense\u{1e}",
        "{}\u{1e}",
        "[1,2]\u{1e}",
        "{\"type\":1}\u{1e}",
        "{\"type\":\"x\"}\u{1e}",
        "\u{0}\u{1e}",
    ];
    for (round, text) in (1..).zip(rubbish) {
        let mut peer = hub.connection().await;
        client.connected(round).await;
        peer.write(text).await;
        peer.gone().await;
    }
    // Instead of the handshake response.
    let mut peer = hub.socket().await;
    peer.write("{\"type\":6}\u{1e}").await;
    let problem = client.problem_with("handshake").await;
    assert!(problem.contains("type 6"), "{problem}");
    let _peer = hub.connection().await;
    client.connected(7).await;
}

#[tokio::test]
async fn a_close_that_forbids_a_reconnect_is_reported_and_retried() {
    let mut hub = ScriptedHub::start().await;
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    peer.write_json(&json!({"type": 7, "error": "runner was disabled"})).await;
    let problem = client.problem().await;
    assert!(problem.contains("runner was disabled") && problem.contains("Runner.Id"), "{problem}");
    let _peer = hub.connection().await;
    client.connected(2).await;
}

#[tokio::test]
async fn messages_in_the_frame_of_the_handshake_response_are_not_lost() {
    let mut hub = ScriptedHub::start().await;
    let mut client = Client::start(hub.address);
    let mut peer = hub.socket().await;
    peer.read().await;
    peer.write("{}\u{1e}{\"type\":1,\"target\":\"A\",\"arguments\":[]}\u{1e}{\"type\":1,\"tar").await;
    peer.write("get\":\"B\",\"arguments\":[]}\u{1e}").await;
    assert_eq!(client.push().await.target, "A");
    assert_eq!(client.push().await.target, "B");
}

#[tokio::test]
async fn negotiate_follows_a_redirect_with_the_token_for_it() {
    let hub = ScriptedHub::start().await;
    let mut service = ScriptedHub::start().await;
    let url = format!("http://{}/client/?hub=runnerhub&x=1", service.address);
    hub.script(|script| {
        script.negotiate = Some(Answer::new(200, json!({"url": url, "accessToken": "for-the-service"})));
    });
    let client = Client::start(hub.address);
    let _peer = service.connection().await;
    client.connected(1).await;
    let seen = service.seen("");
    assert_eq!(seen[0].uri, "/client/negotiate?hub=runnerhub&x=1&negotiateVersion=1");
    assert_eq!(seen[1].uri, "/client/?hub=runnerhub&x=1&id=a%2Bb%2Fc%3D");
    for request in &seen {
        assert_eq!(request.authorization(), "Bearer for-the-service");
    }
}

#[tokio::test]
async fn the_token_is_not_sent_to_another_host_and_a_redirect_loop_ends() {
    let hub = ScriptedHub::start().await;
    let mut other = ScriptedHub::start().await;
    let circle = format!("http://{}/elsewhere", hub.address);
    let away = format!("http://{}/elsewhere", other.address);
    hub.script(|script| script.negotiate = Some(Answer::new(200, json!({"url": away}))));
    let client = Client::start(hub.address);
    let peer = other.connection().await;
    client.connected(1).await;
    assert!(other.seen("").iter().all(|seen| seen.authorization().is_empty()));

    hub.script(|script| script.negotiate = Some(Answer::new(200, json!({"url": circle}))));
    drop(peer);
    let problem = client.problem_with("too many redirects").await;
    assert!(problem.contains("Server.Url"), "{problem}");
    assert!(matches!(*client.hub.status().borrow(), ConnectionStatus::Connecting { .. }));
    eventually("all redirects", || hub.seen("/elsewhere/negotiate").len() >= 100).await;
}
