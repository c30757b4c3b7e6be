//! Shipping against a scripted other end of the line: everything between the step folder and the call.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser::masking::{Rules, Vault};
use hawser::settings::model::JobLogStreamSettings;
use hawser::shipping::{Labels, ShippedStep, Shipper, ShipperHandle, ShippingSettings};
use hawser::step::records::encode;
use hawser::step::store::Created;
use hawser::step::{Folder, Store, Stream};
use hawser_contract::{Call, Task};
use hawser_signalr::LineStatus;
use hawser_signalr::client::{LineEnd, Outgoing, line};
use hawser_signalr::{CallError, Line};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::eventually::eventually;

mod masking;

const ENVELOPE: usize =
    r#"{"type":1,"invocationId":"18446744073709551615","target":"","arguments":}"#.len() + 1;

/// A call as the server saw it.
#[derive(Debug, Clone)]
struct Seen {
    method: String,
    arguments: Value,
    /// Bytes of the whole message.
    bytes: usize,
    generation: u64,
    at: Instant,
}

/// What the scripted server does with a call.
#[derive(Debug, Clone)]
enum Act {
    Accept,
    Refuse(&'static str),
    /// Takes the call and never answers.
    Forget,
    /// The connection breaks; `arrived` says whether the server still saw this call.
    Cut {
        arrived: bool,
    },
}

type Record = Arc<Mutex<Vec<Seen>>>;

/// Serves the line until it is dropped. After a cut it is away for a second.
fn serve(mut end: LineEnd, mut script: impl FnMut(usize, &Outgoing) -> Act + Send + 'static) -> Record {
    let record = Record::default();
    let seen = Arc::clone(&record);
    tokio::spawn(async move {
        let mut generation = 1;
        let mut forgotten = Vec::new();
        end.status.send_replace(LineStatus::Connected { generation });
        let mut count = 0;
        while let Some(call) = end.outgoing.recv().await {
            let act = script(count, &call);
            count += 1;
            if !matches!(act, Act::Cut { arrived: false }) {
                seen.lock().unwrap().push(Seen {
                    bytes: ENVELOPE + call.method.len() + call.arguments.len(),
                    arguments: serde_json::from_str(&call.arguments).expect("arguments are JSON"),
                    method: call.method.clone(),
                    generation,
                    at: Instant::now(),
                });
            }
            match act {
                Act::Accept => drop(call.answer.send(Ok(Value::Null))),
                Act::Refuse(error) => drop(call.answer.send(Err(CallError::Refused(error.to_owned())))),
                Act::Forget => forgotten.push(call),
                Act::Cut { .. } => {
                    end.status.send_replace(LineStatus::Connecting { problem: None });
                    drop(call);
                    while let Ok(lost) = end.outgoing.try_recv() {
                        drop(lost);
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    while let Ok(lost) = end.outgoing.try_recv() {
                        drop(lost);
                    }
                    generation += 1;
                    end.status.send_replace(LineStatus::Connected { generation });
                }
            }
        }
    });
    record
}

fn accept_all(end: LineEnd) -> Record {
    serve(end, |_, _| Act::Accept)
}

struct Bed {
    _directory: tempfile::TempDir,
    store: Arc<Store>,
    settings: ShippingSettings,
    vault: Vault,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path(), Uuid::nil(), "test").unwrap());
        let job_log_stream = JobLogStreamSettings::default();
        Self {
            _directory: directory,
            store,
            vault: Vault::new(Rules::new(&job_log_stream).unwrap()),
            settings: ShippingSettings { job_log_stream, max_message_bytes: 32 * 1024 },
        }
    }

    fn start(&self, line: Line) -> (ShipperHandle, CancellationToken) {
        let stop = CancellationToken::new();
        (
            Shipper::start(line, Arc::clone(&self.store), &self.settings, self.vault.clone(), stop.clone()),
            stop,
        )
    }

    fn step(&self, job: u128, task: Task) -> ShippedStep {
        let name = format!("{}.{task}", Uuid::from_u128(job));
        let Created::New(folder, request) = self.store.create(&name, task.pushed_as(), &json!({})).unwrap()
        else {
            panic!("{name} is there already");
        };
        let labels = Labels {
            job_id: Uuid::from_u128(job),
            module_id: Uuid::from_u128(7),
            stack_name: "stack".to_owned(),
            namespace_name: "name\"space".to_owned(),
            module_name: "mödule".to_owned(),
            task,
        };
        ShippedStep { folder, labels: Some(labels), sequence: request.sequence }
    }
}

