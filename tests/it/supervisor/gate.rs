//! What reaches the engine through the gate, whatever a hook does.

use super::*;

/// What hooks do to their shell.
const HOSTILE: &[&str] = &[
    "trap '' INT TERM HUP; trap : USR1; trap 'true' EXIT ERR DEBUG RETURN",
    "exec 0<&- 1>&- 2>&-",
    "set -euo pipefail; set -C; set -f",
    "IFS=/; PATH=/usr/bin:/bin; unset HOME",
    "hawser_argument() { exit 9; }; gate() { exit 9; }; test() { false; }; printf() { false; }",
    "shopt -s expand_aliases; alias if=false exit=false then=false fi=false",
    "enable -n printf trap exec; sleep 300 & disown",
    "readonly PATH hawser_gate; set -- x y z; cd /",
    "set -m; set -o posix",
    "ulimit -n 40; ulimit -f 100; ulimit -s 4096",
    "shopt -s nullglob failglob extglob nocasematch",
];

#[tokio::test]
async fn no_hook_keeps_the_engine_or_what_follows_from_running() {
    for hook in HOSTILE {
        let step = Step::new("");
        let seen = step.work.display();
        let engine = format!("touch '{seen}/engine'");
        let after_hook = format!("/usr/bin/touch '{seen}/after'");
        let text = script(before(hook), &["/bin/sh", "-c", &engine], after(&after_hook)).text().unwrap();
        step.folder.set_script(&text).unwrap();
        assert_eq!(step.run().await, Exit::Code(0), "{hook}: {:?}", step.records());
        assert!(step.work.join("engine").exists() && step.work.join("after").exists(), "{hook}");
        assert_eq!(step.folder.part(), Some(ScriptPhase::Done), "{hook}");
    }
}

/// The gate cannot ask, so nothing is started.
#[tokio::test]
async fn a_hook_that_leaves_no_room_for_a_question_ends_the_script() {
    for hook in ["ulimit -n 3", "ulimit -v 1000"] {
        let step = Step::of(&script(before(hook), &["touch", "engine"], after("touch after")));
        assert_ne!(step.run().await, Exit::Code(0), "{hook}");
        assert!(!step.work.join("engine").exists() && !step.work.join("after").exists(), "{hook}");
        assert_eq!(step.folder.part(), Some(ScriptPhase::Before), "{hook}");
    }
}

#[tokio::test]
async fn the_engine_gets_the_whole_environment_its_limits_and_no_open_file() {
    let step = Step::new("");
    let home = step.work.join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".bashrc"), "echo code was run; exit 3").unwrap();
    let hook = format!(
        "greet() {{ echo hello; }}; export -f greet; export BASH_ENV='{}/.bashrc' SHELLOPTS
         umask 027; ulimit -n 123; cd /usr",
        home.display()
    );
    let look = "echo; umask; ulimit -n; pwd; readlink /proc/self/fd/* | grep -v '^/proc/'";
    let mut script = script(before(&hook), &["env", "-0"], None);
    script.engine.push(EngineCommand::new(["sh", "-c", look]));
    step.folder.set_script(&script.text().unwrap()).unwrap();
    let mut what = step.to_launch();
    what.environment.extend(
        [("TF_VAR_my-var", "a b"), ("with.dots", "c"), ("HOME", home.to_str().unwrap())]
            .map(|(name, value)| (name.into(), value.into())),
    );
    step.try_launch(&what).unwrap();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0), "{:?}", step.records());
    let said = step.stdout().join("\n");
    let (variables, rest) = said.rsplit_once('\0').unwrap();
    let seen: Vec<&str> = variables.split('\0').collect();
    for expected in ["TF_VAR_my-var=a b", "with.dots=c", "BASH_FUNC_greet%%=() {  echo hello\n}"] {
        assert!(seen.contains(&expected), "{expected}: {seen:#?}");
    }
    assert!(seen.iter().any(|it| it.starts_with("BASH_ENV=")), "{seen:#?}");
    assert!(!seen.iter().any(|it| it.starts_with("SHELLOPTS=") && it.contains("privileged")), "{seen:#?}");
    let rest: Vec<&str> = rest.lines().collect();
    assert_eq!(rest[..5], ["", "0027", "123", "/usr", "/dev/null"]);
    assert!(rest[5..].iter().all(|it| it.starts_with("pipe:")), "{rest:?}");
}

