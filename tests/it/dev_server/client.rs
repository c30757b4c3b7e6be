//! A SignalR client that can send anything.

use std::collections::VecDeque;
use std::sync::Once;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use hawser_contract::Task;
use hawser_dev_server::{EmbeddedHub, Identity};
use hawser_signalr::codec::{Splitter, handshake_request};
use reqwest::header;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::support::eventually::in_time;

/// How long to wait for a push that should not arrive.
const QUIET: Duration = Duration::from_millis(150);

pub(super) fn http() -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A hub that a client can connect to, in this process or in another.
pub(super) trait Reachable {
    fn url(&self) -> String;
    fn identity(&self) -> &Identity;
}

impl Reachable for EmbeddedHub {
    fn url(&self) -> String {
        self.url()
    }

    fn identity(&self) -> &Identity {
        self.identity()
    }
}

pub(super) fn token_form(hub: &impl Reachable) -> Vec<(&'static str, String)> {
    let identity = hub.identity();
    vec![
        ("grant_type", "client_credentials".to_owned()),
        ("scope", "snapcd_scope".to_owned()),
        ("client_id", format!("{}:{}", identity.organization_id, identity.client_id)),
        ("client_secret", identity.client_secret.expose_secret().to_owned()),
    ]
}

pub(super) async fn post_form(url: &str, form: &[(&str, String)]) -> reqwest::Response {
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let request = http().post(url).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    request.body(body).send().await.unwrap()
}

pub(super) async fn token(hub: &impl Reachable) -> String {
    let response = post_form(&format!("{}/connect/token", hub.url()), &token_form(hub)).await;
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["token_type"], "Bearer");
    answer["access_token"].as_str().unwrap().to_owned()
}

pub(super) fn query(hub: &impl Reachable, instance: &str) -> Vec<(&'static str, String)> {
    vec![
        ("organization_id", hub.identity().organization_id.to_string()),
        ("runner_id", hub.identity().runner_id.to_string()),
        ("runner_instance", instance.to_owned()),
    ]
}

pub(super) fn with_query(path: &str, hub: &impl Reachable, query: &[(&str, String)]) -> String {
    url::Url::parse_with_params(&format!("{}{path}", hub.url()), query).unwrap().to_string()
}

pub(super) async fn negotiate(
    hub: &impl Reachable,
    token: &str,
    query: &[(&str, String)],
) -> reqwest::Response {
    let url = with_query("/runnerhub/negotiate", hub, query);
    http().post(url).bearer_auth(token).send().await.unwrap()
}

pub(super) async fn upgrade(
    hub: &impl Reachable,
    token: &str,
    query: &[(&str, String)],
) -> reqwest::Response {
    http()
        .get(with_query("/runnerhub", hub, query))
        .bearer_auth(token)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
        .send()
        .await
        .unwrap()
}

pub(super) struct Client {
    socket: WebSocketStream<reqwest::Upgraded>,
    splitter: Splitter,
    messages: VecDeque<Value>,
    pushes: VecDeque<Value>,
    runner: String,
    instance: String,
    calls: u64,
    pub(super) pings: u64,
}

impl Client {
    /// Requests a token, negotiates, opens the WebSocket and does the handshake.
    pub(super) async fn connect(hub: &impl Reachable, instance: &str) -> Self {
        let mut client = Self::open(hub, instance).await;
        client.send_raw(&handshake_request()).await;
        assert_eq!(client.message().await, Some(json!({})));
        client
    }

    /// Connects without the handshake.
    pub(super) async fn open(hub: &impl Reachable, instance: &str) -> Self {
        let token = token(hub).await;
        let mut query = query(hub, instance);
        query.push(("negotiateVersion", "1".to_owned()));
        let response = negotiate(hub, &token, &query).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        let answer: Value = response.json().await.unwrap();
        query.push(("id", answer["connectionToken"].as_str().unwrap().to_owned()));
        let response = upgrade(hub, &token, &query).await;
        assert_eq!(response.status(), 101);
        let stream = response.upgrade().await.unwrap();
        Self {
            socket: WebSocketStream::from_raw_socket(stream, Role::Client, None).await,
            splitter: Splitter::new(usize::MAX),
            messages: VecDeque::new(),
            pushes: VecDeque::new(),
            runner: hub.identity().runner_id.to_string(),
            instance: instance.to_owned(),
            calls: 0,
            pings: 0,
        }
    }

    pub(super) async fn send(&mut self, message: &Value) {
        self.send_raw(&format!("{message}\u{1e}")).await;
    }

