//! A provider of real size: AWS, from a mirror on this machine, against moto on loopback.
//!
//! `HAWSER_AWS_MIRROR` is the folder of the mirror and `HAWSER_MOTO` the program `moto_server`. `.ci/run` sets both; without
//! them, these tests are skipped. Each start of the provider takes a second or two and hundreds of megabytes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hawser_contract::requests::CancelKind;

use super::*;
use crate::support::eventually::eventually_blocking;
use crate::support::real_engines::skip;
use crate::support::steps::Interrupt;

test_with_terraform_and_tofu! {
    thirty_resources_survive_a_kill_and_a_cancel_and_are_destroyed,
}

const MODULE: &str = r#"
terraform {
  required_providers {
    aws = { source = "registry.terraform.io/hashicorp/aws" }
  }
}
provider "aws" {
  region                      = "us-east-1"
  access_key                  = "mock"
  secret_key                  = "mock"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}
resource "aws_ssm_parameter" "early" {
  count = 10
  name  = "early-${count.index}"
  type  = "String"
  value = "x"
}
resource "aws_sns_topic" "early" {
  count = 5
  name  = "early-${count.index}"
}
resource "terraform_data" "gate" {
  depends_on = [aws_ssm_parameter.early, aws_sns_topic.early]
  provisioner "local-exec" {
    command = "echo at the gate; while [ ! -e gate ] && [ -e main.tf ]; do sleep 0.1; done"
  }
}
resource "aws_ssm_parameter" "late" {
  count      = 10
  depends_on = [terraform_data.gate]
  name       = "late-${count.index}"
  type       = "String"
  value      = "x"
}
resource "aws_iam_role" "late" {
  count              = 5
  depends_on         = [terraform_data.gate]
  name               = "late-${count.index}"
  assume_role_policy = jsonencode({ Version = "2012-10-17", Statement = [] })
}
output "topics" { value = aws_sns_topic.early[*].name }
"#;

/// Without the gate.
const EARLY: u64 = 15;
const ALL: u64 = 31;

/// An AWS on loopback that forgets everything when the test ends.
struct Moto {
    process: Child,
    url: String,
}

impl Moto {
    fn start(program: &Path) -> Self {
        let mut process = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.split_once("Running on ")?.1.trim().to_owned()));
        // It writes a line for each request.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, url: url.expect("moto starts") }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The mirror and moto, or `None` if the tests must be skipped.
fn mirror_and_moto() -> Option<(PathBuf, PathBuf)> {
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    let found = path("HAWSER_AWS_MIRROR").zip(path("HAWSER_MOTO"));
    if found.is_none() {
        skip("the AWS provider needs HAWSER_AWS_MIRROR and HAWSER_MOTO, which .ci/run sets");
    }
    found
}

fn init(bench: &Bench, mirror: &Path, moto: &Moto) -> TaskRequest {
    let rc = bench.root.path().join("rc");
    let text = format!("provider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n");
    fs::write(&rc, text).unwrap();
    let variables = [
        ("TF_CLI_CONFIG_FILE", rc.to_str().unwrap()),
        ("AWS_ENDPOINT_URL", &moto.url),
        ("NO_PROXY", "127.0.0.1"),
    ];
    TaskRequest::Engine(EngineTask {
        init: InitOptions {
            resolved_env_vars: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    })
}

/// Whether a process works in the module, such as the engine or the provider.
fn is_busy(bench: &Bench) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.map(|it| fs::read_link(it.path().join("cwd"))).any(|it| it.is_ok_and(|it| it == bench.module()))
}

async fn thirty_resources_survive_a_kill_and_a_cancel_and_are_destroyed(engine: RealEngine) {
    let Some((mirror, program)) = mirror_and_moto() else { return };
    let moto = Moto::start(&program);
    let bench = Bench::of(&engine, &[("main.tf", MODULE)]);
    bench.run(init(&bench, &mirror, &moto)).await.completed();
    assert_eq!(counts(bench.run(plan()).await).create_count, ALL);
    let at_the_gate = |kind| Some(Interrupt { at: "\u{1b}[0mat the gate", kind });

    // A kill ends the provider too. What was created is in AWS, but perhaps not in the state.
    let ran = bench.run_interrupted(apply(), at_the_gate(CancelKind::Kill)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{ran:?}");
    eventually_blocking("the engine and the provider are gone", || !is_busy(&bench));
    drop(moto);

    // Elsewhere, an apply that is cancelled keeps what it did.
    let moto = Moto::start(&program);
    let bench = Bench::of(&engine, &[("main.tf", MODULE)]);
    bench.run(init(&bench, &mirror, &moto)).await.completed();
    counts(bench.run(plan()).await);
    let ran = bench.run_interrupted(apply(), at_the_gate(CancelKind::Graceful)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{ran:?}");
    assert!(!is_busy(&bench), "a process is left");
    assert!(!bench.module().join(".terraform.tfstate.lock.info").exists(), "the state is still locked");

    bench.write("gate", "");
    let data = counts(bench.run(plan()).await);
    // The gate is in the state, tainted.
    assert_eq!((data.total_unchanged_count, data.recreate_count), (EARLY, 1));
    assert_eq!(data.create_count, ALL - EARLY - 1);
    assert_eq!(bench.run(apply()).await.completed(), Success::Resources(ALL));
    assert_eq!(outputs(bench.run(output()).await).outputs[0].name, "topics");

    assert_eq!(counts(bench.run(plan_destroy()).await).destroy_count, ALL);
    assert_eq!(bench.run(destroy()).await.completed(), Success::Resources(0));
}
