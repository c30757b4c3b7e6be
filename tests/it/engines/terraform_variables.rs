//! Variables that one task gets and later tasks need, with the real Terraform and OpenTofu.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitFlags, InitOptions, Success, Task, TaskRequest,
    TerraformArrayFlag,
};

use super::counts;
use crate::support::real_engines::{RealEngine, real, terraform_and_tofu};
use crate::support::steps::{Bench, Ran};

/// A module with one engine.
struct Module {
    bench: Bench,
    engine: EngineName,
}

impl Module {
    fn new(engine: &RealEngine, files: &[(&str, &str)]) -> Self {
        Self { bench: Bench::new(files).with_engine(engine), engine: engine.name.clone() }
    }

    /// A task with values for `-var`.
    fn task(&self, task: Task, variables: &[&str]) -> EngineTask {
        let array =
            variables.iter().map(|it| Flag::new(TerraformArrayFlag::Var, Some(it))).collect::<Vec<_>>();
        EngineTask {
            flags: FlagLists { terraform_array_flags: array.into(), ..FlagLists::default() },
            ..EngineTask::new(task, self.engine.clone())
        }
    }

    async fn run(&self, task: Task, variables: &[&str]) -> Ran {
        self.bench.run(TaskRequest::Engine(self.task(task, variables))).await
    }

    async fn plan(&self, task: Task, parameters: &[(&str, &str)], variables: &[&str]) -> Ran {
        let pairs = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let resolved_parameters = pairs.collect();
        let own = EngineTask { resolved_parameters, ..self.task(task, variables) };
        self.bench.run(TaskRequest::Engine(own)).await
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.bench.module().join(name)).unwrap()
    }
}

#[track_caller]
fn output(ran: Ran) -> String {
    match ran.completed() {
        Success::Outputs(Some(set)) => set.outputs[0].value.clone(),
        other => panic!("{other:?}"),
    }
}

const EPHEMERAL: &str = r#"
variable "token" {
  type      = string
  ephemeral = true
  default   = "the default"
}
variable "keys" {
  type      = list(string)
  ephemeral = true
  default   = []
}
variable "other" {
  type      = string
  ephemeral = true
  default   = "the default"
}
variable "name" {
  type = string
}
resource "terraform_data" "it" {
  input = var.name
  provisioner "local-exec" {
    command     = "echo $NAME: $TOKEN, $KEYS, $OTHER >>seen"
    environment = { NAME = self.input, TOKEN = var.token, KEYS = join("+", var.keys), OTHER = var.other }
  }
}
"#;

#[tokio::test]
async fn values_of_ephemeral_variables_reach_the_apply() {
    for engine in terraform_and_tofu() {
        let module = Module::new(&engine, &[("main.tf", EPHEMERAL)]);
        module.run(Task::Init, &[]).await.completed();
        let parameters = [("name", "\"one\""), ("token", "\"it's $HOME\"")];
        counts(module.plan(Task::Plan, &parameters, &["keys=[\"a\", \"b\"]", "other=both"]).await);
        let kept = fs::metadata(module.bench.private("plan.tfvars")).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
        // A plan of another kind does not replace the values.
        counts(module.plan(Task::PlanDestroy, &[("name", "\"x\""), ("token", "\"wrong\"")], &[]).await);
        module.run(Task::ApplyFromPlan, &["other=both"]).await.completed();
        assert_eq!(module.read("seen"), "one: it's $HOME, a+b, both\n", "{engine:?}");
        // The next plan has no such values.
        counts(module.plan(Task::Plan, &[("name", "\"two\"")], &["name=three"]).await);
        module.run(Task::ApplyFromPlan, &[]).await.completed();
    }
}

