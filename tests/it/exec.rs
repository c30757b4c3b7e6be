//! `hawser exec` and `hawser shell`: a user's commands in a module, next to a runner and without one.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitOptions, PulumiFlag, Task, TaskRequest, TerraformArrayFlag,
};
use hawser_dev_server::{JobKind, JobState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::support::audit::audit_log;
use crate::support::eventually::{LIMIT, eventually, eventually_blocking};
use crate::support::git::git_in;
use crate::support::pulumi::{
    pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_state, pulumi_task,
};
use crate::support::real_engines::{real, terraform_and_tofu};
use crate::support::steps::{Bench, with_hawser};
use crate::support::world::{EMPTY, HAWSER, Runner, World, job, waiting};
use crate::tasks::rescuing::StateServer;

const MODULE: &str = "resource \"terraform_data\" \"it\" {\n  input = \"first\"\n}\n";

/// The machine's own configuration of the engine may cause warnings.
const NO_CLI_CONFIG: (&str, &str) = ("TF_CLI_CONFIG_FILE", "/dev/null");

fn engine_task(task: Task, engine: &EngineName) -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(task, engine.clone()))
}

fn init_with(engine: &EngineName, variables: &[(&str, &str)]) -> TaskRequest {
    let variables = variables.iter().chain(&[NO_CLI_CONFIG]);
    let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    TaskRequest::Engine(EngineTask {
        init: InitOptions { resolved_env_vars: variables.collect(), ..InitOptions::default() },
        ..EngineTask::new(Task::Init, engine.clone())
    })
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `hawser` with these arguments, in a module of the bench.
fn hawser(bench: &Bench, arguments: &str) -> Output {
    bench.shell(&format!("exec hawser {arguments}")).stdin(Stdio::null()).output().unwrap()
}

async fn initialized(variables: &[(&str, &str)]) -> Bench {
    let bench = Bench::new(&[("main.tf", MODULE)]);
    bench.run(init_with(&EngineName::TERRAFORM, variables)).await.completed();
    bench
}

#[tokio::test]
async fn the_state_of_the_last_task_is_read_and_written() {
    for engine in terraform_and_tofu() {
        let (bench, name) = (Bench::new(&[("main.tf", MODULE)]).with_engine(&engine), &engine.name);
        bench
            .run(init_with(name, &[("TF_WORKSPACE", "prod"), ("TF_DATA_DIR", "the data")]))
            .await
            .completed();
        bench.run(engine_task(Task::Plan, name)).await.completed();
        bench.run(engine_task(Task::ApplyFromPlan, name)).await.completed();
        let state = bench.run_by_hand(&format!("hawser exec stack/space/module -- {name} state list"));
        assert_eq!(state, "terraform_data.it\n");
        // A user's own workspace does not count.
        let pull = format!("TF_WORKSPACE=other hawser exec module -- {name} state pull > pulled");
        bench.run_by_hand(&pull);
        bench.run_by_hand(&format!("hawser exec space/module -- {name} state rm terraform_data.it"));
        assert_eq!(bench.run_by_hand(&format!("hawser exec module -- {name} state list")), "");
        let pulled = bench.root.path().join("etc/pulled");
        let push = format!("hawser exec module -- {name} state push -force '{}'", pulled.display());
        bench.run_by_hand(&push);
        let listed = bench.run_by_hand(&format!("hawser exec module -- {name} state list"));
        assert_eq!(listed, "terraform_data.it\n");
    }
}

#[tokio::test]
async fn the_command_is_the_users_own() {
    let mut bench = initialized(&[("FROM_INIT", "it's $HOME")]).await;
    // Exit code, signal, arguments, stdin, and stdout.
    assert_eq!(hawser(&bench, "exec module -- sh -c 'exit 7'").status.code(), Some(7));
    assert_eq!(hawser(&bench, "exec module -- sh -c 'kill -9 $$'").status.signal(), Some(9));
    let echo = r#"exec module -- printf '<%s>' -- --Runner:Id=x --wait '*' "a b""#;
    assert_eq!(text(&hawser(&bench, echo)), "<--><--Runner:Id=x><--wait><*><a b>");
    assert_eq!(bench.run_by_hand("echo from stdin | hawser exec module -- cat"), "from stdin\n");

    let asked = bench.run_by_hand(
        "Runner__Credentials__ClientSecret=hush hawser exec module -- \
         sh -c 'pwd; umask; echo \"$FROM_INIT\"; echo $TF_INPUT; env | grep hush || echo no secret'",
    );
    let expected = format!("{}\n0022\nit's $HOME\n0\nno secret\n", bench.module().display());
    assert_eq!(asked, expected);

    bench.settings["Engine"] = json!({"EnvironmentAllowList": ["GOOD"]});
    let kept =
        bench.run_by_hand("TERM=vt100 GOOD=1 BAD=1 hawser exec module -- sh -c 'echo $TERM $GOOD$BAD'");
    assert_eq!(kept, "vt100 1\n");

    let missing = hawser(&bench, "exec module -- no-such-program");
    assert_eq!(missing.status.code(), Some(127), "{}", errors(&missing));
    assert!(errors(&missing).contains("cannot find the program \"no-such-program\""), "{}", errors(&missing));
    let not_executable = hawser(&bench, "exec module -- ./main.tf");
    assert_eq!(not_executable.status.code(), Some(126), "{}", errors(&not_executable));
    for nothing in
        ["exec module", "exec module --", "exec module terraform state list", "exec module --wiat -- ls"]
    {
        let refused = hawser(&bench, nothing);
        assert_eq!(refused.status.code(), Some(64), "{nothing}: {}", errors(&refused));
    }
}

#[tokio::test]
async fn an_unknown_module_is_answered_with_those_that_exist() {
    let bench = initialized(&[]).await;
    let other = bench.root.path().join("work/stack/other/module/.git");
    fs::create_dir_all(other).unwrap();
    for (name, part) in [
        ("stack/space/modul", "has the modules: stack/space/module, stack/other/module"),
        ("stack/space/modul", "did you mean stack/space/module?"),
        ("module", "fits several modules: stack/other/module, stack/space/module"),
    ] {
        let refused = hawser(&bench, &format!("exec {name} -- ls"));
        assert_eq!(refused.status.code(), Some(64), "{}", errors(&refused));
        assert!(errors(&refused).contains(part), "{}", errors(&refused));
    }
    assert!(!bench.root.path().join("work/.hawser/locks/stack/space/modul.lock").exists());
    let never_used = hawser(&bench, "exec stack/other/module -- ls");
    assert_eq!(never_used.status.code(), Some(1), "{}", errors(&never_used));
    assert!(errors(&never_used).contains("is not a checkout of this runner"), "{}", errors(&never_used));
}

#[tokio::test]
async fn only_the_settings_that_a_command_needs_are_required() {
    let mut bench = initialized(&[("SOME_VARIABLE", "x")]).await;
    let working = bench.settings["WorkingDirectory"].clone();
    bench.settings = json!({"Runner": {"MaxConcurrentSteps": "many"}, "Server": {"Url": "no url"}});
    let path = working["WorkingDirectory"].as_str().unwrap();
    let ran = bench.run_by_hand(&format!(
        "hawser exec module --WorkingDirectory:WorkingDirectory='{path}' -- sh -c 'echo $SOME_VARIABLE'"
    ));
    assert_eq!(ran, "x\n");
    // A misspelled section may be one that matters.
    bench.settings =
        json!({"WorkingDirectory": working.clone(), "Runner": {"Instanz": "x"}, "Engin": {"Tofu": "x"}});
    let listed = hawser(&bench, "exec module -- ls");
    assert!(listed.status.success(), "{}", errors(&listed));
    assert!(errors(&listed).contains("Engin "), "{}", errors(&listed));
    assert!(!errors(&listed).contains("Instanz"), "{}", errors(&listed));
    // The policy applies to what a server has saved with the module.
    bench.settings["WorkingDirectory"] = working;
    bench.settings["Policy"] = json!({"AllowedVariables": ["OTHER"]});
    let refused = hawser(&bench, "exec module -- ls");
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors(&refused).contains("Policy.AllowedVariables"), "{}", errors(&refused));
    bench.settings["Policy"] = json!({"AllowedVariables": "no list"});
    assert_eq!(hawser(&bench, "exec module -- ls").status.code(), Some(78));
}

