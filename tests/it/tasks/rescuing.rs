//! States that could not be written, and locks that stay behind.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use hawser::tasks::{TaskError, conclude, explain_lost};
use hawser_contract::Fault;
use hawser_contract::requests::CancelKind;

use super::*;
use crate::support::eventually::eventually_blocking;
use crate::support::real_engines::real;
use crate::support::steps::{Interrupt, execute};

test_with_terraform_and_tofu! {
    a_state_that_the_backend_refuses_is_kept_and_the_printed_command_pushes_it,
    the_printed_command_pushes_the_state_to_its_own_workspace,
    the_unlock_command_uses_the_data_folder_of_the_engine,
    after_a_kill_a_possible_lock_is_reported_and_the_next_plan_names_it,
    a_cancelled_apply_logs_that_its_state_was_refused,
    a_state_lock_that_is_left_behind_is_reported_with_its_id,
    a_lock_of_a_running_process_is_reported_without_a_command,
}

/// What a state server of Terraform's `http` backend knows, and what it refuses.
#[derive(Default)]
struct Kept {
    state: Vec<u8>,
    lock: Vec<u8>,
    refuses_state: bool,
    refuses_unlock: bool,
}

pub(crate) struct StateServer {
    address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

impl StateServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = Arc::clone(&kept);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &mut shared.lock().unwrap());
            }
        });
        Self { address, kept }
    }

    pub(crate) fn module(&self) -> String {
        let address = self.address();
        format!(
            "terraform {{\n  backend \"http\" {{\n    address = \"{address}\"\n    lock_address = \"{address}\"\n    \
             unlock_address = \"{address}\"\n    retry_max = 0\n  }}\n}}\n\
             resource \"terraform_data\" \"it\" {{\n  input = \"precious\"\n}}\n"
        )
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}/state", self.address)
    }

    /// Another process locks the state.
    pub(crate) fn lock(&self, id: &str) {
        let lock = serde_json::json!({"ID": id, "Operation": "OperationTypeApply", "Who": "ann@vm", "Version": "1",
            "Created": "2026-11-18T20:00:00Z", "Info": "", "Path": ""});
        self.kept.lock().unwrap().lock = lock.to_string().into();
    }

    pub(crate) fn lock_id(&self) -> String {
        let lock: serde_json::Value = serde_json::from_slice(&self.kept.lock().unwrap().lock).unwrap();
        lock["ID"].as_str().unwrap().to_owned()
    }
}

fn answer(stream: TcpStream, kept: &mut Kept) {
    let mut reader = BufReader::new(stream);
    let (mut method, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if method.is_empty() {
            method = line.split(' ').next().unwrap().to_owned();
        }
        match line.to_ascii_lowercase().strip_prefix("content-length:") {
            Some(value) => length = value.trim().parse().unwrap(),
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (code, text) = match method.as_str() {
        "GET" if kept.state.is_empty() => (404, Vec::new()),
        "GET" => (200, kept.state.clone()),
        "POST" if kept.refuses_state => (403, Vec::new()),
        "POST" => {
            kept.state = body;
            (200, Vec::new())
        }
        "LOCK" if !kept.lock.is_empty() => (423, kept.lock.clone()),
        "LOCK" => {
            kept.lock = body;
            (200, Vec::new())
        }
        "UNLOCK" if kept.refuses_unlock => (403, Vec::new()),
        "UNLOCK" => {
            kept.lock.clear();
            (200, Vec::new())
        }
        _ => (405, Vec::new()),
    };
    let mut stream = reader.into_inner();
    let head = format!("HTTP/1.1 {code} x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", text.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&text));
}

/// A module with its state on that server, planned.
async fn planned(engine: &RealEngine, server: &StateServer) -> Bench {
    let bench = Bench::of(engine, &[("main.tf", &server.module())]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench
}

/// The command that a message gives, which stands between backticks.
fn command(message: &str, about: &str) -> String {
    let found = message.split('`').skip(1).step_by(2).find(|it| it.contains(about));
    found.unwrap_or_else(|| panic!("no command with {about:?} in {message:?}")).to_owned()
}

fn rescued(bench: &Bench) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(bench.rescued()) else { return Vec::new() };
    files.map(|file| file.unwrap().path()).collect()
}

async fn a_state_that_the_backend_refuses_is_kept_and_the_printed_command_pushes_it(engine: RealEngine) {
    let server = StateServer::start();
    let bench = planned(&engine, &server).await;
    server.kept.lock().unwrap().refuses_state = true;
    // The bench concludes twice, as after a crash of the runner: both find the same file.
    let fault = bench.run(apply()).await.faulted();
    let files = rescued(&bench);
    assert_eq!(files.len(), 1, "{files:?}");
    let file = &files[0];
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.ends_with(&format!("Z-{}-errored.tfstate", Uuid::from_u128(3))), "{name}");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(bench.rescued()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!bench.module().join("errored.tfstate").exists());
    let state: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(state["resources"][0]["name"], "it");
    assert_eq!(fault.resources, Some(1), "the backend knows of none, but there is one");
    assert!(fault.message.contains(file.to_str().unwrap()), "{fault:?}");

    server.kept.lock().unwrap().refuses_state = false;
    bench.run_by_hand(&command(&fault.message, "state push"));
    let ran = bench.run(plan()).await;
    assert!(ran.says("There are rescued states (1) in"), "{:#?}", ran.log);
    assert_eq!(counts(ran).total_unchanged_count, 1);
    fs::remove_file(file).unwrap();
    assert!(!bench.run(plan()).await.says("rescued states"));
}

