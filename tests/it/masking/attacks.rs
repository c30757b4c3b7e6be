//! Secrets in forms that were once not masked.

use std::fs;

use hawser_contract::Task;
use hawser_dev_server::{JobKind, JobState};

use super::seen;
use crate::support::world::{World, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_a_source_url_is_masked_with_any_characters() {
    let world = World::new().await;
    let runner = world.runner("one");
    for (index, url) in [
        "http://user:pa'attacked-password@127.0.0.1:9/r.git",
        "http://user:pa\"attacked-password@127.0.0.1:9/r.git",
        "http://user:pa attacked-password@127.0.0.1:9/r.git",
        "http://user:pa<attacked-password@127.0.0.1:9/r.git",
        "http://user:pa`attacked-password@127.0.0.1:9/r.git",
        "http://user:pa/attacked-password@127.0.0.1:9/r.git",
        "http://user:1234/attacked-password@127.0.0.1:9/r.git",
        "ssh://user:attacked-password@127.0.0.1:9/r.git",
        "user:attacked-password@127.0.0.1/r.git",
        "http://127.0.0.1:9/r.git#token=attacked-password",
        "http://127.0.0.1:9/r.git?ref=x#token=attacked-password",
    ]
    .into_iter()
    .enumerate()
    {
        let tasks = JobKind::Tasks(vec![Task::GetDefinitiveRevision]);
        let ended = world.ended(world.hub.submit(job(tasks, url, &format!("url-{index}")))).await;
        assert!(ended.error.is_some(), "{url}: nothing listens there");
        let visible = seen(&world, &ended, &runner);
        assert!(!visible.contains("attacked-"), "{url}:\n{visible}");
    }
    let audit = fs::read_to_string(runner.working.join(".hawser/audit.jsonl")).unwrap();
    assert!(audit.contains("http://***@127.0.0.1:9/r.git") && !audit.contains("attacked-"), "{audit}");
}

const MODULE: &str = r#"
variable "quoted" { sensitive = "true" }
variable "inverted" { sensitive = !false }
variable "argument" { sensitive = true }
variable "key_file" { sensitive = true }
variable "passphrase" { sensitive = true }
variable "open" { sensitive = "false" }

resource "terraform_data" "said" {
  provisioner "local-exec" {
    command = <<-EOT
      echo "said ${nonsensitive(var.quoted)} ${nonsensitive(var.inverted)} ${nonsensitive(var.argument)} ${var.open}"
      echo "key ${nonsensitive(jsondecode(var.key_file).private_key)} ${nonsensitive(jsondecode(var.key_file).project)}"
    EOT
  }
}
resource "terraform_data" "folded" {
  depends_on = [terraform_data.said]
  provisioner "local-exec" {
    command = "false --user=administrator-of-it-all -p'${nonsensitive(var.passphrase)}' --really"
  }
}
"#;

/// Every character that a shell escapes.
const TRICKY: &str = "attacked $tricky `pw` \"v'al\\x\"";

#[tokio::test(flavor = "multi_thread")]
async fn sensitive_values_are_masked_however_they_are_declared_split_folded_or_quoted() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", MODULE)]);
    let runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "attacks");
    for (name, value) in [
        ("quoted", "\"attacked-quoted\""),
        ("inverted", "\"attacked-inverted\""),
        ("open", "\"nothing-to-hide\""),
        ("key_file", r#""{\"project\":\"my-project\",\"private_key\":\"attacked-key\"}""#),
        ("passphrase", "\"attacked horse attacked staple attacked wonder\""),
    ] {
        spec.parameters.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("TF_CLI_ARGS_plan", "-var 'argument=attacked-argument'"),
        ("DB_PASSWORD", TRICKY),
        ("DATABASE", "postgres://me:it's-attacked@db/x"),
        ("CONNECTION", "Server=db;Password=\"semi;attacked-pw\";User=me"),
    ] {
        spec.env_vars.insert(name.into(), value.into());
    }
    spec.hooks.init_after = Some(
        "export -p | grep -e DB_PASSWORD= -e DATABASE= -e CONNECTION=\n\
         printf 'quoted %q\\n' \"$DB_PASSWORD\"\n\
         echo \"again ${DB_PASSWORD@Q}\"\n\
         set | grep ^DB_PASSWORD=\n\
         set -x\n\
         : \"$DB_PASSWORD\"\n"
            .to_owned(),
    );
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.error.as_ref().map(|error| error.task), Some(Task::ApplyFromPlan), "{ended:#?}");
    assert_ne!(ended.state, JobState::Completed);
    let seen = seen(&world, &ended, &runner);
    for secret in ["attacked", "staple", "wonder", "tricky"] {
        let lines: Vec<_> = seen.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret} is in\n{}", lines.join("\n"));
    }
    for line in ["said *** *** *** nothing-to-hide", "key *** my-project", "quoted ***", "again '***'"] {
        assert!(seen.contains(line), "no line with {line} in\n{seen}");
    }
    let variables = ended.variables.unwrap().variables;
    let open: Vec<_> = variables.iter().filter(|it| !it.sensitive).map(|it| it.name.as_str()).collect();
    assert_eq!(open, ["open"]);
}
