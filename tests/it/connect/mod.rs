//! The connection to the server over real sockets: token, negotiate, WebSocket, reconnect, and error messages.

mod calls;
mod problems;
mod proxy;
mod reconnect;
mod tls;
mod tokens;
mod transport;

use std::net::SocketAddr;
use std::time::Duration;

use hawser::connect::{self, Endpoint, Timing};
use hawser::masking::{Rules, SecretStore};
use hawser::settings::model::JobLogStreamSettings;
use hawser_signalr::{ConnectionStatus, HubClient, Incoming, Invocation};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::eventually::in_time;

const SECRET: &str = "the&client secret";

fn endpoint(url: &str) -> Endpoint {
    Endpoint {
        server_url: url.parse().unwrap(),
        organization_id: "6F9619FF-8B86-D011-B42D-00C04FC964FF".parse().unwrap(),
        runner_id: "11111111-2222-3333-4444-555555555555".parse().unwrap(),
        instance: "büro 1".to_owned(),
        client_id: "the-client".to_owned(),
        client_secret: SECRET.into(),
        ca_file: None,
        max_message_bytes: 32 * 1024,
        refuse_plain_http: false,
        accept_any_certificate: false,
    }
}

/// Short delays between attempts, and the default timeouts.
fn timing() -> Timing {
    Timing {
        session: hawser_signalr::Timing {
            reconnect_delays: vec![Duration::from_millis(20)],
            refused_delay: Duration::from_millis(40),
            ..hawser_signalr::Timing::default()
        },
        token_renewal_floor: Duration::from_millis(100),
        ..Timing::default()
    }
}

struct Client {
    hub: HubClient,
    incoming: mpsc::Receiver<Incoming>,
    task: JoinHandle<()>,
    secret_store: SecretStore,
    stop: DropGuard,
}

impl Client {
    fn start(address: SocketAddr) -> Self {
        Self::with(endpoint(&format!("http://{address}")), timing())
    }

    fn with(endpoint: Endpoint, timing: Timing) -> Self {
        let stop = CancellationToken::new();
        let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
        let (hub, incoming, task) =
            connect::connect(endpoint, timing, secret_store.clone(), stop.clone()).unwrap();
        Self { hub, incoming, task, secret_store, stop: stop.drop_guard() }
    }

    /// Waits for this connection or a later one, and returns its generation.
    async fn connected(&self, at_least: u64) -> u64 {
        let mut status = self.hub.status();
        let up = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Connected { generation } if *generation >= at_least);
        let status = in_time("a connection", status.wait_for(up)).await.unwrap().clone();
        match status {
            ConnectionStatus::Connected { generation } => generation,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for an error.
    async fn problem(&self) -> String {
        self.problem_with("").await
    }

    /// Waits for an error that contains this text.
    async fn problem_with(&self, part: &str) -> String {
        let mut status = self.hub.status();
        let matches = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Connecting { problem: Some(problem) } if problem.contains(part));
        let status =
            in_time(&format!("a problem with {part:?}"), status.wait_for(matches)).await.unwrap().clone();
        match status {
            ConnectionStatus::Connecting { problem: Some(problem) } => problem,
            other => panic!("{other:?}"),
        }
    }

    async fn push(&mut self) -> Invocation {
        match in_time("a push", self.incoming.recv()).await.unwrap() {
            Incoming::Invocation(push) => push,
            Incoming::Completion(completion) => panic!("{completion:?}"),
        }
    }
}
