//! Every line and result arrives although the server or the connection is down, slow or forgetful.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_contract::{LogEntry, Task};
use hawser_dev_server::{HubEvent, HubOptions, JobSnapshot, JobState, LogKeeping};
use uuid::Uuid;

use super::{assert_complete, numbers, printing, runs, seen};
use crate::support::eventually::{LIMIT, eventually};
use crate::support::faulty_hub::{Fault, Moment, Rule};
use crate::support::world::{EMPTY, World};

/// Counts lines as they arrive and keeps nothing else.
#[derive(Default)]
struct Counter {
    next: HashMap<Uuid, u32>,
    repeats: usize,
    gaps: Vec<String>,
}

fn counting_hub() -> (HubOptions, Arc<Mutex<Counter>>) {
    let counter = Arc::new(Mutex::new(Counter::default()));
    let count = Arc::clone(&counter);
    let observe = move |entry: &LogEntry| {
        let Some(number) = entry.message.strip_prefix("line ").and_then(|rest| rest.parse::<u32>().ok())
        else {
            return;
        };
        let mut counter = count.lock().unwrap();
        let next = counter.next.entry(entry.job_id).or_insert(1);
        match number.cmp(next) {
            std::cmp::Ordering::Equal => *next += 1,
            std::cmp::Ordering::Less => counter.repeats += 1,
            std::cmp::Ordering::Greater => {
                let gap = format!("line {number} arrived where line {next} was to come");
                counter.gaps.push(gap);
            }
        }
    };
    let options = HubOptions { logs: LogKeeping::Observe(Arc::new(observe)), ..HubOptions::default() };
    (options, counter)
}

