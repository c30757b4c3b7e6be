use std::fs;

use hawser_contract::{EngineName, EngineTask, Flag, FlagLists, InitOptions, Metadata, TerraformArrayFlag};

use super::*;
use crate::settings::model::{JobLogStreamSettings, WorkingDirectorySettings};

const ENGINE: EngineName = EngineName::TERRAFORM;

/// A module's folder with these files.
struct Bench {
    root: tempfile::TempDir,
    workspace: Workspace,
    rules: Rules,
}

impl Bench {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = WorkingDirectorySettings {
            working_directory: root.path().join("work"),
            temp_directory: root.path().join("temp"),
        };
        let metadata = Metadata {
            stack_name: "stack".into(),
            namespace_name: "space".into(),
            module_name: "module".into(),
            module_id: uuid::Uuid::nil(),
            source_subdirectory: None,
        };
        let workspace = Workspace::new(&settings, &metadata).unwrap();
        fs::create_dir_all(workspace.module_root()).unwrap();
        for (name, text) in files {
            fs::write(workspace.module_root().join(name), text).unwrap();
        }
        fs::create_dir_all(root.path().join("step")).unwrap();
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        Self { root, workspace, rules }
    }

    fn before_with(&self, request: &TaskRequest, host: &[(&str, &str)]) -> Vec<String> {
        before(&Engines::default(), request, Some(&self.workspace), &map(host), &self.rules).unwrap()
    }

    fn before(&self, request: &TaskRequest) -> Vec<String> {
        self.before_with(request, &[])
    }

    /// What is learnt when the engine has left this file in the step's folder.
    fn after(&self, request: &TaskRequest, file: &str, json: &str) -> Vec<String> {
        let step = self.root.path().join("step");
        fs::write(step.join(file), json).unwrap();
        after(&Engines::default(), request, &self.workspace, &step, &self.rules)
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn init(variables: &[(&str, &str)]) -> TaskRequest {
    TaskRequest::Engine(EngineTask {
        init: InitOptions { resolved_env_vars: map(variables), ..InitOptions::default() },
        ..EngineTask::new(Task::Init, ENGINE)
    })
}

fn plan(parameters: &[(&str, &str)], variables: &[&str]) -> TaskRequest {
    let own = EngineTask { resolved_parameters: map(parameters), ..EngineTask::new(Task::Plan, ENGINE) };
    let variables =
        variables.iter().map(|it| Flag::new(TerraformArrayFlag::Var, Some(it))).collect::<Vec<_>>();
    TaskRequest::Engine(EngineTask {
        flags: FlagLists { terraform_array_flags: variables.into(), ..FlagLists::default() },
        ..own
    })
}

fn apply() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::ApplyFromPlan, ENGINE))
}

fn output() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::Output, ENGINE))
}

const DECLARED: &str = r#"
variable "hidden" {
  sensitive = true
  default   = { inner = ["default-value"] }
}
variable "open" { default = "open-default" }
"#;

