//! The session and the connection under paused time, over streams in memory.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::*;
use crate::client::{Line, Pushed, line};
use crate::codec;
use crate::inbox::inbox;

/// Why a dial of the test failed.
#[derive(Debug)]
struct Problem(Pace, String);

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl DialError for Problem {
    fn pace(&self) -> Pace {
        self.0
    }
}

/// A network that the test answers for.
struct FakeNetwork {
    attempts: mpsc::Sender<oneshot::Sender<Result<DuplexStream, Problem>>>,
}

impl Dial for FakeNetwork {
    type Stream = DuplexStream;
    type Error = Problem;

    async fn dial(&mut self) -> Result<DuplexStream, Problem> {
        let (answer, wait) = oneshot::channel();
        self.attempts.send(answer).await.unwrap();
        wait.await.unwrap()
    }

    async fn tend(&mut self) -> Infallible {
        std::future::pending().await
    }

    fn explain(&mut self, ending: Ending) -> Problem {
        let refused = matches!(ending, Ending::Closed { allow_reconnect: false, .. });
        Problem(if refused { Pace::Slow } else { Pace::Quick }, ending.to_string())
    }
}

struct Bench {
    line: Line,
    pushes: mpsc::Receiver<Pushed>,
    attempts: mpsc::Receiver<oneshot::Sender<Result<DuplexStream, Problem>>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    start: Instant,
}

impl Bench {
    fn start() -> Self {
        let timing = Timing { jitter: 0.0, ..Timing::default() };
        let (line, end) = line();
        let (inbox, pushes) = inbox();
        let (to_test, attempts) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let session =
            Session::new(FakeNetwork { attempts: to_test }, timing, 32 * 1024, end, inbox, stop.clone());
        let task = tokio::spawn(session.run());
        Self { line, pushes, attempts, stop, task, start: Instant::now() }
    }

    /// Waits for the next attempt; says at which second it came.
    async fn attempt(&mut self) -> (u64, oneshot::Sender<Result<DuplexStream, Problem>>) {
        let answer = self.attempts.recv().await.unwrap();
        (self.start.elapsed().as_secs(), answer)
    }

    async fn refuse(&mut self, problem: Problem) -> u64 {
        let (second, answer) = self.attempt().await;
        answer.send(Err(problem)).unwrap();
        second
    }

    /// Lets the next attempt have a stream, which holds so many bytes.
    async fn accept_with(&mut self, bytes: usize) -> (u64, Server) {
        let (second, answer) = self.attempt().await;
        let (ours, theirs) = tokio::io::duplex(bytes);
        answer.send(Ok(theirs)).unwrap();
        (second, Server(WebSocketStream::from_raw_socket(ours, Role::Server, None).await))
    }

    /// Lets the next attempt succeed.
    async fn accept(&mut self) -> (u64, Server) {
        let (second, mut server) = self.accept_with(1 << 20).await;
        server.shake().await;
        self.line.status().wait_for(|status| matches!(status, LineStatus::Connected { .. })).await.unwrap();
        (second, server)
    }

    fn problem(&self) -> String {
        match &*self.line.status().borrow() {
            LineStatus::Connecting { problem: Some(problem) } => problem.clone(),
            other => panic!("{other:?}"),
        }
    }
}

struct Server(WebSocketStream<DuplexStream>);

