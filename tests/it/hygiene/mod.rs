//! What the programs that the runner starts get to see, and what others on the machine get to see of it.

mod arguments;
mod environment;
mod modes;

use hawser_contract::Engine;
use hawser_dev_server::{JobKind, JobSpec};

use crate::support::eventually::eventually;
use crate::support::processes::{Process, below};
use crate::support::world::{Runner, World, job};

/// A module whose apply stands still until a file is there.
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
    spec.engine = Engine::Terraform;
    spec.parameters.insert("gate".into(), format!("{:?}", world.path("gate").to_str().unwrap()));
    spec
}

/// The processes of the apply while it stands at the gate: supervisor, bash, terraform and the provisioner's shell.
async fn at_the_gate(runner: &Runner) -> Vec<Process> {
    eventually("the apply is at the gate", || {
        let found = below(runner.pid());
        let has = |name: &str| found.iter().any(|process| process.name == name);
        // The loop of the provisioner's shell is the last to start.
        (has("terraform") && has("sleep")).then_some(found)
    })
    .await
}

fn one<'a>(processes: &'a [Process], name: &str) -> &'a Process {
    processes.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("no {name} in {processes:#?}"))
}
