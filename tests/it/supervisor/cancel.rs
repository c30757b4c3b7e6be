//! Cancels and signals.

use rustix::process::Signal;

use super::*;

/// An engine that counts its interrupts and shuts down slowly, as terraform does. Not in Python, which loses an interrupt
/// that arrives while it cleans up its imports.
const COUNTING: &str = "trap 'echo interrupt >>counted' INT; trap 'echo terminated >>counted' TERM
: >engine-started
until [ -e counted ]; do sleep 0.01; done
sleep \"$0\"; exit \"$1\"";

/// A step whose engine takes a while to shut down after an interrupt, and then exits with a code.
fn counting<'a>(hook: &'a str, code: &str, after: Option<Hook<'a>>) -> Script<'a> {
    script(before(hook), &["sh", "-c", COUNTING, "0.5", code], after)
}

impl Step {
    fn signals(&self) -> Vec<String> {
        let counted = fs::read_to_string(self.work.join("counted")).unwrap_or_default();
        counted.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_graceful_cancel_interrupts_the_engine_once_and_starts_nothing_more() {
    for (code, after, exit) in [
        ("1", after("touch never"), Exit::Code(1)),
        ("0", after("touch never"), Exit::Code(130)),
        ("0", None, Exit::Code(0)),
    ] {
        let step = Step::of(&counting("true", code, after));
        step.launch();
        step.until_written("engine-started").await;
        step.cancel(CancelKind::Graceful);
        // The same cancel again, as after a restart of the runner, sends nothing.
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        assert_eq!((step.exit(), step.signals().len()), (exit, 1), "{:?}", step.records());
        assert!(!step.work.join("never").exists());
        assert_eq!(step.folder.cancelled_by_supervisor().unwrap(), Some(CancelKind::Graceful));
        let lines = step.lines(Stream::Information);
        assert!(lines.len() == 1 && lines[0].contains("interrupt sent"), "{lines:?}");
    }
}

#[tokio::test]
async fn an_engine_that_succeeds_despite_the_interrupt_without_an_after_hook_succeeds() {
    let step = Step::of(&counting("true", "0", None));
    step.launch();
    step.until_written("engine-started").await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    assert_eq!((step.exit(), step.folder.part()), (Exit::Code(0), Some(ScriptPhase::Done)));
    // With an after hook, which does not run, the success is recorded too.
    let step = Step::of(&counting("true", "0", after("touch never")));
    step.launch();
    step.until_written("engine-started").await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    assert_eq!((step.exit(), step.folder.part()), (Exit::Code(130), Some(ScriptPhase::Succeeded)));
}

#[tokio::test]
async fn results_that_are_only_an_addition_do_not_make_a_late_cancel_matter() {
    for (collect_after_failure, exit) in [(true, Exit::Code(0)), (false, Exit::Code(130))] {
        let collect = vec![EngineCommand::new(["touch", "never"])];
        let publish = collect.clone();
        let step =
            Step::of(&Script { collect, publish, collect_after_failure, ..counting("true", "0", None) });
        step.launch();
        step.until_written("engine-started").await;
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        assert_eq!(step.exit(), exit);
        assert!(!step.work.join("never").exists() && step.lines(Stream::Stderr).len() == 1);
    }
}

#[tokio::test]
async fn a_cancel_terminates_a_hook_and_its_processes() {
    let hook = "sleep 600 & touch started; sleep 600; echo never";
    for step in [
        script(before(hook), &["touch", "never"], None),
        script(None, &["true"], after(hook)),
        script(before(&format!("set -m; {hook}")), &["touch", "never"], None),
    ] {
        let step = Step::of(&step);
        step.launch();
        step.until_written("started").await;
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        assert_eq!(step.exit(), Exit::Signal(15));
        assert!(!step.work.join("never").exists() && step.stdout().is_empty());
        assert!(step.lines(Stream::Information)[0].contains("SIGTERM sent to the hook"));
    }
}

#[tokio::test]
async fn a_hook_may_clean_up_and_is_killed_if_it_goes_on() {
    let cleanup = "touch cleaned-up";
    for hook in [
        format!("trap '{cleanup}' EXIT; touch started; sleep 600"),
        format!("trap '{cleanup}; exit 3' TERM; touch started; while :; do sleep 0.02; done"),
        // It goes on, and the next question ends the script.
        format!("trap '{cleanup}' TERM; touch started; until [ -e cleaned-up ]; do sleep 0.02; done"),
    ] {
        let step = Step::of(&script(before(&hook), &["touch", "never"], None));
        step.launch();
        step.until_written("started").await;
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        assert!(step.work.join("cleaned-up").exists(), "{hook}: {:?}", step.records());
        assert!(!step.work.join("never").exists() && step.exit() != Exit::Signal(9), "{hook}");
    }
    let hook = "trap '' INT TERM; touch started; while :; do sleep 0.02; done";
    let step = Step::of(&script(before(hook), &["touch", "never"], None));
    step.launch();
    step.until_written("started").await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    assert_eq!(step.exit(), Exit::Signal(9));
}

#[tokio::test]
async fn engines_get_interrupts_even_if_the_runner_or_a_hook_ignores_them() {
    for hook in ["true", "trap '' INT", "trap : INT", "set -m"] {
        let step = Step::of(&counting(hook, "7", None));
        // A background job of a shell script inherits ignored SIGINT and SIGQUIT.
        let mut child = step.launch_from_shell("trap '' INT QUIT HUP");
        step.until_written("engine-started").await;
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        assert!(child.wait().unwrap().success());
        assert_eq!((step.exit(), step.signals()), (Exit::Code(7), vec!["interrupt".to_owned()]), "{hook}");
    }
}

#[tokio::test]
async fn a_kill_ends_the_whole_tree_in_all_sessions() {
    let step = Step::of(&script(
        before(
            "trap 'echo deaf' INT TERM HUP
             (setsid bash -c 'trap \"\" INT TERM HUP; sleep 601 & echo $! > inner; echo $$ > outer; wait; wait' &)
             setsid nohup sleep 602 > /dev/null 2>&1 & echo $! > detached
             echo $$ > script
             while :; do sleep 0.02; done",
        ),
        &["touch", "never"],
        None,
    ));
    step.launch();
    let mut pids = Vec::new();
    for name in ["inner", "outer", "detached", "script"] {
        pids.push(step.pid(name).await);
    }
    assert!(pids.iter().all(|pid| exists(*pid)));
    step.cancel(CancelKind::Graceful);
    eventually("the hook ignores the signal", || step.stdout().contains(&"deaf".to_owned())).await;
    step.cancel(CancelKind::Kill);
    step.wait().await;
    assert!(!pids.iter().any(|pid| exists(*pid)), "{pids:?}");
    assert_eq!(step.exit(), Exit::Signal(9));
    assert_eq!(step.folder.cancelled_by_supervisor().unwrap(), Some(CancelKind::Kill));
    assert!(step.lines(Stream::Warning).iter().any(|line| line.contains("kill sent")));
}

#[tokio::test]
async fn a_kill_catches_a_process_that_forks_endlessly() {
    let step = Step::new(
        "cat > chain <<'END'
         touch started
         ( setsid bash chain & ) 
         exit
END
         (bash chain &)
         while :; do sleep 0.02; done",
    );
    step.launch();
    step.until_written("started").await;
    step.cancel(CancelKind::Kill);
    step.wait().await;
    assert_eq!(step.exit(), Exit::Signal(9));
    let work = step.work.canonicalize().unwrap();
    let left = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == work));
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn an_engine_that_does_not_stop_in_time_is_killed() {
    let engine = "trap '' INT; touch started; while :; do sleep 0.02; done";
    let step = Step::of(&script(None, &["sh", "-c", engine], None));
    step.try_launch(&Launch { cancel_grace: Duration::from_secs(1), ..step.to_launch() }).unwrap();
    step.until_written("started").await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    assert_eq!(step.exit(), Exit::Signal(9));
    assert_eq!(step.lines(Stream::Information).len(), 1);
}

#[tokio::test]
async fn a_step_that_was_cancelled_before_its_start_does_not_run() {
    let step = Step::new("touch ran");
    step.folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    let exit = step.run().await;
    assert!(matches!(exit, Exit::Failure(reason) if reason.contains("cancelled")));
    assert!(!step.work.join("ran").exists());
}

/// The pattern of the runner: signal, record, signal. At any moment of a start, one of them is noticed.
#[tokio::test]
async fn a_cancel_at_any_moment_of_the_start_is_noticed() {
    for round in 0..40_u64 {
        let step = Step::of(&script(before("sleep 600"), &["touch", "never"], None));
        step.launch();
        tokio::time::sleep(Duration::from_micros(round * 400)).await;
        step.cancel(CancelKind::Graceful);
        step.folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
        step.cancel(CancelKind::Graceful);
        step.wait().await;
        let exit = step.exit();
        assert!(
            matches!(exit, Exit::Failure(_) | Exit::Code(130) | Exit::Signal(15)),
            "round {round}: {exit:?}"
        );
        assert!(!step.work.join("never").exists());
    }
}

#[tokio::test]
async fn a_cancel_of_another_process_does_not_signal_a_reused_number() {
    let step = Step::new("true");
    step.run().await;
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let note = step.folder.supervisor().unwrap().unwrap();
    for start_time in [note.start_time, None] {
        let pid = bystander.id();
        step.folder
            .set_supervisor(&hawser::step::SupervisorNote { pid, start_time, ..note.clone() })
            .unwrap();
        step.cancel(CancelKind::Graceful);
        step.cancel(CancelKind::Kill);
    }
    assert_eq!(bystander.try_wait().unwrap(), None);
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[tokio::test]
async fn the_supervisor_ignores_hangups_and_interrupts_and_stops_the_engine_at_sigterm() {
    let step = Step::of(&counting("true", "7", None));
    let supervisor = step.launch();
    step.until_written("engine-started").await;
    for number in [Signal::HUP, Signal::INT, Signal::QUIT] {
        signal(supervisor, number);
    }
    signal(supervisor, Signal::TERM);
    step.wait().await;
    assert_eq!((step.exit(), step.signals()), (Exit::Code(7), vec!["interrupt".to_owned()]));
    let warnings = step.lines(Stream::Warning);
    assert!(warnings.len() == 1 && warnings[0].contains("received SIGTERM"), "{warnings:?}");
    assert_eq!(step.folder.cancelled_by_supervisor().unwrap(), None);
}
