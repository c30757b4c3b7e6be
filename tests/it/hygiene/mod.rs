//! What child processes of the runner can see, and what other users of the machine can see.

mod arguments;
mod environment;
mod modes;

use hawser_contract::EngineName;
use hawser_dev_server::{JobKind, JobSpec};

use crate::support::eventually::eventually;
use crate::support::processes::{Process, below};
use crate::support::world::{Runner, World, job};

/// A module whose apply waits for a file.
const GATED: &[(&str, &str)] = &[(
    "main.tf",
    r#"
variable "gate" {
  type = string
}
variable "secret" {
  type    = string
  default = ""
}
terraform {
  backend "local" {}
}
resource "terraform_data" "gate" {
  input = sha256(var.secret)
  provisioner "local-exec" {
    command = "echo at the gate; while [ -d '${dirname(var.gate)}' ] && [ ! -e '${var.gate}' ]; do sleep 0.05; done"
  }
}
"#,
)];

fn gated(world: &World, url: &str, module: &str) -> JobSpec {
    let mut spec = job(JobKind::Apply, url, module);
    spec.engine = EngineName::TERRAFORM;
    spec.parameters.insert("gate".into(), format!("{:?}", world.path("gate").to_str().unwrap()));
    spec
}

/// The processes of the apply while it waits: supervisor, bash, terraform and the provisioner's shell.
async fn at_the_gate(runner: &Runner) -> Vec<Process> {
    eventually("the apply is at the gate", || {
        let processes = below(runner.pid());
        let has = |name: &str| processes.iter().any(|process| process.name == name);
        // The loop of the provisioner's shell is the last to start.
        (has("terraform") && has("sleep")).then_some(processes)
    })
    .await
}

fn one<'a>(processes: &'a [Process], name: &str) -> &'a Process {
    processes.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no {name} in {processes:#?}"))
}