#[tokio::test]
async fn every_command_is_in_the_audit_log_without_its_secrets() {
    let mut bench = initialized(&[]).await;
    bench.run_by_hand("SUDO_USER=ann hawser exec module -- terraform state list -no-such-flag=hush || true");
    bench.run_by_hand("SHELL=/bin/bash hawser shell module < /dev/null");
    let file = bench.root.path().join("work/.hawser/audit.jsonl");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let log = fs::read_to_string(file).unwrap();
    assert!(!log.contains("hush"), "{log}");
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second] = events.as_slice() else { panic!("{log}") };
    for (name, value) in [
        ("event", "exec"),
        ("stack", "stack"),
        ("namespace", "space"),
        ("module", "module"),
        ("engine", "terraform"),
        ("command", "terraform state list"),
        ("user", "ann"),
        ("instance", "test"),
    ] {
        assert_eq!(first[name], value, "{first}");
    }
    assert_eq!(first["arguments"], 3, "{first}");
    // A hash could be compared with guessed secrets.
    assert!(!log.contains("ash\":"), "{log}");
    assert_eq!(first["uid"], rustix::process::getuid().as_raw());
    assert_eq!(second["command"], "bash");
    // A log that cannot be written does not get in the way of a repair.
    bench.settings["Audit"] = json!({"File": "/proc/no-such-folder/audit.jsonl"});
    let ran = hawser(&bench, "exec module -- echo repaired");
    assert_eq!(text(&ran), "repaired\n");
    assert!(errors(&ran).contains("failed to write audit event to /proc/"), "{}", errors(&ran));
}

