//! What one engine does and others do not, and a whole job with an engine of a few lines. `tests/it/tasks` has what engines
//! share.

mod failed_init;
mod faults;
mod pulumi_backend;
mod pulumi_login;
mod pulumi_parameters;
mod pulumi_results;
mod pulumi_stacks;
mod terraform_variables;
mod tofu_plugins;

use std::sync::Arc;

use hawser::engines::{Engine, EngineCommands, EngineError, Engines, ResultPaths};
use hawser::masking::{Rules, SecretStore};
use hawser::runner::{Options, Shutdown};
use hawser::script::EngineCommand;
use hawser::workspace::PrivateFile;
use hawser_contract::{EngineName, EngineTask, OutputValue, PlanData, Success, Task};
use hawser_dev_server::{JobKind, JobState};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::steps::Ran;
use crate::support::world::{HAWSER, World, job};

#[track_caller]
fn counts(ran: Ran) -> PlanData {
    match ran.completed() {
        Success::Plan(data) => *data,
        other => panic!("{other:?}"),
    }
}

/// Runs `main.sh` of the module with the name of the task.
#[derive(Debug)]
struct Shell;

impl Engine for Shell {
    fn name(&self) -> EngineName {
        "sh".parse().unwrap()
    }

    fn install_hint(&self) -> &'static str {
        "install a shell"
    }

    fn uses_file(&self, name: &str) -> bool {
        name == "main.sh"
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["-c", "echo 1.0"]
    }

    fn verb(&self, _task: Task) -> &'static str {
        "main.sh"
    }

    fn commands(&self, task: &EngineTask, paths: &ResultPaths) -> Result<EngineCommands, EngineError> {
        let mut command = EngineCommand::new(["sh", "main.sh", task.task.name()]);
        if task.task == Task::Output {
            command = command.stdout(paths.step(PrivateFile::OUTPUT.name()).into());
        }
        Ok(EngineCommands { engine: vec![command], ..EngineCommands::default() })
    }

    fn read_plan(&self, _task: Task, _paths: &ResultPaths) -> Result<(PlanData, Vec<String>), EngineError> {
        let data =
            PlanData { create_count: 1, total_changed_count: 1, total_count_after: 1, ..PlanData::default() };
        Ok((data, vec!["one resource".to_owned()]))
    }

    fn count_resources(&self, _paths: &ResultPaths) -> Result<u64, EngineError> {
        Ok(1)
    }

    fn parse_outputs(&self, printed: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
        let value = String::from_utf8_lossy(printed).trim().to_owned();
        let (name, kind) = ("printed".to_owned(), "string".to_owned());
        Ok(vec![OutputValue { name, kind, value, sensitive: None, from_extra_file: false }])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_engine_runs_a_whole_job_and_an_unknown_one_is_refused() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let world = World::new().await;
    let url = world.repository("repo", &[("main.sh", "echo \"ran $1\"\n")]);
    let identity = world.hub.identity();
    let settings = json!({
        "Runner": {
            "Id": identity.runner_id, "OrganizationId": identity.organization_id, "Instance": "one",
            "Credentials": {
                "ClientId": identity.client_id, "ClientSecret": identity.client_secret.expose_secret(),
            },
        },
        "Server": {"Url": world.hub.url()},
        "WorkingDirectory": {"WorkingDirectory": world.path("work"), "TempDirectory": world.path("temp")},
    });
    let options = Options {
        supervisor: HAWSER.into(),
        timing: hawser::connect::Timing::default(),
        engines: Engines::new(Engines::default().iter().cloned().chain([Arc::new(Shell) as Arc<dyn Engine>])),
    };
    let secrets = SecretStore::new(Rules::new(&Default::default()).unwrap());
    let (shutdown, asked) = tokio::sync::watch::channel(Shutdown::No);
    let settings = serde_json::from_value(settings).unwrap();
    let runner = tokio::spawn(hawser::runner::run(settings, secrets, options, asked, |_| {}));
    world.connected(1).await;

    let mut spec = job(JobKind::Apply, &url, "shell");
    spec.engine = Shell.name();
    let ran = world.hub.submit(spec.clone());
    let ended = world.ended(ran).await;
    let messages = world.messages(ran);
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{messages:#?}");
    assert_eq!(ended.plan.unwrap().create_count, 1);
    assert_eq!(ended.resources, Some(1));
    assert_eq!(ended.outputs.unwrap().outputs[0].value, "ran Output");
    for line in ["ran Init", "ran Validate", "ran Plan", "one resource", "ran ApplyFromPlan"] {
        assert!(messages.iter().any(|message| message == line), "{line}: {messages:#?}");
    }

    spec.engine = "ansible".parse().unwrap();
    let ended = world.ended(world.hub.submit(spec)).await;
    let JobState::Failed { error } = &ended.state else { panic!("{ended:#?}") };
    assert!(error.contains("ansible") && error.contains("pulumi, sh"), "{error}");
    shutdown.send_replace(Shutdown::Drain);
    runner.await.unwrap().unwrap();
}