    pub(super) async fn send_raw(&mut self, text: &str) {
        self.socket.send(tungstenite::Message::text(text)).await.unwrap();
    }

    /// The next message, or `None` if the connection has ended.
    pub(super) async fn message(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Some(message);
            }
            let frame = in_time("a frame", self.socket.next()).await?.ok()?;
            if frame.is_text() || frame.is_binary() {
                for message in self.splitter.push(&frame.into_data()).unwrap() {
                    self.messages.push_back(serde_json::from_slice(&message).unwrap());
                }
            } else if frame.is_close() {
                return None;
            }
        }
    }

    /// Sends a call without waiting for its answer.
    pub(super) async fn start(&mut self, method: &str, arguments: Vec<Value>) -> String {
        self.calls += 1;
        let id = self.calls.to_string();
        self.send(&json!({"type": 1, "invocationId": id, "target": method, "arguments": arguments})).await;
        id
    }

    /// The Completion of a call, or `None` if the connection has ended. Earlier pushes are kept.
    pub(super) async fn completion(&mut self, id: &str) -> Option<Result<Value, String>> {
        loop {
            let message = self.message().await?;
            match message["type"].as_u64() {
                Some(3) if message["invocationId"] == id => {
                    let error = message["error"].as_str().map(str::to_owned);
                    return Some(error.map_or_else(|| Ok(message["result"].clone()), Err));
                }
                Some(1) => self.pushes.push_back(message),
                Some(6) => self.pings += 1,
                _ => panic!("unexpected {message}"),
            }
        }
    }

    pub(super) async fn call(&mut self, method: &str, arguments: Vec<Value>) -> Result<Value, String> {
        let id = self.start(method, arguments).await;
        self.completion(&id).await.expect("the connection ended before the answer")
    }

    /// The next invocation by the server, as a complete message.
    pub(super) async fn invoked(&mut self) -> Value {
        if let Some(push) = self.pushes.pop_front() {
            return push;
        }
        loop {
            let message = self.message().await.expect("the connection ended before the push");
            match message["type"].as_u64() {
                Some(1) => return message,
                Some(6) => self.pings += 1,
                _ => panic!("unexpected {message}"),
            }
        }
    }

    /// The payload of the next push, which must be of this method.
    pub(super) async fn pushed(&mut self, method: &str) -> Value {
        let message = self.invoked().await;
        assert_eq!(message["target"], method);
        assert_eq!(message.get("invocationId"), None, "a dispatch expects no answer");
        message["arguments"][0].clone()
    }

    pub(super) async fn expect_no_push(&mut self) {
        if let Ok(message) = tokio::time::timeout(QUIET, self.invoked()).await {
            panic!("unexpected push {message}");
        }
    }

    /// Expects a Close message and then the end of the connection.
    pub(super) async fn expect_close(&mut self, error: Option<&str>, allow_reconnect: bool) {
        loop {
            let message = self.message().await.expect("the connection ended without a Close");
            if message["type"] == 7 {
                let text = message["error"].as_str();
                assert_eq!(message["allowReconnect"], allow_reconnect);
                match error {
                    None => assert_eq!(text, None),
                    Some(part) => assert!(text.unwrap().contains(part), "{message}"),
                }
                break;
            }
        }
        self.expect_end().await;
    }

    pub(super) async fn expect_end(&mut self) {
        while let Some(message) = self.message().await {
            assert!(matches!(message["type"].as_u64(), Some(1 | 3 | 6)), "unexpected {message}");
        }
    }

    pub(super) async fn claim(&mut self, job: &Value, task: Task) -> Result<Value, String> {
        let arguments = vec![job.clone(), json!(task), json!(self.runner), json!(self.instance)];
        self.call("ReportRunningTask", arguments).await
    }

    pub(super) async fn log(&mut self, request: &Value, task: Task, lines: &[&str]) -> Result<Value, String> {
        let entries: Vec<Value> = lines.iter().map(|line| entry(request, task, line)).collect();
        self.call("AddLogs", vec![json!(entries)]).await
    }
}

/// A valid log entry.
pub(super) fn entry(request: &Value, task: Task, message: &str) -> Value {
    let metadata = &request["metadata"];
    json!({
        "jobId": request["jobId"], "timestamp": "2026-11-16T00:00:00Z", "batchTimeStamp": "2026-11-16T00:00:01Z",
        "stackId": null, "namespaceId": null, "moduleId": metadata["moduleId"],
        "stackName": metadata["stackName"], "namespaceName": metadata["namespaceName"],
        "moduleName": metadata["moduleName"], "level": 2, "message": message, "taskName": task, "tags": null,
    })
}