fn write_lines(folder: &Folder, numbers: std::ops::Range<usize>) {
    let mut records = Vec::new();
    for number in numbers {
        encode(&mut records, Timestamp::now(), Stream::Stdout, format!("line {number}").as_bytes(), false);
    }
    folder.writer().unwrap().append(&records).unwrap();
}

fn conclude(step: &ShippedStep) {
    let labels = step.labels.as_ref().unwrap();
    step.folder
        .set_outcome(&Call {
            method: format!("{}Completed", labels.task),
            arguments: vec![json!(labels.job_id)],
        })
        .unwrap();
}

fn entries(seen: &Seen) -> &Vec<Value> {
    assert_eq!(seen.method, "AddLogs");
    seen.arguments[0].as_array().expect("AddLogs takes one list")
}

fn messages(seen: &Seen) -> Vec<String> {
    entries(seen).iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
}

fn all_messages(record: &Record) -> Vec<String> {
    logs(record).iter().flat_map(messages).collect()
}

fn logs(record: &Record) -> Vec<Seen> {
    record.lock().unwrap().iter().filter(|seen| seen.method == "AddLogs").cloned().collect()
}

fn methods(record: &Record) -> Vec<String> {
    record.lock().unwrap().iter().map(|seen| seen.method.clone()).collect()
}

fn number(message: &str) -> usize {
    message.strip_prefix("line ").and_then(|number| number.parse().ok()).expect("a numbered line")
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("line {number}")).collect()
}

/// Joins what was split, as the documentation of the tags says.
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
async fn all_lines_and_then_the_result_arrive_and_the_folder_goes() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..120);
    conclude(&step);
    assert!(shipper.add(step.clone()).await.wait().await);

    assert_eq!(all_messages(&record), numbered(120));
    assert_eq!(methods(&record), ["AddLogs", "AddLogs", "AddLogs", "PlanCompleted"]);
    assert!(!step.folder.path().exists());
    assert!(shipper.drained().await);
    assert_eq!(shipper.status().borrow().to_string(), "nothing to ship");

    let first = logs(&record)[0].clone();
    let entry: hawser_contract::LogEntry<'_> = serde_json::from_value(entries(&first)[0].clone()).unwrap();
    assert_eq!(entry.job_id, Uuid::from_u128(1));
    assert_eq!((entry.stack_name.as_ref(), entry.namespace_name.as_ref()), ("stack", "name\"space"));
    assert_eq!((entry.module_name.as_ref(), entry.task_name.as_ref()), ("mödule", "Plan"));
    assert_eq!(entry.tags, None);
    let written = serde_json::to_value(&entry).unwrap();
    assert_eq!(written.as_object().unwrap().len(), entries(&first)[0].as_object().unwrap().len());
    assert!(entries(&first).iter().all(|one| one["batchTimeStamp"] == entries(&first)[0]["batchTimeStamp"]));
}

#[tokio::test(start_paused = true)]
async fn a_cut_during_shipping_loses_no_line() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bed = Bed::new();
        let (line, end) = line();
        let mut dice = random.fork();
        let cuts = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&cuts);
        let record = serve(end, move |_, _| {
            if dice.u8(..10) == 0 {
                *counted.lock().unwrap() += 1;
                Act::Cut { arrived: dice.bool() }
            } else {
                Act::Accept
            }
        });
        let (shipper, _stop) = bed.start(line);
        let step = bed.step(1, Task::ApplyFromPlan);
        let shipped = shipper.add(step.clone()).await;
        let mut written = 0;
        while written < 3000 {
            let more = written + random.usize(1..400);
            write_lines(&step.folder, written..more);
            written = more;
            tokio::time::sleep(Duration::from_millis(random.u64(..3000))).await;
        }
        conclude(&step);
        assert!(shipped.wait().await);

        let cuts = *cuts.lock().unwrap();
        let mut next = 0;
        let mut generation = 0;
        let mut total = 0;
        for seen in logs(&record) {
            let first = number(&messages(&seen)[0]);
            if seen.generation == generation {
                assert_eq!(first, next, "seed {seed}: order within a connection");
            } else {
                assert!(first <= next, "seed {seed}: lines {next} to {first} are lost");
                assert!(next - first <= 4 * 50, "seed {seed}: more than one window again");
            }
            generation = seen.generation;
            for (place, message) in messages(&seen).iter().enumerate() {
                assert_eq!(number(message), first + place);
            }
            next = first + entries(&seen).len();
            total += entries(&seen).len();
        }
        assert_eq!(next, written, "seed {seed}: all lines");
        assert!(total - written <= cuts * 4 * 50, "seed {seed}: {} repeated in {cuts} cuts", total - written);
        let results: Vec<_> = methods(&record).into_iter().filter(|method| method != "AddLogs").collect();
        assert!(!results.is_empty() && results.len() <= 1 + cuts);
    }
}

