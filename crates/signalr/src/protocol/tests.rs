use proptest::prelude::*;
use serde_json::json;

use super::*;

const LIMIT: usize = 200;

struct Bench {
    protocol: Protocol<u32>,
    start: Instant,
}

impl Bench {
    fn new() -> Self {
        let start = Instant::now();
        Self { protocol: Protocol::new(&Timing::default(), LIMIT, start), start }
    }

    fn open() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.receive(0, "{}\x1e"), [Action::Opened]);
        bench
    }

    fn at(&mut self, seconds: u64, event: Event<'_, u32>) -> Vec<Action<u32>> {
        self.protocol.on(event, self.start + Duration::from_secs(seconds))
    }

    fn receive(&mut self, seconds: u64, text: &str) -> Vec<Action<u32>> {
        self.at(seconds, Event::Received(text.as_bytes()))
    }

    fn call(&mut self, seconds: u64, ticket: u32) -> Vec<Action<u32>> {
        self.at(seconds, Event::Call { method: "M", arguments: "[1]", ticket })
    }

    fn deadline(&self) -> u64 {
        self.protocol.deadline().unwrap().duration_since(self.start).as_secs()
    }
}

fn send(text: &str) -> Vec<Action<u32>> {
    vec![Action::Send(format!("{text}\x1e"))]
}

fn invocation(target: &str, id: Option<&str>) -> Action<u32> {
    Action::Invocation { target: target.into(), arguments: vec![], invocation_id: id.map(Into::into) }
}

