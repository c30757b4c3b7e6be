//! Tokens: renewed in time, replaced when rejected, never logged.

use std::io::Write;
use std::sync::{Arc, Mutex};

use hawser_dev_server::{EmbeddedHub, HubEvent, HubOptions, Recorded};
use hawser_signalr::ConnectionStatus;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use super::{Client, SECRET, endpoint, timing};
use crate::support::eventually::{eventually, in_time};
use crate::support::relay::Relay;
use crate::support::scripted_hub::{Answer, ScriptedHub};

#[tokio::test]
async fn a_token_is_renewed_while_connected_and_the_next_connection_uses_it() {
    let mut hub = ScriptedHub::start().await;
    hub.script(|script| script.expires_in = json!(1));
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    eventually("two renewals", || hub.seen("/connect/token").len() >= 3).await;
    assert_eq!(client.connected(1).await, 1, "a renewal does not affect the connection");

    hub.script(|script| script.expires_in = json!(3600));
    eventually("a renewal that lasts", || hub.seen("/connect/token").len() >= 4).await;
    let last = hub.seen("/connect/token").len();
    peer.write_json(&json!({"type": 7, "allowReconnect": true})).await;
    let _peer = hub.connection().await;
    client.connected(2).await;
    assert_eq!(hub.seen("/runnerhub").last().unwrap().authorization(), format!("Bearer token-{last}"));
    assert_eq!(hub.seen("/connect/token").len(), last, "the cached token was used");
}

#[tokio::test]
async fn no_token_lifetime_causes_a_request_loop() {
    for lifetime in [json!(60), json!(0), json!(null), json!(-1), json!(1e30), json!("rubbish")] {
        let mut hub = ScriptedHub::start().await;
        hub.script(|script| script.expires_in = lifetime.clone());
        let mut patient = timing();
        patient.token_renewal_floor = hawser::connect::Timing::default().token_renewal_floor;
        let client = Client::with(endpoint(&format!("http://{}", hub.address)), patient);
        let mut peer = hub.connection().await;
        client.connected(1).await;
        // A request loop would show during the round trip of a call.
        for _ in 0..20 {
            let call = client.hub.start("M", "[]".to_owned()).await.unwrap();
            let id = peer.read_call().await["invocationId"].clone();
            peer.write_json(&json!({"type": 3, "invocationId": id})).await;
            call.answer().await.unwrap();
        }
        assert_eq!(hub.seen("/connect/token").len(), 1, "lifetime {lifetime}");
    }
}

#[tokio::test]
async fn after_a_close_for_an_expired_token_the_client_reconnects_with_a_new_one() {
    let mut hub = ScriptedHub::start().await;
    hub.script(|script| script.expires_in = json!(0));
    // After a refusal the client would wait forever, so this passes only if the close is not treated as one.
    let mut waits = timing();
    waits.session.refused_delay = std::time::Duration::from_secs(3600);
    let client = Client::with(endpoint(&format!("http://{}", hub.address)), waits);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    peer.write_json(&json!({"type": 7, "error": "authentication expired"})).await;
    let _peer = hub.connection().await;
    client.connected(2).await;
    let bearers: Vec<_> = hub.seen("/runnerhub").iter().map(|seen| seen.authorization().to_owned()).collect();
    assert_ne!(bearers[0], bearers[1]);
}

#[tokio::test]
async fn a_rejected_token_is_replaced() {
    let mut hub = ScriptedHub::start().await;
    hub.script(|script| script.negotiate = Some(Answer::new(401, "")));
    let client = Client::start(hub.address);
    let problem = client.problem().await;
    assert!(problem.contains("401") && problem.contains("Runner.Credentials"), "{problem}");
    eventually("another token", || hub.seen("/connect/token").len() >= 2).await;
    hub.script(|script| {
        script.negotiate = None;
        script.upgrade = Some(Answer::new(401, ""));
    });
    eventually("a refused upgrade", || !hub.seen("/runnerhub").is_empty()).await;
    hub.script(|script| script.upgrade = None);
    let _peer = hub.connection().await;
    client.connected(1).await;
    let upgrades = hub.seen("/runnerhub");
    let [.., refused, accepted] = &upgrades[..] else { panic!("{upgrades:?}") };
    assert_ne!(refused.authorization(), accepted.authorization());
}

