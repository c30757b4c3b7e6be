//! Secrets from every source, as plain text.

use hawser_contract::BackendConfig;
use hawser_contract::{Flag, SourceRefresh, SourceRevisionType, SourceType, Task, TerraformArrayFlag};
use hawser_dev_server::{HubEvent, JobKind, JobState};
use secrecy::ExposeSecret as _;

use super::seen;
use crate::support::eventually::{eventually, in_time};
use crate::support::world::{World, job};

const MODULE: &[(&str, &str)] = &[
    (
        "main.tf",
        r#"
variable "parameter" { sensitive = true }
variable "listed" {
  type      = list(string)
  sensitive = true
}
variable "defaulted" {
  sensitive = true
  default   = "origin-default"
}
variable "module_env" { sensitive = true }
variable "host_env" { sensitive = true }
variable "flag" { sensitive = true }
variable "file" { sensitive = true }
variable "auto_file" { sensitive = true }
variable "open" { default = "nothing-to-hide" }

resource "terraform_data" "made" {
  input = timestamp()
  provisioner "local-exec" {
    command = <<-EOT
      echo "provisioner ${nonsensitive(var.parameter)} ${nonsensitive(var.listed[1])} ${nonsensitive(var.defaulted)}"
      echo "provisioner ${nonsensitive(var.module_env)} ${nonsensitive(var.host_env)} ${nonsensitive(var.flag)}"
      echo "provisioner ${nonsensitive(var.file)} ${nonsensitive(var.auto_file)} ${var.open}"
    EOT
  }
}
output "planned" {
  value     = "origin-planned-${var.open}"
  sensitive = true
}
output "made" {
  value     = "origin-made-${terraform_data.made.output}"
  sensitive = true
}
output "open" { value = "open-output" }
"#,
    ),
    ("terraform.tfvars", "file = \"origin-tfvars\"\n"),
    ("more.auto.tfvars.json", r#"{"auto_file": "origin-auto-tfvars"}"#),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_any_origin_is_masked_in_every_task_of_a_job() {
    let world = World::new().await;
    let client_secret = world.hub.identity().client_secret.expose_secret().to_owned();
    let url = world.repository("repo", MODULE);
    let runner = world.runner_with(
        "one",
        &[
            ("JobLogStream__RedactValues__0", "origin-setting"),
            ("JobLogStream__RedactPatterns__0", "origin-pattern-[0-9]+"),
            ("VAULT_TOKEN", "origin-host-env"),
            ("HTTPS_PROXY", "http://me:origin-proxy@127.0.0.1:9"),
            ("TF_VAR_host_env", "origin-host-variable"),
        ],
    );
    let mut spec = job(JobKind::Apply, &url, "origins");
    for (name, value) in [("parameter", "\"origin-parameter\""), ("listed", "[\"a\", \"origin-listed\"]")] {
        spec.parameters.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("API_TOKEN", "origin-module-env"),
        ("DATABASE", "postgres://me:origin-database@db/x"),
        ("TF_VAR_module_env", "origin-module-variable"),
        ("REGION", "eu-central-1"),
    ] {
        spec.env_vars.insert(name.into(), value.into());
    }
    let mut flag = Flag::new(TerraformArrayFlag::Var, Some("flag=origin-flag"));
    flag.task = Some(hawser_contract::CommandTask::Plan);
    spec.flags.terraform_array_flags = vec![flag].into();
    let say = format!(
        "echo \"say {client_secret} origin-setting origin-pattern-42 $VAULT_TOKEN $HTTPS_PROXY $TF_VAR_host_env\"\n\
         echo \"say $API_TOKEN $DATABASE $TF_VAR_module_env $REGION\""
    );
    let given = "echo 'say origin-parameter origin-listed origin-flag origin-default origin-tfvars origin-auto-tfvars'";
    spec.hooks.init_before = Some(say.clone());
    spec.hooks.validate_after = Some(say.clone());
    spec.hooks.plan_before = Some(format!("{say}\n{given}"));
    spec.hooks.apply_before = Some(format!("{say}\n{given}\necho say origin-planned-nothing-to-hide"));
    spec.hooks.output_before = Some(format!("{say}\n{given}\nterraform output -raw made"));
    spec.hooks.output_after =
        Some("cat .snapcd/output.json .snapcd/sensitive.json .snapcd/snapcd.env".to_owned());
    let id = world.hub.submit(spec);
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    let seen = seen(&world, &ended, &runner);

    let outputs = ended.outputs.unwrap().outputs;
    let made = outputs.iter().find(|output| output.name == "made").unwrap();
    assert!(made.value.starts_with("origin-made-20"), "results are not masked: {made:?}");
    for secret in [client_secret.as_str(), "origin-"] {
        let lines: Vec<_> = seen.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} is in\n{}", lines.join("\n"));
    }
    // The lines arrive with their harmless parts.
    for line in [
        "say *** *** *** *** http://me:***@127.0.0.1:9 ***",
        "say *** postgres://me:***@db/x *** eu-central-1",
        "say *** *** *** *** *** ***",
        "provisioner *** *** ***",
        "provisioner *** *** nothing-to-hide",
        "open-output",
    ] {
        assert!(seen.contains(line), "no line with {line} in\n{seen}");
    }
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sensitive_output_is_masked_while_the_after_hook_of_its_apply_runs() {
    let world = World::new().await;
    let output =
        "output \"made\" {\n  value     = \"origin-${terraform_data.made.output}\"\n  sensitive = true\n}\n";
    let made = "resource \"terraform_data\" \"made\" {\n  input = timestamp()\n}\n";
    let url = world.repository("repo", &[("main.tf", &format!("{made}{output}"))]);
    let runner = world.runner("one");
    let go = world.path("go");
    let mut spec = job(JobKind::Apply, &url, "meanwhile");
    spec.hooks.apply_after = Some(format!(
        "echo waiting\nuntil [ -e '{}' ]; do sleep 0.05; done\necho \"made $(terraform output -raw made)\"",
        go.display()
    ));
    let id = world.hub.submit(spec);
    let noted = || {
        let folder = runner.step(id, Task::ApplyFromPlan)?;
        let text = std::fs::read_to_string(folder.join("secrets.json")).ok()?;
        text.contains("origin-20").then_some(())
    };
    eventually("the output is known before the script ends", noted).await;
    std::fs::write(&go, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let visible = seen(&world, &ended, &runner);
    assert!(visible.contains("made ***") && !visible.contains("origin-20"), "{visible}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_settings_and_source_passwords_are_masked_in_faults() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "terraform {\n  backend \"http\" {}\n}\n")]);
    let runner = world.runner("one");
    let tasks = vec![Task::GetDefinitiveRevision, Task::GetModule, Task::Init];
    let mut spec = job(JobKind::Tasks(tasks), &url, "backend");
    let config = |name: &str, value: &str| BackendConfig { name: name.to_owned(), value: value.to_owned() };
    spec.module_backend_configs = vec![
        config("address", "http://me:origin-address@127.0.0.1:9/state"),
        config("username", "somebody"),
        config("password", "${PLAIN_NAME}"),
    ];
    spec.env_vars.insert("PLAIN_NAME".into(), "origin-referred".into());
    spec.hooks.init_before = Some("echo \"Error: somebody and $PLAIN_NAME\" >&2".to_owned());
    let ended = world.ended(world.hub.submit(spec)).await;
    let error = ended.error.clone().expect("nothing listens there");
    assert!(error.message.contains("http://me:***@"), "{error:?}");
    let visible = seen(&world, &ended, &runner);
    assert!(visible.contains("somebody and ***") && !visible.contains("origin-"), "{visible}");

    let with_password = "http://me:origin-source@127.0.0.1:9/repo.git";
    let ended = world.ended(world.hub.submit(job(JobKind::Plan, with_password, "source"))).await;
    assert_eq!(ended.error.as_ref().unwrap().task, Task::GetDefinitiveRevision);
    let visible = seen(&world, &ended, &runner);
    assert!(!visible.contains("origin-"), "{visible}");

    // The URL identifies the refresh, so it is not masked. The fault is.
    let refresh = SourceRefresh {
        organization_id: world.hub.identity().organization_id,
        source_url: with_password.to_owned(),
        source_revision: "main".to_owned(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    world.hub.refresh(refresh.clone(), None).unwrap();
    let mut events = world.hub.events();
    let ended = in_time("the refresh fails", async {
        loop {
            let event = events.next().await.event;
            if let HubEvent::RefreshEnded { refresh, result: Err(fault), .. } = event {
                return (refresh, fault);
            }
        }
    })
    .await;
    assert_eq!(ended.0, refresh);
    assert!(!format!("{:?}", ended.1).contains("origin-source"), "{:?}", ended.1);
    assert!(!runner.log().contains("origin-source"), "{}", runner.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_a_git_server_repeats_is_masked_in_the_fault_of_a_refresh() {
    let world = World::new().await;
    // Git prints the text of a refusal.
    let refusal = (axum::http::StatusCode::FORBIDDEN, "the token origin-echoed has expired\n");
    let router = axum::Router::new().fallback(move || async move { refusal });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let runner = world.runner("one");
    world.connected(1).await;
    let refresh = SourceRefresh {
        organization_id: world.hub.identity().organization_id,
        source_url: format!("http://me:origin-echoed@{address}/repo.git"),
        source_revision: "main".to_owned(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    let mut events = world.hub.events();
    world.hub.refresh(refresh, None).unwrap();
    let failed = events.find(|event| match event {
        HubEvent::RefreshEnded { result: Err(fault), .. } => Some(format!("{fault:?}")),
        _ => None,
    });
    let fault = in_time("the refresh fails", failed).await;
    assert!(fault.contains("the token *** has expired"), "{fault}");
    assert!(!runner.log().contains("origin-echoed"), "{}", runner.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_runner_masks_the_secrets_of_the_earlier_process() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "")]);
    let mut runner = world.runner("one");
    let go = world.path("go");
    let mut spec =
        job(JobKind::Tasks(vec![Task::GetDefinitiveRevision, Task::GetModule, Task::Init]), &url, "anew");
    spec.env_vars.insert("API_TOKEN".into(), "origin-kept".into());
    spec.hooks.init_before = Some(format!(
        "echo \"early $API_TOKEN\"\nuntil [ -e '{}' ]; do sleep 0.05; done\necho \"late $API_TOKEN\" >&2\nexit 3",
        go.display()
    ));
    let id = world.hub.submit(spec);
    eventually("the first line is there", || world.messages(id).iter().any(|line| line == "early ***")).await;
    runner.kill();
    std::fs::write(&go, "").unwrap();
    runner.restart();
    let ended = world.ended(id).await;
    let visible = seen(&world, &ended, &runner);
    assert!(!visible.contains("origin-kept"), "{visible}");
    assert!(ended.error.unwrap().details.contains("late ***"), "{visible}");
    assert!(world.messages(id).iter().any(|line| line == "late ***"), "{visible}");
}