#[tokio::test]
async fn a_shell_opens_in_the_module() {
    let bench = initialized(&[("FROM_INIT", "yes")]).await;
    let lines = "pwd; echo $FROM_INIT; exit 5";
    let mut command = bench.shell("SHELL=/bin/bash exec hawser shell module");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let ran = shell.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(5), "{}", errors(&ran));
    assert_eq!(text(&ran), format!("{}\nyes\n", bench.module().display()));
    assert!(errors(&ran).contains("module stack/space/module (terraform) in /"), "{}", errors(&ran));
}

#[tokio::test]
async fn at_a_terminal_the_engine_may_ask_and_an_interrupt_reaches_only_the_command() {
    let bench = initialized(&[]).await;
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).unwrap());
    let script =
        "trap 'echo interrupted; exit 42' INT; echo \"input <$TF_INPUT>\"; while :; do sleep 0.05; done";
    // Bash cannot trap a signal that was ignored when it started, as it is in background jobs.
    let line = format!(
        "exec env --default-signal=INT setsid --ctty --wait hawser exec module -- bash -c '{}'",
        script.replace('\'', "'\\''")
    );
    let mut shell = bench.shell(&line);
    let mut child = shell.stdin(theirs()).stdout(theirs()).stderr(theirs()).spawn().unwrap();
    drop(shell);
    let mut terminal = File::from(ours);
    let mut shown = String::new();
    let mut read_until = |terminal: &mut File, text: &str| {
        while !shown.contains(text) {
            let mut ready = [PollFd::new(terminal, PollFlags::IN)];
            let limit = Timespec::try_from(LIMIT).unwrap();
            assert_ne!(poll(&mut ready, Some(&limit)).unwrap(), 0, "no {text:?} in {shown:?}");
            let mut bytes = [0; 1024];
            let count = terminal.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "no {text:?} in {shown:?}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    read_until(&mut terminal, "input <>");
    terminal.write_all(b"\x03").unwrap();
    read_until(&mut terminal, "interrupted");
    let status = eventually_blocking("the command ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(42));
}

#[tokio::test]
async fn a_command_as_another_user_is_refused() {
    let bench = initialized(&[]).await;
    bench.shell("true");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(bench.module(), Some(65534), None).unwrap();
    let refused = hawser(&bench, "exec module -- ls -l");
    assert_eq!(refused.status.code(), Some(64));
    let hint = "`sudo -u '#65534' hawser exec module -- ls -l`";
    assert!(errors(&refused).contains(hint), "{}", errors(&refused));
}

#[tokio::test]
async fn a_locked_pulumi_stack_is_unlocked() {
    let Some(bench) =
        pulumi_module("resources:\n  a:\n    type: pulumi:index:Stash\n    properties: {input: one}\n")
    else {
        return;
    };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
    let listed = bench.run_by_hand("hawser exec module -- pulumi stack export");
    assert!(listed.contains("pulumi:index:Stash"), "{listed}");
    let lock = pulumi_state(&bench).join(".pulumi/locks/organization/program/snapcd/0.json");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "{\"pid\": 7, \"username\": \"me\", \"hostname\": \"vm\"}").unwrap();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.faulted();
    bench.run_by_hand("hawser exec stack/space/module -- pulumi cancel --yes");
    assert!(!lock.exists());
    bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
}

#[tokio::test]
async fn pulumi_commands_use_the_backend_and_the_stack_of_the_module() {
    let Some(bench) = pulumi_module("outputs: {text: hello}\n") else { return };
    bench.run(pulumi_init(&bench, &[(PulumiFlag::StackName, Some("prod"))])).await.completed();
    // Another login, and another selected stack, of the same user.
    let other = bench.root.path().join("other");
    fs::create_dir(&other).unwrap();
    let line = format!("PULUMI_BACKEND_URL='file://{}' PULUMI_STACK=other", other.display());
    let shown = bench.run_by_hand(&format!("{line} hawser exec module -- pulumi stack --show-name"));
    assert_eq!(shown, "prod\n");
    let found = bench.run_by_hand(&format!("{line} hawser exec module -- sh -c 'echo $PULUMI_BACKEND_URL'"));
    assert_eq!(found, format!("file://{}\n", pulumi_state(&bench).display()));
}

/// A user's shell on the machine of a runner: it knows where the working directory is, and nothing else.
fn beside(runner: &Runner, line: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir("/").env("PATH", with_hawser());
    shell.env("WorkingDirectory__WorkingDirectory", &runner.working).stdin(Stdio::null());
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_and_a_command_wait_for_each_other() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let runner = world.runner("one");
    let gate = world.path("gate");
    let id = world.hub.submit(waiting(&world, &url, "it", &gate));
    eventually("the task runs", || world.path("it.ran").exists()).await;

    let busy = beside(&runner, "hawser exec it -- echo ran").output().unwrap();
    assert_eq!(busy.status.code(), Some(75), "{}", errors(&busy));
    let reason = format!("the module local/local/it is in use by task Validate of job {id} (process ");
    assert!(errors(&busy).contains(&reason) && errors(&busy).contains("--wait"), "{}", errors(&busy));

    let begun = world.path("begun");
    let done = world.path("done");
    let script = format!(
        "touch '{}'; while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done",
        begun.display(),
        world.dir.path().display(),
        done.display()
    );
    let line = format!("exec hawser exec --wait it -- bash -c {}", hawser::script::quote(&script));
    let mut waits = beside(&runner, &line).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 10];
    waits.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert!(!begun.exists(), "it does not wait");
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    eventually("the command has the module", || begun.exists()).await;

    let second = world.hub.submit(waiting(&world, &url, "it", &gate));
    eventually("the runner waits for the module", || runner.log().contains("waiting for module directory"))
        .await;
    assert!(runner.log().contains("hawser exec (process "), "{}", runner.log());
    assert!(world.messages(second).is_empty(), "a task ran next to the command");
    fs::write(&done, "").unwrap();
    assert!(waits.wait().unwrap().success());
    assert_eq!(world.ended(second).await.state, JobState::Completed);
    let exec: Vec<_> = audit_log(&runner).into_iter().filter(|line| line["event"] == "exec").collect();
    assert_eq!(exec.len(), 1, "{exec:?}");
    world.assert_no_violation();
}

