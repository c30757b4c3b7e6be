//! Lines that do not fit into a message, and bytes that are not UTF-8.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use hawser::step::Stream;
use hawser::step::records::encode;
use hawser_contract::Task;
use jiff::Timestamp;
use serde_json::Value;

use super::{Bed, Record, accept_all, channel, conclude, connected_line, entries, logs, ship, shipped};
use crate::support::eventually::eventually;

/// Joins split lines, as documented for the tags.
fn joined(record: &Record) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut open: BTreeMap<String, String> = BTreeMap::new();
    for entry in logs(record).iter().flat_map(|seen| entries(seen).clone()) {
        let stream = entry["tags"]["stream"].as_str().unwrap_or("stdout").to_owned();
        let text = open.entry(stream.clone()).or_default();
        text.push_str(entry["message"].as_str().unwrap());
        if entry["tags"]["continues"] != "true" {
            lines.push((stream.clone(), open.remove(&stream).unwrap()));
        }
    }
    assert!(open.is_empty(), "lines without an end: {open:?}");
    lines
}

#[tokio::test(start_paused = true)]
async fn a_megabyte_line_is_split_within_the_limit_and_joins_again() {
    for limit in [4096, 32 * 1024, 1024 * 1024] {
        let mut bed = Bed::new();
        bed.settings.max_message_bytes = limit;
        let (line, end) = channel();
        let record = accept_all(end);
        let (shipper, _stop) = bed.start(line);
        let step = bed.step(1, Task::Plan);
        let mut long = String::new();
        while long.len() < 1 << 20 {
            write!(long, "\u{1b}[1m{} \"quoted\" \\ \t ünï 漢字 🦀\u{1}", long.len()).unwrap();
        }
        let mut writer = step.folder.writer().unwrap();
        writer.say(Stream::Stdout, "before").unwrap();
        writer.say(Stream::Stdout, &long).unwrap();
        writer.say(Stream::Stderr, "").unwrap();
        writer.say(Stream::Stderr, "after").unwrap();
        conclude(&step);
        assert!(ship(&shipper, step).await);

        for seen in record.lock().unwrap().iter() {
            assert!(seen.bytes <= limit, "{} bytes in a message, {limit} are allowed", seen.bytes);
        }
        let expected = [
            ("stdout".to_owned(), "before".to_owned()),
            ("stdout".to_owned(), long),
            ("stderr".to_owned(), String::new()),
            ("stderr".to_owned(), "after".to_owned()),
        ];
        assert!(joined(&record) == expected, "limit {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_split_line_is_complete_after_restarts_at_any_position() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bed = Bed::new();
        bed.settings.max_message_bytes = 4096;
        let step = bed.step(1, Task::Plan);
        let long: String = (0..30_000).map(|_| ['a', 'ü', '漢', '🦀'][random.usize(..4)]).collect();
        step.folder.writer().unwrap().say(Stream::Stdout, &long).unwrap();
        conclude(&step);
        let mut text = String::new();
        // Each runner sends a few calls, one at a time, and stops.
        while step.folder.path().exists() {
            let (line, mut end) = connected_line();
            let (shipper, stop) = bed.start(line);
            shipper.add(step.clone()).await;
            for _ in 0..random.usize(1..6) {
                let Some(call) = end.outgoing.recv().await else { break };
                if call.method == "AddLogs" {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    for entry in arguments[0].as_array().unwrap() {
                        text.push_str(entry["message"].as_str().unwrap());
                    }
                    let before = step.folder.shipped();
                    call.answer.send(Ok(Value::Null)).unwrap();
                    eventually("the position is saved", || step.folder.shipped() != before).await;
                } else {
                    call.answer.send(Ok(Value::Null)).unwrap();
                    assert!(shipped(&shipper, &step.folder).await);
                    break;
                }
            }
            stop.cancel();
            shipper.stopped().await;
        }
        assert!(text == long, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_utf8_arrives_as_replacement_characters() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let mut records = Vec::new();
    let now = Timestamp::now();
    encode(&mut records, now, Stream::Stdout, b"a\xff\xfeb\xe2\x82", false);
    encode(&mut records, now, Stream::Stdout, "crab 🦀".as_bytes(), true);
    encode(&mut records, now, Stream::Stderr, b"in between", false);
    encode(&mut records, now, Stream::Stdout, b".", false);
    records.extend_from_slice(b"no record at all \x80\n");
    encode(&mut records, now, Stream::Error, b"never ends \xf0", true);
    records.extend_from_slice(b"torn");
    fs::write(step.folder.output_path(), &records).unwrap();
    conclude(&step);
    assert!(ship(&shipper, step).await);
    let found: Vec<_> = logs(&record)
        .iter()
        .flat_map(|seen| entries(seen).clone())
        .map(|entry| (entry["level"].as_u64().unwrap(), entry["message"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [
        (2, "a\u{fffd}\u{fffd}b\u{fffd}"),
        (2, "crab 🦀"),
        (2, "in between"),
        (2, "."),
        (2, "no record at all \u{fffd}"),
        (4, "never ends \u{fffd}"),
        (2, "torn"),
    ];
    assert_eq!(found, expected.map(|(level, text)| (level, text.to_owned())));
}
