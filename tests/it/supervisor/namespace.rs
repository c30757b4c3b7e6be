//! The supervisor in a separate PID namespace, as in a container: the runner's group and session may have no number there, and
//! `/proc` may belong to another namespace.

use std::process::{Command, Stdio};

use rustix::process::{Pid, getsid};

use super::*;

const OWN_PROC: &[&str] = &["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
const OTHER_PROC: &[&str] = &["--user", "--map-root-user", "--pid", "--fork"];

/// Runs one of the ignored tests below in a namespace, or skips it where that is not allowed.
async fn run_in(namespace: &'static [&'static str], test: &'static str) {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(namespace).stdin(Stdio::null());
        command
    };
    match unshare().arg("true").output() {
        Ok(tried) if tried.status.success() => {}
        tried => {
            eprintln!("SKIPPED: cannot create a PID namespace: {tried:?}");
            return;
        }
    }
    let test = format!("supervisor::namespace::{test}");
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap()).args(["--exact", &test, "--ignored", "--nocapture"]);
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let output =
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && output.contains("1 passed"), "{output}");
}

#[tokio::test]
async fn a_step_gets_its_own_session_although_the_runners_group_has_no_number() {
    run_in(OWN_PROC, "with_its_own_proc").await;
}

#[tokio::test]
async fn leftovers_in_the_group_are_ended_although_proc_shows_other_processes() {
    run_in(OTHER_PROC, "with_the_proc_of_another").await;
}

#[tokio::test]
#[ignore = "run in a PID namespace by another test"]
async fn with_its_own_proc() {
    // The daemon has left the script's session, but it is still found.
    let script = format!("touch started; {AWAIT_GO} setsid sleep 300 & sleep 301 & echo out; exit 3");
    let step = Step::new(&script);
    let supervisor = Pid::from_raw(i32::try_from(step.launch()).unwrap()).unwrap();
    step.until_written("started").await;
    assert_eq!(getsid(Some(supervisor)), Ok(supervisor));
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(3));
    assert_eq!(step.stdout(), ["out"]);
    let warnings = step.lines(Stream::Warning);
    assert!(warnings.len() == 1 && warnings[0].contains("2 processes (sleep"), "{warnings:?}");
}

#[tokio::test]
#[ignore = "run in a PID namespace by another test"]
async fn with_the_proc_of_another() {
    let script =
        "setsid sleep 300 >/dev/null 2>&1 & echo $! >daemon; sleep 301 & echo $! >left; echo out; exit 3";
    let step = Step::new(script);
    let exit = step.run().await;
    assert_eq!(exit, Exit::Code(3));
    assert_eq!(step.stdout(), ["out"]);
    let warnings = step.lines(Stream::Warning);
    assert!(warnings.iter().any(|line| line.contains("another PID namespace")), "{warnings:?}");
    let lives = |pid: i32| rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_ok();
    assert!(!lives(step.pid("left").await));
    assert!(lives(step.pid("daemon").await), "it has left the group, so it is not found");
}