#[test]
fn sensitive_values_are_masked_from_every_origin() {
    let bench = Bench::new(&[
        ("main.tf", DECLARED),
        ("more.tf.json", r#"{"variable": {"hush": {"sensitive": true, "default": "json-default"}}}"#),
        ("terraform.tfvars", "\u{feff}hidden = \"from-tfvars\"\nopen = \"open-tfvars\"\n"),
        ("a.auto.tfvars", "hidden = { k = \"from-auto\" }"),
        ("b.auto.tfvars.json", r#"{"hidden": ["from-json"], "open": "open-json"}"#),
        ("other.tfvars", "hidden = \"not-read-by-anyone\""),
    ]);
    bench
        .workspace
        .save_environment(&map(&[("TF_VAR_hidden", "from-module-env"), ("TF_VAR_open", "open-env")]))
        .unwrap();
    let request = plan(
        &[("hidden", "[\"from-parameter\", 12345678]"), ("open", "\"open-parameter\"")],
        &["hidden=from-flag", "open=open-flag"],
    );
    assert_eq!(
        bench
            .before_with(&request, &[("TF_VAR_hidden", "[\"from-host-env\"]"), ("TF_VAR_open", "open-host")]),
        [
            "12345678",
            "default-value",
            "from-auto",
            "from-flag",
            "from-host-env",
            "from-json",
            "from-module-env",
            "from-parameter",
            "from-tfvars",
            "json-default",
        ]
    );
}

#[test]
fn sensitive_values_in_environment_arguments_are_masked() {
    let bench = Bench::new(&[
        ("main.tf", DECLARED),
        ("named.tfvars", "hidden = \"from-named-file\"\nopen = \"open-file\"\n"),
    ]);
    let arguments = [("TF_CLI_ARGS_plan", "-var 'hidden=from arguments' -var=open=open-argument")];
    bench.workspace.save_environment(&map(&arguments)).unwrap();
    let host = [("TF_CLI_ARGS", "-var-file=named.tfvars -var-file=/no/such -var db_password=by-its-name")];
    assert_eq!(
        bench.before_with(&plan(&[], &[]), &host),
        ["by-its-name", "default-value", "from arguments", "from-named-file"]
    );
}

#[test]
fn an_override_may_make_a_variable_sensitive() {
    let bench = Bench::new(&[
        ("main.tf", "variable \"x\" {}"),
        ("override.tf", "variable \"x\" { sensitive = true }"),
    ]);
    assert_eq!(bench.before(&plan(&[("x", "\"overridden\"")], &[])), ["overridden"]);
}

#[test]
fn undeclared_variables_are_secret_if_a_file_cannot_be_read() {
    let parameters = [("lost", "\"perhaps-secret\""), ("open", "\"open-parameter\"")];
    let bench = Bench::new(&[("main.tf", DECLARED), ("broken.tf", "variable \"lost\" {")]);
    assert_eq!(bench.before(&plan(&parameters, &[])), ["default-value", "perhaps-secret"]);
    // Where all are readable, the engine refuses what is not declared, or passes over it.
    let bench = Bench::new(&[("main.tf", DECLARED)]);
    assert_eq!(bench.before(&plan(&parameters, &[])), ["default-value"]);
}

#[test]
fn secret_environment_variables_are_masked_in_every_task() {
    let bench = Bench::new(&[("main.tf", "")]);
    let variables = [("API_TOKEN", "env-token"), ("REGION", "eu-west-1"), ("DB", "pg://u:url-pass@h/d")];
    assert_eq!(bench.before(&init(&variables)), ["env-token", "url-pass"]);
    bench.workspace.save_environment(&map(&variables)).unwrap();
    for request in [plan(&[], &[]), apply(), output()] {
        assert_eq!(bench.before(&request), ["env-token", "url-pass"]);
    }
}

#[test]
fn an_apply_masks_the_secrets_of_its_plan() {
    let bench = Bench::new(&[("main.tf", DECLARED)]);
    let request = plan(&[("hidden", "\"from-parameter\""), ("db_password", "\"by-its-name\"")], &[]);
    bench.before(&request);
    let shown = r#"{"planned_values": {"outputs": {"o": {"sensitive": true, "value": "planned-output"},
        "p": {"sensitive": false, "value": "open-output"}}}}"#;
    assert_eq!(bench.after(&request, "plan.json", shown), ["planned-output"]);
    assert_eq!(bench.before(&apply()), ["by-its-name", "default-value", "from-parameter", "planned-output"]);

    let shown = r#"{"values": {"outputs": {"o": {"sensitive": true, "value": ["output-in-state"]}}}}"#;
    assert_eq!(bench.after(&apply(), "state.json", shown), ["output-in-state"]);
    assert!(bench.before(&output()).contains(&"output-in-state".to_owned()));
    let next = bench.before(&plan(&[], &[]));
    assert!(
        next.contains(&"output-in-state".to_owned()) && !next.contains(&"from-parameter".to_owned()),
        "{next:?}"
    );

    use std::os::unix::fs::PermissionsExt as _;
    let kept = fs::metadata(bench.workspace.private_path(PrivateFile::SENSITIVE)).unwrap();
    assert_eq!(kept.permissions().mode() & 0o777, 0o600);
}

#[test]
fn sensitive_attributes_are_masked_until_the_next_apply() {
    let bench = Bench::new(&[("main.tf", "")]);
    let state = |value: &str| {
        format!(
            r#"Warning: something
            {{"values": {{"root_module": {{"resources": [{{"mode": "managed", "values": {{"a": "{value}", "b": "open"}},
            "sensitive_values": {{"a": true}}}}]}}}}}}"#
        )
        .replace("\n            {", "\n{")
    };
    assert_eq!(bench.after(&apply(), "state.json", &state("first-value")), ["first-value"]);
    assert_eq!(bench.before(&output()), ["first-value"]);
    // Outputs are not all of the state.
    let printed = r#"{"o": {"sensitive": true, "type": "string", "value": "an-output"}}"#;
    assert_eq!(bench.after(&output(), "output.json", printed), ["an-output"]);
    assert_eq!(bench.before(&apply()), ["an-output", "first-value"]);
    assert_eq!(bench.after(&apply(), "state.json", &state("second-value")), ["second-value"]);
    assert_eq!(bench.before(&output()), ["second-value"]);
}