/// Kills the apply of a module with its state on a server, so that the state stays locked, and follows the advice.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_killed_apply_is_removed_with_the_command_in_the_message() {
    for engine in terraform_and_tofu() {
        for with_runner in [true, false] {
            let (world, server) = (World::new().await, StateServer::start());
            let folder = world.dir.path().display().to_string();
            let slow = format!("echo $PPID > {folder}/pid; while [ -d {folder} ]; do sleep 0.2; done");
            let module = format!(
                "{}resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {slow:?}\n  }}\n}}\n",
                server.module()
            );
            let url = world.repository("repo", &[("deep/er/main.tf", &module)]);
            let folders = engine.folder.display().to_string();
            let settings = [("Engine__AdditionalBinaryPaths__0", folders.as_str()), NO_CLI_CONFIG];
            let mut runner = world.runner_with("one", &settings);
            let spec = |kind| {
                let mut spec = job(kind, &url, "locked");
                spec.engine = engine.name.clone();
                spec.subdirectory = Some("deep/er".to_owned());
                spec
            };
            let apply = world.hub.submit(spec(JobKind::Apply));
            let pid = eventually("the apply runs", || {
                fs::read_to_string(world.path("pid")).ok()?.trim().parse::<i32>().ok()
            });
            let pid = rustix::process::Pid::from_raw(pid.await).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            world.ended(apply).await.error.unwrap();
            let fault = world.ended(world.hub.submit(spec(JobKind::Plan))).await.error.unwrap().message;
            let advice = format!(
                "`hawser exec local/local/locked -- {} force-unlock {}`",
                engine.name,
                server.lock_id()
            );
            assert!(fault.contains(&advice), "{fault}");
            if !with_runner {
                runner.kill();
            }
            let line = format!("echo yes | {}", advice.trim_matches('`'));
            let mut shell = beside(&runner, &line);
            let ran = shell.envs(settings).output().unwrap();
            assert!(ran.status.success(), "{}{}", text(&ran), errors(&ran));
            if !with_runner {
                runner.restart();
            }
            let ended = world.ended(world.hub.submit(spec(JobKind::Plan))).await;
            assert_eq!(ended.state, JobState::Completed, "{ended:?}");
        }
    }
}

