//! In a pid namespace of its own, as in a container: the group and the session that the runner was started in may have no
//! number there, and `/proc` may be that of another namespace.

use std::process::{Command, Stdio};

use rustix::process::{Pid, getsid};

use super::*;

const OWN_PROC: &[&str] = &["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
const OTHER_PROC: &[&str] = &["--user", "--map-root-user", "--pid", "--fork"];

/// Runs one of the tests below that are ignored, in a namespace; says so where that is not allowed.
async fn run_in(namespace: &'static [&'static str], test: &'static str) {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(namespace).stdin(Stdio::null());
        command
    };
    match unshare().arg("true").output() {
        Ok(tried) if tried.status.success() => {}
        tried => {
            eprintln!("SKIPPED: no pid namespace can be made here: {tried:?}");
            return;
        }
    }
    let test = format!("supervisor::namespace::{test}");
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap()).args(["--exact", &test, "--ignored", "--nocapture"]);
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_step_runs_in_a_session_of_its_own_though_the_runners_group_has_no_number() {
    run_in(OWN_PROC, "with_its_own_proc").await;
}

#[tokio::test]
async fn what_a_script_leaves_in_its_group_is_ended_though_proc_shows_other_processes() {
    run_in(OTHER_PROC, "with_the_proc_of_another").await;
}

#[tokio::test]
#[ignore = "run in a pid namespace by a test here"]
async fn with_its_own_proc() {
    // The daemon has left the script's session, and is found all the same.
    let script = format!("touch started; {AWAIT_GO} setsid sleep 300 & sleep 301 & echo out; exit 3");
    let step = Step::new(&script);
    let supervisor = Pid::from_raw(i32::try_from(step.launch()).unwrap()).unwrap();
    step.until_written("started").await;
    assert_eq!(getsid(Some(supervisor)), Ok(supervisor));
    step.go();
    step.wait().await;
    assert_eq!(step.exit().code, Some(3));
    assert_eq!(step.stdout(), ["out"]);
    let warnings = step.lines(Stream::Warning);
    assert!(warnings.len() == 1 && warnings[0].contains("2 processes (sleep"), "{warnings:?}");
}

#[tokio::test]
#[ignore = "run in a pid namespace by a test here"]
async fn with_the_proc_of_another() {
    let script =
        "setsid sleep 300 >/dev/null 2>&1 & echo $! >daemon; sleep 301 & echo $! >left; echo out; exit 3";
    let step = Step::new(script);
    let exit = step.run().await;
    assert_eq!(exit.code, Some(3));
    assert_eq!(step.stdout(), ["out"]);
    let warnings = step.lines(Stream::Warning);
    assert!(warnings.iter().any(|line| line.contains("another pid namespace")), "{warnings:?}");
    let lives = |pid: i32| rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_ok();
    assert!(!lives(step.pid("left").await));
    assert!(
        lives(step.pid("daemon").await),
        "it has left the group, and nothing tells that it belongs to the step"
    );
}
