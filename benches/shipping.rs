//! How fast a backlog on disk is shipped, end to end: `output.log` → records → batches → calls → acknowledgements.
//!
//! A rate is meaningful only in relation to what the machine can do, so the same run measures two upper bounds: reading the
//! file, and encoding the same lines with serde in batches of 50. Run with `cargo bench --bench shipping`;
//! `HAWSER_BENCH_LINES` sets the number of lines.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a bench fails by panicking")]

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser::masking::{Rules, SecretStore};
use hawser::settings::model::JobLogStreamSettings;
use hawser::shipping::{Labels, ShippedStep, Shipper};
use hawser::step::records::encode;
use hawser::step::store::Created;
use hawser::step::{StepFolder, StepStore, Stream};
use hawser_contract::{LogEntry, LogLevel, Metadata, Outcome, Success, Task};
use hawser_signalr::ConnectionStatus;
use hawser_signalr::client::channel as line;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const BATCH: usize = 50;

fn text(number: usize) -> String {
    format!(
        "\u{1b}[0m\u{1b}[1maws_instance.web[{number}]: Still creating... [10s elapsed] id=\"i-{number:016x}\"\u{1b}[0m"
    )
}

fn main() {
    // `cargo test --all-targets` also runs benches, without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let lines: usize =
        std::env::var("HAWSER_BENCH_LINES").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(StepStore::open(directory.path(), Uuid::nil(), "bench").unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();

    let mut best = [Duration::MAX; 4];
    let mut bytes = 0;
    for _ in 0..3 {
        let step = backlog(&store, lines);
        bytes = std::fs::metadata(step.folder.output_path()).unwrap().len();
        let read = read(&step.folder, lines);
        let bare = runtime.block_on(ship(&store, step, lines, &[]));
        let masked = runtime.block_on(ship(&store, backlog(&store, lines), lines, &secrets()));
        let taken = [read, encode_only(lines), bare, masked];
        for (best, taken) in best.iter_mut().zip(taken) {
            *best = taken.min(*best);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an approximate rate")]
    let rate = |taken: Duration| lines as f64 / taken.as_secs_f64();
    let shipped = rate(best[2]);
    println!("{lines} lines, {bytes} bytes, best of three");
    println!("{:<44} {:>14} {:>10}", "", "lines/s", "shipped is");
    for (name, taken) in [
        ("reading the file (64 KiB at a time)", best[0]),
        ("encoding batches of 50 with serde, no I/O", best[1]),
        ("shipped: file to acknowledgement", best[2]),
        ("shipped: with 40 secrets to mask", best[3]),
    ] {
        println!("{name:<44} {:>14.0} {:>9.2}×", rate(taken), shipped / rate(taken));
    }
}

fn backlog(store: &StepStore, lines: usize) -> ShippedStep {
    let Created::New(folder) = store.create(&"bench.Plan".into(), "Plan", &json!({})).unwrap() else {
        panic!("a step is left over");
    };
    let mut records = Vec::new();
    let mut writer = folder.writer().unwrap();
    for number in 0..lines {
        encode(&mut records, Timestamp::now(), Stream::Stdout, text(number).as_bytes(), false);
        if records.len() > 1 << 20 || number + 1 == lines {
            writer.append(&records).unwrap();
            records.clear();
        }
    }
    folder.set_outcome(&Outcome::Completed(Success::Done).of(Task::Plan, Uuid::nil())).unwrap();
    let labels = Labels {
        job_id: Uuid::nil(),
        task: Task::Plan,
        module: Metadata {
            module_id: Uuid::nil(),
            stack_name: "production".to_owned(),
            namespace_name: "network".to_owned(),
            module_name: "web".to_owned(),
            source_subdirectory: None,
        },
    };
    ShippedStep { folder, labels: Some(labels) }
}

/// Typical secrets: passwords, tokens, and a multi-line key.
fn secrets() -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(40);
    let mut secrets: Vec<String> = [6, 8, 12, 16, 20, 32, 40, 64, 100]
        .into_iter()
        .cycle()
        .take(39)
        .map(|length| std::iter::repeat_with(|| random.alphanumeric()).take(length).collect())
        .collect();
    let key: Vec<String> =
        (0..26).map(|_| std::iter::repeat_with(|| random.alphanumeric()).take(64).collect()).collect();
    secrets.push(key.join("\n"));
    secrets
}

fn read(folder: &StepFolder, lines: usize) -> Duration {
    let begin = Instant::now();
    let mut file = std::fs::File::open(folder.output_path()).unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let mut found = 0;
    loop {
        let length = file.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        found += memchr::memchr_iter(b'\n', &buffer[..length]).count();
    }
    assert_eq!(found, lines);
    begin.elapsed()
}

fn encode_only(lines: usize) -> Duration {
    // The same lines again and again, so that only the encoding is measured.
    let texts: Vec<String> = (0..BATCH).map(text).collect();
    let now = Timestamp::now();
    let entries: Vec<LogEntry> = texts
        .iter()
        .map(|text| LogEntry {
            job_id: Uuid::nil(),
            timestamp: now,
            batch_time_stamp: now,
            stack_id: None,
            namespace_id: None,
            module_id: Uuid::nil(),
            stack_name: "production".to_owned(),
            namespace_name: "network".to_owned(),
            module_name: "web".to_owned(),
            level: LogLevel::Information,
            message: text.clone(),
            task_name: Task::Plan,
            tags: None,
        })
        .collect();
    let mut buffer = Vec::with_capacity(64 * 1024);
    let begin = Instant::now();
    for _ in 0..lines / BATCH {
        buffer.clear();
        serde_json::to_writer(&mut buffer, &[&entries]).unwrap();
        std::hint::black_box(&buffer);
    }
    begin.elapsed()
}

async fn ship(store: &Arc<StepStore>, step: ShippedStep, lines: usize, secrets: &[String]) -> Duration {
    let (line, mut end) = line();
    end.status.send_replace(ConnectionStatus::Connected { generation: 1 });
    let server = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some(call) = end.outgoing.recv().await {
            bytes += call.arguments.len();
            // The shipper may have stopped after the last call.
            let _ = call.answer.send(Ok(Value::Null));
        }
        bytes
    });
    let settings = JobLogStreamSettings::default();
    let secret_store = SecretStore::new(Rules::new(&settings).unwrap());
    secrets.iter().for_each(|secret| secret_store.learn(secret));
    let stop = CancellationToken::new();
    let begin = Instant::now();
    let shipper = Shipper::start(line, Arc::clone(store), &settings, 32 * 1024, secret_store, stop.clone());
    shipper.add(step).await;
    assert!(shipper.drained().await);
    let taken = begin.elapsed();
    stop.cancel();
    shipper.stopped().await;
    drop(shipper);
    assert!(server.await.unwrap() > lines * 100);
    taken
}
