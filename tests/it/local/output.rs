//! What `hawser local` prints, with the real engines.

use std::process::Command;

use hawser_contract::EngineName;

use super::{Case, Done};
use crate::support::real_engines::{real, terraform_and_tofu};

const MODULE: &str = r#"
resource "terraform_data" "it" {
  provisioner "local-exec" {
    command = "echo found ${abspath(path.module)}/main.tf; echo data ${abspath(path.module)}/.terraform"
  }
}
"#;

/// A run of one engine whose settings file is missing, about which it complains on every call.
fn run(case: &Case, engine: &str, folder: &std::path::Path, arguments: &[&str]) -> Done {
    let mut command: Command = case.command(&[&["module", "--engine", engine], arguments].concat());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path)));
    command.env("PATH", path.unwrap()).env("TF_CLI_CONFIG_FILE", case.root.path().join("missing.rc"));
    Done::from(command.output().unwrap())
}

#[test]
fn every_fact_is_printed_once() {
    for engine in terraform_and_tofu() {
        let case = Case::with(MODULE);
        let name = engine.name.as_str();
        let done = run(&case, name, &engine.folder, &["--plan"]);
        // OpenTofu fails to read its results while it complains about its settings.
        let done = if name == "terraform" { done.succeeds() } else { done };
        let count = |text: &str| done.out.matches(text).count();
        let out = &done.out;
        let commit = out.split("The definitive revision is ").nth(1).unwrap_or_default();
        for once in [
            "Unable to open CLI configuration file",
            "There are some problems with the CLI configuration",
            &format!("{name} 1."),
            "1 to add, 0 to change, 0 to destroy",
            commit.lines().next().unwrap(),
        ] {
            assert_eq!(count(once), 1, "{once:?} in\n{out}");
        }
        assert!(!out.contains("|\nPlan                  |\n"), "{out}");
    }
}

#[test]
fn paths_below_the_directory_are_relative_to_it() {
    let case = Case::with(MODULE);
    let Some(engine) = terraform_and_tofu().next() else { return };
    let done = run(&case, engine.name.as_str(), &engine.folder, &["--yes"]).succeeds();
    let done = done.prints(" in module\n").prints("Cloning a snapshot of module\n").prints("found main.tf\n");
    // It is in the checkout only.
    assert!(!done.out.contains("data .terraform"), "{}", done.out);
}

#[test]
fn pulumi_without_a_backend_or_a_value_is_told_what_to_set() {
    let Some(engine) = real(EngineName::PULUMI) else { return };
    let case = Case::new();
    let config = "config:\n  program:size:\n    type: string\n";
    case.write("Pulumi.yaml", &format!("name: program\nruntime: yaml\n{config}"));
    let state = case.root.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let plan = |backend: &[&str]| {
        let mut command: Command = case.command(&[&["module", "--plan"], backend].concat());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(engine.folder.clone()).chain(std::env::split_paths(&path));
        command
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("PULUMI_CONFIG_PASSPHRASE", "a long one");
        for name in ["PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN"] {
            command.env_remove(name);
        }
        Done::from(command.env("PULUMI_HOME", case.root.path().join("pulumi-home")).output().unwrap())
    };
    let done = plan(&[]).fails(1);
    let summary = done.out.split(" failed after ").last().unwrap().to_owned();
    for part in ["pulumi login", "PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE"] {
        assert!(summary.contains(part), "{}", done.out);
    }
    let url = format!("Init:CloudUrl=file://{}", state.display());
    plan(&["--flag", &url]).fails(1).prints("program:size").prints("--var NAME=VALUE");
    plan(&["--flag", &url, "--var", "size=1"]).succeeds();
    assert!(state.join(".pulumi").is_dir());
}

#[test]
fn a_failure_is_summed_up_in_one_line_after_the_log() {
    let case = Case::with("resource \"terraform_data\" \"it\" {\n  wrong = 1\n}\n");
    let Some(engine) = terraform_and_tofu().next() else { return };
    let done = run(&case, engine.name.as_str(), &engine.folder, &["--plan"]).fails(1);
    // The reason is in the engine's own output and in the summary. The details of the fault would repeat it once more.
    let reason = "An argument named \"wrong\" is not expected here";
    for (text, count) in [("failed with exit code 1", 1), (reason, 2), ("in resource \"terraform_data\"", 1)]
    {
        assert_eq!(done.out.matches(text).count(), count, "{text:?} in\n{}", done.out);
    }
}
