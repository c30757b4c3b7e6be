//! Promises 1 to 5: the runner, the server or the line goes away in the middle of things, and nothing is lost,
//! nothing runs twice and nobody is told a lie.

mod container;
mod jobs;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_contract::requests::CancelKind;
use hawser_contract::{LogEntry, Task};
use hawser_dev_server::{
    Fault, HubEvent, HubOptions, JobKind, JobSnapshot, JobSpec, JobState, LogKeeping, Moment, Rule,
};
use rustix::process::Signal;
use uuid::Uuid;

use crate::support::eventually::{LIMIT, eventually, in_time};
use crate::support::world::{EMPTY, Runner, World, job};

/// A job that prints `lines` numbered lines in Validate, then waits for a file to appear.
fn printing(world: &World, url: &str, module: &str, lines: u32, gate: Option<&Path>) -> JobSpec {
    let tasks = vec![Task::GetModule, Task::Init, Task::Validate];
    let mut spec = job(JobKind::Tasks(tasks), url, module);
    spec.source.source_definitive_revision = Some(head(&world.path("repo")));
    let ran = world.path(&format!("{module}.ran"));
    let wait = gate.map_or_else(String::new, |gate| {
        // A script that is still waiting when its test is over ends with the test's folder.
        let folder = world.path("");
        format!("while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\n", folder.display(), gate.display())
    });
    spec.hooks.validate_before = Some(format!(
        "echo run >> '{}'\necho begin\n{wait}seq -f 'line %.0f' 1 {lines}\necho printed\n",
        ran.display()
    ));
    spec
}

fn head(repository: &Path) -> String {
    let output = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(repository)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A job whose script waits for its gate to appear, and the step folder of that. (In this order: what comes first is dropped
/// last when it is taken apart.)
struct UnderWay {
    world: World,
    runner: Runner,
    id: Uuid,
    folder: PathBuf,
    gate: PathBuf,
}

async fn under_way(module: &str, lines: u32) -> UnderWay {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, module, lines, Some(&gate)));
    seen(&world, id, "begin").await;
    let folder = validate_folder(&runner).await;
    UnderWay { world, runner, id, folder, gate }
}

/// How often the script of [`printing`] was run.
fn runs(world: &World, module: &str) -> usize {
    fs::read_to_string(world.path(&format!("{module}.ran"))).unwrap_or_default().lines().count()
}

/// Waits until a line of the job has arrived at the hub.
async fn seen(world: &World, job: Uuid, text: &str) {
    eventually(&format!("the line {text:?} arrives"), || world.messages(job).iter().any(|line| line == text))
        .await;
}

/// The numbers of the printed lines in the order in which they arrived.
fn numbers<'a>(messages: impl IntoIterator<Item = &'a String>) -> Vec<u32> {
    messages.into_iter().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect()
}

/// Repeats are allowed (at least once), gaps and disorder are not: without repeats, it is 1, 2, 3, …
fn assert_complete(arrived: &[u32], lines: u32) -> usize {
    let mut next = 1;
    let mut repeats = 0;
    for number in arrived {
        if *number == next {
            next += 1;
        } else {
            assert!(*number < next, "line {number} arrived where line {next} was to come");
            repeats += 1;
        }
    }
    assert_eq!(next, lines + 1, "the last lines did not arrive");
    repeats
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_in_the_middle_of_an_apply_delivers_every_line_and_the_result() {
    let world = World::new().await;
    let gate = world.path("gate");
    let command = format!(
        "echo run >> '{}'; seq -f 'line %.0f' 1 500; while [ ! -e '{}' ]; do sleep 0.05; done; seq -f 'line %.0f' 501 1000",
        world.path("apply.ran").display(),
        gate.display()
    );
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let mut runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "apply"));
    eventually("the apply is under way", || world.messages(id).iter().any(|line| line.contains("line 500")))
        .await;

    runner.kill();
    fs::write(&gate, "").unwrap();
    let _again = world.runner("one");
    let ended = world.ended(id).await;

    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(ended.resources, Some(1));
    assert_eq!(runs(&world, "apply"), 1);
    let lines: Vec<String> = world
        .messages(id)
        .iter()
        // Terraform puts its own colours and the resource before each line.
        .filter(|line| line.contains("(local-exec)"))
        .filter_map(|line| {
            Some(format!("line {}", line.rsplit_once("line ")?.1.trim_end_matches("\u{1b}[0m")))
        })
        .collect();
    assert_complete(&numbers(&lines), 1000);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_ends_while_runner_and_server_are_gone_is_delivered() {
    let world = World::new().await;
    let gate = world.path("gate");
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "away", 2000, Some(&gate)));
    seen(&world, id, "begin").await;

    world.hub.go_offline().await.unwrap();
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || {
        runner.steps().iter().any(|step| step.join("exit.json").exists())
    })
    .await;
    let _again = world.runner("one");
    world.hub.go_online().await.unwrap();

    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "away"), 1);
    assert_complete(&numbers(&world.messages(id)), 2000);
    world.assert_no_violation();
}

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
    let observe = move |entry: &LogEntry<'static>| {
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

