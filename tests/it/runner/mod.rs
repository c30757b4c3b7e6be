//! Promises 1 to 5: the runner, the server or the connection fails at any moment, and nothing is lost, runs twice or is
//! reported wrongly.

mod adopt;
mod cancel;
mod claims;
mod container;
mod damage;
mod dispatch;
mod drain;
mod hanging_disk;
mod jobs;
mod lost;
mod outage;
mod scripted;

use std::fs;
use std::path::{Path, PathBuf};

use hawser_contract::Task;
use hawser_dev_server::{JobKind, JobSpec};
use rustix::process::Signal;
use uuid::Uuid;

use crate::support::eventually::eventually;
use crate::support::git::git_in;
use crate::support::world::{EMPTY, Runner, World, job};

/// A job that prints `lines` numbered lines in Validate, then waits for a file to appear.
fn printing(world: &World, url: &str, module: &str, lines: u32, gate: Option<&Path>) -> JobSpec {
    let tasks = vec![Task::GetModule, Task::Init, Task::Validate];
    let mut spec = job(JobKind::Tasks(tasks), url, module);
    spec.source.source_definitive_revision = Some(git_in(&world.path("repo"), &["rev-parse", "HEAD"]));
    let ran = world.path(&format!("{module}.ran"));
    let wait = gate.map_or_else(String::new, |gate| {
        // A script that still waits when its test is over ends with the test's folder.
        let folder = world.path("");
        format!("while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\n", folder.display(), gate.display())
    });
    spec.hooks.validate_before = Some(format!(
        "echo run >> '{}'\necho begin\n{wait}seq -f 'line %.0f' 1 {lines}\necho printed\n",
        ran.display()
    ));
    spec
}

/// A job whose script waits for its gate to appear, and its step folder. (The order matters for dropping.)
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

/// Asks the runner to shut down, and waits until it does.
async fn drain(runner: &Runner) {
    runner.signal(Signal::TERM);
    drains(runner).await;
}

async fn drains(runner: &Runner) {
    eventually("the runner drains", || {
        ["draining", "shutting down"].iter().any(|text| runner.log().contains(text))
    })
    .await;
}

/// Two signals at once count as one, so the second one is repeated until it counts.
async fn leaves_at_once(runner: &mut Runner) {
    drain(runner).await;
    let left = eventually("the runner leaves", || {
        let left = runner.child.try_wait().unwrap();
        if left.is_none() {
            runner.signal(Signal::INT);
        }
        left
    });
    assert!(left.await.success());
    assert!(runner.log().contains("exiting now"), "{}", runner.log());
}

/// Waits until the runner has found the steps to recover.
async fn finds_steps(runner: &Runner) {
    eventually("the step is found", || runner.log().contains("recovering steps")).await;
}

/// Waits until the runner has tried to recover a step that cannot be read.
async fn cannot_look(runner: &Runner) {
    eventually("it cannot be recovered", || runner.log().contains("failed to recover step")).await;
}

/// Waits until the hub has refused a call on purpose.
async fn refused(world: &World) {
    eventually("a call is refused", || world.hub.has_misbehaved()).await;
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
