//! A hub behind a proxy that misbehaves on command: it refuses calls, loses pushes and answers, sends invalid frames,
//! cuts connections and goes offline. The hub itself always behaves.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{SinkExt, Stream, StreamExt};
use hawser_dev_server::{EmbeddedHub, HubOptions};
use hawser_signalr::server::{Payload, WebSocketMessage};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{broadcast, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, protocol::Role};
use tokio_util::sync::CancellationToken;

use super::eventually::{eventually, in_time};
use super::own_loopback;

/// When a fault occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A call of this method by a runner.
    Call(String),
    /// A push of this method to a runner.
    Push(String),
}

impl Moment {
    pub(crate) fn call(method: &str) -> Self {
        Self::Call(method.to_owned())
    }

    pub(crate) fn push(method: &str) -> Self {
        Self::Push(method.to_owned())
    }
}

/// What goes wrong. Pushes can only be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call gets this error and does not reach the hub.
    Refuse(String),
    /// The call is processed and never answered.
    Forget,
    /// The call is processed, and the connection is cut in place of an answer.
    DropAfter,
    /// The message does not arrive.
    Lose,
}

/// Causes a fault at its moment, after `skip` such moments, `times` times.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    moment: Moment,
    fault: Fault,
    skip: u64,
    times: u64,
}

impl Rule {
    /// Acts once, at the next such moment.
    pub(crate) fn new(moment: Moment, fault: Fault) -> Self {
        Self { moment, fault, skip: 0, times: 1 }
    }

    pub(crate) fn skip(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    pub(crate) fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// Acts every time until [`FaultyHub::behave`].
    pub(crate) fn always(self) -> Self {
        self.times(u64::MAX)
    }
}

/// Something that a client must survive.
#[derive(Debug, Clone)]
pub(crate) enum Rubbish {
    /// A complete message that is not JSON.
    NotJson,
    /// A JSON value that is not a message.
    NotAMessage,
    /// A message of an unknown type.
    UnknownType,
    /// An invocation of a method that runners do not have.
    UnknownMethod,
    /// A Completion of an invocation that does not exist.
    StrayCompletion,
    /// A binary frame with these bytes.
    Bytes(Vec<u8>),
    /// A text frame with this text and no terminator.
    Text(String),
}

impl Rubbish {
    fn frame(self) -> ws::Message {
        match self {
            Self::NotJson => ws::Message::text("this is not JSON {\u{1e}"),
            Self::NotAMessage => frame(&json!([1, "two", null])),
            Self::UnknownType => frame(&json!({"type": 99, "what": "ever"})),
            Self::UnknownMethod => frame(&json!({"type": 1, "target": "NoSuchMethod", "arguments": [{}]})),
            Self::StrayCompletion => frame(&json!({"type": 3, "invocationId": "stray", "result": 1})),
            Self::Bytes(bytes) => ws::Message::binary(bytes),
            Self::Text(text) => ws::Message::text(text),
        }
    }
}

fn frame(message: &Value) -> ws::Message {
    ws::Message::text(format!("{message}\u{1e}"))
}

/// An [`EmbeddedHub`] that runners reach through the proxy.
pub(crate) struct FaultyHub {
    hub: EmbeddedHub,
    address: SocketAddr,
    shared: Arc<Shared>,
    /// While the proxy is offline: bound and not listening, so that the port stays ours and clients are refused.
    reserved_port: tokio::sync::Mutex<Option<TcpSocket>>,
}

struct Shared {
    hub_url: String,
    http: reqwest::Client,
    rules: Mutex<Vec<Rule>>,
    misbehaved: AtomicUsize,
    rubbish: broadcast::Sender<ws::Message>,
    /// Ends all connections.
    cut: Mutex<CancellationToken>,
    /// Ends the listener.
    listening: Mutex<CancellationToken>,
}

impl Deref for FaultyHub {
    type Target = EmbeddedHub;