#[tokio::test]
async fn values_in_files_of_the_module_can_be_replaced() {
    for engine in terraform_and_tofu() {
        let text = "variable \"a\" {}\nvariable \"b\" {}\nvariable \"c\" {}\nresource \"terraform_data\" \"it\" {\n  input = \
                    \"${var.a} ${var.b} ${var.c}\"\n}\noutput \"it\" {\n  value = terraform_data.it.output\n}\n";
        let values = "a = \"of the file\"\nb = \"of the file\"\nc = \"of the file\"\n";
        let module = Module::new(&engine, &[("main.tf", text), ("terraform.tfvars", values)]);
        module.run(Task::Init, &[]).await.completed();
        counts(module.plan(Task::Plan, &[("a", "\"parameter\""), ("gone", "1")], &["b=flag"]).await);
        module.run(Task::ApplyFromPlan, &[]).await.completed();
        assert_eq!(output(module.run(Task::Output, &[]).await), "parameter flag of the file");
        counts(module.plan(Task::PlanDestroy, &[("a", "\"parameter\"")], &[]).await);
        module.run(Task::DestroyFromPlan, &[]).await.completed();
    }
}

const EARLY: &str = r#"
variable "stage" {
  type = string
}
variable "text" {
  type = string
}
variable "token" {
  type      = string
  ephemeral = true
  default   = "none"
}
terraform {
  backend "local" {
    path = "${var.stage}.tfstate"
  }
}
module "part" {
  source = "./parts/${var.stage}"
}
resource "terraform_data" "it" {
  input = var.text
}
output "text" {
  value = "${terraform_data.it.output} ${module.part.name}"
}
"#;

#[tokio::test]
async fn tofu_gets_the_variables_of_backends_and_module_sources_in_every_task() {
    let Some(engine) = real(EngineName::TOFU) else { return };
    let module = Module::new(&engine, &[("main.tf", EARLY)]);
    fs::create_dir_all(module.bench.module().join("parts/dev")).unwrap();
    module.bench.write("parts/dev/main.tf", "output \"name\" {\n  value = \"part\"\n}\n");
    // The last one is not declared, which init accepts and plan would not.
    module.run(Task::Init, &["stage=dev", "token=init", "gone=x"]).await.completed();
    module.run(Task::Validate, &[]).await.completed();
    assert_eq!(counts(module.plan(Task::Plan, &[("text", "\"it's\"")], &[]).await).create_count, 1);
    assert_eq!(module.run(Task::ApplyFromPlan, &[]).await.completed(), Success::Resources(1));
    assert_eq!(output(module.run(Task::Output, &[]).await), "it's part");
    assert!(module.read("dev.tfstate").contains("it's"));
    let planned = module.plan(Task::PlanDestroy, &[("text", "\"it's\"")], &[]).await;
    assert_eq!(counts(planned).destroy_count, 1);
    assert_eq!(module.run(Task::DestroyFromPlan, &[]).await.completed(), Success::Resources(0));
}

const ENCRYPTED: &str = r#"
variable "phrase" {
  type      = string
  sensitive = true
}
terraform {
  encryption {
    key_provider "pbkdf2" "key" {
      passphrase = var.phrase
      iterations = 200000
    }
    method "aes_gcm" "it" {
      keys = key_provider.pbkdf2.key
    }
    state {
      method = method.aes_gcm.it
    }
    plan {
      method = method.aes_gcm.it
    }
  }
}
resource "terraform_data" "it" {
  input = "text"
}
output "text" {
  value = terraform_data.it.output
}
"#;

#[tokio::test]
async fn tofu_reads_plans_and_states_that_are_encrypted_with_a_variable() {
    let Some(engine) = real(EngineName::TOFU) else { return };
    let phrase = "a long enough phrase";
    let value = format!("\"{phrase}\"");
    let (given, flag) = ([("phrase", value.as_str())], format!("phrase={phrase}"));
    for (parameters, of_plan) in [(&given[..], None), (&[], Some(flag.as_str()))] {
        let module = Module::new(&engine, &[("main.tf", ENCRYPTED)]);
        module.run(Task::Init, &[&flag]).await.completed();
        module.run(Task::Validate, &[]).await.completed();
        let planned = module.plan(Task::Plan, parameters, of_plan.as_slice()).await;
        assert_eq!(counts(planned).create_count, 1);
        assert_eq!(module.run(Task::ApplyFromPlan, &[]).await.completed(), Success::Resources(1));
        assert_eq!(output(module.run(Task::Output, &[]).await), "text");
        assert!(!module.read("terraform.tfstate").contains("terraform_data"));
    }
}

