//! A server whose answers are scripted by the test: token, negotiate, and upgrade. The test gets the WebSocket itself.
//! The server does not implement the contract, so it can break it in any way.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::authority::TlsListener;
use super::eventually::in_time;

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) location: Option<String>,
}

impl Answer {
    #[expect(clippy::needless_pass_by_value, reason = "texts and JSON values are made where they are used")]
    pub(crate) fn new(status: u16, body: impl ToString) -> Self {
        Self { status, body: body.to_string(), location: None }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// The lifetime of the tokens that the server issues, which are named `token-1`, `token-2` …
    pub(crate) expires_in: Value,
    /// Instead of a token.
    pub(crate) token: Option<Answer>,
    /// Instead of the usual answer.
    pub(crate) negotiate: Option<Answer>,
    /// Instead of a WebSocket.
    pub(crate) upgrade: Option<Answer>,
}

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn authorization(&self) -> &str {
        self.headers.get(header::AUTHORIZATION).map_or("", |value| value.to_str().unwrap())
    }
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    sockets: mpsc::UnboundedSender<WebSocket>,
}

pub(crate) struct ScriptedHub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    sockets: mpsc::UnboundedReceiver<WebSocket>,
    _stop: DropGuard,
}

impl ScriptedHub {
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    pub(crate) async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let (to_test, sockets) = mpsc::unbounded_channel();
        let script = Script { expires_in: json!(3600), token: None, negotiate: None, upgrade: None };
        let shared =
            Arc::new(Shared { script: Mutex::new(script), seen: Mutex::default(), sockets: to_test });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let stop = CancellationToken::new();
        let until = stop.clone();
        tokio::spawn(async move {
            let serve = async {
                match tls {
                    None => axum::serve(tcp, router).await,
                    Some(acceptor) => axum::serve(TlsListener { tcp, acceptor }, router).await,
                }
            };
            until.run_until_cancelled(serve).await;
        });
        Self { address, shared, sockets, _stop: stop.drop_guard() }
    }

    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock().unwrap());
    }

    /// All requests so far whose path has this suffix.
    pub(crate) fn seen(&self, path_end: &str) -> Vec<Seen> {
        let seen = self.shared.seen.lock().unwrap();
        let ends = |seen: &&Seen| seen.uri.split('?').next().is_some_and(|path| path.ends_with(path_end));
        seen.iter().filter(ends).cloned().collect()
    }

    /// The next WebSocket, before its handshake.
    pub(crate) async fn socket(&mut self) -> Peer {
        Peer(in_time("a WebSocket", self.sockets.recv()).await.unwrap())
    }

    /// The next connection, after its handshake.
    pub(crate) async fn connection(&mut self) -> Peer {
        let mut peer = self.socket().await;
        assert_eq!(peer.read().await, json!({"protocol": "json", "version": 1}));
        peer.write("{}\u{1e}").await;
        peer
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let path = parts.uri.path().to_owned();
    let script = shared.script.lock().unwrap().clone();
    let number = {
        let mut seen = shared.seen.lock().unwrap();
        seen.push(Seen {
            method: parts.method.to_string(),
            uri: parts.uri.to_string(),
            headers: parts.headers.clone(),
            body: String::from_utf8(body.to_vec()).unwrap(),
        });
        seen.iter().filter(|seen| seen.uri.ends_with("/connect/token")).count()
    };
    let scripted = if path.ends_with("/connect/token") {
        script.token.unwrap_or_else(|| {
            // The names differ in case and order from the standard ones.
            let expires_in = script.expires_in;
            let token = format!("token-{number}");
            Answer::new(200, json!({"Access_Token": token, "token_type": "Bearer", "EXPIRES_IN": expires_in}))
        })
    } else if path.ends_with("/negotiate") {
        script.negotiate.unwrap_or_else(|| {
            let transports = json!([{"transport": "WebSockets", "transferFormats": ["Text", "Binary"]}]);
            let answer = json!({"negotiateVersion": 1, "connectionId": "c", "connectionToken": "a+b/c=",
                                "availableTransports": transports});
            Answer::new(200, answer)
        })
    } else if let Some(refusal) = script.upgrade {
        refusal
    } else {
        return match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
            Ok(upgrade) => upgrade.on_upgrade(async move |socket| drop(shared.sockets.send(socket))),
            Err(rejection) => rejection.into_response(),
        };
    };
    let status = StatusCode::from_u16(scripted.status).unwrap();
    let mut headers = HeaderMap::from_iter([(header::CONTENT_TYPE, "application/json".parse().unwrap())]);
    if let Some(location) = scripted.location {
        headers.insert(header::LOCATION, location.parse().unwrap());
    }
    (status, headers, scripted.body).into_response()
}

/// The server's end of one WebSocket.
pub(crate) struct Peer(pub(crate) WebSocket);

impl Peer {
    /// The next frame, which must hold one message.
    pub(crate) async fn read(&mut self) -> Value {
        loop {
            match in_time("a frame", self.0.recv()).await.expect("a frame").expect("a good frame") {
                Message::Text(text) => {
                    let text = text.as_str().strip_suffix('\u{1e}').expect("an end mark");
                    return serde_json::from_str(text).expect("JSON");
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next message that is not a ping.
    pub(crate) async fn read_call(&mut self) -> Value {
        loop {
            let message = self.read().await;
            if message["type"] != 6 {
                return message;
            }
        }
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    pub(crate) async fn write_json(&mut self, message: &Value) {
        self.write(&format!("{message}\u{1e}")).await;
    }

    /// Waits until the client disconnects. Returns the code of its close frame, if it sent one.
    pub(crate) async fn gone(&mut self) -> Option<u16> {
        loop {
            match in_time("the end of the socket", self.0.recv()).await {
                Some(Ok(Message::Close(frame))) => return frame.map(|frame| frame.code),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }
}
