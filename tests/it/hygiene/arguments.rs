//! No secrets in argument lists, which every user of the machine can read.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use hawser_contract::{
    BackendConfig, CommandTask, EngineName, EngineTask, Flag, FlagLists, InitOptions, PulumiArrayFlag,
    PulumiFlag, Success, Task, TaskRequest, TerraformArrayFlag,
};
use hawser_dev_server::JobKind;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{GATED, at_the_gate, gated};
use crate::support::eventually::{eventually, in_time};
use crate::support::processes::below;
use crate::support::steps::Bench;
use crate::support::world::{World, job};

fn variables(values: &[&str]) -> FlagLists {
    let flags: Vec<_> = values.iter().map(|value| Flag::new(TerraformArrayFlag::Var, Some(*value))).collect();
    FlagLists { terraform_array_flags: flags.into(), ..FlagLists::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_job_is_in_the_arguments_of_any_process_below_the_runner() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    // A terraform that records its arguments.
    let (bin, calls) = (world.path("bin"), world.path("calls"));
    fs::create_dir(&bin).unwrap();
    let real = which("terraform");
    let wrapper = format!("#!/bin/sh\nprintf '%s ' \"$@\" >>'{}'\nexec '{real}' \"$@\"\n", calls.display());
    fs::write(bin.join("terraform"), wrapper).unwrap();
    fs::set_permissions(bin.join("terraform"), fs::Permissions::from_mode(0o755)).unwrap();
    let bin = bin.display().to_string();
    let runner = world.runner_with("one", &[("Engine__AdditionalBinaryPaths__0", &bin)]);

    let mut spec = gated(&world, &url, "module");
    let state = world.path("canary-backend.tfstate").display().to_string();
    spec.parameters.insert("secret".into(), "\"canary-parameter\"".into());
    spec.env_vars.insert("MY_TOKEN".into(), "canary-environment".into());
    spec.module_backend_configs = vec![BackendConfig { name: "path".into(), value: state }];
    let mut flags = variables(&["secret=canary-variable"]);
    for flag in &mut flags.terraform_array_flags.known {
        flag.task = Some(CommandTask::Plan);
    }
    spec.flags = flags;
    let job = world.hub.submit(spec);
    let processes = at_the_gate(&runner).await;
    for process in &processes {
        let arguments = process.arguments();
        assert!(!arguments.iter().any(|it| it.contains("canary")), "{}: {arguments:?}", process.name);
    }
    fs::write(world.path("gate"), "").unwrap();
    let ended = world.ended(job).await;
    assert_eq!(ended.resources, Some(1), "{ended:#?}\n{}", runner.log());
    assert!(world.path("canary-backend.tfstate").exists(), "the backend setting was not used");
    let calls = fs::read_to_string(calls).unwrap();
    assert!(calls.contains("plan") && calls.contains("init") && !calls.contains("canary"), "{calls}");
}

fn which(program: &str) -> String {
    hawser::base::process::find_program(program, &[]).unwrap().display().to_string()
}

/// The outputs of a module that was planned with these flags and applied.
async fn outputs(bench: &Bench, plan: EngineTask, flags: FlagLists) -> BTreeMap<String, String> {
    let engine = plan.engine.clone();
    bench.run(TaskRequest::Engine(EngineTask { flags, ..plan })).await.completed();
    let apply = EngineTask::new(Task::ApplyFromPlan, engine.clone());
    bench.run(TaskRequest::Engine(apply)).await.completed();
    let output = EngineTask::new(Task::Output, engine);
    match bench.run(TaskRequest::Engine(output)).await.completed() {
        Success::Outputs(Some(set)) => set.outputs.into_iter().map(|it| (it.name, it.value)).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn hidden_variables_have_the_precedence_of_the_command_line_and_arrive_unchanged() {
    let module = r#"
variable "order" {}
variable "users" {}
variable "list" { type = list(string) }
variable "nasty" {}
output "order" { value = var.order }
output "users" { value = var.users }
output "list" { value = join("+", var.list) }
output "nasty" { value = var.nasty }
"#;
    let nasty = "a  b 'c' \"d\" `e` $HOME ${f} $(g) \\ \\\\ %s * ; | & <x> # é\nnew\tline -h '";
    let bench = Bench::new(&[("main.tf", module)]);
    // The server's values take precedence over the operator's own in the environment.
    let own = ("TF_CLI_ARGS_plan".to_owned(), "-var=order=own -var=users=own".to_owned());
    let init = EngineTask {
        init: InitOptions { resolved_env_vars: BTreeMap::from([own]), ..InitOptions::default() },
        ..EngineTask::new(Task::Init, EngineName::TERRAFORM)
    };
    bench.run(TaskRequest::Engine(init)).await.completed();
    let file = |name: &str| (name.to_owned(), "\"file\"".to_owned());
    let plan = EngineTask {
        resolved_parameters: BTreeMap::from([file("order"), file("nasty")]),
        ..EngineTask::new(Task::Plan, EngineName::TERRAFORM)
    };
    let nasty_pair = format!("nasty={nasty}");
    let flags = variables(&["order=first", "list=[\"x\", \"y z\"]", &nasty_pair, "order=second"]);
    let seen = outputs(&bench, plan, flags).await;
    let seen: Vec<_> = seen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(seen, [("list", "x+y z"), ("nasty", nasty), ("order", "second"), ("users", "own")]);
}

#[tokio::test]
async fn pulumi_configuration_and_credentials_in_its_url_are_in_no_argument() {
    let program = json!({"resources": {}, "outputs": {
        "a": {"config": "a"}, "b": {"config": "ns:b"}, "c": {"config": "c"},
    }});
    let bench =
        Bench::new(&[("Pulumi.yaml", "name: x\nruntime: yaml\n"), ("program.json", &program.to_string())])
            .with_standins();
    let (home, calls) = (bench.root.path().join("home"), bench.root.path().join("calls"));
    let login = Flag::new(PulumiFlag::CloudUrl, Some("postgres://me:canary-url@db/state"));
    let init = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([
                ("PULUMI_HOME".to_owned(), home.display().to_string()),
                ("STANDIN_ARGUMENTS".to_owned(), calls.display().to_string()),
            ]),
            ..InitOptions::default()
        },
        flags: FlagLists { pulumi_flags: vec![login].into(), ..FlagLists::default() },
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    };
    bench.run(TaskRequest::Engine(init)).await.completed();
    let stored = fs::read_to_string(bench.private("credentials.json")).unwrap();
    assert!(stored.contains("postgres://me:canary-url@db/state"), "{stored}");

    let config = |pair: &str| Flag::new(PulumiArrayFlag::Config, Some(pair));
    let flags = vec![config("ns:b=canary=two words 'quoted'"), config("c"), config("a=canary-flag")];
    let flags = FlagLists { pulumi_array_flags: flags.into(), ..FlagLists::default() };
    let plan = EngineTask {
        resolved_parameters: BTreeMap::from([("a".to_owned(), "\"canary-parameter\"".to_owned())]),
        ..EngineTask::new(Task::Plan, EngineName::PULUMI)
    };
    let seen = outputs(&bench, plan, flags).await;
    let seen: Vec<_> = seen.values().map(String::as_str).collect();
    assert_eq!(seen, ["canary-flag", "canary=two words 'quoted'", ""]);
    let calls = fs::read_to_string(calls).unwrap();
    assert!(calls.contains("\"ns:b\"") && calls.contains("\"login\""), "{calls}");
    assert!(!calls.contains("canary"), "{calls}");
}

/// Checks the arguments of git while it waits for a server that never answers.
async fn while_git_waits(user_info: &str) {
    let world = World::new().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let runner = world.runner_with("one", &[("NO_PROXY", "*"), ("no_proxy", "*")]);
    let url = format!("http://{user_info}@{address}/org/repo.git");
    let job = world.hub.submit(job(JobKind::Plan, &url, "module"));
    let (_connection, _) = in_time("git connects", server.accept()).await.unwrap();
    let processes = eventually("git is running", || {
        let processes = below(runner.pid());
        processes.iter().any(|it| it.name.starts_with("git-remote")).then_some(processes)
    })
    .await;
    for process in &processes {
        let arguments = process.arguments();
        assert!(!arguments.iter().any(|it| it.contains("canary")), "{}: {arguments:?}", process.name);
        let names = process.environment();
        assert!(!names.iter().any(|(name, _)| name.contains("__")), "{}: {names:?}", process.name);
    }
    drop(server);
    world.hub.cancel(job, hawser_contract::requests::CancelKind::Kill).unwrap();
    world.ended(job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_and_password_of_a_url_are_in_no_argument_of_git() {
    while_git_waits("someone:canary-password").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_place_of_the_user_is_in_no_argument_of_git() {
    while_git_waits("canary-token").await;
}

/// Reads the head of a request.
async fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_for_the_user_in_a_url_comes_from_the_operators_credential_helper() {
    let world = World::new().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let _runner = world.runner_with(
        "one",
        &[
            ("NO_PROXY", "*"),
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "credential.helper"),
            ("GIT_CONFIG_VALUE_0", "!f() { grep -q username=some-user && echo password=from-helper; }; f"),
        ],
    );
    let url = format!("http://some-user@{address}/org/repo.git");
    let job = world.hub.submit(job(JobKind::Plan, &url, "module"));
    let asked = async {
        {
            let (mut stream, _) = server.accept().await.unwrap();
            loop {
                let head = request(&mut stream).await;
                if let Some(line) = head.lines().find(|line| line.starts_with("Authorization: ")) {
                    return line.to_owned();
                }
                let refused =
                    "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(refused.as_bytes()).await.unwrap();
            }
        }
    };
    let expected = base64::engine::general_purpose::STANDARD.encode("some-user:from-helper");
    assert_eq!(in_time("git asks with a password", asked).await, format!("Authorization: Basic {expected}"));
    world.hub.cancel(job, hawser_contract::requests::CancelKind::Kill).unwrap();
    world.ended(job).await;
}
