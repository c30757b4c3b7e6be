//! The supervisor with real processes, signals, pipes and disks.

mod cancel;
mod disk;
mod gate;
mod interrupts;
mod module_lock;
mod namespace;
mod output;
mod runner_death;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::FutureExt as _;
use hawser::script::{EngineCommand, Script};
use hawser::step::{CancelledBy, Exit, ScriptPhase, StepFolder, Stream};
use hawser::supervisor::{self, Launch, LaunchError, launch, program, wait};
use hawser_contract::Hook;
use hawser_contract::requests::CancelKind;

use crate::support::eventually::{eventually, in_time};
use crate::support::steps::{LogRecord, records};
use crate::support::write_program;

const HAWSER: &str = env!("CARGO_BIN_EXE_hawser");

/// A step folder and a working directory for the script.
struct Step {
    _root: tempfile::TempDir,
    folder: StepFolder,
    work: PathBuf,
}

impl Step {
    fn new(script: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (path, work) = (root.path().join("step"), root.path().join("work"));
        fs::create_dir(&path).unwrap();
        fs::create_dir(&work).unwrap();
        let folder = StepFolder::at(path);
        folder.set_script(script).unwrap();
        Self { _root: root, folder, work }
    }

    /// A step with hooks and engine commands, as the runner prepares it.
    fn of(script: &Script<'_>) -> Self {
        Self::new(&script.text().unwrap())
    }

    fn cancel(&self, kind: CancelKind) {
        supervisor::cancel(&self.folder, kind, CancelledBy::Server);
    }

    fn to_launch(&self) -> Launch {
        let path = std::env::var_os("PATH").unwrap();
        Launch {
            script: String::new(),
            directory: self.work.clone(),
            environment: vec![("PATH".into(), path), ("GREETING".into(), OsString::from("hello"))],
            held: None,
            cancel_grace: Duration::from_secs(600),
        }
    }

    fn try_launch(&self, what: &Launch) -> Result<u32, LaunchError> {
        let lock = self.folder.try_lock().unwrap().expect("the lock is free");
        launch(Path::new(HAWSER), &self.folder, lock, None, what)
    }

    fn launch(&self) -> u32 {
        self.try_launch(&self.to_launch()).unwrap()
    }

    /// Starts the supervisor as the runner would, from a shell that first runs other commands.
    fn launch_from_shell(&self, first: &str) -> Child {
        let lock = self.folder.try_lock().unwrap().expect("the lock is free");
        let shell = Command::new("sh")
            .args(["-c", &format!("{first}; exec \"$0\" supervise \"$1\""), HAWSER])
            .arg(self.folder.path())
            .current_dir(&self.work)
            .stdin(lock)
            .stdout(Stdio::null())
            .spawn();
        shell.unwrap()
    }

    async fn wait(&self) {
        let lock = in_time("the step ends", wait(&self.folder)).await.unwrap();
        // Closing the file is not enough: another test may be starting a program, which has a copy.
        lock.unlock().unwrap();
    }

    /// Launches, waits, and reads the exit.
    async fn run(&self) -> Exit {
        self.launch();
        self.wait().await;
        self.exit()
    }

    fn exit(&self) -> Exit {
        self.folder.exit().unwrap().expect("exit.json exists")
    }

    fn records(&self) -> Vec<LogRecord> {
        records(&self.folder)
    }

    /// The lines of one stream, joined from their records.
    fn lines(&self, stream: Stream) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = Vec::new();
        for record in self.records().into_iter().filter(|record| record.stream == stream) {
            line.extend(record.text);
            if !record.continues {
                lines.push(String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned());
            }
        }
        lines
    }

    fn stdout(&self) -> Vec<String> {
        self.lines(Stream::Stdout)
    }

    /// Lets a script continue that waits for `work/go`.
    fn go(&self) {
        fs::write(self.work.join("go"), "").unwrap();
    }

    async fn until_written(&self, name: &str) {
        eventually(name, || self.work.join(name).exists()).await;
    }

    /// A process ID that the script wrote to a file.
    async fn pid(&self, name: &str) -> i32 {
        let path = self.work.join(name);
        let read = || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        eventually(name, read).await.trim().parse().unwrap()
    }
}