#[tokio::test]
async fn a_cached_token_that_is_rejected_is_replaced_at_once_without_an_error() {
    let hub = EmbeddedHub::start(HubOptions::default()).await.unwrap();
    let relay = Relay::start(hub.address()).await;
    let identity = hub.identity();
    let mut endpoint = endpoint(&format!("http://{}", relay.address()));
    endpoint.organization_id = identity.organization_id;
    endpoint.runner_id = identity.runner_id;
    endpoint.client_id.clone_from(&identity.client_id);
    endpoint.client_secret = identity.client_secret.clone();
    // After a refusal the client would wait forever, so this passes only without one.
    let waits = std::time::Duration::from_secs(3600);
    let mut patient = timing();
    patient.session.refused_delay = waits;
    let client = Client::with(endpoint, patient);
    client.connected(1).await;
    let mut status = client.hub.status();
    let problems = tokio::spawn(async move {
        let mut problems = Vec::new();
        loop {
            match status.borrow_and_update().clone() {
                ConnectionStatus::Connected { generation: 2 } => return problems,
                ConnectionStatus::Connecting { problem: Some(problem) } => problems.push(problem),
                _ => {}
            }
            status.changed().await.unwrap();
        }
    });
    // A restarted server does not know its earlier tokens.
    let options = HubOptions { identity: Some(identity.clone()), ..HubOptions::default() };
    let hub = EmbeddedHub::start(options).await.unwrap();
    relay.lead_to(hub.address());
    relay.cut();
    let problems = in_time("a reconnect", problems).await.unwrap();
    assert!(problems.iter().all(|problem| !problem.contains("Runner.OrganizationId")), "{problems:?}");
    let refused = |recorded: &Recorded| matches!(recorded.event, HubEvent::Refused { .. });
    assert_eq!(hub.all_events().iter().filter(|it| refused(it)).count(), 1, "the old token was tried");
}

#[tokio::test]
async fn bad_credentials_are_reported_with_the_server_text_until_they_are_accepted() {
    let mut hub = ScriptedHub::start().await;
    let body = json!({"error": "invalid_client", "error_description": format!("no {SECRET} known")});
    for status in [400, 401] {
        hub.script(|script| script.token = Some(Answer::new(status, &body)));
        let client = Client::start(hub.address);
        let problem = client.problem().await;
        for part in ["Runner.Credentials.ClientSecret", "invalid_client", &status.to_string()] {
            assert!(problem.contains(part), "{problem}");
        }
        assert!(!problem.contains(SECRET), "{problem}");
        hub.script(|script| script.token = None);
        let _peer = hub.connection().await;
        client.connected(1).await;
    }
}

#[tokio::test]
async fn every_token_is_masked_as_soon_as_it_is_received() {
    let hub = ScriptedHub::start().await;
    let mut service = ScriptedHub::start().await;
    let url = format!("http://{}/client/", service.address);
    hub.script(|script| {
        script.expires_in = json!(1);
        script.negotiate = Some(Answer::new(200, json!({"url": url, "accessToken": "for-the-service"})));
    });
    let client = Client::start(hub.address);
    let _peer = service.connection().await;
    client.connected(1).await;
    let masked = client.secret_store.masker().text("token-1 for-the-service a+b/c= token-x").into_owned();
    assert_eq!(masked, "*** *** *** token-x");
    eventually("a renewal", || client.secret_store.masker().text("token-2") == "***").await;
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn neither_secret_nor_token_is_logged_and_a_lasting_error_is_a_warning_once() {
    let captured = Captured::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(captured.clone())
        .with_ansi(false)
        .finish();
    // With a single subscriber, tracing caches the interest of the thread that logs first, which may belong to a test without
    // a subscriber. The event would then be disabled everywhere. With two subscribers, the interest is not cached.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);

    let mut hub = ScriptedHub::start().await;
    hub.script(|script| script.negotiate = Some(Answer::new(503, "")));
    let client = Client::start(hub.address);
    eventually("several attempts", || hub.seen("/negotiate").len() >= 5).await;
    hub.script(|script| script.negotiate = None);
    let _peer = hub.connection().await;
    client.connected(1).await;

    let log = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains(" WARN ") && line.contains("no connection")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(log.contains("connected again"), "{log}");
    for secret in [SECRET, "token-1", "a+b/c=", "a%2Bb%2Fc%3D"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}
