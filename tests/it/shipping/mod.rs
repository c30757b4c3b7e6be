//! Shipping against a scripted server: everything between the step folder and the call.

mod delivery;
mod flood;
mod long_lines;
mod masking;
mod pacing;
mod repeats;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser::masking::{Rules, SecretStore};
use hawser::settings::model::JobLogStreamSettings;
use hawser::shipping::{Labels, ShippedStep, Shipper, ShipperHandle};
use hawser::step::records::encode;
use hawser::step::store::Created;
use hawser::step::{StepFolder, StepKey, StepStore, Stream};
use hawser_contract::{Metadata, Outcome, Success, Task};
use hawser_signalr::client::{ClientDriver, OutgoingCall, channel};
use hawser_signalr::{CallError, ConnectionStatus, HubClient};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

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
    /// Receives the call and never answers.
    Forget,
    /// The connection breaks; `arrived`: the server still received this call.
    Cut {
        arrived: bool,
    },
}

type Record = Arc<Mutex<Vec<Seen>>>;

/// Serves the connection until it is dropped. After a disconnect it is away for a second.
fn serve(
    mut end: ClientDriver,
    mut script: impl FnMut(usize, &OutgoingCall) -> Act + Send + 'static,
) -> Record {
    let record = Record::default();
    let seen = Arc::clone(&record);
    tokio::spawn(async move {
        let mut generation = 1;
        let mut forgotten = Vec::new();
        end.status.send_replace(ConnectionStatus::Connected { generation });
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
                    end.status.send_replace(ConnectionStatus::Connecting { problem: None });
                    drop(call);
                    while let Ok(lost) = end.outgoing.try_recv() {
                        drop(lost);
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    while let Ok(lost) = end.outgoing.try_recv() {
                        drop(lost);
                    }
                    generation += 1;
                    end.status.send_replace(ConnectionStatus::Connected { generation });
                }
            }
        }
    });
    record
}

fn accept_all(end: ClientDriver) -> Record {
    serve(end, |_, _| Act::Accept)
}

/// A connected client, and the driver for the test to serve.
fn connected_line() -> (HubClient, ClientDriver) {
    let (line, end) = channel();
    end.status.send_replace(ConnectionStatus::Connected { generation: 1 });
    (line, end)
}

struct ShippingSettings {
    job_log_stream: JobLogStreamSettings,
    max_message_bytes: usize,
}

struct Bed {
    _directory: tempfile::TempDir,
    store: Arc<StepStore>,
    settings: ShippingSettings,
    secret_store: SecretStore,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(StepStore::open(directory.path(), Uuid::nil(), "test").unwrap());
        let job_log_stream = JobLogStreamSettings::default();
        Self {
            _directory: directory,
            store,
            secret_store: SecretStore::new(Rules::new(&job_log_stream).unwrap()),
            settings: ShippingSettings { job_log_stream, max_message_bytes: 32 * 1024 },
        }
    }

    fn start(&self, line: HubClient) -> (ShipperHandle, CancellationToken) {
        let stop = CancellationToken::new();
        (
            Shipper::start(
                line,
                Arc::clone(&self.store),
                &self.settings.job_log_stream,
                self.settings.max_message_bytes,
                self.secret_store.clone(),
                stop.clone(),
            ),
            stop,
        )
    }

    fn step(&self, job: u128, task: Task) -> ShippedStep {
        let key = StepKey::task(Uuid::from_u128(job), task);
        let Created::New(folder) = self.store.create(&key, task.pushed_as(), &json!({})).unwrap() else {
            panic!("{key} is there already");
        };
        let labels = Labels {
            job_id: Uuid::from_u128(job),
            task,
            module: Metadata {
                module_id: Uuid::from_u128(7),
                stack_name: "stack".to_owned(),
                namespace_name: "name\"space".to_owned(),
                module_name: "mödule".to_owned(),
                source_subdirectory: None,
            },
        };
        ShippedStep { folder, labels: Some(labels) }
    }
}

/// Adds a step and waits until it is shipped. False if the shipper stops first.
async fn ship(shipper: &ShipperHandle, step: ShippedStep) -> bool {
    let folder = step.folder.clone();
    shipper.add(step).await;
    shipped(shipper, &folder).await
}

/// Waits until a step is shipped, which removes its folder. False if the shipper stops first.
async fn shipped(shipper: &ShipperHandle, folder: &StepFolder) -> bool {
    let mut status = shipper.status();
    tokio::select! {
        _ = status.wait_for(|_| !folder.path().exists()) => {}
        () = shipper.stopped() => {}
    }
    !folder.path().exists()
}

fn write_lines(folder: &StepFolder, numbers: std::ops::Range<usize>) {
    let mut records = Vec::new();
    for number in numbers {
        encode(&mut records, Timestamp::now(), Stream::Stdout, format!("line {number}").as_bytes(), false);
    }
    folder.writer().unwrap().append(&records).unwrap();
}

fn conclude(step: &ShippedStep) {
    let labels = step.labels.as_ref().unwrap();
    let outcome = Outcome::Completed(Success::Done).of(labels.task, labels.job_id);
    step.folder.set_outcome(&outcome).unwrap();
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
