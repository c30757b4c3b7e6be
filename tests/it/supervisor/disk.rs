//! Full disks and limits.

use super::*;
use crate::support::eventually::eventually;

/// Says a lot until it is interrupted, and then that it was.
const TALKATIVE: &str = "trap 'touch interrupted; exit 7' INT
while :; do
  seq 100000 999999 || true
  echo a line that is written in one piece
done";

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

fn assert_interrupted_and_kept_so_far(step: &Step, reason: &str) {
    let exit = step.exit();
    assert_eq!((exit.code, exit.signal), (None, None));
    let failure = exit.failure.unwrap();
    assert!(failure.contains(reason) && failure.contains("exit code 7"), "{failure}");
    assert!(step.work.join("interrupted").exists(), "it was interrupted, not killed");
    // Everything up to the gap, without a hole in it.
    let lines = step.stdout();
    let whole = lines.iter().zip(100_000..).take_while(|(line, number)| **line == number.to_string()).count();
    assert!(whole > 1000 && lines.len() - whole < 1000, "{whole} of {} lines", lines.len());
}

#[tokio::test]
async fn on_a_full_disk_the_engine_is_interrupted_and_the_step_fails_with_that() {
    let step = Step::new(TALKATIVE);
    let Some(_disk) = SmallDisk::mount(step.folder.path()) else {
        eprintln!("skipped: a small disk cannot be mounted here (this needs root)");
        return;
    };
    step.folder.set_script(TALKATIVE).unwrap();
    step.run().await;
    assert_interrupted_and_kept_so_far(&step, "No space left on device");
    let missing = step.lines(Stream::Warning);
    assert!(missing.iter().any(|line| line.contains("lines are missing here")), "{missing:?}");
}

#[tokio::test]
async fn a_limit_on_the_size_of_files_is_a_failure_and_not_the_end_of_the_supervisor() {
    let step = Step::new(TALKATIVE);
    // In blocks of 512 or 1024 bytes, depending on the shell: below a megabyte in any case.
    let mut child = step.launch_from_shell("ulimit -f 800");
    step.wait().await;
    assert!(child.wait().unwrap().success());
    assert_interrupted_and_kept_so_far(&step, "File too large");
}

#[tokio::test]
async fn without_room_for_its_notes_a_script_does_not_start() {
    let step = Step::new("touch ran");
    let Some(_disk) = SmallDisk::mount(step.folder.path()) else {
        eprintln!("skipped: a small disk cannot be mounted here (this needs root)");
        return;
    };
    step.folder.set_script("touch ran").unwrap();
    let filler = step.folder.path().join("filler");
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=4096"]).arg(format!("of={}", filler.display())).output();
    assert!(!filled.unwrap().status.success(), "the disk is full");
    step.launch();
    // The exit has to wait until there is room; each try for it changes the folder.
    let mut changes = std::collections::HashSet::new();
    eventually("several tries", || {
        changes.insert(fs::metadata(step.folder.path()).unwrap().modified().unwrap());
        changes.len() > 4
    })
    .await;
    assert_eq!(step.folder.exit().unwrap(), None);
    fs::remove_file(filler).unwrap();
    step.wait().await;
    let failure = step.exit().failure.unwrap();
    assert!(failure.contains("No space left"), "{failure}");
    assert!(!step.work.join("ran").exists());
}
