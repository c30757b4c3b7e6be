//! Full disks and limits.

use super::*;
use crate::support::eventually::eventually;

/// An engine that prints endlessly until it is interrupted.
fn flood() -> String {
    let engine = "trap 'touch interrupted; exit 7' INT
        while :; do
          seq 100000 199999 || true
          echo a line that is written in one piece
        done";
    script(None, &["bash", "-c", engine], after("touch never")).text().unwrap()
}

/// A file system of half a megabyte.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs"])
            .arg(at)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn assert_interrupted_with_complete_output(step: &Step, reason: &str) {
    let exit = step.exit();
    let Exit::Failure(failure) = exit else { panic!("{exit:?}") };
    assert!(failure.contains(reason) && failure.contains("exit code 7"), "{failure}");
    assert!(step.work.join("interrupted").exists(), "it was interrupted, not killed");
    assert!(!step.work.join("never").exists());
    // The output is complete up to the gap.
    let lines = step.stdout();
    let whole = lines.iter().zip(100_000..).take_while(|(line, number)| **line == number.to_string()).count();
    assert!(whole > 1000 && lines.len() - whole < 1000, "{whole} of {} lines", lines.len());
}

#[tokio::test]
async fn on_a_full_disk_the_engine_is_interrupted_and_the_step_fails() {
    let step = Step::new(&flood());
    let Some(_disk) = SmallDisk::mount(step.folder.path()) else {
        eprintln!("skipped: cannot mount a small disk (this needs root)");
        return;
    };
    step.folder.set_script(&flood()).unwrap();
    step.run().await;
    assert_interrupted_with_complete_output(&step, "No space left on device");
    let missing = step.lines(Stream::Warning);
    assert!(missing.iter().any(|line| line.contains("lines are missing here")), "{missing:?}");
}

#[tokio::test]
async fn a_file_size_limit_is_a_failure_and_does_not_kill_the_supervisor() {
    let step = Step::new(&flood());
    // In blocks of 512 or 1024 bytes, depending on the shell.
    let mut child = step.launch_from_shell("ulimit -f 800");
    step.wait().await;
    assert!(child.wait().unwrap().success());
    assert_interrupted_with_complete_output(&step, "File too large");
}

#[tokio::test]
async fn a_script_does_not_start_on_a_full_disk() {
    let step = Step::new("touch ran");
    let Some(_disk) = SmallDisk::mount(step.folder.path()) else {
        eprintln!("skipped: cannot mount a small disk (this needs root)");
        return;
    };
    step.folder.set_script("touch ran").unwrap();
    let filler = step.folder.path().join("filler");
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=4096"]).arg(format!("of={}", filler.display())).output();
    assert!(!filled.unwrap().status.success(), "the disk is full");
    step.launch();
    // The supervisor retries writing the exit until there is room. Each attempt changes the folder.
    let mut changes = std::collections::HashSet::new();
    eventually("several attempts", || {
        changes.insert(fs::metadata(step.folder.path()).unwrap().modified().unwrap());
        changes.len() > 4
    })
    .await;
    assert_eq!(step.folder.exit().unwrap(), None);
    fs::remove_file(filler).unwrap();
    step.wait().await;
    let Exit::Failure(failure) = step.exit() else { panic!() };
    assert!(failure.contains("No space left"), "{failure}");
    assert!(!step.work.join("ran").exists());
}

#[tokio::test]
async fn a_cancel_reaches_the_engine_on_a_full_disk() {
    let engine = "trap 'touch interrupted; exit 7' INT; touch started; while :; do sleep 0.02; done";
    let text = script(None, &["bash", "-c", engine], None).text().unwrap();
    let step = Step::new(&text);
    let Some(_disk) = SmallDisk::mount(step.folder.path()) else {
        eprintln!("skipped: cannot mount a small disk (this needs root)");
        return;
    };
    step.folder.set_script(&text).unwrap();
    step.launch();
    step.until_written("started").await;
    let filler = step.folder.path().join("filler");
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=512"]).arg(format!("of={}", filler.display())).output();
    assert!(!filled.unwrap().status.success(), "the disk is full");
    step.cancel(CancelKind::Graceful);
    step.until_written("interrupted").await;
    step.wait().await;
    // The end has its own reserve.
    assert_eq!(step.folder.cancelled_by_supervisor().unwrap(), Some(CancelKind::Graceful));
}

#[tokio::test]
async fn the_engine_is_not_run_if_its_phase_cannot_be_recorded() {
    for hook in ["true", "set -e", "exec 2>&-"] {
        let step = Step::new("");
        // The hook replaces the file with a folder.
        let part = step.folder.part_path().display().to_string();
        let hook = format!("{hook}; rm -f '{part}'; mkdir '{part}'");
        let text = script(before(&hook), &["touch", "engine"], after("touch after")).text().unwrap();
        step.folder.set_script(&text).unwrap();
        assert_eq!(step.run().await, Exit::Code(1), "{hook}");
        assert!(!step.work.join("engine").exists() && !step.work.join("after").exists(), "{hook}");
        let said = step.lines(Stream::Stderr).iter().any(|line| line.contains("the engine was not run"));
        assert!(said || hook.starts_with("exec"), "{:?}", step.records());
    }
    // Later phases are not recorded, but nothing else changes.
    let step = Step::new("");
    let part = step.folder.part_path().display().to_string();
    let engine = format!("rm -f '{part}'; mkdir '{part}'");
    let text = script(None, &["bash", "-c", &engine], after("touch after")).text().unwrap();
    step.folder.set_script(&text).unwrap();
    assert_eq!(step.run().await, Exit::Code(0));
    assert!(step.work.join("after").exists());
}
