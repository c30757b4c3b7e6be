//! The official `@microsoft/signalr` client against the embedded hub.
//!
//! Needs Node and the package (`npm ci` in `tests/signalr`, run here if it is missing). Without them the tests print a
//! message and pass, unless `HAWSER_REQUIRE_NODE=1` makes that a failure, as in CI.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use hawser_contract::Task;
use hawser_dev_server::{EmbeddedHub, HubEvent, HubOptions, Identity, JobSpec, JobState};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::eventually::in_time;
use crate::support::faulty_hub::FaultyHub;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signalr")
}

/// Whether the test can run. Prints a message if not.
async fn is_prepared() -> bool {
    let Err(reason) = prepare().await else { return true };
    assert_ne!(std::env::var("HAWSER_REQUIRE_NODE").as_deref(), Ok("1"), "{reason}");
    eprintln!("SKIPPED: the official SignalR client is not here: {reason}");
    false
}

/// Installs the package if it is missing.
async fn prepare() -> Result<(), String> {
    let version = Command::new("node").arg("--version").output().await;
    version.map_err(|error| format!("node cannot be run: {error}"))?;
    // One test at a time installs it, even if each test is its own process.
    let guard = std::fs::File::open(project().join("package.json")).map_err(|error| error.to_string())?;
    guard.lock().map_err(|error| error.to_string())?;
    if project().join("node_modules/@microsoft/signalr/package.json").exists() {
        return Ok(());
    }
    let install = Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(project()).output();
    let install = install.await.map_err(|error| format!("npm cannot be run: {error}"))?;
    if install.status.success() {
        Ok(())
    } else {
        Err(format!("npm ci failed: {}", String::from_utf8_lossy(&install.stderr)))
    }
}

struct NodeClient {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl NodeClient {
    fn start(url: &str, identity: &Identity, instance: &str) -> Self {
        let mut process = Command::new("node")
            .arg("client.mjs")
            .current_dir(project())
            .env("HUB_URL", url)
            .env("ORGANIZATION_ID", identity.organization_id.to_string())
            .env("RUNNER_ID", identity.runner_id.to_string())
            .env("CLIENT_ID", &identity.client_id)
            .env("CLIENT_SECRET", identity.client_secret.expose_secret())
            .env("INSTANCE", instance)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    async fn event(&mut self, event: &str) -> Value {
        let line = in_time("a line", self.lines.next_line()).await.unwrap().expect("the client ended");
        let printed: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(printed["event"], event, "{printed}");
        printed
    }
}

#[tokio::test]
async fn the_official_client_connects_invokes_is_invoked_and_reconnects() {
    if !is_prepared().await {
        return;
    }
    let hub = FaultyHub::start(HubOptions::default()).await;
    let mut client = NodeClient::start(&hub.url(), hub.identity(), "node ü/1");
    client.event("connected").await;
    assert_eq!(hub.runners(), ["node ü/1"]);

    // It receives a task, and its invocations are answered, an invalid one with an error.
    let job = hub.submit(JobSpec::single(Task::GetDefinitiveRevision, "https://example.org/x.git"));
    let refused = client.event("refused").await;
    assert!(refused["error"].as_str().unwrap().contains("is not waiting for Init"), "{refused}");
    let ended = in_time("the end of the job", hub.ended(job)).await;
    assert_eq!(ended.state, JobState::Completed);
    assert_eq!(ended.definitive_revision.as_deref(), Some("c0ffee"));
    assert_eq!(hub.logs(job, 0)[0].message, "grüße aus node");
    assert_eq!(hub.violations().len(), 1, "only the wrong one: {:?}", hub.violations());

    // It answers an invocation.
    let answer = in_time("an answer", hub.invoke("node ü/1", "Ask", vec![json!(41)])).await.unwrap();
    assert_eq!(answer, Ok(json!({"answer": 42})));

    // It reconnects after a cut, after a Close that allows it, and after the hub was offline.
    hub.drop_connections();
    client.event("reconnected").await;
    hub.close_connections(None, true);
    client.event("reconnected").await;
    hub.go_offline().await;
    hub.go_online().await;
    client.event("reconnected").await;
    let connects =
        hub.all_events().iter().filter(|it| matches!(it.event, HubEvent::Connected { .. })).count();
    assert_eq!(connects, 4);
    assert_eq!(
        in_time("an answer", hub.invoke("node ü/1", "Ask", vec![json!(1)])).await.unwrap(),
        Ok(json!({"answer": 2}))
    );

    hub.push("node ü/1", "Stop", vec![]).unwrap();
    client.event("closed").await;
    assert!(in_time("the end of the program", client.process.wait()).await.unwrap().success());
    in_time("the runner to disconnect", hub.runners_until(0)).await;
}

#[tokio::test]
async fn the_official_client_does_not_reconnect_after_a_close_that_forbids_it() {
    if !is_prepared().await {
        return;
    }
    let hub = EmbeddedHub::start(HubOptions::default()).await.unwrap();
    let mut client = NodeClient::start(&hub.url(), hub.identity(), "node");
    client.event("connected").await;
    hub.close_connections(Some("for good"), false);
    let closed = client.event("closed").await;
    assert!(closed["error"].as_str().unwrap().contains("for good"), "{closed}");
    assert_eq!(in_time("the end of the program", client.process.wait()).await.unwrap().code(), Some(1));
}