    fn deref(&self) -> &EmbeddedHub {
        &self.hub
    }
}

impl FaultyHub {
    pub(crate) async fn start(mut options: HubOptions) -> Self {
        // The client requires a TLS provider, even for http.
        let _ = rustls::crypto::ring::default_provider().install_default();
        options.listen = (Ipv4Addr::LOCALHOST, 0).into();
        let hub = EmbeddedHub::start(options).await.expect("the hub starts");
        let shared = Arc::new(Shared {
            hub_url: hub.url(),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            rules: Mutex::default(),
            misbehaved: AtomicUsize::new(0),
            rubbish: broadcast::Sender::new(16),
            cut: Mutex::default(),
            listening: Mutex::default(),
        });
        let socket = bind((own_loopback(), 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        listen(&shared, socket);
        Self { hub, address, shared, reserved_port: tokio::sync::Mutex::default() }
    }

    /// The address for runners. It is that of the proxy.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn misbehave(&self, rule: Rule) {
        self.shared.rules.lock().unwrap().push(rule);
    }

    /// Removes all rules.
    pub(crate) fn behave(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// Whether a rule has acted.
    pub(crate) fn has_misbehaved(&self) -> bool {
        self.shared.misbehaved.load(Ordering::Relaxed) > 0
    }

    /// Sends this over every connection.
    pub(crate) fn send_rubbish(&self, rubbish: Rubbish) {
        let _ = self.shared.rubbish.send(rubbish.frame());
    }

    /// Cuts all connections without a Close message. New connections are accepted.
    pub(crate) fn drop_connections(&self) {
        let mut cut = self.shared.cut.lock().unwrap();
        cut.cancel();
        *cut = CancellationToken::new();
    }

    /// Cuts all connections and refuses new ones until [`go_online`](Self::go_online).
    pub(crate) async fn go_offline(&self) {
        self.shared.listening.lock().unwrap().cancel();
        self.shared.cut.lock().unwrap().cancel();
        // A child process that is being started holds a copy of the listener until its `exec`.
        let socket = eventually("the port is released", || match bind(self.address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap()),
        })
        .await;
        *self.reserved_port.lock().await = Some(socket);
        in_time("the runners are disconnected", self.hub.runners_until(0)).await;
    }

    /// Listens again on the same port.
    pub(crate) async fn go_online(&self) {
        let socket = self.reserved_port.lock().await.take().expect("offline");
        *self.shared.cut.lock().unwrap() = CancellationToken::new();
        listen(&self.shared, socket);
    }
}

impl Drop for FaultyHub {
    fn drop(&mut self) {
        self.shared.listening.lock().unwrap().cancel();
        self.shared.cut.lock().unwrap().cancel();
    }
}

/// A bound socket that does not listen yet.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Old connections that linger in the kernel do not block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listen(shared: &Arc<Shared>, socket: TcpSocket) {
    let listener: TcpListener = socket.listen(1024).unwrap();
    let stop = CancellationToken::new();
    *shared.listening.lock().unwrap() = stop.clone();
    let router = Router::new().fallback(forward).with_state(Arc::clone(shared));
    tokio::spawn(async move { stop.run_until_cancelled(axum::serve(listener, router).into_future()).await });
}

/// Forwards a request to the hub, and its response to the client.
async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let cut = shared.cut.lock().unwrap().clone();
    let (mut parts, body) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    parts.headers.remove(header::HOST);
    let url = format!("{}{}", shared.hub_url, parts.uri);
    let request = shared.http.request(parts.method, url).headers(parts.headers).body(body);
    let Some(Ok(response)) = cut.run_until_cancelled(request.send()).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    if let (StatusCode::SWITCHING_PROTOCOLS, Ok(upgrade)) = (response.status(), upgrade) {
        let hub = response.upgrade().await.unwrap();
        let hub = WebSocketStream::from_raw_socket(hub, Role::Client, None).await;
        return upgrade.on_upgrade(async move |client| {
            cut.run_until_cancelled(relay(&shared, client, hub)).await;
        });
    }
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    let body = response.bytes().await.unwrap_or_default();
    (status, kind.map(|kind| [(header::CONTENT_TYPE, kind)]), body).into_response()
}

