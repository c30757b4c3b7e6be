//! Sessions and connections with paused time, over in-memory streams.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::*;
use crate::backoff::RetryPace;
use crate::client::{HubClient, Incoming, Invocation, channel};
use crate::codec;
use crate::inbox::inbox;
use crate::protocol::CloseReason;

/// A failure made up by a test.
#[derive(Debug)]
struct TestError(RetryPace, String);

impl std::fmt::Display for TestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl DialError for TestError {
    fn pace(&self) -> RetryPace {
        self.0
    }
}

/// A network whose attempts to connect are answered by the test.
struct FakeNetwork {
    attempts: mpsc::Sender<oneshot::Sender<Result<DuplexStream, TestError>>>,
}

impl Dial for FakeNetwork {
    type Stream = DuplexStream;
    type Error = TestError;

    async fn dial(&mut self) -> Result<DuplexStream, TestError> {
        let (answer, wait) = oneshot::channel();
        self.attempts.send(answer).await.unwrap();
        wait.await.unwrap()
    }

    fn closed(&mut self, reason: CloseReason) -> TestError {
        TestError(reason.pace(), reason.to_string())
    }
}

struct Bench {
    client: HubClient,
    incoming: mpsc::Receiver<Incoming>,
    attempts: mpsc::Receiver<oneshot::Sender<Result<DuplexStream, TestError>>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    start: Instant,
}

impl Bench {
    fn start() -> Self {
        let timing = Timing { jitter: 0.0, ..Timing::default() };
        let (client, driver) = channel();
        let (inbox, incoming) = inbox();
        let (to_test, attempts) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let session =
            Session::new(FakeNetwork { attempts: to_test }, timing, 32 * 1024, driver, inbox, stop.clone());
        let task = tokio::spawn(session.run());
        Self { client, incoming, attempts, stop, task, start: Instant::now() }
    }

    /// Waits for the next attempt and returns the second at which it came.
    async fn attempt(&mut self) -> (u64, oneshot::Sender<Result<DuplexStream, TestError>>) {
        let answer = self.attempts.recv().await.unwrap();
        (self.start.elapsed().as_secs(), answer)
    }

    async fn refuse(&mut self, problem: TestError) -> u64 {
        let (second, answer) = self.attempt().await;
        answer.send(Err(problem)).unwrap();
        second
    }

    /// Gives the next attempt a stream with a buffer of so many bytes.
    async fn accept_with(&mut self, bytes: usize) -> (u64, Server) {
        let (second, answer) = self.attempt().await;
        let (ours, theirs) = tokio::io::duplex(bytes);
        answer.send(Ok(theirs)).unwrap();
        (second, Server(WebSocketStream::from_raw_socket(ours, Role::Server, None).await))
    }

    /// Lets the next attempt succeed.
    async fn accept(&mut self) -> (u64, Server) {
        let (second, mut server) = self.accept_with(1 << 20).await;
        server.accept_handshake().await;
        self.client
            .status()
            .wait_for(|status| matches!(status, ConnectionStatus::Connected { .. }))
            .await
            .unwrap();
        (second, server)
    }

    async fn invocation(&mut self) -> Invocation {
        match self.incoming.recv().await.unwrap() {
            Incoming::Invocation(invocation) => invocation,
            Incoming::Completion(completion) => panic!("{completion:?}"),
        }
    }

    fn problem(&self) -> String {
        match &*self.client.status().borrow() {
            ConnectionStatus::Connecting { problem: Some(problem) } => problem.clone(),
            other => panic!("{other:?}"),
        }
    }
}

struct Server(WebSocketStream<DuplexStream>);

impl Server {
    async fn accept_handshake(&mut self) {
        assert_eq!(self.read().await, codec::handshake_request());
        self.write("{}\u{1e}").await;
    }