fn before(text: &str) -> Option<Hook<'_>> {
    Hook::new("PlanBeforeHook", Some(text))
}

fn after(text: &str) -> Option<Hook<'_>> {
    Hook::new("PlanAfterHook", Some(text))
}

fn script<'a>(before: Option<Hook<'a>>, engine: &[&str], after: Option<Hook<'a>>) -> Script<'a> {
    let engine = vec![EngineCommand::new(engine.iter().copied())];
    Script { title: "test".to_owned(), before, engine, after, ..Script::default() }
}

/// Code for scripts: waits for [`Step::go`].
const AWAIT_GO: &str = "until [ -e go ]; do sleep 0.02; done\n";

/// Whether the process exists, including zombies.
fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The same without zombies: an orphan stays a zombie if process 1 does not reap it.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[tokio::test]
async fn both_streams_and_the_exit_code_are_recorded() {
    let step = Step::new("echo out; echo err >&2; exit 3");
    let exit = step.run().await;
    assert_eq!(exit, Exit::Code(3));
    assert_eq!(step.stdout(), ["out"]);
    assert_eq!(step.lines(Stream::Stderr), ["err"]);
    assert_eq!(step.records().len(), 2);
    assert!(!step.folder.reserve_path().exists());
    let note = step.folder.supervisor().unwrap().unwrap();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(note.boot_id.as_deref(), Some(boot_id.trim()));
}

#[tokio::test]
async fn the_signal_that_ended_the_script_is_recorded() {
    let step = Step::new("kill -SEGV $$");
    let exit = step.run().await;
    assert_eq!(exit, Exit::Signal(11));
}

#[tokio::test]
async fn the_script_gets_its_directory_its_environment_and_nothing_else() {
    let step = Step::new(
        "pwd; env | grep -v '^\\(_\\|SHLVL\\|PWD\\|PATH\\)='; for fd in /proc/self/fd/*; do readlink $fd; done; true",
    );
    let exit = step.run().await;
    assert_eq!(exit, Exit::Code(0));
    let lines = step.stdout();
    assert_eq!(lines[0], step.work.canonicalize().unwrap().to_str().unwrap());
    assert_eq!(lines[1], "GREETING=hello");
    assert!(lines.contains(&"/dev/null".to_owned()), "stdin is not empty: {lines:?}");
    assert!(!lines.iter().any(|line| line.ends_with("/lock")), "the script inherited the lock: {lines:?}");
}

/// Variables that affect the loader, the search for bash, and git.
#[tokio::test]
async fn variables_of_the_script_do_not_affect_its_supervisor() {
    let step = Step::new(&format!("echo \"$GIT_SSH_COMMAND $PATH $0\" > seen; echo > ready; {AWAIT_GO}"));
    fs::write(step.work.join("bash"), "#!/bin/sh\necho hijacked > hijacked\n").unwrap();
    fs::set_permissions(step.work.join("bash"), fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:.:/usr/bin:/bin", step.work.display());
    let given = [("PATH", path.as_str()), ("LD_PRELOAD", "./evil.so"), ("GIT_SSH_COMMAND", "evil")];
    let environment = given.map(|(name, value)| (name.into(), value.into())).into();
    let pid = step.try_launch(&Launch { environment, ..step.to_launch() }).unwrap();
    step.until_written("ready").await;
    let own = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    for (name, value) in given {
        assert!(!own.split('\0').any(|variable| variable == format!("{name}={value}")), "{name}");
    }
    let seen = fs::read_to_string(step.work.join("seen")).unwrap();
    assert!(seen.starts_with(&format!("evil {path} ")), "{seen}");
    assert!(!step.work.join("hijacked").exists());
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
}

#[tokio::test]
async fn a_script_that_is_launched_twice_runs_once() {
    let step = Step::new("echo ran >> ran; echo ran");
    let first = step.run().await;
    let second = step.run().await;
    assert_eq!(first, second);
    assert_eq!(fs::read_to_string(step.work.join("ran")).unwrap(), "ran\n");
    assert_eq!(step.stdout(), ["ran"]);
}

#[tokio::test]
async fn a_script_whose_supervisor_was_killed_is_not_started_again() {
    let step = Step::new(&format!("echo ran >> ran; echo $$ > script; {AWAIT_GO}"));
    let pid = step.launch();
    let script = step.pid("script").await;
    signal(pid, rustix::process::Signal::KILL);
    step.wait().await;
    assert_eq!(step.folder.phase().unwrap(), hawser::step::RecoveryPhase::Lost);
    step.launch();
    step.wait().await;
    assert_eq!(step.folder.exit().unwrap(), None);
    assert_eq!(fs::read_to_string(step.work.join("ran")).unwrap(), "ran\n");
    step.go();
    eventually("the end of the script", || !runs(script)).await;
}

#[tokio::test]
async fn a_second_supervisor_is_refused_while_the_first_runs() {
    let step = Step::new(&format!("echo ran >> ran; {AWAIT_GO}"));
    step.launch();
    step.until_written("ran").await;
    let other_file = fs::File::open(step.folder.script_path()).unwrap();
    let same_file = fs::OpenOptions::new().write(true).open(step.folder.lock_path()).unwrap();
    for stdin in [Stdio::null(), other_file.into(), same_file.into()] {
        let refused =
            Command::new(HAWSER).arg("supervise").arg(step.folder.path()).stdin(stdin).output().unwrap();
        assert_eq!(refused.status.code(), Some(64));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("not the lock"));
    }
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
    assert_eq!(fs::read_to_string(step.work.join("ran")).unwrap(), "ran\n");
}

