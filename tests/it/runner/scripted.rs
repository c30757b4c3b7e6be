//! A runner whose server is a script of the test, message by message.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::eventually::in_time;
use crate::support::scripted_hub::{Peer, ScriptedHub};
use crate::support::world::{EMPTY, Runner, World};

const CLAIM: &str = "ReportRunningTask";

/// A runner whose server is a script of the test.
pub(super) struct Scripted {
    pub(super) peer: Peer,
    pub(super) runner: Runner,
    repository: String,
    hub: ScriptedHub,
    _world: World,
}

impl Scripted {
    pub(super) async fn start() -> Self {
        let world = World::new().await;
        let repository = world.repository("repo", EMPTY);
        let mut hub = ScriptedHub::start().await;
        let url = format!("http://{}", hub.address);
        let runner =
            world.runner_with("one", &[("Server__Url", &url), ("Logging__LogLevel__Default", "Debug")]);
        let peer = hub.connection().await;
        Self { peer, runner, repository, hub, _world: world }
    }

    /// The push of a task that resolves a revision.
    pub(super) fn push(&self, job: Uuid) -> Value {
        json!({"type": 1, "target": "GetDefinitiveRevision", "arguments": [{
            "jobId": job, "organizationId": Uuid::nil(),
            "metadata": {"stackName": "s", "namespaceName": "n", "moduleName": "m", "moduleId": Uuid::nil()},
            "sourceType": "Git", "sourceRevisionType": "Default", "sourceUrl": self.repository, "sourceRevision": "main",
        }]})
    }

    /// Answers claims and logs until the next result. Returns its method, its job, and the message that acknowledges it.
    pub(super) async fn result(&mut self) -> (String, Value, String) {
        loop {
            let call = self.call().await;
            match call["target"].as_str().unwrap() {
                CLAIM | "AddLogs" => self.peer.write(&accepted(&call)).await,
                method => return (method.to_owned(), call["arguments"][0].clone(), accepted(&call)),
            }
        }
    }

    /// The next claim. Any other call is an error.
    pub(super) async fn claim(&mut self) -> Value {
        let call = self.call().await;
        assert_eq!(call["target"], CLAIM, "{call}");
        call
    }

    pub(super) async fn call(&mut self) -> Value {
        in_time("a call", self.peer.read_call()).await
    }

    /// Cuts the connection and accepts the next one.
    pub(super) async fn reconnect(self) -> Self {
        let Self { peer, mut hub, .. } = self;
        drop(peer);
        let peer = hub.connection().await;
        Self { peer, hub, ..self }
    }

    pub(super) async fn restart(&mut self) {
        self.runner.restart();
        self.peer = self.hub.connection().await;
    }

    pub(super) fn started(&self) -> usize {
        self.runner.log().matches("task started").count()
    }
}

pub(super) fn message(message: &Value) -> String {
    format!("{message}\u{1e}")
}

/// The message that accepts a call.
pub(super) fn accepted(call: &Value) -> String {
    message(&json!({"type": 3, "invocationId": call["invocationId"]}))
}

/// The message that refuses a call.
pub(super) fn refused(call: &Value) -> String {
    message(&json!({"type": 3, "invocationId": call["invocationId"], "error": "the database is busy"}))
}