async fn the_printed_command_pushes_the_state_to_its_own_workspace(engine: RealEngine) {
    let variables = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    // From the module's variables, and from a hook.
    for (module, hook) in [
        (variables(&[("TF_WORKSPACE", "prod"), ("TF_DATA_DIR", "it's data")]), None),
        (variables(&[]), Some("export TF_WORKSPACE=prod TF_DATA_DIR=\"it's data\"".to_owned())),
    ] {
        let source =
            |input: &str| format!("resource \"terraform_data\" \"it\" {{\n  input = \"{input}\"\n}}\n");
        let bench = Bench::of(&engine, &[("main.tf", &source("first"))]);
        let hook = || hook.clone();
        let own = EngineTask {
            before_hook: hook(),
            init: InitOptions { resolved_env_vars: module, ..InitOptions::default() },
            ..EngineTask::new(Task::Init, ENGINE)
        };
        bench.run(TaskRequest::Engine(own)).await.completed();
        let plan = || {
            let own = EngineTask { before_hook: hook(), ..EngineTask::new(Task::Plan, ENGINE) };
            TaskRequest::Engine(own)
        };
        let apply = || {
            let own = EngineTask { before_hook: hook(), ..EngineTask::new(Task::ApplyFromPlan, ENGINE) };
            TaskRequest::Engine(own)
        };
        counts(bench.run(plan()).await);
        bench.run(apply()).await.completed();
        // The next state cannot be written: there is a folder in the place of its backup.
        let prod = bench.module().join("terraform.tfstate.d/prod");
        let in_the_way = prod.join("terraform.tfstate.backup");
        fs::create_dir(&in_the_way).unwrap();
        bench.write("main.tf", &source("second"));
        counts(bench.run(plan()).await);
        let fault = bench.run(apply()).await.faulted();
        fs::remove_dir(&in_the_way).unwrap();

        let push = command(&fault.message, "state push");
        let expected = format!("hawser exec stack/space/module -- {} state push ", engine.name);
        assert!(push.starts_with(&expected), "{push}");
        // Terraform gives a state that it could not write here no new serial, and so does not push it over the one before.
        fs::remove_file(prod.join("terraform.tfstate")).unwrap();
        bench.run_by_hand(&push);
        assert!(fs::read_to_string(prod.join("terraform.tfstate")).unwrap().contains("second"));
        assert!(!bench.module().join("terraform.tfstate").exists(), "the state of another workspace");
        assert_eq!(fault.message.contains("hooks are not run"), hook().is_some(), "{fault:?}");
        assert_eq!(counts(bench.run(plan()).await).total_unchanged_count, 1);
    }
}

async fn the_unlock_command_uses_the_data_folder_of_the_engine(engine: RealEngine) {
    let server = StateServer::start();
    let bench = Bench::of(&engine, &[("main.tf", &server.module())]);
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: [("TF_DATA_DIR".to_owned(), "data".to_owned())].into(),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    bench.run(TaskRequest::Engine(own)).await.completed();
    server.kept.lock().unwrap().lock = b"{\"ID\": \"left-behind\"}".to_vec();
    let fault = bench.run(plan()).await.faulted();
    let unlock = command(&fault.message, "force-unlock");
    let expected = format!("hawser exec stack/space/module -- {} force-unlock left-behind", engine.name);
    assert_eq!(unlock, expected);
    bench.run_by_hand(&unlock.replace("force-unlock", "force-unlock -force"));
    counts(bench.run(plan()).await);
}