/// OpenTofu needs the variables of the backend for every command.
#[tokio::test]
async fn the_lock_of_a_backend_with_variables_is_removed_with_the_command_in_the_message() {
    let Some(engine) = real(EngineName::TOFU) else { return };
    let server = StateServer::start();
    let module = "variable \"address\" {
  type = string
}
terraform {
  backend \"http\" {
    address        = var.address
    lock_address   = var.address
    unlock_address = var.address
    retry_max      = 0
  }
}
resource \"terraform_data\" \"it\" {}
";
    // Values in a file of the module are weaker than those of Init.
    let bench =
        Bench::new(&[("main.tf", module), ("terraform.tfvars", "address = \"http://127.0.0.1:1\"\n")]);
    let bench = bench.with_engine(&engine);
    let TaskRequest::Engine(init) = init_with(&engine.name, &[("TF_CLI_ARGS_state_list", "-id=none")]) else {
        unreachable!()
    };
    let address = format!("address={}", server.address());
    let array = vec![Flag::new(TerraformArrayFlag::Var, Some(&address))];
    let flags = FlagLists { terraform_array_flags: array.into(), ..FlagLists::default() };
    bench.run(TaskRequest::Engine(EngineTask { flags, ..init })).await.completed();
    bench.run(engine_task(Task::Plan, &engine.name)).await.completed();
    bench.run(engine_task(Task::ApplyFromPlan, &engine.name)).await.completed();
    assert_eq!(bench.run_by_hand("hawser exec module -- tofu output -json"), "{}\n");
    // The module's own arguments still apply.
    assert_eq!(bench.run_by_hand("hawser exec module -- tofu state list"), "");

    server.lock("6227a3f4-11d0-4c3e-a1a5-0c7f8d1f6f33");
    let fault = bench.run(engine_task(Task::Plan, &engine.name)).await.faulted();
    let advice = "hawser exec stack/space/module -- tofu force-unlock 6227a3f4-11d0-4c3e-a1a5-0c7f8d1f6f33";
    assert!(fault.message.contains(advice), "{fault:?}");
    bench.run_by_hand(&format!("echo yes | {advice}"));
    bench.run(engine_task(Task::Plan, &engine.name)).await.completed();
}

