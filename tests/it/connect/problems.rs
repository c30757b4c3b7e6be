//! Each connection error names the setting to check.

use serde_json::json;
use tokio::net::TcpListener;

use super::{Client, endpoint, timing};
use crate::support::scripted_hub::{Answer, ScriptedHub};

async fn expect(client: Client, parts: &[&str]) {
    let problem = client.problem().await;
    for part in parts {
        assert!(problem.contains(part), "{part:?} is not in: {problem}");
    }
    assert!(!problem.contains("runner_id="), "the query is not shown: {problem}");
}

#[tokio::test]
async fn each_status_of_negotiate_names_its_setting() {
    let hub = ScriptedHub::start().await;
    for (status, body, parts) in [
        (400, "bad runner_id", &["400", "bad runner_id", "Runner.Id"][..]),
        (401, "", &["401", "Runner.Credentials.ClientId", "Runner.OrganizationId"]),
        (403, r#"{"detail":"not yours"}"#, &["403", "not yours", "Runner.Id", "11111111-2222"]),
        (404, "<html>long page</html>", &["404", "Server.Url", "/runnerhub", "Runner.Id"]),
        (409, "taken", &["another runner is connected as instance \"büro 1\"", "Runner.Instance"]),
        (500, "", &["500", "Server.Url"]),
        (503, "", &["503", "Server.Url"]),
    ] {
        hub.script(|script| script.negotiate = Some(Answer::new(status, body)));
        expect(Client::start(hub.address), parts).await;
        // The upgrade may be refused in the same ways.
        hub.script(|script| {
            script.negotiate = None;
            script.upgrade = Some(Answer::new(status, body));
        });
        expect(Client::start(hub.address), parts).await;
    }
}

#[tokio::test]
async fn each_status_of_the_token_endpoint_names_its_setting() {
    let hub = ScriptedHub::start().await;
    for (status, body, parts) in [
        (400, r#"{"error":"invalid_scope"}"#, &["400", "invalid_scope", "Runner.Credentials.ClientId"][..]),
        (401, "", &["401", "Runner.Credentials.ClientSecret", "Runner.OrganizationId"]),
        (404, "", &["404", "/connect/token", "Server.Url"]),
        (502, "", &["502", "/connect/token"]),
        (200, "<html>sign in</html>", &["/connect/token", "not JSON", "Server.Url"]),
        (200, "{}", &["access_token", "Server.Url"]),
    ] {
        hub.script(|script| script.token = Some(Answer::new(status, body)));
        expect(Client::start(hub.address), parts).await;
    }
    let location = Some("https://new.example.com/connect/token?secret=1".to_owned());
    hub.script(|script| script.token = Some(Answer { status: 301, body: String::new(), location }));
    expect(
        Client::start(hub.address),
        &["redirects to https://new.example.com/connect/token:", "Server.Url"],
    )
    .await;
}

#[tokio::test]
async fn each_unusable_negotiate_response_names_its_setting() {
    let hub = ScriptedHub::start().await;
    let polling = json!([{"transport": "LongPolling", "transferFormats": ["Text"]}]);
    for (body, parts) in [
        (json!({"error": "unknown organization"}), &["unknown organization", "Runner.OrganizationId"][..]),
        (json!({"connectionToken": "t", "availableTransports": polling}), &["WebSocket", "LongPolling"]),
        (json!("text"), &["negotiate", "Server.Url"]),
    ] {
        hub.script(|script| script.negotiate = Some(Answer::new(200, body)));
        expect(Client::start(hub.address), parts).await;
    }
    hub.script(|script| {
        script.negotiate = None;
        script.upgrade = Some(Answer::new(200, "hello"));
    });
    expect(Client::start(hub.address), &["to a WebSocket", "200", "Server.Url"]).await;
}

#[tokio::test]
async fn a_refused_handshake_names_its_setting() {
    let mut hub = ScriptedHub::start().await;
    for (answer, parts) in [
        (json!({"error": "no such protocol"}), &["no such protocol", "Server.Url"][..]),
        (json!({"error": "Instance is in use"}), &["connected as instance \"büro 1\"", "Runner.Instance"]),
    ] {
        let client = Client::start(hub.address);
        hub.socket().await.write_json(&answer).await;
        expect(client, parts).await;
    }
    let client = Client::start(hub.address);
    let mut peer = hub.connection().await;
    client.connected(1).await;
    peer.write_json(&json!({"type": 7, "error": "Another runner is connected with this instance name"}))
        .await;
    expect(client, &["connected as instance \"büro 1\"", "Runner.Instance"]).await;
}

#[tokio::test]
async fn an_unknown_host_names_the_server_url() {
    let client = Client::with(endpoint("https://no-such-host.invalid:1234"), timing());
    expect(client, &["no-such-host.invalid:1234", "resolve", "Server.Url"]).await;
}

#[tokio::test]
async fn a_refused_connection_names_the_server_url() {
    // Bound, but not listening.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let client = Client::start(address);
    expect(client, &[&address.to_string(), "refused the connection", "Server.Url"]).await;
}

#[tokio::test]
async fn a_server_that_never_answers_names_the_server_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut impatient = timing();
    impatient.request_timeout = std::time::Duration::from_millis(200);
    let address = listener.local_addr().unwrap();
    let client = Client::with(endpoint(&format!("http://{address}")), impatient);
    expect(client, &[&address.to_string(), "timed out", "Server.Url"]).await;
}