async fn after_a_kill_a_possible_lock_is_reported_and_the_next_plan_names_it(engine: RealEngine) {
    let server = StateServer::start();
    let sleeps = "resource \"terraform_data\" \"slow\" {\n  provisioner \"local-exec\" {\n    command = \"echo now \
                  sleeping; exec sleep 300.25\"\n  }\n}\n";
    let bench = Bench::of(&engine, &[("main.tf", &format!("{}{sleeps}", server.module()))]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    let interrupt = Interrupt { at: "\u{1b}[0mnow sleeping", kind: CancelKind::Kill };
    let ran = bench.run_interrupted(apply(), Some(interrupt)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    assert!(ran.says("may have ended before it released its state lock"), "{:#?}", ran.log);
    let fault = bench.run(plan()).await.faulted();
    assert!(fault.message.contains(&format!("force-unlock {}", server.lock_id())), "{fault:?}");

    // A lost step may have been killed. A task without a lock cannot leave one behind.
    let context = bench.context();
    fs::write(context.folder.part_path(), "engine\n").unwrap();
    let unlocked = FlagLists {
        terraform_flags: vec![Flag::new(TerraformFlag::Lock, Some("false"))].into(),
        ..FlagLists::default()
    };
    for (request, told) in
        [(apply(), true), (plan(), true), (plan_with(&[], unlocked), false), (output(), false)]
    {
        let request = bench.request(request);
        let fault = explain_lost(&context, &request, Fault::new("unknown outcome.")).await;
        let message = fault.message;
        assert_eq!(
            message.contains("may have ended before it released its state lock"),
            told,
            "{request:?}: {message}"
        );
    }
}

async fn a_cancelled_apply_logs_that_its_state_was_refused(engine: RealEngine) {
    let server = StateServer::start();
    let sleeps = "resource \"terraform_data\" \"slow\" {\n  depends_on = [terraform_data.it]\n  provisioner \"local-exec\" {\n    command = \"echo now \
                  sleeping; exec sleep 300.25\"\n  }\n}\n";
    let bench = Bench::of(&engine, &[("main.tf", &format!("{}{sleeps}", server.module()))]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    server.kept.lock().unwrap().refuses_state = true;
    // Not the line that says what will be executed.
    let interrupt = Interrupt { at: "\u{1b}[0mnow sleeping", kind: CancelKind::Graceful };
    let ran = bench.run_interrupted(apply(), Some(interrupt)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    let files = rescued(&bench);
    assert_eq!(files.len(), 1, "{files:?}");
    let (_, line) = ran.log.iter().find(|(_, line)| line.contains("`hawser exec ")).unwrap();
    assert!(line.contains(files[0].to_str().unwrap()), "{line}");
    server.kept.lock().unwrap().refuses_state = false;
    bench.run_by_hand(&command(line, "state push"));
    assert_eq!(counts(bench.run(plan()).await).total_count_before, 2);
}

#[tokio::test]
async fn a_repeated_conclusion_reports_the_same() {
    let server = StateServer::start();
    let bench = planned(&terraform(), &server).await;
    server.kept.lock().unwrap().refuses_state = true;
    let context = bench.context();
    let Ok(Prepared::Run(launch)) = prepare(&context, &apply()).await else { panic!("not prepared") };
    let exit = execute(&context.folder, &launch, None);
    let mut said = Vec::new();
    for _ in 0..2 {
        said.push(format!("{:?}", conclude(&context, &apply(), &exit).await.unwrap_err()));
    }
    assert!(said[0].contains("state push"), "{said:?}");
    assert_eq!(said[0], said[1]);
    assert_eq!(rescued(&bench).len(), 1);
}

#[tokio::test]
async fn a_state_that_cannot_be_copied_is_reported_in_its_original_place() {
    let server = StateServer::start();
    let bench = planned(&terraform(), &server).await;
    server.kept.lock().unwrap().refuses_state = true;
    fs::create_dir_all(bench.rescued().parent().unwrap()).unwrap();
    fs::write(bench.rescued(), "in the way").unwrap();
    let fault = bench.run(apply()).await.faulted();
    let left = bench.module().join("errored.tfstate");
    assert!(left.is_file() && fault.message.contains(left.to_str().unwrap()), "{fault:?}");
    assert!(!fault.message.contains("damaged"), "{fault:?}");
    server.kept.lock().unwrap().refuses_state = false;
    bench.run_by_hand(&command(&fault.message, "state push"));
    let ran = bench.run(plan()).await;
    assert!(ran.says("Failed to look for rescued states"), "{:#?}", ran.log);
    assert_eq!(counts(ran).total_unchanged_count, 1);
}

#[tokio::test]
async fn a_state_that_another_apply_has_moved_is_reported_in_its_new_place() {
    let server = StateServer::start();
    let bench = planned(&terraform(), &server).await;
    server.kept.lock().unwrap().refuses_state = true;
    let mine = bench.executed(apply()).await;
    // Another runner was quicker than this one's return.
    let Ok(Prepared::Run(_)) = prepare(&bench.context(), &apply()).await else { panic!("not prepared") };
    let [kept] = rescued(&bench).try_into().unwrap();
    assert!(kept.to_str().unwrap().contains("Z-before-"), "{kept:?}");
    let fault = mine.concluded().await.faulted();
    assert!(fault.message.contains(bench.rescued().to_str().unwrap()), "{fault:?}");
}

#[tokio::test]
async fn an_earlier_errored_state_is_moved_before_an_apply() {
    let server = StateServer::start();
    let bench = planned(&terraform(), &server).await;
    bench.write("errored.tfstate", "{\"version\": 4, \"old\": true}");
    server.kept.lock().unwrap().refuses_state = true;
    let ran = bench.run(apply()).await;
    let files = rescued(&bench);
    assert_eq!(files.len(), 2, "{files:?}");
    let old = files.iter().find(|file| file.to_str().unwrap().contains("Z-before-")).unwrap();
    assert!(fs::read_to_string(old).unwrap().contains("\"old\""));
    assert!(ran.says(old.to_str().unwrap()), "{:#?}", ran.log);
    assert!(!ran.faulted().message.contains("before-"));
}

#[tokio::test]
async fn a_refused_apply_does_not_move_the_state_of_an_earlier_one() {
    let mut bench = Bench::new(&[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    let resolved_env_vars = [("SOME_VARIABLE".to_owned(), "x".to_owned())].into();
    bench
        .run(TaskRequest::Engine(EngineTask {
            init: InitOptions { resolved_env_vars, ..InitOptions::default() },
            ..EngineTask::new(Task::Init, ENGINE)
        }))
        .await
        .completed();
    counts(bench.run(plan()).await);
    bench.write("errored.tfstate", "{\"version\": 4}");
    bench.settings["Policy"] = json!({"AllowedVariables": []});
    let ran = bench.run(apply()).await;
    assert!(ran.faulted().message.contains("SOME_VARIABLE"));
    assert!(rescued(&bench).is_empty() && bench.module().join("errored.tfstate").exists());
}

async fn a_state_lock_that_is_left_behind_is_reported_with_its_id(engine: RealEngine) {
    let server = StateServer::start();
    let bench = planned(&engine, &server).await;
    server.kept.lock().unwrap().refuses_unlock = true;
    let fault = bench.run(apply()).await.faulted();
    assert!(fault.message.contains("could not release its state lock"), "{fault:?}");

    server.kept.lock().unwrap().refuses_unlock = false;
    let id = server.lock_id();
    let fault = bench.run(plan()).await.faulted();
    assert!(fault.message.contains(&format!("lock id {id}")), "{fault:?}");
    let unlock = command(&fault.message, "force-unlock");
    assert!(unlock.ends_with(&format!("{} force-unlock {id}", engine.name)), "{unlock}");
    bench.run_by_hand(&unlock.replace("force-unlock", "force-unlock -force"));
    counts(bench.run(plan()).await);
}

async fn a_lock_of_a_running_process_is_reported_without_a_command(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[(
            "main.tf",
            "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" {\n    command = \"touch begun; while [ ! -e \
         go ]; do sleep 0.1; done\"\n  }\n}\n",
        )],
    );
    bench.run(init()).await.completed();
    let mut other = Command::new(engine.folder.join(engine.name.as_str()))
        .args(["apply", "-auto-approve", "-input=false"])
        .current_dir(bench.module())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually_blocking("the other apply", || bench.module().join("begun").exists());
    let lock = fs::read(bench.module().join(".terraform.tfstate.lock.info")).unwrap();
    let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
    let fault = bench.run(plan()).await.faulted();
    bench.write("go", "");
    assert!(other.wait().unwrap().success());
    assert!(fault.message.contains(lock["ID"].as_str().unwrap()), "{fault:?}");
    assert!(fault.message.contains("still running") && !fault.message.contains('`'), "{fault:?}");
}

#[tokio::test]
async fn leftovers_of_a_lost_step_are_found() {
    let bench = Bench::new(&[("main.tf", "")]);
    bench.write("errored.tfstate", "{\"version\": 4, \"resources\": []}");
    bench.write(
        ".terraform.tfstate.lock.info",
        "{\"ID\": \"stale-id\", \"Operation\": \"OperationTypeApply\"}",
    );
    let fault = explain_lost(&bench.context(), &apply(), Fault::new("unknown outcome.")).await;
    assert!(fault.message.starts_with("unknown outcome. The backend did not accept"), "{fault:?}");
    assert!(fault.message.contains("The state lock stale-id (apply) was left behind in"), "{fault:?}");
    assert_eq!(rescued(&bench).len(), 1);
    assert!(fault.message.contains(rescued(&bench)[0].to_str().unwrap()), "{fault:?}");

    // Elsewhere by the module's environment: there the engine has noted that its state is at the path below.
    let bench = Bench::new(&[(
        "main.tf",
        "terraform {\n  backend \"local\" {\n    path = \"other/my.tfstate\"\n  }\n}\n",
    )]);
    let resolved_env_vars = [("TF_DATA_DIR".to_owned(), "data".to_owned())].into();
    let own = EngineTask {
        init: InitOptions { resolved_env_vars, ..InitOptions::default() },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    bench.run(TaskRequest::Engine(own)).await.completed();
    assert!(
        bench.module().join("data/terraform.tfstate").exists() && !bench.module().join(".terraform").exists()
    );
    fs::create_dir(bench.module().join("other")).unwrap();
    bench.write("other/.my.tfstate.lock.info", "{\"ID\": \"other-id\"}");
    let fault = explain_lost(&bench.context(), &apply(), Fault::new("unknown outcome.")).await;
    assert!(fault.message.contains("The state lock other-id"), "{fault:?}");

    // A plan writes no such file, so one that is there is not the plan's.
    let bench = Bench::new(&[("main.tf", "")]);
    bench.write("errored.tfstate", "{}");
    let fault = explain_lost(&bench.context(), &plan(), Fault::new("unknown outcome.")).await;
    assert_eq!(fault.message, "unknown outcome.");
}

const ENCRYPTION: &str = r#"key_provider "pbkdf2" "key" {
  passphrase = "correct-horse-battery"
}
method "aes_gcm" "method" {
  keys = key_provider.pbkdf2.key
}
state {
  method = method.aes_gcm.method
}
"#;

#[tokio::test]
async fn an_encrypted_state_is_decrypted_and_pushed_by_the_printed_commands() {
    let Some(engine) = real(EngineName::TOFU) else { return };
    let server = StateServer::start();
    let bench = Bench::new(&[("main.tf", &server.module())]).with_engine(&engine);
    // Not the settings of this machine, whose warnings OpenTofu prints on stdout.
    let variables = [("TF_CLI_CONFIG_FILE", "/dev/null"), ("TF_ENCRYPTION", ENCRYPTION)];
    let task = |task| EngineTask::new(task, EngineName::TOFU);
    let resolved_env_vars = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let init = InitOptions { resolved_env_vars, ..InitOptions::default() };
    bench.run(TaskRequest::Engine(EngineTask { init, ..task(Task::Init) })).await.completed();
    bench.run(TaskRequest::Engine(task(Task::Plan))).await.completed();
    server.kept.lock().unwrap().refuses_state = true;
    let fault = bench.run(TaskRequest::Engine(task(Task::ApplyFromPlan))).await.faulted();
    assert!(fault.message.contains("Failed to save state"), "{fault:?}");
    let state = "errored.tfstate (encrypted). Before the next run: decrypt it";
    assert!(fault.message.contains(state), "{fault:?}");

    server.kept.lock().unwrap().refuses_state = false;
    let path = format!("{}:{}", engine.folder.display(), std::env::var("PATH").unwrap());
    let run = |command: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", command]).current_dir(bench.module()).env("PATH", &path).envs(variables);
        let output = bash.output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for start in ["sh -c ", "tofu state push "] {
        let at = fault.message.find(start).unwrap();
        run(fault.message[at..].split('`').next().unwrap());
    }
    assert_eq!(run("tofu state list"), "terraform_data.it\n");
}