/// Waits for a job's end for as long as its lines arrive: how long so many take is up to the machine.
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

    world.hub.go_offline().await.unwrap();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended", || runner.steps().iter().any(|step| step.join("exit.json").exists()))
        .await;
    world.hub.go_online().await.unwrap();
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
async fn a_cut_every_second_loses_no_line_and_repeats_at_most_a_window() {
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
    // Slowly enough that several cuts fall into it.
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
                // On a machine that is busy with other things little gets through between two cuts; there is an end to them.
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
async fn a_flood_does_not_hold_up_the_lines_of_another_job() {
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
    eventually("the flood flows", || (counter.lock().unwrap().next.get(&flood)? > &1000).then_some(())).await;

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
    // That the whole of a flood arrives is tested above.
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
    // (That it was accepted after all is said too, with the error, and may be said before or after this.)
    let log = runner.log();
    let said = log.lines().filter(|line| line.contains("the database is busy; sending again")).count();
    assert_eq!(said, 1, "{}", runner.log());
    eventually("the folder is removed", || runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_the_running_step_ships_everything_and_exits_0() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "drained", 100, Some(&gate)));
    seen(&world, id, "begin").await;

    runner.signal(Signal::TERM);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    assert!(runner.child.try_wait().unwrap().is_none());
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());

    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_complete(&numbers(&world.messages(id)), 100);
    assert!(runner.steps().is_empty());
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_though_a_result_is_refused_again_and_again_and_the_next_start_sends_it() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("refused", 10).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateCompleted"), refuse).always());
    fs::write(&gate, "").unwrap();
    eventually("the result is refused", || runner.log().contains("the database is busy")).await;
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let log = runner.log();
    let said = |line: &&str| line.contains("not everything could be shipped") && line.contains("is busy");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    assert_eq!(runner.steps().len(), 1, "{log}");

    world.hub.behave();
    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_complete(&numbers(&world.messages(id)), 10);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_refused_for_a_moment_is_shipped_before_a_drain_ends() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("moment", 1).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateCompleted"), refuse).times(4));
    runner.signal(Signal::TERM);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert!(runner.steps().is_empty(), "{}", runner.log());
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_arrives_while_draining_is_kept_for_the_next_start() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, id, "begin").await;
    runner.signal(Signal::TERM);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    let later = world.hub.submit(printing(&world, &url, "second", 1, None));
    eventually("the second job's task is kept", || runner.steps().len() == 2).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert_eq!(runner.steps().len(), 1);
    assert!(runner.log().contains("1 tasks that wait stay for the next start"), "{}", runner.log());

    let _next = world.runner("one");
    let ended = world.ended(later).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_drain_limit_the_step_is_interrupted_and_the_server_is_told() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner_with("one", &[("Runner__DrainTimeoutSeconds", "1")]);
    let never = world.path("never");
    let id = world.hub.submit(printing(&world, &url, "limit", 1, Some(&never)));
    seen(&world, id, "begin").await;
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    assert!(runner.log().contains("DrainTimeoutSeconds"));
    // Nobody has asked for it, and neither the job's log nor the audit log says so.
    let messages = world.messages(id);
    let said: Vec<_> = messages.iter().filter(|line| line.contains("interrupt sent")).collect();
    assert!(said.len() == 1 && said[0].contains("the runner is being stopped"), "{messages:#?}");
    let audit = fs::read_to_string(runner.working.join(".hawser/audit.jsonl")).unwrap();
    let lines = audit.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let cancelled = lines.filter(|line| line["event"] == "cancelled").collect::<Vec<_>>();
    assert_eq!(cancelled.len(), 1, "{audit}");
    assert!(cancelled[0]["reason"].as_str().unwrap().contains("DrainTimeoutSeconds"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_signals_at_once_are_one_wish_and_the_step_is_finished() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "once", 10, Some(&gate)));
    seen(&world, id, "begin").await;
    // Two different ones: the system may make one of two that are the same.
    runner.signal(Signal::STOP);
    runner.signal(Signal::TERM);
    runner.signal(Signal::INT);
    runner.signal(Signal::CONT);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert!(!runner.log().contains("leaving at once"), "{}", runner.log());
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    assert!(runner.steps().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_leaves_at_once_and_the_next_start_adopts_the_step() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "adopted", 100, Some(&gate)));
    seen(&world, id, "begin").await;
    runner.signal(Signal::TERM);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    // Two signals at once are one wish, so the second one is repeated until it counts.
    let left = eventually("the runner leaves", || {
        let left = runner.child.try_wait().unwrap();
        if left.is_none() {
            runner.signal(Signal::INT);
        }
        left
    });
    assert!(left.await.success());

    let _next = world.runner("one");
    world.connected(1).await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "adopted"), 1);
    assert_complete(&numbers(&world.messages(id)), 100);
    world.assert_no_violation();
}

/// A pipe that nobody writes to, in a file's place: whoever reads the file waits, as for a server of files that is away.
fn hang(world: &World, file: &Path) {
    let pipe = world.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, file).unwrap();
}