#[test]
fn values_for_ephemeral_variables_of_init_and_for_encryption_are_masked() {
    let declared = "variable \"token\" {\n  ephemeral = true\n}\nvariable \"open\" {}\n";
    let bench = Bench::new(&[("main.tf", declared)]);
    bench.workspace.save_environment(&map(&[(encryption::VARIABLE, "a {\n  b = \"of-module\"\n}")])).unwrap();
    let request = plan(&[("token", "\"from-parameter\"")], &["token=from-flag", "open=open-flag"]);
    let host = [(encryption::VARIABLE, r#"{"b": "of-host"}"#)];
    assert_eq!(bench.before_with(&request, &host), ["from-flag", "from-parameter", "of-host", "of-module"]);
    // They are known to later tasks, also those of an earlier Init.
    let kept = "token=\"from-init\"\nopen=\"open-init\"\n";
    bench.workspace.write_private(PrivateFile::INIT_VARIABLES, kept.as_bytes()).unwrap();
    assert_eq!(bench.before(&apply()), ["from-flag", "from-init", "from-parameter", "of-module"]);
}

#[test]
fn the_outputs_of_an_earlier_output_task_are_masked() {
    let bench = Bench::new(&[("main.tf", "")]);
    bench.workspace.tree().unwrap().private_made().unwrap();
    let printed = r#"{"a": {"sensitive": true, "type": "string", "value": "string-output"},
        "b": {"sensitive": true, "type": ["object", {}], "value": {"k": ["nested-output", 987654321]}},
        "api_token": {"sensitive": false, "type": "string", "value": "named-output"},
        "c": {"sensitive": false, "type": "string", "value": "open-output"}}"#;
    fs::write(bench.workspace.private_path(PrivateFile::OUTPUT), printed).unwrap();
    let expected = ["987654321", "named-output", "nested-output", "string-output"];
    assert_eq!(bench.before(&apply()), expected);
    // The task has its own copy, even if the file in the module has changed.
    fs::write(bench.workspace.private_path(PrivateFile::OUTPUT), "{}").unwrap();
    assert_eq!(bench.after(&output(), "output.json", printed), expected);
    // One that failed has printed nothing, and what the one before it said still holds.
    for nothing in ["", "rubbish"] {
        assert!(bench.after(&output(), "output.json", nothing).is_empty());
        assert_eq!(bench.before(&apply()), expected, "{nothing:?}");
    }
    assert!(bench.after(&output(), "output.json", "{}").is_empty());
    assert!(bench.before(&apply()).is_empty());
}

#[test]
fn a_missing_or_unreadable_module_is_not_an_error() {
    let bench = Bench::new(&[("main.tf", "{{{"), ("terraform.tfvars", "= ="), ("x.auto.tfvars.json", "[")]);
    bench.workspace.tree().unwrap().private_made().unwrap();
    fs::write(bench.workspace.private_path(PrivateFile::SENSITIVE), "rubbish").unwrap();
    fs::write(bench.workspace.private_path(PrivateFile::OUTPUT), "rubbish").unwrap();
    assert!(bench.before(&apply()).is_empty());
    assert!(bench.after(&apply(), "state.json", "rubbish").is_empty());
    fs::remove_dir_all(bench.workspace.module_root()).unwrap();
    assert_eq!(bench.before(&init(&[("API_TOKEN", "env-token")])), ["env-token"]);
}

#[test]
fn credentials_in_the_backend_of_pulumi_are_masked_in_later_tasks() {
    let bench = Bench::new(&[("Pulumi.yaml", "name: x")]);
    bench.workspace.save_environment(&BTreeMap::new()).unwrap();
    let chosen = serde_json::json!({"backend": "postgres://me:backend-pw@db/state", "stack": "dev"});
    bench.workspace.write_private(PrivateFile::PULUMI_BACKEND, chosen.to_string().as_bytes()).unwrap();
    let later = TaskRequest::Engine(EngineTask::new(Task::Output, EngineName::PULUMI));
    assert_eq!(bench.before(&later), ["backend-pw"]);
}
