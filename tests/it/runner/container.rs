//! The runner as process 1 of a container, without an init process.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::eventually::eventually;
use crate::support::processes::{Process, below};
use crate::support::world::{HAWSER, Runner, World};

/// Starts a command as process 1 of a PID namespace with its own `/proc`.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .stdin(Stdio::null());
    command
}

fn possible() -> bool {
    let tried = unshare().arg("true").output();
    let possible = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !possible {
        eprintln!("SKIPPED: no pid namespace can be made here: {tried:?}");
    }
    possible
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_as_process_1_reaps_orphans_and_handles_signals() {
    if !possible() {
        return;
    }
    let world = World::new().await;
    let (gate, working) = (world.path("gate"), world.path("work"));
    // The subshell exits at once, so the loop is an orphan when the runner becomes process 1.
    let script = format!(
        "(while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done &); exec '{HAWSER}' run",
        world.dir.path().display(),
        gate.display()
    );
    let log = world.path("one.log");
    let out = fs::File::create(&log).unwrap();
    let mut command = unshare();
    command
        .args(["bash", "-c", &script])
        .current_dir(world.dir.path())
        .env("WorkingDirectory__WorkingDirectory", &working)
        .env("WorkingDirectory__TempDirectory", working.join(".temp"))
        .envs(world.hub.identity().runner_variables(&world.hub.url(), "one"))
        .stdout(out.try_clone().unwrap())
        .stderr(out);
    let mut runner = Runner::start(command, working, log);
    world.connected(1).await;
    let of_name = |name: &str| -> Vec<Process> {
        below(runner.pid()).into_iter().filter(|process| process.name == name).collect()
    };
    // While it starts a command, there are two processes of that name for a moment.
    assert!(!of_name("bash").is_empty(), "the orphan is there");

    fs::write(&gate, "").unwrap();
    eventually("the orphan is gone, and no zombie is left of it", || of_name("bash").is_empty()).await;

    let first = of_name("hawser").iter().map(|process| process.pid).min().unwrap();
    kill_process(Pid::from_raw(i32::try_from(first).unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(runner.exit().await.code(), Some(0));
    assert!(runner.log().contains("drained"), "{}", runner.log());
}

#[test]
fn a_failed_runner_as_process_1_exits_with_its_code() {
    if !possible() {
        return;
    }
    let empty = tempfile::tempdir().unwrap();
    let done = unshare().args([HAWSER, "run"]).current_dir(empty.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(78), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(said.matches("problems with the settings").count(), 1, "{said}");
}