#[tokio::test]
async fn a_command_uses_the_stack_of_the_task_and_not_of_init() {
    let Some(bench) = pulumi_module("outputs: {text: hello}\n") else { return };
    for stack in ["dev", "prod"] {
        bench.run(pulumi_init(&bench, &[(PulumiFlag::StackName, Some(stack))])).await.completed();
    }
    let shown = || bench.run_by_hand("hawser exec module -- pulumi stack --show-name");
    assert_eq!(shown(), "prod\n");
    let dev = pulumi_flags(&[(PulumiFlag::StackName, Some("dev"))], &[]);
    bench.run(pulumi_plan(Task::Plan, &[], dev)).await.completed();
    assert_eq!(shown(), "dev\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_task_is_reported_when_the_command_that_holds_its_module_has_ended() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner("one");
    let gate = world.path("gate");
    let id = world.hub.submit(waiting(&world, &url, "it", &gate));
    eventually("the task runs", || world.path("it.ran").exists()).await;
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || {
        runner.steps().iter().any(|step| step.join("exit.json").exists())
    })
    .await;

    // The supervisor may still hold the module for a moment.
    let line = "exec hawser exec --wait it -- sh -c 'echo begun; cat'";
    let mut command = beside(&runner, line);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut begun = [0; 6];
    holder.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    runner.restart();
    eventually("the runner waits for the module", || runner.log().contains("waiting for module directory"))
        .await;
    assert_eq!(world.hub.job(id).unwrap().state, JobState::Running);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(world.ended(id).await.state, JobState::Completed);
    world.assert_no_violation();
}