    async fn read(&mut self) -> String {
        match self.0.next().await.unwrap().unwrap() {
            Frame::Text(text) => text.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    async fn write(&mut self, text: &str) {
        self.0.send(Frame::text(text)).await.unwrap();
    }

    async fn push(&mut self, target: &str) {
        let message = codec::Message::Invocation {
            invocation_id: None,
            target: target.to_owned(),
            arguments: Vec::new(),
        };
        self.write(&message.write()).await;
    }
}

const PING: &str = "{\"type\":6}\u{1e}";

fn refused() -> TestError {
    TestError(RetryPace::Later, "not welcome".to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_first_attempt_is_retried_forever_like_any_other() {
    let mut bench = Bench::start();
    let mut seconds = Vec::new();
    for _ in 0..9 {
        seconds.push(bench.refuse(TestError(RetryPace::Soon, "try again".to_owned())).await);
    }
    assert_eq!(seconds, [0, 1, 3, 8, 18, 38, 68, 98, 128]);
    assert_eq!(bench.accept().await.0, 158);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_retried_later_and_its_problem_is_published() {
    let mut bench = Bench::start();
    for expected in [0, 30, 60] {
        assert_eq!(bench.refuse(refused()).await, expected);
    }
    let _attempt = bench.attempt().await;
    assert!(bench.problem().contains("not welcome"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_close_without_allow_reconnect_is_a_refusal_and_one_with_it_is_not() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    server.write("{\"type\":7,\"error\":\"go away\"}\u{1e}").await;
    let (second, mut server) = bench.accept().await;
    assert_eq!(second, 30);
    server.write("{\"type\":7,\"error\":\"restarting\",\"allowReconnect\":true}\u{1e}").await;
    let (second, _attempt) = bench.attempt().await;
    // The second delay: neither connection lasted long enough to reset the delays.
    assert_eq!(second, 32);
    assert!(bench.problem().contains("restarting"));
}

#[tokio::test(start_paused = true)]
async fn only_a_connection_that_lasted_resets_the_delays() {
    let mut bench = Bench::start();
    drop(bench.accept().await);
    drop(bench.accept().await);
    let (second, server) = bench.accept().await;
    assert_eq!(second, 1 + 2);
    sleep(Duration::from_secs(10)).await;
    drop(server);
    assert_eq!(bench.attempt().await.0, 3 + 10 + 1);
}

#[tokio::test(start_paused = true)]
async fn pings_are_sent_every_15_s_and_a_silent_server_times_out_after_30_s() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    for second in [15, 30, 45] {
        server.write(PING).await;
        assert_eq!(server.read().await, PING);
        assert_eq!(bench.start.elapsed().as_secs(), second);
    }
    let call = bench.client.start("M", "[]".to_owned()).await.unwrap();
    assert!(server.read().await.contains("\"M\""));
    // The last ping of the server was received at 30 s.
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 60);
    assert!(bench.problem().contains("silent for 30 s"), "{}", bench.problem());
    assert_eq!(bench.attempt().await.0, 61);
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_connection_fail_at_once() {
    let mut bench = Bench::start();
    assert_eq!(bench.client.invoke("M", ()).await, Err(CallError::Disconnected));
    bench.refuse(TestError(RetryPace::Soon, "try again".to_owned())).await;
    assert_eq!(bench.client.invoke("M", ()).await, Err(CallError::Disconnected));
    let (_, mut server) = bench.accept_with(1 << 16).await;
    assert_eq!(server.read().await, codec::handshake_request());
    assert_eq!(bench.client.invoke("M", ()).await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_call_fails_the_status_is_not_connected() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let call = bench.client.start("M", "[]".to_owned()).await.unwrap();
    server.read().await;
    drop(server);
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    assert!(matches!(*bench.client.status().borrow(), ConnectionStatus::Connecting { .. }));
}

#[tokio::test(start_paused = true)]
async fn no_invocation_is_lost_when_none_is_received_and_pings_continue() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    for number in 0..3000 {
        server.push(&number.to_string()).await;
    }
    // Ten minutes pass, in which the server receives pings.
    for _ in 0..40 {
        assert_eq!(server.read().await, PING);
    }
    for number in 0..3000 {
        assert_eq!(bench.invocation().await.target, number.to_string());
    }
    server.write(PING).await;
    assert!(matches!(*bench.client.status().borrow(), ConnectionStatus::Connected { generation: 1 }));
}

#[tokio::test(start_paused = true)]
async fn completions_of_ordered_calls_take_their_place_among_the_invocations() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let mut calls = Vec::new();
    for tag in [7, 8, 9] {
        calls.push(bench.client.start_ordered("M", "[]".to_owned(), tag).await.unwrap());
        server.read().await;
    }
    server.push("first").await;
    server.write("{\"type\":3,\"invocationId\":\"1\"}\u{1e}").await;
    server.push("second").await;
    server.write("{\"type\":3,\"invocationId\":\"0\",\"error\":\"no\"}\u{1e}").await;
    assert_eq!(bench.invocation().await.target, "first");
    for (tag, result) in [(8, Ok(Value::Null)), (7, Err(CallError::Refused("no".to_owned())))] {
        let Incoming::Completion(completion) = bench.incoming.recv().await.unwrap() else {
            panic!("the completion of {tag} is next")
        };
        assert_eq!((completion.tag, &completion.result), (tag, &result));
        completion.deliver();
        if tag == 8 {
            assert_eq!(bench.invocation().await.target, "second");
        }
    }
    drop(server);
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.answer().await);
    }
    // No completion came for the last one.
    let refused = Err(CallError::Refused("no".to_owned()));
    assert_eq!(answers, [refused, Ok(Value::Null), Err(CallError::Disconnected)]);
}

#[tokio::test(start_paused = true)]
async fn invocations_that_were_read_outlive_their_connection() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let frame: String = (0..2000)
        .map(|number| format!("{{\"type\":1,\"target\":\"{number}\",\"arguments\":[]}}\u{1e}"))
        .collect();
    server.write(&frame).await;
    assert_eq!(server.read().await, PING);
    // Reads are paused, so the next ping detects that the server is gone.
    drop(server);
    bench.refuse(TestError(RetryPace::Soon, "try again".to_owned())).await;
    for number in 0..2000 {
        assert_eq!(bench.invocation().await.target, number.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_message_on_a_slow_network_is_not_silence() {
    use tokio::io::AsyncWriteExt;
    let mut bench = Bench::start();
    let (_, server) = bench.accept().await;
    let text = format!("{{\"type\":1,\"target\":\"big\",\"arguments\":[\"{}\"]}}\u{1e}", "x".repeat(60_000));
    let mut raw = server.0.into_inner();
    let mut frame = vec![0x81, 126];
    frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend(text.as_bytes());
    for part in frame.chunks(5_000) {
        raw.write_all(part).await.unwrap();
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(bench.invocation().await.target, "big");
    assert!(matches!(*bench.client.status().borrow(), ConnectionStatus::Connected { generation: 1 }));
}

#[tokio::test(start_paused = true)]
async fn websocket_pings_do_not_hide_a_silent_server() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let pinging = async {
        loop {
            // A proxy pings the socket, even when it is closed.
            let _ = server.0.send(Frame::Ping("from the ingress".into())).await;
            sleep(Duration::from_secs(10)).await;
        }
    };
    let second = tokio::select! {
        (second, _) = bench.attempt() => second,
        () = pinging => 0,
    };
    assert_eq!(second, 31);
    assert!(bench.problem().contains("silent"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_but_does_not_read_times_out() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept_with(2048).await;
    server.accept_handshake().await;
    bench.client.status().wait_for(|s| matches!(s, ConnectionStatus::Connected { .. })).await.unwrap();
    let call = bench.client.start("M", json!(["x".repeat(30_000)]).to_string()).await.unwrap();
    let talking = async {
        loop {
            let _ = server.0.send(Frame::text(PING)).await;
            sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        answer = call.answer() => assert_eq!(answer, Err(CallError::Disconnected)),
        () = talking => {}
    }
    assert!(bench.problem().contains("write timed out"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_completes_the_handshake_times_out_after_15_s() {
    let mut bench = Bench::start();
    let (_, _server) = bench.accept_with(1 << 16).await;
    assert_eq!(bench.attempt().await.0, 16);
    assert!(bench.problem().contains("handshake timed out"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_huge_message_ends_the_connection_and_not_the_session() {
    let mut bench = Bench::start();
    let (_, answer) = bench.attempt().await;
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    answer.send(Ok(theirs)).unwrap();
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let socket = WebSocketStream::from_raw_socket(ours, Role::Server, Some(config)).await;
    let mut server = Server(socket);
    server.accept_handshake().await;
    // The client closes the connection in the middle of it.
    let _ = server.0.send(Frame::text("x".repeat(17 * 1024 * 1024))).await;
    drop(server);
    bench.accept().await;
}

#[tokio::test(start_paused = true)]
async fn a_websocket_closed_by_the_server_is_closed_by_the_client_too() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let frame = CloseFrame { code: CloseCode::Away, reason: "going down".into() };
    server.0.send(Frame::Close(Some(frame))).await.unwrap();
    assert!(server.0.next().await.unwrap().unwrap().is_close());
    assert!(server.0.next().await.is_none());
    assert_eq!(bench.attempt().await.0, 1);
    assert!(bench.problem().contains("code 1001): going down"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn stopping_closes_the_websocket_and_fails_every_call() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let call = bench.client.start("M", "[]".to_owned()).await.unwrap();
    assert!(server.read().await.contains("\"M\""));
    bench.stop.cancel();
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    match server.0.next().await.unwrap().unwrap() {
        Frame::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1000),
        other => panic!("{other:?}"),
    }
    assert!(server.0.next().await.is_none());
    bench.task.await.unwrap();
    assert_eq!(*bench.client.status().borrow(), ConnectionStatus::Stopped);
    assert_eq!(bench.client.invoke("M", ()).await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_works_at_any_time() {
    let bench = Bench::start();
    bench.stop.cancel();
    bench.task.await.unwrap();

    let mut bench = Bench::start();
    bench.refuse(refused()).await;
    bench.stop.cancel();
    bench.task.await.unwrap();

    // A server that does not answer the close frame does not block the session.
    let mut bench = Bench::start();
    let (_, _server) = bench.accept().await;
    bench.stop.cancel();
    bench.task.await.unwrap();
    assert!(bench.start.elapsed() <= Duration::from_secs(2));
}