/// Forwards the frames of a connection in both directions until one side ends it.
async fn relay(shared: &Shared, client: WebSocket, hub: WebSocketStream<reqwest::Upgraded>) {
    let (mut to_client, mut from_client) = client.split();
    let (mut to_hub, mut from_hub) = hub.split();
    let (refuse, mut refusals) = mpsc::unbounded_channel();
    let answers = Mutex::new(Answers::default());
    let calls = async {
        while let Some(text) = next_text(&mut from_client).await {
            let text =
                shared.filter(text, &answers, |message, answers| shared.passes(message, answers, &refuse));
            if !text.is_empty() && to_hub.send(tungstenite::Message::text(text)).await.is_err() {
                return;
            }
        }
        let _ = to_hub.send(tungstenite::Message::Close(None)).await;
    };
    let mut rubbish = shared.rubbish.subscribe();
    let pushes = async {
        loop {
            let frame = tokio::select! {
                Some(refusal) = refusals.recv() => refusal,
                Ok(rubbish) = rubbish.recv() => rubbish,
                text = next_text(&mut from_hub) => {
                    let Some(text) = text else { break };
                    let mut cut = false;
                    let text = shared.filter(text, &answers, |message, answers| {
                        cut |= message.answers_one_of(&answers.cut);
                        !message.answers_one_of(&answers.forgotten) && !shared.loses_push(message)
                    });
                    if cut {
                        return;
                    }
                    ws::Message::text(text)
                }
            };
            let is_empty = matches!(&frame, ws::Message::Text(text) if text.is_empty());
            if !is_empty && to_client.send(frame).await.is_err() {
                return;
            }
        }
        let _ = to_client.send(ws::Message::Close(None)).await;
    };
    tokio::select! {
        () = calls => {}
        () = pushes => {}
    }
}

/// Invocation IDs whose answers are held back, or are replaced by a cut.
#[derive(Default)]
struct Answers {
    forgotten: HashSet<String>,
    cut: HashSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    #[serde(rename = "type")]
    kind: Option<u8>,
    invocation_id: Option<String>,
    target: Option<String>,
}

impl Message {
    /// Whether this is a Completion of one of these invocations.
    fn answers_one_of(&self, ids: &HashSet<String>) -> bool {
        self.kind == Some(3) && self.invocation_id.as_ref().is_some_and(|id| ids.contains(id))
    }
}

impl Shared {
    /// The fault that is due at this moment.
    fn fault(&self, moment: &Moment) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let due = rules.iter_mut().filter(|rule| rule.moment == *moment).find_map(|rule| {
            if rule.skip > 0 {
                rule.skip -= 1;
                return None;
            }
            rule.times = rule.times.saturating_sub(1);
            Some(rule.fault.clone())
        })?;
        rules.retain(|rule| rule.times > 0);
        self.misbehaved.fetch_add(1, Ordering::Relaxed);
        Some(due)
    }

    /// Whether this is a push that must not reach the client.
    fn loses_push(&self, message: &Message) -> bool {
        message.target.as_deref().is_some_and(|method| self.fault(&Moment::push(method)).is_some())
    }

    /// Whether a call of the client reaches the hub.
    fn passes(
        &self,
        message: &Message,
        answers: &mut Answers,
        refuse: &mpsc::UnboundedSender<ws::Message>,
    ) -> bool {
        let (Some(method), Some(id)) = (&message.target, &message.invocation_id) else { return true };
        match self.fault(&Moment::call(method)) {
            None => true,
            Some(Fault::Lose) => false,
            Some(Fault::Refuse(error)) => {
                let answer = json!({"type": 3, "invocationId": id, "error": error});
                refuse.send(frame(&answer)).is_err()
            }
            Some(Fault::Forget) => answers.forgotten.insert(id.clone()),
            Some(Fault::DropAfter) => answers.cut.insert(id.clone()),
        }
    }

    /// The messages of a frame that pass. A frame that cannot be read passes as it is.
    fn filter(
        &self,
        text: String,
        answers: &Mutex<Answers>,
        mut passes: impl FnMut(&Message, &mut Answers) -> bool,
    ) -> String {
        let mut answers = answers.lock().unwrap();
        // Floods are forwarded unread.
        if self.rules.lock().unwrap().is_empty() && answers.forgotten.is_empty() && answers.cut.is_empty() {
            return text;
        }
        let passes = |message: &&str| {
            let read = serde_json::from_str(message.trim_end_matches('\u{1e}'));
            read.map_or(true, |message| passes(&message, &mut answers))
        };
        text.split_inclusive('\u{1e}').filter(passes).collect()
    }
}

/// The text of the next frame with data. `None` if the connection has ended.
async fn next_text<M: WebSocketMessage, E>(
    frames: &mut (impl Stream<Item = Result<M, E>> + Unpin),
) -> Option<String> {
    loop {
        match frames.next().await?.ok()?.payload() {
            Payload::Data(bytes) => return Some(String::from_utf8(bytes.to_vec()).expect("UTF-8")),
            Payload::Control => {}
            Payload::Close => return None,
        }
    }
}