/// Two signals at once are one wish, so the second one is repeated until it counts.
async fn leaves_at_once(runner: &mut Runner) {
    runner.signal(Signal::TERM);
    eventually("the runner drains", || runner.log().contains("shutting down")).await;
    let left = eventually("the runner leaves", || {
        let left = runner.child.try_wait().unwrap();
        if left.is_none() {
            runner.signal(Signal::INT);
        }
        left
    });
    assert!(left.await.success());
    assert!(runner.log().contains("leaving at once"), "{}", runner.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_leaves_at_once_though_a_thread_hangs() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("hangs", 1).await;
    let audited = folder.join("audited.json");
    fs::rename(&audited, world.path("audited.json")).unwrap();
    hang(&world, &audited);
    fs::write(&gate, "").unwrap();
    // The last thing before the note is read.
    let scratch = runner.working.join(".temp");
    eventually("the step is concluded", || fs::read_dir(&scratch).unwrap().next().is_none()).await;

    leaves_at_once(&mut runner).await;

    fs::rename(world.path("audited.json"), &audited).unwrap();
    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "hangs"), 1);
    world.assert_no_violation();
}

/// With one thread for everything that does not wait, a wait on it would be a runner that hears nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_answer_to_a_cancel_leaves_the_runner_its_ears() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let settings = [("Runner__MaxConcurrentSteps", "1"), ("TOKIO_WORKER_THREADS", "1")];
    let mut runner = world.runner_with("one", &settings);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let id = world.hub.submit(printing(&world, &url, "waits", 1, None));
    let waiting = eventually("its first task waits", || {
        runner.steps().into_iter().find(|step| step.to_string_lossy().contains(&id.to_string()))
    })
    .await;
    // One task is taken in after the other: when the next one is, this one has its place in the queue.
    let third = world.hub.submit(printing(&world, &url, "third", 1, None));
    eventually("the next task is taken in", || {
        runner.steps().iter().any(|step| step.to_string_lossy().contains(&third.to_string()))
    })
    .await;
    hang(&world, &waiting.join("cancel.json"));
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is taken in", || {
        runner.steps().iter().any(|step| step.to_string_lossy().contains("Cancel"))
    })
    .await;
    leaves_at_once(&mut runner).await;

    // Nobody was told that it was carried out, so the next start does that.
    fs::remove_file(waiting.join("cancel.json")).unwrap();
    let _next = world.runner_with("one", &settings);
    assert_eq!(world.ended(id).await.state, JobState::Cancelled);
    assert_eq!(runs(&world, "waits"), 0);
    fs::write(&gate, "").unwrap();
    for id in [first, third] {
        assert_eq!(world.ended(id).await.state, JobState::Completed);
    }
    world.assert_no_violation();
}

/// Waits until a SIGTERM is the runner's own to answer.
async fn listens_for_signals(runner: &Runner) {
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", runner.pid())).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        (caught & (1 << (Signal::TERM.as_raw() - 1)) != 0).then_some(())
    };
    eventually("the runner listens for signals", caught).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_disk_hangs_under_the_first_look_leaves_without_a_word_to_the_server() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("first", 10).await;
    runner.kill();
    eventually("the server knows that it is gone", || world.hub.runners().is_empty()).await;
    let request = folder.join("request.json");
    fs::rename(&request, world.path("request.json")).unwrap();
    hang(&world, &request);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    listens_for_signals(&next).await;
    let mut events = world.hub.events();
    while events.try_next().is_some() {}
    next.signal(Signal::TERM);
    assert!(next.exit().await.success(), "{}", next.log());
    assert!(next.log().contains("before anything was begun"), "{}", next.log());
    while let Some(event) = events.try_next() {
        assert!(!matches!(event.event, HubEvent::Connected { .. }), "{event:?}");
    }

    fs::rename(world.path("request.json"), &request).unwrap();
    let _last = world.runner("one");
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "first"), 1);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_leaves_at_once_though_the_disk_hangs_while_steps_are_taken_up() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("second", 10).await;
    runner.kill();
    // Looked at when a step is taken up, and not before.
    let audited = folder.join("audited.json");
    fs::rename(&audited, world.path("audited.json")).unwrap();
    hang(&world, &audited);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    eventually("the step is found", || next.log().contains("left by an earlier run")).await;
    leaves_at_once(&mut next).await;

    fs::rename(world.path("audited.json"), &audited).unwrap();
    let _last = world.runner("one");
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "second"), 1);
    world.assert_no_violation();
}

/// With one thread for everything that does not wait, and a log that cannot be read, nothing else moves any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_leaves_at_once_though_the_only_thread_hangs() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("only", 10).await;
    eventually("a line is noted as acknowledged", || folder.join("shipped").exists()).await;
    runner.kill();
    let log = folder.join("output.log");
    fs::rename(&log, world.path("output.log")).unwrap();
    hang(&world, &log);

    let mut next = world.runner_with("one", &[("TOKIO_WORKER_THREADS", "1")]);
    eventually("the step is found", || next.log().contains("left by an earlier run")).await;
    leaves_at_once(&mut next).await;

    fs::rename(world.path("output.log"), &log).unwrap();
    let _last = world.runner("one");
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "only"), 1);
    world.assert_no_violation();
}

/// The step folder of a job's Validate, once its supervisor has started.
async fn validate_folder(runner: &Runner) -> PathBuf {
    eventually("the script is supervised", || {
        runner.steps().into_iter().find(|step| {
            step.to_string_lossy().ends_with(".Validate") && step.join("supervisor.json").exists()
        })
    })
    .await
}