#[tokio::test]
async fn a_module_of_hawser_local_is_found_by_its_name() {
    if real(EngineName::TERRAFORM).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (module, data) = (root.path().join("app"), root.path().join("data"));
    fs::create_dir(&module).unwrap();
    fs::write(module.join("main.tf"), MODULE).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(HAWSER);
        command.args(arguments).current_dir(root.path()).env("HAWSER_LOCAL_DIR", &data);
        command.env("HOME", root.path()).stdin(Stdio::null()).output().unwrap()
    };
    let applied = run(&["local", "--yes", "--engine", "terraform", module.to_str().unwrap()]);
    assert!(applied.status.success(), "{}{}", text(&applied), errors(&applied));
    let area = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let area = area.into_iter().find(|name| name.starts_with("app-")).unwrap();
    let name = format!("local/{}/app", area.trim_start_matches("app-"));
    let listed = run(&["exec", &name, "--", "terraform", "state", "list"]);
    assert_eq!(text(&listed), "terraform_data.it\n", "{}", errors(&listed));
    for found in ["app", "./app", module.to_str().unwrap()] {
        let listed = run(&["exec", found, "--", "terraform", "state", "list"]);
        assert_eq!(text(&listed), "terraform_data.it\n", "{found}: {}", errors(&listed));
    }
    let unknown = run(&["exec", &name.replace("/app", "/apq"), "--", "ls"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(errors(&unknown).contains(&format!("did you mean {name}?")), "{}", errors(&unknown));
}

/// Two local runs of directories with the same name, and a module of a runner that has another.
#[tokio::test]
async fn a_local_module_is_chosen_by_its_directory_and_never_instead_of_a_module_of_the_runner() {
    if real(EngineName::TERRAFORM).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (data, working) = (root.join("data"), root.join("working"));
    let run = |below: &str, arguments: &[&str]| {
        let mut command = Command::new(HAWSER);
        command.args(arguments).current_dir(root.join(below)).env("HAWSER_LOCAL_DIR", &data);
        command.env("HOME", &root).stdin(Stdio::null()).output().unwrap()
    };
    for below in ["a/vpc", "b/vpc"] {
        fs::create_dir_all(root.join(below)).unwrap();
        fs::write(root.join(below).join("main.tf"), MODULE).unwrap();
        let applied = run(below, &["local", "--yes", "--engine", "terraform", "."]);
        assert!(applied.status.success(), "{}{}", text(&applied), errors(&applied));
    }
    for below in ["a", "b"] {
        let found = run(below, &["exec", "vpc", "--", "pwd"]);
        let directory = root.join(below).join("vpc").display().to_string();
        assert!(text(&found).trim_end().ends_with(&directory), "{}{}", text(&found), errors(&found));
        let said = errors(&found);
        assert!(
            said.lines().count() == 1 && said.trim_end().ends_with(&format!("`hawser local` in {directory}")),
            "{said}"
        );
    }
    let several = run("", &["exec", "vpc", "--", "true"]);
    assert!(errors(&several).contains("fits several modules"), "{}", errors(&several));

    let chosen = format!("--WorkingDirectory:WorkingDirectory={}", working.display());
    for name in ["vpc", "./vpc"] {
        let refused = run("a", &["exec", name, &chosen, "--", "true"]);
        assert_eq!(refused.status.code(), Some(64), "{name}: {}", errors(&refused));
        let said = errors(&refused);
        assert!(said.contains("unknown module") && said.contains("`hawser local` has the module"), "{said}");
    }
    // The hint works.
    let refused = errors(&run("a", &["exec", "./vpc", &chosen, "--", "true"]));
    let option = refused.split("pass ").nth(1).unwrap().trim().replace('\'', "");
    let listed = run("a", &["exec", "vpc", &option, "--", "terraform", "state", "list"]);
    assert_eq!(text(&listed), "terraform_data.it\n", "{}", errors(&listed));

    fs::write(
        root.join("a/appsettings.json"),
        format!("{{\"WorkingDirectory\": {{\"WorkingDirectory\": {working:?}}}}}"),
    )
    .unwrap();
    assert_eq!(run("a", &["exec", "vpc", "--", "true"]).status.code(), Some(64));
}

/// The commit does not matter, only that it is a repository.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_revision_keeps_the_engine_of_the_last_task() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", MODULE)]);
    let runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "it");
    spec.env_vars.insert("FROM_INIT".to_owned(), "kept".into());
    assert_eq!(world.ended(world.hub.submit(spec)).await.state, JobState::Completed);
    fs::write(Path::new(&url).join("more.tf"), "").unwrap();
    git_in(Path::new(&url), &["add", "-A"]);
    git_in(Path::new(&url), &["commit", "-q", "-m", "second"]);
    let mut fetch = job(JobKind::Tasks(vec![Task::GetModule]), &url, "it");
    fetch.source.source_definitive_revision = Some(git_in(Path::new(&url), &["rev-parse", "HEAD"]));
    assert_eq!(world.ended(world.hub.submit(fetch)).await.state, JobState::Completed);
    let line = "hawser exec it -- bash -c 'ls more.tf; echo $FROM_INIT; terraform state list'";
    let ran = beside(&runner, line).output().unwrap();
    assert_eq!(text(&ran), "more.tf\nkept\nterraform_data.it\n", "{}", errors(&ran));
}
