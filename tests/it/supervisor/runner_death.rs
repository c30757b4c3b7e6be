//! The supervisor survives the process that started it, and another process can wait for it.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use hawser::step::StepStore;
use hawser::step::store::Created;
use rustix::process::{Pid, Signal, getsid, kill_process_group};

use super::*;
use crate::support::eventually::LIMIT;

const ROLE: &str = "HAWSER_TEST_ROLE";
const PLACE: &str = "HAWSER_TEST_PLACE";

/// Runs [`another_process`] in a role.
fn start(role: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::runner_death::another_process", "--ignored"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "started by the other tests"]
fn another_process() {
    let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
    match std::env::var(ROLE).unwrap().as_str() {
        "launch and stay" => {
            let folder = StepFolder::at(place.join("step"));
            let lock = folder.try_lock().unwrap().unwrap();
            let environment = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
            let what = Launch {
                script: String::new(),
                directory: place.join("work"),
                environment,
                held: None,
                cancel_grace: LIMIT,
            };
            launch(Path::new(HAWSER), &folder, lock, None, &what).unwrap();
            std::thread::sleep(LIMIT);
        }
        "store under an open umask" => {
            rustix::process::umask(rustix::fs::Mode::empty());
            let store = StepStore::open(&place, uuid::Uuid::nil(), "a").unwrap();
            let created = store.create(&"step".into(), "Validate", &serde_json::Value::Null).unwrap();
            let Created::New(folder) = created else { panic!("the step exists already") };
            folder.set_script("echo hello; touch made").unwrap();
            folder.set_shipped(hawser::step::Position::default()).unwrap();
            let lock = folder.try_lock().unwrap().unwrap();
            let environment = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
            let script = String::new();
            let what = Launch { script, directory: place, environment, held: None, cancel_grace: LIMIT };
            launch(Path::new(HAWSER), &folder, lock, None, &what).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(wait(&folder)).unwrap();
            folder.record_cancel(CancelKind::Kill, CancelledBy::Server).unwrap();
        }
        role => panic!("no such role: {role}"),
    }
}

#[tokio::test]
async fn the_supervisor_survives_the_runner_and_another_process_can_wait() {
    let step = Step::new(&format!("echo before; touch started; {AWAIT_GO} echo after; echo err >&2; exit 6"));
    let mut runner = start("launch and stay", step.work.parent().unwrap());
    step.until_written("started").await;

    // Ctrl-C and a hangup of the terminal go to the runner's group, and then it is killed.
    let group = Pid::from_child(&runner);
    for number in [Signal::INT, Signal::HUP, Signal::KILL] {
        let _ = kill_process_group(group, number);
    }
    runner.wait().unwrap();

    let note = step.folder.supervisor().unwrap().unwrap();
    let supervisor = Pid::from_raw(i32::try_from(note.pid).unwrap()).unwrap();
    assert_eq!(getsid(Some(supervisor)), Ok(supervisor), "the supervisor has its own session");
    assert_eq!(step.folder.phase().unwrap(), hawser::step::RecoveryPhase::Running);
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(6));
    assert_eq!(step.stdout(), ["before", "after"]);
    assert_eq!(step.lines(Stream::Stderr), ["err"]);
    assert_eq!(step.folder.phase().unwrap(), hawser::step::RecoveryPhase::Conclude);
}

#[tokio::test]
async fn everything_in_the_store_is_private_with_any_umask() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().to_owned();
    let done = tokio::task::spawn_blocking(move || start("store under an open umask", &place).wait());
    assert!(done.await.unwrap().unwrap().success());
    // Files of the script are private too.
    assert_eq!(fs::metadata(root.path().join("made")).unwrap().permissions().mode() & 0o777, 0o600);

    let mut names = Vec::new();
    let mut folders = vec![root.path().join(".hawser")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(metadata.permissions().mode() & 0o777, wanted, "{}", path.display());
            if metadata.is_dir() {
                folders.push(path);
            } else {
                names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    for name in
        ["request.json", "script.sh", "supervisor.json", "output.log", "exit.json", "cancel.json", "shipped"]
    {
        assert!(names.iter().any(|found| found == name), "{name} is among {names:?}");
    }
}