fn supervisor_pid(folder: &Path) -> rustix::process::Pid {
    let note: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("supervisor.json")).unwrap()).unwrap();
    let pid = note["is"]["pid"].as_i64().unwrap();
    rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_went_down_gives_a_fault_that_says_the_outcome_is_unknown() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("lost", 1).await;

    // What a power cut leaves: no runner, no supervisor, no exit.
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    fs::write(&gate, "").unwrap();
    let _next = world.runner("one");

    let ended = world.ended(id).await;
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    // It was a Validate: there is no state that it could have left.
    assert!(error.message.contains("its hooks may") && !error.message.contains("errored"), "{error:?}");
    assert_eq!(runs(&world, "lost"), 1);
}

/// The note of how far the log was acknowledged may outlive lines that it speaks of: they are on different pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_went_down_and_lost_the_end_of_a_log_still_delivers_what_is_said_after_that() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("cut", 1).await;
    eventually("the line is noted as acknowledged", || folder.join("shipped").exists()).await;
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    fs::write(&gate, "").unwrap();
    let log = fs::OpenOptions::new().write(true).open(folder.join("output.log")).unwrap();
    log.set_len(3).unwrap();
    // Far enough that no line of the next start reaches it.
    fs::write(folder.join("shipped"), format!("{:020} {:020}\n", 100_000, 0)).unwrap();

    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert!(ended.error.unwrap().message.contains("unknown outcome"));
    let messages = world.messages(id);
    assert!(messages.iter().any(|line| line.contains("unknown outcome")), "{messages:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outputs_of_an_adopted_step_arrive_and_those_that_are_secret_stay_known() {
    let world = World::new().await;
    let secret = "output \"hush\" {\n  value     = \"hidden-by-its-kind\"\n  sensitive = true\n}\n";
    let url = world.repository("repo", &[("main.tf", secret)]);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "upgraded");
    spec.hooks.output_after = Some(format!(
        "echo begin; while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done",
        world.path("").display(),
        gate.display()
    ));
    let id = world.hub.submit(spec);
    seen(&world, id, "begin").await;
    let folder = runner.steps().into_iter().find(|step| step.to_string_lossy().ends_with(".Output"));
    let folder = folder.unwrap();
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || folder.join("exit.json").exists()).await;

    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let outputs = ended.outputs.unwrap();
    assert_eq!(outputs.outputs[0].value, "hidden-by-its-kind");
    // The module's next task masks it from its first line on.
    let known = runner.working.join("local/local/upgraded/.snapcd/sensitive.json");
    let known: serde_json::Value = serde_json::from_slice(&fs::read(known).unwrap()).unwrap();
    assert!(known["outputs"].to_string().contains("hidden-by-its-kind"), "{known:#}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leftovers_of_a_lost_step_are_not_touched_while_somebody_else_works_there() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("busy", 1).await;
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    let lock = fs::OpenOptions::new()
        .write(true)
        .open(runner.working.join(".hawser/locks/local/local/busy.lock"))
        .unwrap();
    // It is free as soon as the supervisor is gone.
    eventually("the module's lock", || lock.try_lock().ok()).await;
    fs::write(&gate, "").unwrap();

    let _next = world.runner("one");
    let error = world.ended(id).await.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    assert!(error.message.contains("is in use") && error.message.contains("was not looked for"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_apply_left_behind_when_the_host_went_down_is_named_and_kept_safe() {
    let world = World::new().await;
    let pid_file = world.path("terraform.pid");
    let command = format!(
        "echo $PPID > '{}'; echo started; while [ -d '{}' ]; do sleep 0.2; done",
        pid_file.display(),
        world.dir.path().display()
    );
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let mut runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "lost"));
    let terraform = eventually("the apply runs", || {
        fs::read_to_string(&pid_file).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    let folder = runner.steps().into_iter().find(|step| step.to_string_lossy().ends_with(".ApplyFromPlan"));
    let folder = folder.unwrap();

    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    let terraform = rustix::process::Pid::from_raw(terraform.trim().parse().unwrap()).unwrap();
    // It may have gone with its supervisor.
    let _ = rustix::process::kill_process(terraform, Signal::KILL);
    let place = runner.working.join("local/local/lost");
    let lock = fs::read(place.join(".terraform.tfstate.lock.info")).unwrap();
    let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
    let state = "{\"version\": 4, \"resources\": []}";
    fs::write(place.join("errored.tfstate"), state).unwrap();

    let _next = world.runner("one");
    let error = world.ended(id).await.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    assert!(error.message.contains(lock["ID"].as_str().unwrap()), "{error:?}");
    let kept: Vec<_> =
        fs::read_dir(runner.working.join(".hawser/rescued/local/local/lost")).unwrap().collect();
    let [Ok(kept)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!(fs::read_to_string(kept.path()).unwrap(), state);
    let name = kept.file_name().into_string().unwrap();
    assert!(name.contains(&id.to_string()), "{name}");
    assert!(error.message.contains(&name), "{error:?}");
    let said = eventually("the log says it too", || {
        world.messages(id).into_iter().find(|line| line.contains("state push"))
    });
    assert!(said.await.contains(&name));
    assert!(!place.join("errored.tfstate").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_pushed_again_is_reported_again_and_runs_once() {
    let world = World::with(HubOptions { redispatch_on_reconnect: true, ..HubOptions::default() }).await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let _runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "again", 10, Some(&gate)));
    seen(&world, id, "begin").await;
    for _ in 0..3 {
        let mut events = world.hub.events();
        while events.try_next().is_some() {}
        world.hub.drop_connections();
        in_time(
            "the task is pushed again",
            events.find(|event| matches!(event, HubEvent::Dispatched { again: true, .. }).then_some(())),
        )
        .await;
        in_time(
            "it is reported as running again",
            events
                .find(|event| matches!(event, HubEvent::Running { task: Task::Validate, .. }).then_some(())),
        )
        .await;
    }
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "again"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_connect_all_running_tasks_are_reported_at_once() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let _runner = world.runner("one");
    let jobs: Vec<Uuid> = ["a", "b", "c"]
        .map(|module| world.hub.submit(printing(&world, &url, module, 1, Some(&gate))))
        .into_iter()
        .collect();
    for id in &jobs {
        seen(&world, *id, "begin").await;
    }
    let mut events = world.hub.events();
    while events.try_next().is_some() {}
    world.hub.drop_connections();
    let mut reported = std::collections::HashSet::new();
    while reported.len() < 3 {
        let found = events.find(|event| match event {
            HubEvent::Running { job, .. } => Some(*job),
            _ => None,
        });
        reported.insert(in_time("the running tasks are reported", found).await);
    }
    fs::write(&gate, "").unwrap();
    for id in jobs {
        assert_eq!(world.ended(id).await.state, JobState::Completed);
    }
    world.assert_no_violation();
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
    // Nothing is answered behind the forgotten call until the line is cut.
    eventually("the hub forgets an answer", || {
        let forgot = |event: &hawser_dev_server::Recorded| matches!(event.event, HubEvent::Misbehaved { .. });
        world.hub.all_events().iter().any(forgot)
    })
    .await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_step_folder_is_set_aside_and_the_rest_goes_on() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("good", 10).await;
    runner.kill();
    let bad = folder.parent().unwrap().join("refresh.0123456789ab");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("request.json"), "{ not json").unwrap();

    let next = world.runner("one");
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(!bad.exists());
    assert!(next.log().contains("set aside"), "{}", next.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_folder_somebody_removed_holds_up_neither_other_steps_nor_a_drain() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let never = world.path("never");
    let mut runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "1")]);
    let id = world.hub.submit(printing(&world, &url, "removed", 1, Some(&never)));
    seen(&world, id, "begin").await;
    let folder = validate_folder(&runner).await;
    let supervisor = supervisor_pid(&folder);
    eventually("what the server has is noted", || folder.join("shipped").exists()).await;
    // In one go: the runner and the supervisor work in it.
    fs::rename(&folder, world.path("removed")).unwrap();
    rustix::process::kill_process(supervisor, Signal::KILL).unwrap();

    // Its slot is free again.
    let other = world.hub.submit(printing(&world, &url, "other", 1, None));
    assert_eq!(world.ended(other).await.state, JobState::Completed);
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    let log = runner.log();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let said = |line: &&str| line.contains("ERROR") && line.contains(name) && line.contains("is gone");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
}

/// Makes a file of a step's folder one that cannot be read for the moment, as one is with too many open files: a socket.
fn block(world: &World, file: &Path) {
    // A socket is bound by a short name only.
    let socket = world.path("s");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    fs::rename(&socket, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_be_looked_at_for_the_moment_is_taken_up_when_it_can() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("later", 10).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);

    let next = world.runner("one");
    eventually("it cannot be looked at", || next.log().contains("could not be looked at")).await;
    world.connected(1).await;
    fs::write(&gate, "").unwrap();
    eventually("the script has ended", || folder.join("exit.json").exists()).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "later"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    eventually("the folder is removed", || next.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_disk_goes_away_before_it_can_be_looked_at_is_not_called_damaged() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("away", 10).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);
    let next = world.runner_with("one", &[("Logging__LogLevel__Default", "Debug")]);
    eventually("it cannot be looked at", || next.log().contains("could not be looked at")).await;

    let steps = folder.parent().unwrap();
    let away = steps.with_file_name("away");
    fs::rename(steps, &away).unwrap();
    eventually("it is looked at again", || next.log().contains("its disk is away")).await;
    fs::rename(&away, steps).unwrap();
    fs::remove_file(&blocked).unwrap();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "away"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    assert!(!next.log().contains("set aside"), "{}", next.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_step_that_cannot_be_looked_at_for_the_moment() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("later", 1).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);

    let next = world.runner("one");
    eventually("it cannot be looked at", || next.log().contains("could not be looked at")).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the script has ended", || folder.join("exit.json").exists()).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    eventually("the folders are removed", || next.steps().is_empty()).await;
    world.assert_no_violation();
}

/// A cancel that could not be noted everywhere is not answered before it is: otherwise nobody would know of it after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_cannot_be_noted_for_the_moment_is_carried_out_when_it_can() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let one_slot = [("Runner__MaxConcurrentSteps", "1")];
    let mut runner = world.runner_with("one", &one_slot);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let id = world.hub.submit(printing(&world, &url, "waits", 1, None));
    let waiting = eventually("its first task waits", || {
        runner.steps().into_iter().find(|step| step.to_string_lossy().contains(&id.to_string()))
    })
    .await;
    runner.kill();
    let blocked = waiting.join("cancel.json");
    block(&world, &blocked);

    let next = world.runner_with("one", &one_slot);
    eventually("it cannot be looked at", || next.log().contains("could not be looked at")).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("it cannot be noted", || next.log().contains("could not be carried out")).await;
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(first).await.state, JobState::Completed);
    assert_eq!(runs(&world, "waits"), 0);
    eventually("the folders are removed", || next.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_of_a_task_whose_folder_was_damaged() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("damaged", 1).await;
    runner.kill();
    fs::write(folder.join("request.json"), "{ not json").unwrap();

    let next = world.runner("one");
    let ended = world.ended(id).await;
    fs::write(&gate, "").unwrap();
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome") && error.message.contains("damaged"), "{error:?}");
    assert_eq!(runs(&world, "damaged"), 1);
    eventually("the answer's folder is removed", || next.steps().is_empty()).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_of_a_task_whose_folder_is_damaged_while_the_runner_runs() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("damaged", 1).await;
    runner.kill();
    let blocked = folder.join("outcome.json");
    block(&world, &blocked);
    let next = world.runner("one");
    eventually("it cannot be looked at", || next.log().contains("could not be looked at")).await;
    world.connected(1).await;

    fs::write(folder.join("request.json"), "{ not json").unwrap();
    fs::remove_file(&blocked).unwrap();
    let ended = world.ended(id).await;
    fs::write(&gate, "").unwrap();
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome") && error.message.contains("damaged"), "{error:?}");
    assert_eq!(runs(&world, "damaged"), 1);
    eventually("the answer's folder is removed", || next.steps().is_empty()).await;
    world.assert_no_violation();
}