impl Server {
    async fn shake(&mut self) {
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

fn turned_away() -> Problem {
    Problem(Pace::Slow, "turned away".to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_first_connect_is_retried_for_ever_like_any_other() {
    let mut bench = Bench::start();
    let mut seconds = Vec::new();
    for _ in 0..9 {
        seconds.push(bench.refuse(Problem(Pace::Quick, "try again".to_owned())).await);
    }
    assert_eq!(seconds, [0, 1, 3, 8, 18, 38, 68, 98, 128]);
    assert_eq!(bench.accept().await.0, 158);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_retried_slowly_and_its_problem_is_published() {
    let mut bench = Bench::start();
    for expected in [0, 30, 60] {
        assert_eq!(bench.refuse(turned_away()).await, expected);
    }
    let _attempt = bench.attempt().await;
    assert!(bench.problem().contains("turned away"), "{}", bench.problem());
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
    // The second delay: neither connection lasted long enough to start the delays anew.
    assert_eq!(second, 32);
    assert!(bench.problem().contains("restarting"));
}

#[tokio::test(start_paused = true)]
async fn only_a_connection_that_lasted_starts_the_delays_anew() {
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
async fn pings_go_out_every_15_s_and_a_silent_server_is_given_up_after_30_s() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    for second in [15, 30, 45] {
        server.write(PING).await;
        assert_eq!(server.read().await, PING);
        assert_eq!(bench.start.elapsed().as_secs(), second);
    }
    let call = bench.line.start("M", "[]".to_owned()).await.unwrap();
    assert!(server.read().await.contains("\"M\""));
    // The last ping of the server was heard at 30 s.
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 60);
    assert!(bench.problem().contains("silent for 30 s"), "{}", bench.problem());
    assert_eq!(bench.attempt().await.0, 61);
}

#[tokio::test(start_paused = true)]
async fn calls_while_the_line_is_down_are_answered_at_once() {
    let mut bench = Bench::start();
    assert_eq!(bench.line.invoke("M", ()).await, Err(CallError::Disconnected));
    bench.refuse(Problem(Pace::Quick, "try again".to_owned())).await;
    assert_eq!(bench.line.invoke("M", ()).await, Err(CallError::Disconnected));
    let (_, mut server) = bench.accept_with(1 << 16).await;
    assert_eq!(server.read().await, codec::handshake_request());
    assert_eq!(bench.line.invoke("M", ()).await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_hears_disconnected_finds_the_line_down() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let call = bench.line.start("M", "[]".to_owned()).await.unwrap();
    server.read().await;
    drop(server);
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    assert!(matches!(*bench.line.status().borrow(), LineStatus::Connecting { .. }));
}

#[tokio::test(start_paused = true)]
async fn no_push_is_lost_when_they_are_not_taken_and_the_pings_go_on() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    for number in 0..3000 {
        server.push(&number.to_string()).await;
    }
    // Ten minutes pass, in which the server hears us.
    for _ in 0..40 {
        assert_eq!(server.read().await, PING);
    }
    for number in 0..3000 {
        assert_eq!(bench.pushes.recv().await.unwrap().target, number.to_string());
    }
    server.write(PING).await;
    assert!(matches!(*bench.line.status().borrow(), LineStatus::Connected { generation: 1 }));
}

#[tokio::test(start_paused = true)]
async fn pushes_that_were_read_outlive_their_connection() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let frame: String = (0..2000)
        .map(|number| format!("{{\"type\":1,\"target\":\"{number}\",\"arguments\":[]}}\u{1e}"))
        .collect();
    server.write(&frame).await;
    assert_eq!(server.read().await, PING);
    // As nothing is read, the next ping tells that the server is gone.
    drop(server);
    bench.refuse(Problem(Pace::Quick, "try again".to_owned())).await;
    for number in 0..2000 {
        assert_eq!(bench.pushes.recv().await.unwrap().target, number.to_string());
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
    assert_eq!(bench.pushes.recv().await.unwrap().target, "big");
    assert!(matches!(*bench.line.status().borrow(), LineStatus::Connected { generation: 1 }));
}

#[tokio::test(start_paused = true)]
async fn pings_of_the_socket_do_not_hide_that_the_server_is_silent() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let pinging = async {
        loop {
            // What stands between the server and us pings the socket, also when that is closed.
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
async fn a_server_that_takes_nothing_is_given_up_though_it_talks() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept_with(2048).await;
    server.shake().await;
    bench.line.status().wait_for(|s| matches!(s, LineStatus::Connected { .. })).await.unwrap();
    let call = bench.line.start("M", json!(["x".repeat(30_000)]).to_string()).await.unwrap();
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
    assert!(bench.problem().contains("took nothing"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_the_handshake_is_given_up_after_15_s() {
    let mut bench = Bench::start();
    let (_, _server) = bench.accept_with(1 << 16).await;
    assert_eq!(bench.attempt().await.0, 16);
    assert!(bench.problem().contains("handshake within 15 s"), "{}", bench.problem());
}

#[tokio::test(start_paused = true)]
async fn a_message_beyond_all_reason_ends_the_connection_and_not_the_runner() {
    let mut bench = Bench::start();
    let (_, answer) = bench.attempt().await;
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    answer.send(Ok(theirs)).unwrap();
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let socket = WebSocketStream::from_raw_socket(ours, Role::Server, Some(config)).await;
    let mut server = Server(socket);
    server.shake().await;
    // The client hangs up in the middle of it.
    let _ = server.0.send(Frame::text("x".repeat(17 * 1024 * 1024))).await;
    drop(server);
    bench.accept().await;
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_the_server_closes_is_closed_from_our_side_too() {
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
async fn stopping_says_goodbye_and_answers_every_call() {
    let mut bench = Bench::start();
    let (_, mut server) = bench.accept().await;
    let call = bench.line.start("M", "[]".to_owned()).await.unwrap();
    assert!(server.read().await.contains("\"M\""));
    bench.stop.cancel();
    assert_eq!(call.answer().await, Err(CallError::Disconnected));
    match server.0.next().await.unwrap().unwrap() {
        Frame::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1000),
        other => panic!("{other:?}"),
    }
    assert!(server.0.next().await.is_none());
    bench.task.await.unwrap();
    assert_eq!(*bench.line.status().borrow(), LineStatus::Stopped);
    assert_eq!(bench.line.invoke("M", ()).await, Err(CallError::Disconnected));
    assert_eq!(bench.start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_works_at_any_time() {
    let bench = Bench::start();
    bench.stop.cancel();
    bench.task.await.unwrap();

    let mut bench = Bench::start();
    bench.refuse(turned_away()).await;
    bench.stop.cancel();
    bench.task.await.unwrap();

    // A server that does not answer the goodbye is not waited for.
    let mut bench = Bench::start();
    let (_, _server) = bench.accept().await;
    bench.stop.cancel();
    bench.task.await.unwrap();
    assert!(bench.start.elapsed() <= Duration::from_secs(2));
}