#[tokio::test]
async fn functions_and_aliases_with_the_engines_name_are_bypassed() {
    let hook = "shopt -s expand_aliases; alias touch=false; touch() { return 3; }; export -f touch";
    let step = Step::of(&script(before(hook), &["touch", "engine"], None));
    assert_eq!(step.run().await, Exit::Code(0), "{:?}", step.records());
    assert!(step.work.join("engine").exists());
}

#[tokio::test]
async fn the_message_for_a_missing_engine_names_the_path() {
    let hook = "PATH=/no/such:/folders";
    let step = Step::of(&script(before(hook), &["no-such-engine", "hush"], None));
    assert_eq!((step.run().await, step.folder.part()), (Exit::Code(127), Some(ScriptPhase::Engine)));
    let said = step.lines(Stream::Stderr);
    assert_eq!(said[1..], ["hawser: cannot find program no-such-engine in PATH (/no/such:/folders)"]);
}

#[tokio::test]
async fn the_place_and_the_name_of_the_command_are_recorded() {
    let hook = "set -euC; cd /usr; export TF_WORKSPACE=\"it's prod\"; unset TF_DATA_DIR";
    for (first, expected) in [("false", "it's first"), ("true", "")] {
        let mut script = script(before(hook), &["true"], None);
        script.engine = vec![
            EngineCommand::new([first]).known_as("it's first"),
            EngineCommand::new(["sh", "-c", "umask; exit 4"]).private_files(),
        ];
        let step = Step::of(&script);
        assert_eq!(step.run().await, Exit::Code(if first == "true" { 4 } else { 1 }));
        assert_eq!(step.folder.engine_command().unwrap_or_default(), expected);
        let place = fs::read_to_string(step.folder.place_path()).unwrap();
        assert_eq!(place, "/usr\0it's prod\0\0\0\0\0\0");
        assert_eq!(step.stdout(), if first == "true" { vec!["0077"] } else { vec![] });
    }
}

#[tokio::test]
async fn an_engine_that_is_a_script_is_logged_once() {
    let step = Step::new("");
    write_program(&step.work.join("wrapper"), "#!/bin/sh\nexec true\n");
    let hook = format!("PATH='{}:'$PATH", step.work.display());
    let mut script = script(before(&hook), &["wrapper"], None);
    script.engine.push(EngineCommand::new(["wrapper"]));
    step.folder.set_script(&script.text().unwrap()).unwrap();
    assert_eq!(step.run().await, Exit::Code(0), "{:?}", step.records());
    let warned = step.lines(Stream::Warning);
    assert!(warned.len() == 1 && warned[0].contains("/wrapper is a script"), "{warned:?}");
}

#[tokio::test]
async fn only_questions_are_answered() {
    let step = Step::of(&script(before(&format!("touch started; {AWAIT_GO}")), &["true"], None));
    step.launch();
    step.until_written("started").await;
    let socket = step.folder.path().join("gate");
    let ask = |bytes: &[u8]| {
        use std::io::{Read as _, Write as _};
        let mut connection = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        connection.write_all(bytes).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        answer
    };
    for nonsense in ["", "phase never\n", "engine", "\0\0\0"] {
        assert_eq!(ask(nonsense.as_bytes()), b"");
    }
    // One that never finishes its question keeps nobody waiting.
    let _silent = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    assert_eq!(ask(b"next\n"), b"y");
    let alone = Command::new(HAWSER).arg("gate").output().unwrap();
    assert_eq!(alone.status.code(), Some(64));
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
}

/// On a slow disk, here a pipe without a reader.
#[tokio::test]
async fn questions_that_wait_for_the_disk_do_not_keep_the_supervisor_from_ending() {
    use std::io::{Read as _, Write as _};
    const MORE_THAN_WAIT: usize = 80;
    let step = Step::new("");
    let part = step.folder.part_path();
    let text = format!("mkfifo '{}'; echo $$ > script; {AWAIT_GO}", part.display());
    step.folder.set_script(&text).unwrap();
    step.launch();
    let script = step.pid("script").await;
    let socket = step.folder.path().join("gate");
    let ask = |bytes: &[u8]| {
        let mut connection = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        connection.write_all(bytes).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        connection.set_nonblocking(true).unwrap();
        connection
    };
    let mut asking: Vec<_> = (0..MORE_THAN_WAIT).map(|_| ask(b"phase before\n")).collect();
    let mut is_refused = || asking.iter_mut().any(|it| matches!(it.read(&mut [0]), Ok(0)));
    eventually("all places are taken", &mut is_refused).await;
    step.go();
    eventually("the script is reaped", || !exists(script)).await;
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&part).unwrap();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
}