/// An answer has no log, and without its outcome there is nothing left of it but the name of its folder.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_told_of_an_answer_that_is_damaged_while_it_is_refused() {
    let world = World::with(HubOptions { acknowledge_unknown_jobs: true, ..HubOptions::default() }).await;
    let runner = world.runner("one");
    world.connected(1).await;
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("ValidateFaulted"), refuse).always());
    let unknown = Uuid::from_u128(42);
    // A payload that cannot be read.
    world.hub.push("one", "Validate", vec![serde_json::json!({"jobId": unknown, "metadata": 7})]).unwrap();
    eventually("the answer is refused", || runner.log().contains("the database is busy")).await;
    let [folder] = runner.steps().try_into().unwrap();
    fs::write(folder.join("outcome.json"), "{ not json").unwrap();
    eventually("what it was is set aside, and an answer that says so is there", || {
        let outcome = fs::read_to_string(folder.join("outcome.json")).ok()?;
        outcome.contains("unknown outcome: the runner's record of this task was damaged").then_some(())
    })
    .await;
    assert!(runner.log().contains("was set aside"), "{}", runner.log());
    world.hub.behave();
    eventually("the server is told", || {
        let told = |event: &hawser_dev_server::Recorded| matches!(event.event, HubEvent::UnknownJob { job, .. } if job == unknown);
        world.hub.all_events().iter().any(told)
    })
    .await;
    eventually("the answer's folder is removed", || runner.steps().is_empty()).await;
}