const PLAIN: &str = "resource \"terraform_data\" \"it\" {\n  input = 1\n}\noutput \"it\" {\n  value = 1\n}\n";

#[tokio::test]
async fn a_warning_about_the_configuration_of_the_engine_does_not_hide_its_results() {
    for engine in terraform_and_tofu() {
        let module = Module::new(&engine, &[("main.tf", PLAIN)]);
        let variables = [("TF_CLI_CONFIG_FILE", "/no/such/file")];
        let resolved_env_vars = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let init = InitOptions { resolved_env_vars, ..InitOptions::default() };
        let own = EngineTask { init, ..module.task(Task::Init, &[]) };
        let ran = module.bench.run(TaskRequest::Engine(own)).await;
        let first = &ran.log[0].1;
        assert!(first.starts_with(&format!("{} 1.", engine.name)), "{first}");
        ran.completed();
        assert_eq!(counts(module.plan(Task::Plan, &[], &[]).await).create_count, 1);
        assert_eq!(module.run(Task::ApplyFromPlan, &[]).await.completed(), Success::Resources(1));
        assert_eq!(output(module.run(Task::Output, &[]).await), "1");
    }
}

#[tokio::test]
async fn an_apply_whose_state_cannot_be_read_reports_the_count_of_its_plan() {
    for engine in terraform_and_tofu() {
        // After this apply, the engine refuses to read the module.
        let breaking = "resource \"terraform_data\" \"it\" {\n  provisioner \"local-exec\" {\n    command = \
                        \"echo no >broken.tf\"\n  }\n}\nresource \"terraform_data\" \"other\" {}\n";
        let module = Module::new(&engine, &[("main.tf", breaking)]);
        module.run(Task::Init, &[]).await.completed();
        counts(module.plan(Task::Plan, &[], &[]).await);
        let own = EngineTask {
            after_hook: Some("echo after the apply".to_owned()),
            ..module.task(Task::ApplyFromPlan, &[])
        };
        let ran = module.bench.run(TaskRequest::Engine(own)).await;
        assert!(ran.says("using the count of the plan (2)"), "{:#?}", ran.log);
        assert!(ran.says("after the apply"), "{:#?}", ran.log);
        assert_eq!(ran.completed(), Success::Resources(2));
    }
}

fn reconfigure(module: &Module) -> EngineTask {
    let flags = InitFlags { auto_reconfigure_enabled: true, ..InitFlags::default() };
    let init = InitOptions { flags, ..InitOptions::default() };
    EngineTask { init, ..module.task(Task::Init, &[]) }
}

#[tokio::test]
async fn reconfiguring_does_not_answer_a_prompt_for_a_variable() {
    let Some(engine) = real(EngineName::TOFU) else { return };
    let backend = "variable \"path\" {}\nterraform {\n  backend \"local\" {\n    path = var.path\n  }\n}\n";
    let module = Module::new(&engine, &[("main.tf", backend)]);
    let ran = module.bench.run(TaskRequest::Engine(reconfigure(&module))).await;
    assert!(ran.says("var.path"), "the reason is in the log: {:#?}", ran.log);
    ran.faulted();
    assert!(!module.bench.module().join(".terraform/terraform.tfstate").exists());
}

#[tokio::test]
async fn reconfiguring_declines_to_migrate_the_state() {
    for engine in terraform_and_tofu() {
        let module = Module::new(&engine, &[("main.tf", PLAIN)]);
        module.run(Task::Init, &[]).await.completed();
        counts(module.plan(Task::Plan, &[], &[]).await);
        module.run(Task::ApplyFromPlan, &[]).await.completed();
        module
            .bench
            .write("backend.tf", "terraform {\n  backend \"local\" {\n    path = \"new.tfstate\"\n  }\n}\n");
        let ran = module.bench.run(TaskRequest::Engine(reconfigure(&module))).await;
        assert!(!ran.says("Can't ask approval"), "{:#?}", ran.log);
        ran.completed();
        assert_eq!(counts(module.plan(Task::Plan, &[], &[]).await).create_count, 1);
    }
}