#[test]
fn a_call_before_the_handshake_is_complete_is_not_sent() {
    let mut bench = Bench::new();
    assert_eq!(bench.at(0, Event::Start), send(r#"{"protocol":"json","version":1}"#));
    assert_eq!(bench.call(1, 7), [Action::Answer(7, Err(CallError::Disconnected))]);
}

#[test]
fn messages_in_the_frame_of_the_handshake_response_are_not_lost() {
    let mut bench = Bench::new();
    let actions =
        bench.receive(0, "{}\x1e{\"type\":1,\"target\":\"A\",\"arguments\":[]}\x1e{\"type\":6}\x1e");
    assert_eq!(actions, [Action::Opened, invocation("A", None)]);
}

#[test]
fn a_handshake_that_is_refused_or_times_out_ends_the_connection() {
    let mut bench = Bench::new();
    let refused = CloseReason::HandshakeRefused("no".into());
    assert_eq!(bench.receive(0, "{\"error\":\"no\"}\x1e"), [Action::End(refused)]);

    let mut bench = Bench::new();
    assert_eq!(bench.deadline(), 15);
    assert_eq!(bench.at(14, Event::Tick), []);
    let late = CloseReason::HandshakeTimeout(Duration::from_secs(15));
    assert_eq!(bench.at(15, Event::Tick), [Action::End(late)]);
}

#[test]
fn a_ping_is_sent_after_15_s_without_sending_even_if_messages_arrive() {
    let mut bench = Bench::open();
    assert_eq!(bench.deadline(), 15);
    bench.receive(14, "{\"type\":6}\x1e");
    assert_eq!(bench.deadline(), 15);
    assert_eq!(bench.at(15, Event::Tick), send(r#"{"type":6}"#));
    assert_eq!(bench.deadline(), 30);
    bench.call(20, 1);
    assert_eq!(bench.deadline(), 35);
}

#[test]
fn a_server_that_is_silent_for_30_s_times_out_even_if_messages_are_sent() {
    let mut bench = Bench::open();
    bench.receive(5, "{\"type\":6}\x1e");
    bench.call(18, 1);
    bench.call(30, 2);
    assert_eq!(bench.deadline(), 35);
    let silent = CloseReason::Silence(Duration::from_secs(30));
    assert_eq!(bench.at(35, Event::Tick), [Action::End(silent)]);
    assert_eq!(bench.protocol.abandon(), [1, 2]);
    assert!(bench.protocol.abandon().is_empty());
}

#[test]
fn a_partial_frame_counts_as_activity() {
    let mut bench = Bench::open();
    bench.call(25, 1);
    bench.at(29, Event::Activity);
    assert_eq!(bench.at(30, Event::Tick), []);
    assert_eq!(bench.deadline(), 40);
}

#[test]
fn each_call_gets_the_completion_with_its_id() {
    let mut bench = Bench::open();
    let invocation =
        |id: u32| send(&format!(r#"{{"type":1,"invocationId":"{id}","target":"M","arguments":[1]}}"#));
    for ticket in [10, 11, 12] {
        assert_eq!(bench.call(0, ticket), invocation(ticket - 10));
    }
    let answers = "{\"type\":3,\"invocationId\":\"2\",\"error\":\"bad\"}\x1e\
                   {\"type\":3,\"invocationId\":\"0\",\"result\":{\"a\":1}}\x1e\
                   {\"type\":3,\"invocationId\":\"0\"}\x1e\
                   {\"type\":3,\"invocationId\":\"not ours\"}\x1e\
                   {\"type\":3,\"invocationId\":\"1\"}\x1e";
    assert_eq!(
        bench.receive(0, answers),
        [
            Action::Answer(12, Err(CallError::Refused("bad".into()))),
            Action::Answer(10, Ok(json!({"a": 1}))),
            Action::Answer(11, Ok(Value::Null)),
        ]
    );
    assert!(bench.protocol.abandon().is_empty());
}

#[test]
fn a_call_beyond_the_limit_is_not_sent() {
    let mut bench = Bench::open();
    let arguments = format!("[\"{}\"]", "x".repeat(LIMIT));
    let event = Event::Call { method: "M", arguments: &arguments, ticket: 1 };
    let [Action::Answer(1, Err(CallError::TooLarge { bytes, limit: LIMIT }))] = bench.at(0, event)[..] else {
        panic!("not too large")
    };
    assert!(bytes > LIMIT);
}

#[test]
fn an_invocation_is_completed_and_a_result_beyond_the_limit_becomes_an_error() {
    let mut bench = Bench::open();
    let text = "{\"type\":1,\"target\":\"A\",\"arguments\":[],\"invocationId\":\"s1\"}\x1e";
    assert_eq!(bench.receive(0, text), [invocation("A", Some("s1"))]);
    let reply = |answer| Event::Reply { invocation_id: "s1".into(), answer };
    assert_eq!(bench.at(0, reply(Ok(json!(5)))), send(r#"{"invocationId":"s1","result":5,"type":3}"#));
    let [Action::Send(text)] = &bench.at(0, reply(Ok("x".repeat(LIMIT).into())))[..] else {
        panic!("not sent")
    };
    assert!(text.contains("error") && text.len() <= LIMIT, "{text}");
}

#[test]
fn irrelevant_messages_are_ignored() {
    let mut bench = Bench::open();
    let texts = "{\"type\":2,\"invocationId\":\"1\",\"item\":3}\x1e{\"type\":5,\"invocationId\":\"1\"}\x1e\
                 {\"type\":8,\"sequenceId\":4}\x1e{\"type\":9,\"sequenceId\":4}\x1e{\"type\":77,\"x\":[]}\x1e\x1e";
    assert_eq!(bench.receive(0, texts), []);
}

#[test]
fn a_stream_requested_by_the_server_is_declined() {
    let mut bench = Bench::open();
    let actions = bench.receive(0, "{\"type\":4,\"invocationId\":\"9\",\"target\":\"S\"}\x1e");
    assert!(matches!(&actions[..], [Action::Decline { invocation_id, .. }] if invocation_id == "9"));
}

#[test]
fn a_close_or_a_malformed_message_ends_the_connection_and_nothing_follows() {
    for (text, reason) in [
        ("{\"type\":7}", CloseReason::Closed { error: None, allow_reconnect: false }),
        (
            "{\"type\":7,\"error\":\"e\",\"allowReconnect\":true}",
            CloseReason::Closed { error: Some("e".into()), allow_reconnect: true },
        ),
    ] {
        let frame = format!("{text}\x1e{{\"type\":1,\"target\":\"A\"}}\x1e");
        assert_eq!(Bench::open().receive(0, &frame), [Action::End(reason)]);
    }
    for malformed in ["nonsense", "{}", "[]", "{\"type\":\"1\"}", "{\"type\":1}", "{\"type\":3}", "\u{0}"] {
        let actions = Bench::open().receive(0, &format!("{malformed}\x1e"));
        assert!(
            matches!(&actions[..], [Action::End(CloseReason::Unreadable(_))]),
            "{malformed}: {actions:?}"
        );
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let tokens = prop_oneof![
        Just(b"{}\x1e".to_vec()),
        Just(b"{\"type\":1,\"target\":\"A\",\"arguments\":[{\"a\":null}]}\x1e".to_vec()),
        Just(b"{\"type\":3,\"invocationId\":\"0\",\"result\":1}\x1e".to_vec()),
        Just(b"{\"type\":6}\x1e".to_vec()),
        Just(b"\x1e".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec(tokens, 0..12).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn any_bytes_in_any_frames_give_the_same_actions_and_no_panic(
        bytes in bytes(), cuts in proptest::collection::vec(1usize..9, 1..40),
    ) {
        let run = |frames: &mut dyn Iterator<Item = &[u8]>| {
            let mut bench = Bench::new();
            let mut all = Vec::new();
            for frame in frames {
                all.extend(bench.at(0, Event::Received(frame)));
                if matches!(all.last(), Some(Action::End(_))) {
                    break;
                }
            }
            all
        };
        let mut rest = &bytes[..];
        let mut lengths = cuts.iter().cycle();
        let mut split = std::iter::from_fn(|| {
            let (frame, others) = rest.split_at_checked((*lengths.next()?).min(rest.len()))?;
            rest = others;
            (!frame.is_empty()).then_some(frame)
        });
        prop_assert_eq!(run(&mut std::iter::once(&bytes[..])), run(&mut split));
    }
}