#[tokio::test(start_paused = true)]
async fn the_result_waits_for_the_last_acknowledgement() {
    let bed = Bed::new();
    let (line, mut end) = line();
    end.status.send_replace(LineStatus::Connected { generation: 1 });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    let shipped = shipper.add(step).await;
    let mut window = Vec::new();
    // Only four calls are made without an answer, and a long wait brings no fifth.
    for _ in 0..4 {
        window.push(end.outgoing.recv().await.unwrap());
    }
    assert!(tokio::time::timeout(Duration::from_secs(30), end.outgoing.recv()).await.is_err());
    for call in window {
        call.answer.send(Ok(Value::Null)).unwrap();
    }
    for _ in 4..20 {
        let call = end.outgoing.recv().await.unwrap();
        assert_eq!(call.method, "AddLogs");
        assert!(end.outgoing.len() <= 3);
        call.answer.send(Ok(Value::Null)).unwrap();
    }
    let result = end.outgoing.recv().await.unwrap();
    assert_eq!(result.method, "PlanCompleted");
    result.answer.send(Ok(Value::Null)).unwrap();
    assert!(shipped.wait().await);
}

#[tokio::test(start_paused = true)]
async fn a_megabyte_line_is_split_never_exceeds_the_limit_and_is_whole_again() {
    for limit in [4096, 32 * 1024, 1024 * 1024] {
        let mut bed = Bed::new();
        bed.settings.max_message_bytes = limit;
        let (line, end) = line();
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
        assert!(shipper.add(step).await.wait().await);

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
async fn a_split_line_that_is_cut_and_restarted_anywhere_is_whole_again() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bed = Bed::new();
        bed.settings.max_message_bytes = 4096;
        let step = bed.step(1, Task::Plan);
        let long: String = (0..30_000).map(|_| ['a', 'ü', '漢', '🦀'][random.usize(..4)]).collect();
        step.folder.writer().unwrap().say(Stream::Stdout, &long).unwrap();
        conclude(&step);
        let mut text = String::new();
        // Each runner sends a few calls, one at a time, and is gone.
        while step.folder.path().exists() {
            let (line, mut end) = line();
            end.status.send_replace(LineStatus::Connected { generation: 1 });
            let (shipper, stop) = bed.start(line);
            let shipped = shipper.add(step.clone()).await;
            for _ in 0..random.usize(1..6) {
                let Some(call) = end.outgoing.recv().await else { break };
                if call.method == "AddLogs" {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    for entry in arguments[0].as_array().unwrap() {
                        text.push_str(entry["message"].as_str().unwrap());
                    }
                    let before = step.folder.shipped();
                    call.answer.send(Ok(Value::Null)).unwrap();
                    eventually("the note moves on", || step.folder.shipped() != before).await;
                } else {
                    call.answer.send(Ok(Value::Null)).unwrap();
                    assert!(shipped.wait().await);
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
async fn bytes_that_are_no_text_arrive_as_replacement_characters() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let mut records = Vec::new();
    let now = Timestamp::now();
    encode(&mut records, now, Stream::Stdout, b"a\xff\xfeb\xe2\x82", false);
    encode(&mut records, now, Stream::Stdout, b"crab \xf0\x9f", true);
    encode(&mut records, now, Stream::Stderr, b"in between", false);
    encode(&mut records, now, Stream::Stdout, b"\xa6\x80.", false);
    encode(&mut records, now, Stream::Stdout, b"half \xe2\x82", true);
    encode(&mut records, now, Stream::Stdout, b"x", false);
    records.extend_from_slice(b"no record at all \x80\n");
    encode(&mut records, now, Stream::Error, b"never ends \xf0", true);
    records.extend_from_slice(b"torn");
    std::fs::write(step.folder.output_path(), &records).unwrap();
    conclude(&step);
    assert!(shipper.add(step).await.wait().await);
    let found: Vec<_> = logs(&record)
        .iter()
        .flat_map(|seen| entries(seen).clone())
        .map(|entry| (entry["level"].as_u64().unwrap(), entry["message"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [
        (2, "a\u{fffd}\u{fffd}b\u{fffd}"),
        (2, "crab "),
        (2, "in between"),
        (2, "🦀."),
        (2, "half "),
        (2, "\u{fffd}x"),
        (2, "no record at all \u{fffd}"),
        (4, "never ends "),
        (2, "torn"),
        (4, "\u{fffd}"),
    ];
    assert_eq!(found, expected.map(|(level, text)| (level, text.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_flood_does_not_hold_up_another_job() {
    let bed = Bed::new();
    let (line, end) = line();
    let flood = bed.step(1, Task::ApplyFromPlan);
    let quiet = bed.step(2, Task::Plan);
    write_lines(&flood.folder, 0..50_000);
    let wrote = Arc::new(Mutex::new(None));
    let (note, folder) = (Arc::clone(&wrote), quiet.folder.clone());
    let record = serve(end, move |count, _| {
        if count == 300 {
            write_lines(&folder, 0..1);
            *note.lock().unwrap() = Some(Instant::now());
        }
        Act::Accept
    });
    conclude(&flood);
    let (shipper, _stop) = bed.start(line);
    let flooded = shipper.add(flood).await;
    let _quiet = shipper.add(quiet).await;
    while wrote.lock().unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    let before = record.lock().unwrap().len();
    // Paused time stands still while the flood goes on, and the quiet step is looked at ten times a second.
    tokio::time::advance(Duration::from_millis(101)).await;
    assert!(flooded.wait().await);
    let place = logs(&record)
        .iter()
        .position(|seen| entries(seen)[0]["jobId"] == json!(Uuid::from_u128(2)))
        .expect("the quiet job's line");
    assert!(place <= before + 12, "the line came {} calls later", place - before);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_refused_four_times_arrives_once() {
    let bed = Bed::new();
    let (line, end) = line();
    let record =
        serve(end, |count, _| if (1..5).contains(&count) { Act::Refuse("not now") } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1);
    conclude(&step);
    assert!(shipper.add(step).await.wait().await);
    assert_eq!(
        methods(&record),
        ["AddLogs"].iter().chain(&["PlanCompleted"; 5]).copied().collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn refused_lines_are_sent_again_in_order_and_only_then_those_behind_them() {
    let bed = Bed::new();
    let (line, end) = line();
    let record =
        serve(end, |count, _| if [2, 4, 5].contains(&count) { Act::Refuse("busy") } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    assert!(shipper.add(step).await.wait().await);
    // From the last time that line 100 was sent (it was refused until then) all is in order and complete.
    let all = all_messages(&record);
    let accepted = all.iter().rposition(|message| message == "line 100").unwrap();
    assert_eq!(all[accepted..], numbered(1000)[100..]);
    assert!(all.len() <= 1000 + 6 * 50, "{} lines were sent", all.len());
}

#[tokio::test(start_paused = true)]
async fn a_new_shipper_goes_on_where_the_last_one_stopped() {
    let bed = Bed::new();
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    let mut received = Vec::new();
    {
        let (line, mut end) = line();
        end.status.send_replace(LineStatus::Connected { generation: 1 });
        let (shipper, stop) = bed.start(line);
        let shipped = shipper.add(step.clone()).await;
        for _ in 0..7 {
            let call = end.outgoing.recv().await.unwrap();
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            received.push(number(arguments[0][0]["message"].as_str().unwrap()));
            call.answer.send(Ok(Value::Null)).unwrap();
        }
        stop.cancel();
        shipper.stopped().await;
        assert!(!shipped.wait().await);
        assert!(!shipper.drained().await);
    }
    assert_eq!(received, [0, 50, 100, 150, 200, 250, 300]);
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    assert!(shipper.add(step).await.wait().await);
    let all = all_messages(&record);
    let first = number(&all[0]);
    assert!((350 - 4 * 50..=350).contains(&first), "went on at line {first}");
    assert_eq!(all, numbered(1000)[first..]);
}

#[tokio::test(start_paused = true)]
async fn steps_of_one_job_go_one_after_the_other() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let (init, plan, other) = (bed.step(1, Task::Init), bed.step(1, Task::Plan), bed.step(2, Task::Init));
    for step in [&init, &plan, &other] {
        write_lines(&step.folder, 0..200);
    }
    conclude(&plan);
    conclude(&other);
    for step in [&init, &plan] {
        shipper.add(step.clone()).await;
    }
    assert!(shipper.add(other).await.wait().await, "another job waits for nobody");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!methods(&record).contains(&"PlanCompleted".to_owned()));
    conclude(&init);
    shipper.concluded(&init.folder).await;
    assert!(shipper.drained().await);
    let of_job: Vec<_> = record
        .lock()
        .unwrap()
        .iter()
        .map(|seen| match seen.method.as_str() {
            "AddLogs" => {
                (entries(seen)[0]["jobId"].clone(), entries(seen)[0]["taskName"].as_str().unwrap().to_owned())
            }
            method => (seen.arguments[0].clone(), method.to_owned()),
        })
        .filter(|(job, _)| *job == json!(Uuid::from_u128(1)))
        .map(|(_, what)| what)
        .collect();
    let mut expected = vec!["Init"; 4];
    expected.push("InitCompleted");
    expected.extend(["Plan"; 4]);
    expected.push("PlanCompleted");
    assert_eq!(of_job, expected);
}

/// Writes a line at each of the given times (ms) and returns when batches arrived and how large they were.
async fn batches(bed: &Bed, lines: &[(u64, usize)]) -> Vec<(u64, usize)> {
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let begin = Instant::now();
    shipper.add(step.clone()).await;
    for (at, count) in lines {
        tokio::time::sleep_until(begin + Duration::from_millis(*at)).await;
        write_lines(&step.folder, 0..*count);
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    stop.cancel();
    logs(&record)
        .iter()
        .map(|seen| (u64::try_from((seen.at - begin).as_millis()).unwrap() / 200 * 200, entries(seen).len()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_line_after_a_silence_goes_at_once_and_the_rest_by_the_period() {
    let lines = [(1000, 1), (2010, 1), (3010, 2), (20_010, 1)];
    assert_eq!(batches(&Bed::new(), &lines).await, [(1000, 1), (7000, 3), (20_000, 1)]);
}

#[tokio::test(start_paused = true)]
async fn without_the_eager_rule_every_line_waits_for_its_period() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.eagerly_emit_first_event = false;
    let lines = [(1010, 1), (2010, 1), (20_010, 1)];
    assert_eq!(batches(&bed, &lines).await, [(6000, 2), (25_000, 1)]);
}

#[tokio::test(start_paused = true)]
async fn full_batches_do_not_wait() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.batch_size_limit = 10;
    let lines = [(1010, 1), (2010, 25)];
    assert_eq!(batches(&bed, &lines).await, [(1000, 1), (2000, 10), (2000, 10), (7000, 5)]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_flat_whatever_waits_on_the_disk() {
    let bed = Bed::new();
    let (line, end) = line();
    let steps: Vec<_> = (0..3).map(|job| bed.step(job, Task::Plan)).collect();
    for step in &steps {
        write_lines(&step.folder, 0..20_000);
        conclude(step);
    }
    let (shipper, _stop) = bed.start(line);
    for step in &steps {
        shipper.add(step.clone()).await;
    }
    let mut status = shipper.status();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(status.borrow_and_update().buffered_bytes, 0, "nothing is read while the server is away");
    assert_eq!(status.borrow().to_string(), "3 steps to ship, waiting for the server");

    let most = Arc::new(Mutex::new(0));
    let (seen_most, watched) = (Arc::clone(&most), shipper.status());
    let record = serve(end, move |_, _| {
        let mut most = seen_most.lock().unwrap();
        *most = watched.borrow().buffered_bytes.max(*most);
        Act::Accept
    });
    assert!(shipper.drained().await);
    assert_eq!(all_messages(&record).len(), 60_000);
    assert!(*most.lock().unwrap() <= (8 + 3) * 32 * 1024, "{} bytes at most", most.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_the_oldest_lines_of_the_largest_step_give_way_and_one_entry_says_how_many() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.max_unsent_bytes = Some(200_000);
    let (line, end) = line();
    let (large, small) = (bed.step(1, Task::Plan), bed.step(2, Task::Plan));
    let (shipper, _stop) = bed.start(line);
    shipper.add(large.clone()).await;
    shipper.add(small.clone()).await;
    write_lines(&small.folder, 0..1000);
    let mut written = 0;
    // The flood goes on while the server is away, so that what was dropped is dropped again and again.
    for _ in 0..10 {
        write_lines(&large.folder, written..written + 3000);
        written += 3000;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // The disk is really free again.
    use std::os::unix::fs::MetadataExt as _;
    let used = std::fs::metadata(large.folder.output_path()).unwrap().blocks() * 512;
    assert!(used < 250_000, "{used} bytes on the disk");

    conclude(&large);
    conclude(&small);
    let record = accept_all(end);
    assert!(shipper.drained().await);
    let of = |job: u128| -> Vec<Value> {
        logs(&record)
            .iter()
            .flat_map(|seen| entries(seen).clone())
            .filter(|entry| entry["jobId"] == json!(Uuid::from_u128(job)))
            .collect()
    };
    assert_eq!(of(2).len(), 1000, "the small step keeps its lines");
    let large = of(1);
    let notice = large[0]["message"].as_str().unwrap();
    assert_eq!(large[0]["level"], 3);
    let dropped: usize = notice.split(' ').next().unwrap().parse().unwrap();
    assert!(notice.contains("JobLogStream.MaxUnsentBytes"), "{notice}");
    let kept: Vec<_> = large[1..].iter().map(|entry| number(entry["message"].as_str().unwrap())).collect();
    assert_eq!(kept, (dropped..written).collect::<Vec<_>>(), "{notice}");
    assert!(kept.len() > 3000);
}

#[tokio::test(start_paused = true)]
async fn the_notice_of_the_cap_survives_a_restart() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.max_unsent_bytes = Some(20_000);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..5000);
    conclude(&step);
    let (away, _end) = line();
    let (shipper, stop) = bed.start(away);
    shipper.add(step.clone()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.cancel();
    shipper.stopped().await;

    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    assert!(shipper.add(step).await.wait().await);
    let all = all_messages(&record);
    let dropped: usize = all[0].split(' ').next().unwrap().parse().unwrap();
    assert_eq!(all[1..], numbered(5000)[dropped..]);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_forgets_to_acknowledge_is_sent_again() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = serve(end, |count, _| if [1, 5].contains(&count) { Act::Forget } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..200);
    conclude(&step);
    assert!(shipper.add(step).await.wait().await);
    let all = all_messages(&record);
    let last_start = all.iter().rposition(|message| message == "line 100").unwrap();
    assert_eq!(all[last_start..], numbered(200)[100..]);
    assert_eq!(all[..200], numbered(200));
    assert_eq!(methods(&record).last().unwrap(), "PlanCompleted");
}

#[tokio::test(start_paused = true)]
async fn a_result_too_large_for_the_server_becomes_a_fault_that_says_so() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let (output, apply) = (bed.step(1, Task::Output), bed.step(2, Task::ApplyFromPlan));
    let call = |method: &str, arguments: Value| Call {
        method: method.to_owned(),
        arguments: arguments.as_array().unwrap().clone(),
    };
    let id = |job| json!(Uuid::from_u128(job));
    output
        .folder
        .set_outcome(&call("OutputCompleted", json!([id(1), {"outputs": "x".repeat(100_000)}])))
        .unwrap();
    let trace = "é\"".repeat(50_000);
    apply.folder.set_outcome(&call("ApplyFromPlanFaulted", json!([id(2), "it broke", trace, 3]))).unwrap();
    shipper.add(output).await;
    shipper.add(apply).await;
    assert!(shipper.drained().await);
    let record = record.lock().unwrap();
    assert!(record.iter().all(|seen| seen.bytes <= 32 * 1024));
    let find = |method: &str| record.iter().find(|seen| seen.method == method).unwrap().arguments.clone();
    let fault = find("OutputFaulted");
    assert_eq!(fault[0], id(1));
    let message = fault[1].as_str().unwrap();
    assert!(message.contains("100") && message.contains("32768"), "{message}");
    assert!(message.contains("Server.MaxMessageBytes"), "{message}");
    let apply = find("ApplyFromPlanFaulted");
    assert_eq!((&apply[0], &apply[1], &apply[3]), (&id(2), &json!("it broke"), &json!(3)));
    assert!(apply[2].as_str().unwrap().starts_with("é\"é\""));
    assert!(apply[2].as_str().unwrap().contains("(cut: "));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_outcome_is_told_as_a_fault() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Validate);
    std::fs::write(step.folder.path().join("outcome.json"), "{").unwrap();
    assert!(shipper.add(step).await.wait().await);
    assert_eq!(methods(&record), ["ValidateFaulted"]);
    assert!(record.lock().unwrap()[0].arguments[1].as_str().unwrap().contains("damaged"));
}

#[tokio::test(start_paused = true)]
async fn a_source_refresh_sends_its_result_and_no_log() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let mut step = bed.step(1, Task::GetModule);
    step.labels = None;
    write_lines(&step.folder, 0..10);
    let shipped = shipper.add(step.clone()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let arguments = vec![json!("url"), json!("main"), json!(0), json!(0), json!("abc")];
    step.folder.set_outcome(&Call { method: "SourceRefreshCompleted".to_owned(), arguments }).unwrap();
    assert!(shipped.wait().await);
    assert_eq!(methods(&record), ["SourceRefreshCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_shipper_does_not_poll() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    // Paused time jumps from one timer to the next: with ten looks a second this year would not end.
    tokio::time::sleep(Duration::from_secs(365 * 24 * 3600)).await;
    let step = bed.step(1, Task::Plan);
    conclude(&step);
    assert!(shipper.add(step).await.wait().await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_folder_is_gone_holds_nothing_up() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    conclude(&step);
    assert!(shipper.add(step.clone()).await.wait().await);
    // Somebody was late to learn that it is done.
    assert!(shipper.add(step).await.wait().await);
    assert!(shipper.drained().await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_disk_is_away_for_a_while_is_shipped_when_it_is_back() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let (steps, away) = (bed.store.steps(), bed.store.steps().with_file_name("away"));
    let shipped = shipper.add(step.clone()).await;
    std::fs::rename(&steps, &away).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    std::fs::rename(&away, &steps).unwrap();
    conclude(&step);
    assert!(shipped.wait().await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn from_a_drain_on_what_is_refused_again_and_again_is_counted_with_what_waits_behind_it() {
    let bed = Bed::new();
    let (line, end) = line();
    let refused = Uuid::from_u128(1).to_string();
    let record =
        serve(
            end,
            move |_, call| {
                if call.arguments.contains(&refused) { Act::Refuse("never") } else { Act::Accept }
            },
        );
    let (shipper, _stop) = bed.start(line);
    let [init, plan, unfinished] = [Task::Init, Task::Plan, Task::Output].map(|task| bed.step(1, task));
    let other = bed.step(2, Task::Plan);
    for step in [&init, &plan, &other] {
        conclude(step);
    }
    for step in [&init, &plan, &unfinished] {
        shipper.add(step.clone()).await;
    }
    assert!(shipper.add(other).await.wait().await);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut status = shipper.status();
    assert_eq!((status.borrow().steps, status.borrow().stuck), (3, 0), "nobody waits for them yet");

    let before = methods(&record).len();
    shipper.drain().await;
    status.wait_for(|status| status.stuck == 2).await.unwrap();
    assert_eq!(methods(&record)[before..], ["InitCompleted"; 5]);
    assert_eq!(status.borrow().steps, 3);
}

#[tokio::test(start_paused = true)]
async fn a_flood_on_the_disk_of_one_step_is_shared_out_by_turns() {
    let bed = Bed::new();
    let (line, end) = line();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let steps: Vec<_> = (0..4).map(|job| bed.step(job, Task::Plan)).collect();
    for step in &steps {
        write_lines(&step.folder, 0..5000);
        conclude(step);
    }
    for step in &steps {
        shipper.add(step.clone()).await;
    }
    assert!(shipper.drained().await);
    // Whenever one job has sent some batches, no other that has more to send is far behind.
    let mut sent: BTreeMap<String, usize> = BTreeMap::new();
    for seen in &logs(&record) {
        *sent.entry(entries(seen)[0]["jobId"].to_string()).or_default() += 1;
        let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
        assert!(sent.len() < 4 || most - least <= 8, "{sent:?}");
    }
    assert!(sent.values().all(|batches| *batches == 100));
}