#[tokio::test]
async fn a_failed_start_reports_the_reason() {
    let step = Step::new("true");
    let without_path = step.work.join("without-path");
    write_program(&without_path, &format!("#!/bin/sh\nPATH=/nowhere exec '{HAWSER}' \"$@\"\n"));
    let lock = step.folder.try_lock().unwrap().unwrap();
    launch(&without_path, &step.folder, lock, None, &step.to_launch()).unwrap();
    step.wait().await;
    let exit = step.exit();
    assert!(matches!(exit, Exit::Failure(reason) if reason.contains("bash is not on the PATH")));

    let step = Step::new("true");
    fs::remove_file(step.folder.script_path()).unwrap();
    let Exit::Failure(failure) = step.run().await else { panic!() };
    assert!(failure.contains("script.sh") && failure.contains("No such file"), "{failure}");

    let step = Step::new("true");
    let nowhere = Launch { directory: step.work.join("missing"), ..step.to_launch() };
    let error = step.try_launch(&nowhere).unwrap_err();
    assert!(matches!(error, LaunchError::Directory { .. }) && error.to_string().contains("missing"));
    // A failed launch releases the lock, but a program that another test is starting may hold it briefly.
    let lock = eventually("the lock is free", || step.folder.try_lock().unwrap()).await;
    let error =
        launch(Path::new("/nowhere/hawser"), &step.folder, lock, None, &step.to_launch()).unwrap_err();
    assert!(matches!(error, LaunchError::Start { .. }), "{error}");
}

#[tokio::test]
async fn a_finished_supervisor_is_reaped() {
    let step = Step::new("true");
    let pid = i32::try_from(step.launch()).unwrap();
    step.wait().await;
    eventually("the end of the supervisor", || !exists(pid)).await;
}

#[tokio::test]
async fn dropping_the_wait_does_not_affect_the_step() {
    let step = Step::new(AWAIT_GO);
    step.launch();
    assert!(wait(&step.folder).now_or_never().is_none());
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
}

#[test]
fn the_running_program_can_be_started_again() {
    let started = Command::new(program()).arg("--help").output().unwrap();
    assert!(started.status.success());
}

#[tokio::test]
async fn a_lock_of_the_task_is_held_until_its_script_has_ended() {
    let step = Step::new("touch started; until [ -e go ]; do sleep 0.02; done");
    let path = step.work.join("shared.lock");
    let take = || {
        let file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        file.try_lock().is_ok().then_some(file)
    };
    let what = Launch { held: Some(std::sync::Arc::new(take().unwrap())), ..step.to_launch() };
    step.try_launch(&what).unwrap();
    // As if the runner had exited.
    drop(what);
    step.until_written("started").await;
    assert!(take().is_none());
    step.go();
    step.wait().await;
    eventually("the supervisor is gone", || take().is_some()).await;
}