/// Waits for a job's end as long as its lines keep arriving, however slow the machine is.
async fn ended_with_its_lines(world: &World, id: Uuid, counter: &Mutex<Counter>) -> JobSnapshot {
    let arrived = || counter.lock().unwrap().next.get(&id).copied().unwrap_or_default();
    let mut before = 0;
    loop {
        if let Ok(ended) = tokio::time::timeout(LIMIT, world.hub.ended(id)).await {
            return ended;
        }
        let now = arrived();
        assert!(now > before, "no line has arrived in {LIMIT:?} after line {now}");
        before = now;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_lines_written_while_the_server_is_away_arrive_and_memory_stays_flat() {
    const LINES: u32 = 1_000_000;
    let (options, counter) = counting_hub();
    let world = World::with(options).await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "flood", LINES, Some(&gate)));
    eventually("the script runs", || runs(&world, "flood") == 1).await;

    world.hub.go_offline().await;
    fs::write(&gate, "").unwrap();
    eventually("the script has ended", || runner.steps().iter().any(|step| step.join("exit.json").exists()))
        .await;
    world.hub.go_online().await;
    let ended = ended_with_its_lines(&world, id, &counter).await;

    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let counter = counter.lock().unwrap();
    assert!(counter.gaps.is_empty(), "{:?}", &counter.gaps[..counter.gaps.len().min(5)]);
    assert_eq!(counter.next.get(&id), Some(&(LINES + 1)));
    let peak = runner.peak_memory();
    println!("peak memory of the runner: {:.1} MB", peak as f64 / 1e6);
    assert!(peak < 64 * 1024 * 1024, "the runner took {peak} bytes");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnects_every_second_lose_no_line_and_repeat_at_most_a_window() {
    const MOST_CUTS: usize = 40;
    const LINES: u32 = 200_000;
    const BLOCK: u32 = 2_000;
    /// `BatchSizeLimit` entries in each of the calls of a step that may be unacknowledged.
    const WINDOW: usize = 50 * 4;
    let (options, counter) = counting_hub();
    let world = World::with(options).await;
    let url = world.repository("repo", EMPTY);
    let _runner = world.runner("one");
    let mut spec = printing(&world, &url, "cuts", LINES, None);
    // Slowly enough for several disconnects.
    spec.hooks.validate_before = Some(format!(
        "for block in $(seq 0 {}); do seq -f 'line %.0f' $((block * {BLOCK} + 1)) $((block * {BLOCK} + {BLOCK})); sleep 0.1; done",
        LINES / BLOCK - 1
    ));
    let id = world.hub.submit(spec);
    let mut cuts = 0;
    let ended = {
        let ended = ended_with_its_lines(&world, id, &counter);
        tokio::pin!(ended);
        loop {
            tokio::select! {
                ended = &mut ended => break ended,
                // On a busy machine little arrives between two disconnects, so their number is limited.
                () = tokio::time::sleep(Duration::from_secs(1)), if cuts < MOST_CUTS => {
                    world.hub.drop_connections();
                    cuts += 1;
                }
            }
        }
    };
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let counter = counter.lock().unwrap();
    assert!(counter.gaps.is_empty(), "{:?}", &counter.gaps[..counter.gaps.len().min(5)]);
    assert_eq!(counter.next.get(&id), Some(&(LINES + 1)));
    println!("{cuts} cuts, {} lines repeated", counter.repeats);
    assert!(cuts >= 3, "only {cuts} cuts");
    assert!(counter.repeats <= cuts * WINDOW, "{} lines repeated in {cuts} cuts", counter.repeats);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_delay_the_lines_of_another_job() {
    let (options, counter) = counting_hub();
    let world = World::with(options).await;
    let url = world.repository("repo", EMPTY);
    let _runner = world.runner("one");
    let (gate, floodgate) = (world.path("gate"), world.path("floodgate"));
    const FLOOD: u32 = 600_000;
    let flood = world.hub.submit(printing(&world, &url, "flood", FLOOD, Some(&floodgate)));
    let quiet = world.hub.submit(printing(&world, &url, "quiet", 1, Some(&gate)));
    eventually("both scripts run", || runs(&world, "flood") + runs(&world, "quiet") == 2).await;
    fs::write(&floodgate, "").unwrap();
    eventually("the flood arrives", || (counter.lock().unwrap().next.get(&flood)? > &1000).then_some(()))
        .await;

    fs::write(&gate, "").unwrap();
    let written = std::time::Instant::now();
    eventually("the quiet line arrives", || {
        counter.lock().unwrap().next.get(&quiet).is_some_and(|next| *next > 1)
    })
    .await;
    let flooded = counter.lock().unwrap().next[&flood];
    println!(
        "the quiet line arrived after {:?}, with {flooded} of {FLOOD} lines of the flood",
        written.elapsed()
    );
    assert!(flooded < FLOOD, "the flood was over before the quiet line arrived, so this shows nothing");
    // Another test checks that a whole flood arrives.
    let ended = world.ended(quiet).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(counter.lock().unwrap().gaps.is_empty());
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_the_server_refuses_four_times_arrives_once() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let runner = world.runner("one");
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateCompleted"), refuse).times(4));
    let id = world.hub.submit(printing(&world, &url, "refused", 10, None));
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "refused"), 1);
    let results: Vec<Task> = world
        .hub
        .all_events()
        .into_iter()
        .filter_map(|event| match event.event {
            HubEvent::Result { task, .. } | HubEvent::DuplicateResult { task, .. } => Some(task),
            _ => None,
        })
        .collect();
    assert_eq!(results, [Task::GetModule, Task::Init, Task::Validate]);
    let log = runner.log();
    let refused = |line: &&str| line.contains("server refused call") && line.contains("the database is busy");
    assert_eq!(log.lines().filter(refused).count(), 1, "{}", runner.log());
    eventually("the folder is removed", || runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_acknowledgements_and_a_stalled_server_lose_nothing() {
    let world = World::with(HubOptions { keep_alive: Duration::from_secs(1), ..HubOptions::default() }).await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let _runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "stalled", 5000, Some(&gate)));
    seen(&world, id, "begin").await;
    world.hub.misbehave(Rule::new(Moment::call("AddLogs"), Fault::Forget).skip(3));
    fs::write(&gate, "").unwrap();
    // Calls after the forgotten one are not answered until the connection is closed.
    eventually("the hub forgets an answer", || world.hub.has_misbehaved()).await;
    world.hub.misbehave(Rule::new(Moment::call("AddLogs"), Fault::DropAfter).skip(5));
    world.hub.drop_connections();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_complete(&numbers(&world.messages(id)), 5000);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_megabyte_in_one_line_arrives_whole() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let _runner = world.runner("one");
    let mut spec = printing(&world, &url, "long", 1, None);
    spec.hooks.validate_before = Some("head -c 1048576 /dev/zero | tr '\\0' 'x'; echo; echo after".into());
    let id = world.hub.submit(spec);
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let messages = world.messages(id);
    let letters: usize =
        messages.iter().filter(|line| line.starts_with('x') && line.ends_with('x')).map(String::len).sum();
    assert_eq!(letters, 1_048_576);
    assert!(messages.iter().any(|line| line == "after"));
    world.assert_no_violation();
}
