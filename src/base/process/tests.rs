use std::time::Instant;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::base::process::*;

/// Some CI systems start the tests with SIGINT ignored (`nohup … &`). An ignored signal stays ignored in child processes,
/// and bash cannot even trap it. A caught signal does not, so this catches it, as the supervisor does.
pub(crate) fn heed_interrupts() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    if ignored & (1 << (Signal::INT.as_raw() - 1)) != 0 {
        // The handler stays installed. This needs a thread, because a runtime must not be dropped inside another one.
        let caught = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _inside = runtime.enter();
            drop(signal(SignalKind::interrupt()).unwrap());
        });
        caught.join().unwrap();
    }
}

fn bash(script: &str) -> Tool {
    Tool::new("/bin/bash", "run a test").args(["-c", script])
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Zombies do not count.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

#[tokio::test]
async fn stdout_is_captured_without_stderr() {
    let tool = bash("echo out; echo one >&2; echo two >&2");
    let output = tool.run(&CancellationToken::new()).await.unwrap();
    assert_eq!(output.stdout().unwrap(), b"out\n");
}

#[tokio::test]
async fn a_failure_names_the_program_the_purpose_the_code_and_the_last_lines() {
    let error = bash("echo 'secret went wrong' >&2; exit 3")
        .clean_lines(|line| line.replace("secret", "***"))
        .run(&CancellationToken::new())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(error, "bash failed to run a test: exit code 3\n*** went wrong");
}

#[tokio::test]
async fn text_on_stderr_is_not_a_failure_and_stdin_is_empty() {
    let output = bash("echo 'error: all is lost' >&2; cat; echo done").run(&CancellationToken::new()).await;
    assert_eq!(output.unwrap().text().unwrap(), "done\n");
}

#[tokio::test]
async fn a_missing_program_cannot_be_started() {
    let error = Tool::new("/no/such/program", "try").run(&CancellationToken::new()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "program could not try: cannot start it: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn a_cancel_interrupts_first_and_returns_when_the_whole_group_is_gone() {
    heed_interrupts();
    let folder = tempfile::tempdir().unwrap();
    let (pids, seen) = (folder.path().join("pids"), folder.path().join("interrupted"));
    let script = format!(
        "trap 'echo yes > \"{seen}\"' INT; bash -c \"trap '' INT; exec sleep 1000\" & echo $! $$ > '{pids}.new'; mv '{pids}.new' '{pids}'; while true; do sleep 1; done",
        seen = seen.display(),
        pids = pids.display()
    );
    let cancel = CancellationToken::new();
    let tool = bash(&script);
    let run = tokio::spawn({
        let cancel = cancel.clone();
        async move { tool.run(&cancel).await }
    });
    wait_for("the child to start", || pids.exists()).await;
    cancel.cancel();
    assert!(run.await.unwrap().unwrap_err().is_cancelled());
    assert!(seen.exists(), "the program was not interrupted before it was killed");
    for pid in std::fs::read_to_string(&pids).unwrap().split_whitespace() {
        assert!(!runs(pid), "{pid} is still running");
    }
}

#[tokio::test]
async fn a_run_that_times_out_is_stopped() {
    let error = bash("echo waiting >&2; sleep 1000")
        .timeout(Duration::from_millis(300))
        .run(&CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, ProcessError::Stopped { stop: Stop::TimedOut(_), .. }), "{error}");
}

#[tokio::test]
async fn a_run_that_prints_too_much_is_stopped() {
    let error = bash("yes").max_stdout(10_000).run(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, ProcessError::Stopped { stop: Stop::TooMuchOutput(10_000), .. }), "{error}");
    let exact = bash("head -c 10000 /dev/zero").max_stdout(10_000).run(&CancellationToken::new()).await;
    assert_eq!(exact.unwrap().stdout().unwrap().len(), 10_000);
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipes_open_does_not_block_the_run() {
    // The redirection of the grandchild, and whether the output counts as complete.
    for (kept, is_complete) in [("", false), (" 2>/dev/null", false), (" >/dev/null", true)] {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("setsid sleep 1000{kept} & echo $! > '{}'; echo done", pid.display());
        let output = bash(&script).run(&CancellationToken::new()).await;
        let pid = std::fs::read_to_string(pid).unwrap();
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        match output.unwrap().text() {
            Ok(text) => assert_eq!((text.as_str(), is_complete), ("done\n", true), "{kept}"),
            Err(error) => {
                let unfinished = matches!(error, ProcessError::Stopped { stop: Stop::Unfinished, .. });
                assert!(!is_complete && unfinished, "{kept}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; sleep 1000", file.display());
    let run = tokio::spawn(async move { bash(&script).run(&CancellationToken::new()).await });
    wait_for("the child to start", || file.exists()).await;
    run.abort();
    let pid = std::fs::read_to_string(&file).unwrap();
    wait_for("the child to be gone", || !runs(&pid)).await;
}