/// The name of a host or container that was made anew.
#[tokio::test(flavor = "multi_thread")]
async fn steps_that_another_instance_left_are_warned_about_and_those_of_a_running_one_are_not() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("left", 1).await;
    let working = runner.working.display().to_string();
    let temp = runner.working.join(".temp").display().to_string();
    let same_place = [
        ("WorkingDirectory__WorkingDirectory", working.as_str()),
        ("WorkingDirectory__TempDirectory", temp.as_str()),
    ];
    const WARNING: &str = "that the server has still to be told of";
    let mut beside = world.runner_with("beside", &same_place);
    world.connected(2).await;
    assert!(!beside.log().contains(WARNING), "{}", beside.log());
    beside.kill();

    runner.kill();
    let after = world.runner_with("after", &same_place);
    let line = eventually("it is warned", || {
        let log = after.log();
        log.lines().find(|line| line.contains(WARNING)).map(str::to_owned)
    })
    .await;
    let place = working + "/.hawser/" + &world.hub.identity().runner_id.to_string() + "/one";
    let words = ["WARN", place.as_str(), "steps (1)", "Runner.Instance set to \"one\""];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");

    // What it says to do helps.
    let _again = world.runner("one");
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "left"), 1);
    assert_eq!(after.log().matches(WARNING).count(), 1, "{}", after.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_cancel_reaches_the_engine_and_cancelled_means_that_nothing_runs_any_more() {
    let world = World::new().await;
    let pid_file = world.path("sleeper.pid");
    let command = format!("echo $$ > '{}'; echo started; exec sleep 600", pid_file.display());
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "cancelled"));
    eventually("the provisioner sleeps", || world.messages(id).iter().any(|line| line.ends_with("started")))
        .await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let sleeper = fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new(&format!("/proc/{}", sleeper.trim())).exists(), "the provisioner still runs");
    let messages = world.messages(id).join("\n");
    assert!(messages.to_lowercase().contains("interrupt"), "{messages}");
    assert!(!messages.contains("Two interrupts"), "{messages}");
    let state = fs::read(runner.working.join("local/local/cancelled/terraform.tfstate")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(state["resources"][0]["name"], "slow", "{state:#}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_the_whole_tree_even_what_left_the_process_group() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let _runner = world.runner("one");
    let pid_file = world.path("daemon.pid");
    let mut spec = printing(&world, &url, "killed", 1, None);
    spec.hooks.validate_before = Some(format!(
        "trap '' INT TERM\nsetsid bash -c 'trap \"\" INT TERM; echo $$ > \"{}\"; while true; do sleep 1; done' &\necho begin\nwhile true; do sleep 1; done",
        pid_file.display()
    ));
    let id = world.hub.submit(spec);
    seen(&world, id, "begin").await;
    let daemon = eventually("the daemon runs", || {
        fs::read_to_string(&pid_file).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    world.hub.cancel(id, CancelKind::Kill).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    assert!(!Path::new(&format!("/proc/{}", daemon.trim())).exists(), "the daemon still runs");
    let answered = |event: &hawser_dev_server::Recorded| {
        matches!(event.event, HubEvent::CancelAnswered { kind: CancelKind::Kill, .. })
    };
    eventually("the cancel is answered", || world.hub.all_events().iter().any(answered)).await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_outlives_a_restart_of_the_runner() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("cancelled", 1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is noted", || folder.join("cancel.json").exists()).await;
    runner.kill();
    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    world.assert_no_violation();
}

/// A script hears of a cancel from its folder only. What cannot be noted there must not be called done.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_cannot_be_noted_is_answered_only_when_it_can() {
    let UnderWay { world, runner, id, folder, .. } = under_way("cancelled", 1).await;
    // A link to itself: neither root nor anybody else can read it, and the supervisor sees no cancel in it. (A folder would be one to it,
    // which wants something that it cannot read.)
    std::os::unix::fs::symlink("cancel.json", folder.join("cancel.json")).unwrap();
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("it is tried again", || runner.log().contains("is tried again")).await;
    let is_answer = |event: &hawser_dev_server::Recorded| matches!(&event.event, HubEvent::CancelAnswered { job, .. } if *job == id);
    assert!(!world.hub.all_events().iter().any(is_answer), "nobody has heard of the cancel");
    assert!(!folder.join("exit.json").exists(), "the script has not heard of it either");

    fs::remove_file(folder.join("cancel.json")).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    eventually("the cancel is answered", || world.hub.all_events().iter().any(is_answer)).await;
    world.assert_no_violation();
}

/// The runner died between taking a cancel in and passing it on.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_taken_in_is_carried_out_and_answered_by_the_next_start() {
    let UnderWay { world, mut runner, id, folder, .. } = under_way("cancelled", 1).await;
    runner.kill();
    let taken = folder.parent().unwrap().join(format!("{id}.CancelGraceful.{}", Uuid::from_u128(7).simple()));
    fs::create_dir(&taken).unwrap();
    let request = serde_json::json!({"version": 1, "is": {
        "sequence": 1000, "received": "2026-11-03T12:00:00Z", "method": "CancelGraceful", "payload": {"jobId": id},
    }});
    fs::write(taken.join("request.json"), request.to_string()).unwrap();

    let _next = world.runner("one");
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    // This hub did not ask for it, and says so.
    eventually("the cancel is answered", || {
        let answer = |event: &hawser_dev_server::Recorded| match &event.event {
            HubEvent::CancelAnswered { job, .. } => *job == id,
            HubEvent::Violation { method, .. } => method == "CancelGracefulCompleted",
            _ => false,
        };
        world.hub.all_events().iter().any(answer)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_step_is_cancelled_at_once_and_never_claimed() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "1")]);
    let first = world.hub.submit(printing(&world, &url, "first", 1, Some(&gate)));
    seen(&world, first, "begin").await;
    let waiting = world.hub.submit(printing(&world, &url, "waiting", 1, None));
    eventually("the second job's task is kept", || runner.steps().len() == 2).await;
    world.hub.cancel(waiting, CancelKind::Graceful).unwrap();
    let ended = world.ended(waiting).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let claimed = |event: &hawser_dev_server::Recorded| matches!(event.event, HubEvent::Running { job, .. } if job == waiting);
    assert!(!world.hub.all_events().iter().any(claimed));
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(first).await.state, JobState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_for_an_unknown_job_is_answered() {
    let world = World::new().await;
    let _runner = world.runner("one");
    world.connected(1).await;
    let mut events = world.hub.events();
    let unknown = Uuid::from_u128(42);
    world.hub.push("one", "CancelGraceful", vec![serde_json::json!({"jobId": unknown})]).unwrap();
    // A strict hub does not know the job either: it records the call, whatever it thinks of it.
    let called = events.find(|event| match event {
        HubEvent::CancelAnswered { job, .. } if *job == unknown => Some(()),
        HubEvent::UnknownJob { job, .. } if *job == unknown => Some(()),
        HubEvent::Violation { method, .. } if method == "CancelGracefulCompleted" => Some(()),
        _ => None,
    });
    in_time("the cancel is answered", called).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cancel_is_answered_even_while_an_earlier_answer_is_on_its_way() {
    let world = World::with(HubOptions { acknowledge_unknown_jobs: true, ..HubOptions::default() }).await;
    let runner = world.runner("one");
    world.connected(1).await;
    let unknown = Uuid::from_u128(42);
    let refuse = Fault::Refuse("the database is busy".into());
    world.hub.misbehave(Rule::new(Moment::call("CancelGracefulCompleted"), refuse));
    let cancel = || {
        world.hub.push("one", "CancelGraceful", vec![serde_json::json!({"jobId": unknown})]).unwrap();
    };
    cancel();
    // The answer was refused and is kept, to be sent again.
    eventually("the first answer is refused", || runner.log().contains("the database is busy")).await;
    cancel();
    eventually("both are answered", || {
        let answered =
            |event: &hawser_dev_server::Recorded| matches!(event.event, HubEvent::UnknownJob { job, .. } if job == unknown);
        world.hub.all_events().iter().filter(|event| answered(event)).count() == 2
    })
    .await;
    eventually("the folders are removed", || runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_does_not_deny_what_a_script_did_that_only_waits_to_be_concluded() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("done", 1).await;
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || folder.join("exit.json").exists()).await;

    // Another process works in the module's directory.
    let lock = runner.working.join(".hawser/locks/local/local/done.lock");
    let lock = fs::OpenOptions::new().write(true).open(lock).unwrap();
    eventually("the supervisor has let go", || lock.try_lock().ok()).await;
    let next = world.runner("one");
    eventually("the step is found again", || next.log().contains("left by an earlier run")).await;
    world.connected(1).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    eventually("the cancel is noted", || folder.join("cancel.json").exists()).await;
    drop(lock);

    let result = eventually("the step's result arrives", || {
        world.hub.all_events().into_iter().find_map(|event| match event.event {
            HubEvent::Result { task: Task::Validate, call, .. } => Some(call.method),
            _ => None,
        })
    })
    .await;
    assert_eq!(result, "ValidateCompleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_drain_limit_a_waiting_step_stays_and_a_server_that_is_away_keeps_nobody() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let never = world.path("never");
    let settings = [("Runner__DrainTimeoutSeconds", "1"), ("Runner__MaxConcurrentSteps", "1")];
    let mut runner = world.runner_with("one", &settings);
    let running = world.hub.submit(printing(&world, &url, "running", 1, Some(&never)));
    seen(&world, running, "begin").await;
    let waiting = world.hub.submit(printing(&world, &url, "waiting", 1, None));
    eventually("the second job's task is kept", || runner.steps().len() == 2).await;
    world.hub.go_offline().await.unwrap();
    runner.signal(Signal::TERM);
    assert!(runner.exit().await.success(), "{}", runner.log());
    assert_eq!(runner.steps().len(), 2, "{}", runner.log());

    let _next = world.runner("one");
    world.hub.go_online().await.unwrap();
    assert_eq!(world.ended(running).await.state, JobState::Cancelled);
    assert_eq!(world.ended(waiting).await.state, JobState::Completed);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_hears_ready_after_the_recovery_and_of_the_drain() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let socket = std::os::unix::net::UnixDatagram::bind(world.path("notify")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut heard = String::new();
    let mut hear = || {
        let mut datagram = [0; 1024];
        while let Ok(length) = socket.recv(&mut datagram) {
            heard.push_str(&String::from_utf8_lossy(&datagram[..length]));
            heard.push('\n');
        }
        heard.clone()
    };
    let notify = world.path("notify").display().to_string();
    let settings = [("NOTIFY_SOCKET", notify.as_str())];
    let mut runner = world.runner_with("one", &settings);
    eventually("it is ready", || hear().contains("READY=1")).await;
    let id = world.hub.submit(printing(&world, &url, "drained", 1, Some(&gate)));
    seen(&world, id, "begin").await;

    // One that cannot have the step folders was never ready.
    let ready = hear().matches("READY=1").count();
    let mut second = world.runner_with("one", &settings);
    assert!(!second.exit().await.success());
    assert_eq!(hear().matches("READY=1").count(), ready);

    runner.signal(Signal::TERM);
    eventually("the drain is told", || {
        let heard = hear();
        heard.contains("STOPPING=1") && heard.contains("STATUS=shutting down; connected; 1 running")
    })
    .await;
    fs::write(&gate, "").unwrap();
    assert!(runner.exit().await.success(), "{}", runner.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_has_scratch_space_of_its_own_and_none_is_left() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let mut spec = printing(&world, &url, "scratch", 1, None);
    spec.hooks.validate_before = Some(format!(
        "ls -A \"$TMPDIR\" | wc -l\ntouch \"$TMPDIR/left\"\necho \"scratch $TMPDIR\"\nwhile [ ! -e '{}' ]; do sleep 0.05; done\n\
         [ -e \"$TMPDIR/left\" ] && echo still there\n",
        gate.display()
    ));
    let id = world.hub.submit(spec);
    let scratch = eventually("the script says where", || {
        world.messages(id).iter().find_map(|line| Some(PathBuf::from(line.strip_prefix("scratch ")?)))
    })
    .await;
    let temp = runner.working.join(".temp");
    assert!(scratch.starts_with(&temp) && scratch.join("left").exists());
    assert!(world.messages(id).iter().any(|line| line.trim() == "0"));

    // What an ended step has left goes at the next start, what a running one uses stays.
    runner.kill();
    let name = scratch.file_name().unwrap().to_str().unwrap();
    let leftover = temp.join(format!("{}-0123456789ab", name.split_once('-').unwrap().0));
    fs::create_dir(&leftover).unwrap();
    let _next = world.runner("one");
    eventually("the leftover is removed", || !leftover.exists()).await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(world.messages(id).iter().any(|line| line == "still there"));
    eventually("the scratch space is removed", || !scratch.exists()).await;
}
