//! Every task with the real engines: prepared, run by bash, concluded.

mod aws;
mod hooks;
mod initializing;
mod log_lines;
mod plan_binding;
mod plugins;
mod pulumi;
mod pulumi_failures;
pub(crate) mod rescuing;
pub(crate) mod results;
mod stopping;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hawser::step::Stream;
use hawser::tasks::{Prepared, TaskError, prepare, refresh};
use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitOptions, OutputSet, PlanData, Source, SourceRefresh,
    SourceRevisionType, SourceType, Success, Task, TaskRequest, TerraformArrayFlag, TerraformFlag,
    VariableSet,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::git::Repo;
use crate::support::real_engines::{RealEngine, terraform, test_with_terraform_and_tofu};
use crate::support::steps::{Bench, Ran};
use crate::support::wrap;

test_with_terraform_and_tofu! {
    a_module_goes_through_all_ten_tasks,
    a_null_output_is_not_reported,
    a_plan_counts_each_kind_of_change,
    outputs_of_every_type_arrive_unchanged,
    flag_values_with_special_characters_reach_the_engine_unchanged,
    values_of_variable_flags_arrive_unchanged,
    later_tasks_use_the_variables_of_init,
    an_engine_fails_instead_of_prompting,
    a_failed_plan_leaves_no_older_plan_to_be_applied,
    a_failed_apply_reports_the_number_of_resources,
    exit_code_2_without_a_plan_is_a_failure,
}

/// [`Bench::of`] replaces it.
const ENGINE: EngineName = EngineName::TERRAFORM;

fn init() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::Init, ENGINE))
}

fn validate() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::Validate, ENGINE))
}

fn plan() -> TaskRequest {
    plan_with(&[], FlagLists::default())
}

fn plan_with(parameters: &[(&str, &str)], flags: FlagLists) -> TaskRequest {
    let resolved_parameters =
        parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    TaskRequest::Engine(EngineTask { flags, resolved_parameters, ..EngineTask::new(Task::Plan, ENGINE) })
}

fn plan_destroy() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::PlanDestroy, ENGINE))
}

fn apply() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::ApplyFromPlan, ENGINE))
}

fn destroy() -> TaskRequest {
    let own = EngineTask::new(Task::DestroyFromPlan, ENGINE);
    TaskRequest::Engine(own)
}

fn output() -> TaskRequest {
    TaskRequest::Engine(EngineTask::new(Task::Output, ENGINE))
}

#[track_caller]
fn counts(ran: Ran) -> PlanData {
    match ran.completed() {
        Success::Plan(data) => *data,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn outputs(ran: Ran) -> OutputSet {
    match ran.completed() {
        Success::Outputs(Some(set)) => set,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn variables(ran: Ran) -> Option<VariableSet> {
    match ran.completed() {
        Success::Variables(set) => set,
        other => panic!("{other:?}"),
    }
}

async fn a_module_goes_through_all_ten_tasks(engine: RealEngine) {
    let repo = Repo::with(&[(
        "main.tf",
        "variable \"name\" {\n  type = string\n}\nresource \"terraform_data\" \"it\" {\n  input = var.name\n}\n\
         output \"greeting\" {\n  value = \"hello ${terraform_data.it.output}\"\n}\n",
    )]);
    let source = Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: repo.url(),
        source_revision: "main".into(),
        source_definitive_revision: None,
        source_semantic_version: None,
    };
    let bench = Bench::of(&engine, &[]);
    let revision = bench.run(TaskRequest::GetDefinitiveRevision(source.clone())).await.completed();
    assert_eq!(revision, Success::Revision(repo.head()));
    let source = Source { source_definitive_revision: Some(repo.head()), ..source };
    let got = bench.run(TaskRequest::GetModule(source, GetModule::default())).await;
    assert_eq!(got.completed(), Success::Done);

    let ran = bench.run(init()).await;
    let (stream, first) = ran.log[0].clone();
    assert_eq!(stream, Stream::Information);
    assert!(first.starts_with(&format!("{} 1.", engine.name)), "{first}");
    assert!(first.contains(&format!("/{})", engine.name)), "{first}");
    assert!(first.ends_with("/stack/space/module"), "{first}");
    assert_eq!(ran.completed(), Success::Done);
    assert_eq!(bench.run(validate()).await.completed(), Success::Done);
    let set = variables(bench.run(TaskRequest::Engine(EngineTask::new(Task::Variables, ENGINE))).await);
    assert_eq!(set.unwrap().variables[0].name, "name");

    let ran = bench.run(plan_with(&[("name", "\"it's $HOME\"")], FlagLists::default())).await;
    assert!(ran.says("1 to add, 0 to change"), "{:#?}", ran.log);
    let data = counts(ran);
    assert_eq!((data.create_count, data.total_count_before, data.total_count_after), (1, 0, 1));
    assert_eq!(data.outputs_create_list, ["greeting"]);

    assert_eq!(bench.run(apply()).await.completed(), Success::Resources(1));
    let set = outputs(bench.run(output()).await);
    assert_eq!(set.outputs[0].value, "hello it's $HOME");

    let destroying = TaskRequest::Engine(EngineTask {
        resolved_parameters: BTreeMap::from([("name".into(), "\"x\"".into())]),
        ..EngineTask::new(Task::PlanDestroy, ENGINE)
    });
    let data = counts(bench.run(destroying).await);
    assert_eq!((data.destroy_count, data.total_count_after), (1, 0));
    assert_eq!(data.outputs_destroy_list, ["greeting"]);
    assert_eq!(bench.run(destroy()).await.completed(), Success::Resources(0));
    assert_eq!(outputs(bench.run(output()).await).outputs, []);
    // The names that users know these files by.
    for name in [
        ".gitignore",
        "snapcd.env",
        "inputs.tfvars",
        "plan.out",
        "destroy.out",
        "init.sh",
        "plan.sh",
        "plan_destroy.sh",
        "apply.sh",
        "destroy.sh",
        "output.sh",
        "output.json",
    ] {
        assert!(bench.private(name).is_file(), "{name}");
    }
}

async fn a_null_output_is_not_reported(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[("main.tf", "output \"nothing\" { value = null }\noutput \"typed\" { value = tostring(null) }\n")],
    );
    bench.run(init()).await.completed();
    let data = counts(bench.run(plan()).await);
    // The plan has them, as outputs that do not change.
    assert_eq!((data.outputs_total_unchanged_count, data.outputs_total_changed_count), (2, 0));
    bench.run(apply()).await.completed();
    // Terraform does not keep such an output, so there is none to send.
    assert_eq!(outputs(bench.run(output()).await).outputs, []);
}

/// When a supervisor has let go of the module before its runner is back, another runner may be quicker.
#[tokio::test]
async fn outputs_do_not_depend_on_later_changes_to_the_module() {
    let bench = Bench::new(&[("main.tf", "output \"x\" { value = \"mine\" }\n")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let mine = bench.executed(output()).await;

    bench.write("main.tf", "output \"x\" { value = \"of another\" }\n");
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    assert_eq!(outputs(bench.run(output()).await).outputs[0].value, "of another");

    // Safe to repeat, too.
    for _ in 0..2 {
        assert_eq!(outputs(mine.concluded().await).outputs[0].value, "mine");
    }
    // What stands in the module is what was last said of it.
    assert!(fs::read_to_string(bench.private("output.json")).unwrap().contains("of another"));
}

/// The copy in the module is private, and does not depend on what a hook does to the shell.
#[tokio::test]
async fn a_hook_that_changes_path_does_not_lose_the_result() {
    let bench = Bench::new(&[("main.tf", "output \"x\" { value = 1 }\n")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let hook =
        "mkdir only; ln -s \"$(command -v terraform)\" only/; PATH=$PWD/only; cp() { return 3; }; umask 022";
    let own = EngineTask { before_hook: Some(hook.to_owned()), ..EngineTask::new(Task::Output, ENGINE) };
    let set = outputs(bench.run(TaskRequest::Engine(own)).await);
    assert_eq!(set.outputs[0].value, "1");
    let copy = bench.private("output.json");
    assert!(fs::read_to_string(&copy).unwrap().contains("\"value\": 1"));
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_source_refresh_is_answered_either_way() {
    let repo = Repo::with(&[("main.tf", "")]);
    let context = Bench::new(&[]).context();
    let mut request = SourceRefresh {
        organization_id: Uuid::nil(),
        source_url: repo.url(),
        source_revision: String::new(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    let cancel = CancellationToken::new();
    let http = || context.http.clone();
    let refreshed =
        refresh(&request, &context.settings, &context.policy, http(), &context.secrets, &cancel).await;
    assert_eq!(refreshed.unwrap(), Success::Revision(repo.head()));
    request.source_revision = "no-such-branch".into();
    let refreshed =
        refresh(&request, &context.settings, &context.policy, http(), &context.secrets, &cancel).await;
    let Err(TaskError::Faulted(fault)) = refreshed else { panic!("{refreshed:?}") };
    assert!(fault.message.contains("no-such-branch"), "{fault:?}");
    cancel.cancel();
    let refreshed =
        refresh(&request, &context.settings, &context.policy, http(), &context.secrets, &cancel).await;
    assert!(matches!(refreshed, Err(TaskError::Cancelled)), "{refreshed:?}");
}

async fn a_plan_counts_each_kind_of_change(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[(
            "main.tf",
            r#"
resource "terraform_data" "kept" {}
resource "terraform_data" "changed" { input = 1 }
resource "terraform_data" "replaced" { triggers_replace = 1 }
resource "terraform_data" "gone" { count = 2 }
module "child" { source = "./child" }
output "kept" { value = 1 }
output "changed" { value = 1 }
output "gone" { value = 1 }
"#,
        )],
    );
    fs::create_dir(bench.module().join("child")).unwrap();
    bench.write("child/main.tf", "resource \"terraform_data\" \"x\" {}\n");
    bench.run(init()).await.completed();
    assert_eq!(counts(bench.run(plan()).await).create_count, 6);
    assert_eq!(bench.run(apply()).await.completed(), Success::Resources(6));
    bench.write(
        "main.tf",
        r#"
resource "terraform_data" "kept" {}
resource "terraform_data" "changed" { input = 2 }
resource "terraform_data" "replaced" {
  triggers_replace = 2
  lifecycle { create_before_destroy = true }
}
resource "terraform_data" "fresh" {}
module "child" { source = "./child" }
output "kept" { value = 1 }
output "changed" { value = 2 }
output "fresh" { value = 1 }
"#,
    );
    let data = counts(bench.run(plan()).await);
    assert_eq!(data.total_unchanged_count, 2);
    assert_eq!((data.create_count, data.modify_count), (1, 1));
    assert_eq!((data.destroy_count, data.recreate_count), (2, 1));
    assert_eq!((data.total_count_before, data.total_count_after, data.total_changed_count), (6, 5, 5));
    assert_eq!(data.outputs_unchanged_list, ["kept"]);
    assert_eq!(data.outputs_modify_list, ["changed"]);
    assert_eq!(data.outputs_create_list, ["fresh"]);
    assert_eq!(data.outputs_destroy_list, ["gone"]);
}

async fn outputs_of_every_type_arrive_unchanged(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[
            (
                "main.tf",
                r#"
output "text" { value = "é 漢 \"quoted\" 'it' $${x}\n" }
output "number" { value = 12345678901234567890123456789 }
output "fraction" { value = 0.1234567890123456789 }
output "yes" { value = true }
output "list" { value = tolist(["a b", "c"]) }
output "object" { value = { b = [1, null], a = { x = false } } }
output "hidden" {
  value     = "hush"
  sensitive = true
}
"#,
            ),
            ("extra.tf", "output \"extra\" { value = \"\" }\n"),
        ],
    );
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let request =
        EngineTask { extra_file_names: vec!["extra.tf".into()], ..EngineTask::new(Task::Output, ENGINE) };
    let ran = bench.run(TaskRequest::Engine(request)).await;
    assert!(!ran.says("hush"), "outputs must not be in the log");
    let set = outputs(ran);
    let seen: Vec<_> = set
        .outputs
        .iter()
        .map(|it| (it.name.as_str(), it.kind.as_str(), it.value.as_str(), it.sensitive, it.from_extra_file))
        .collect();
    assert_eq!(
        seen,
        [
            ("extra", "string", "", Some(false), true),
            ("fraction", "number", "0.1234567890123456789", Some(false), false),
            ("hidden", "string", "hush", Some(true), false),
            ("list", "list", "[\"a b\",\"c\"]", Some(false), false),
            ("number", "number", "12345678901234567890123456789", Some(false), false),
            ("object", "object", "{\"a\":{\"x\":false},\"b\":[1,null]}", Some(false), false),
            ("text", "string", "é 漢 \"quoted\" 'it' ${x}\n", Some(false), false),
            ("yes", "bool", "true", Some(false), false),
        ]
    );
    let mode = fs::metadata(bench.private("")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    for name in ["apply.sh", "output.json", "snapcd.env", "inputs.tfvars"] {
        let mode = fs::metadata(bench.private(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
}

#[tokio::test]
async fn declarations_of_the_source_are_not_marked_as_extra_files() {
    let repo = Repo::with(&[("main.tf", "variable \"own\" { default = 1 }\noutput \"own\" { value = 1 }\n")]);
    let source = Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: repo.url(),
        source_revision: "main".into(),
        source_definitive_revision: None,
        source_semantic_version: None,
    };
    let extra = |name: &str, contents: &str| ExtraFile {
        file_name: name.into(),
        contents: contents.into(),
        overwrite: false,
        source: serde_json::Value::Null,
    };
    let extra_files = vec![
        extra("main.tf", "output \"never\" { value = 1 }\n"),
        extra("more.tf", "variable \"more\" { default = 1 }\noutput \"more\" { value = 1 }\n"),
    ];
    let bench = Bench::new(&[]);
    let module = GetModule { extra_files, ..GetModule::default() };
    bench.run(TaskRequest::GetModule(source, module)).await.completed();
    let extra_file_names = vec!["main.tf".to_owned(), "more.tf".to_owned()];

    let input =
        EngineTask { extra_file_names: extra_file_names.clone(), ..EngineTask::new(Task::Variables, ENGINE) };
    let set = variables(bench.run(TaskRequest::Engine(input)).await).unwrap();
    let marked: Vec<_> = set.variables.iter().map(|it| (it.name.as_str(), it.from_extra_file)).collect();
    assert_eq!(marked, [("more", true), ("own", false)]);

    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let request = EngineTask { extra_file_names, ..EngineTask::new(Task::Output, ENGINE) };
    let set = outputs(bench.run(TaskRequest::Engine(request)).await);
    let marked: Vec<_> = set.outputs.iter().map(|it| (it.name.as_str(), it.from_extra_file)).collect();
    assert_eq!(marked, [("more", true), ("own", false)]);
}

async fn flag_values_with_special_characters_reach_the_engine_unchanged(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[(
            "main.tf",
            "resource \"terraform_data\" \"x\" {\n  for_each = toset([\"it's `a` $HOME \\\\ b\", \"other\"])\n}\n",
        )],
    );
    bench.run(init()).await.completed();
    let flags = FlagLists {
        terraform_flags: vec![
            Flag::new(TerraformFlag::DetailedExitcode, None),
            Flag::new(TerraformFlag::NoColor, None),
        ]
        .into(),
        terraform_array_flags: vec![Flag::new(
            TerraformArrayFlag::Target,
            Some("terraform_data.x[\"it's `a` $HOME \\\\ b\"]"),
        )]
        .into(),
        ..FlagLists::default()
    };
    // -detailed-exitcode makes the exit code 2, which is no failure.
    assert_eq!(counts(bench.run(plan_with(&[], flags)).await).create_count, 1);
}

async fn values_of_variable_flags_arrive_unchanged(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[("main.tf", "variable \"x\" { type = string }\noutput \"x\" { value = var.x }\n")],
    );
    bench.run(init()).await.completed();
    let nasty = "a  b 'c' \"d\" `e` $HOME ${f} $(g) \\ %s * ; é -h";
    let flags = FlagLists {
        terraform_array_flags: vec![Flag::new(TerraformArrayFlag::Var, Some(&format!("x={nasty}")))].into(),
        ..FlagLists::default()
    };
    counts(bench.run(plan_with(&[], flags)).await);
    let flags = FlagLists {
        terraform_flags: vec![
            Flag::new(TerraformFlag::Parallelism, Some("3")),
            Flag::new(TerraformFlag::LockTimeout, Some("5s")),
            Flag::new(TerraformFlag::NoColor, None),
        ]
        .into(),
        ..FlagLists::default()
    };
    let own = EngineTask::new(Task::ApplyFromPlan, ENGINE);
    bench.run(TaskRequest::Engine(EngineTask { flags, ..own })).await.completed();
    assert_eq!(outputs(bench.run(output()).await).outputs[0].value, nasty);
}

#[tokio::test]
async fn an_unknown_flag_is_logged_and_skipped() {
    let bench = Bench::new(&[("main.tf", "")]);
    bench.run(init()).await.completed();
    let flags =
        serde_json::from_value(json!({"terraformFlags": [{"task": 1, "flag": 999, "value": null}]})).unwrap();
    let ran = bench.run(plan_with(&[], flags)).await;
    assert!(
        ran.log.iter().any(|(stream, line)| *stream == Stream::Warning && line.contains("TerraformFlag 999"))
    );
    counts(ran);
}

async fn later_tasks_use_the_variables_of_init(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", "variable \"x\" {}\noutput \"x\" { value = var.x }\n")]);
    for early in [validate(), plan(), plan_destroy(), apply(), destroy(), output()] {
        let fault = bench.run(early).await.faulted();
        assert!(fault.message.contains("Init has not run"), "{fault:?}");
    }
    let secret = "it's a\nnew line & $HOME";
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("TF_VAR_x".to_owned(), secret.to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    bench.run(TaskRequest::Engine(own)).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let ran = bench.run(output()).await;
    assert_eq!(outputs(ran).outputs[0].value, secret);
}

#[tokio::test]
async fn variables_are_found_and_a_broken_file_causes_a_warning() {
    let bench = Bench::new(&[
        (
            "main.tf",
            r##"
variable "doc" {
  description = <<-EOT
    # variable "no" {}
    "}" is no end
  EOT
  default     = "/* variable \"neither\" {} */ // # }"
}
variable "deep" { # a comment }
  type = map(object({ a = optional(list(tuple([string, set(number)])), []) }))
}
"##,
        ),
        ("broken.tf", "variable \"lost\" {"),
        ("more.tf.json", r#"{"variable": {"json": {"type": "string", "sensitive": true}}}"#),
    ]);
    let ran = bench.run(TaskRequest::Engine(EngineTask::new(Task::Variables, ENGINE))).await;
    assert!(
        ran.log.iter().any(|(stream, line)| *stream == Stream::Warning && line.starts_with("broken.tf")),
        "{:#?}",
        ran.log
    );
    let set = variables(ran).unwrap();
    let seen: Vec<_> = set.variables.iter().map(|it| (it.name.as_str(), it.kind.as_deref())).collect();
    let deep = "map(object({ a = optional(list(tuple([string, set(number)])), []) }))";
    assert_eq!(seen, [("deep", Some(deep)), ("doc", None), ("json", Some("string"))]);
    assert_eq!(set.variables[1].description.as_deref(), Some("# variable \"no\" {}\n\"}\" is no end\n"));
}

async fn an_engine_fails_instead_of_prompting(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", "variable \"x\" {}\n")]);
    // Prompts stay off even if the module turns them on.
    let own = EngineTask {
        after_hook: Some("read -r line || echo \"automation: $TF_IN_AUTOMATION\"".to_owned()),
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("TF_INPUT".to_owned(), "1".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert!(ran.says("automation: 1"), "{:#?}", ran.log);
    ran.completed();
    let fault = bench.run(plan()).await.faulted();
    assert!(fault.message.contains("No value for required variable"), "{fault:?}");
}

async fn a_failed_plan_leaves_no_older_plan_to_be_applied(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", "")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    assert!(bench.private("plan.out").exists());
    bench.write("main.tf", "output \"x\" { value = var.nothing }\n");
    let fault = bench.run(plan()).await.faulted();
    assert!(fault.message.starts_with(&format!("{} plan failed with exit code 1", engine.name)), "{fault:?}");
    assert!(fault.message.contains("main.tf:1: Reference to undeclared input variable: "), "{fault:?}");
    assert!(fault.details.contains("var.nothing") && !fault.details.contains('\u{1b}'), "{fault:?}");
    let fault = bench.run(apply()).await.faulted();
    assert!(fault.message.contains("run Plan first"), "{fault:?}");
}

async fn a_failed_apply_reports_the_number_of_resources(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[(
            "main.tf",
            r#"
resource "terraform_data" "good" {}
resource "terraform_data" "bad" {
  depends_on = [terraform_data.good]
  provisioner "local-exec" { command = "echo went wrong >&2; exit 7" }
}
"#,
        )],
    );
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    let fault = bench.run(apply()).await.faulted();
    assert!(fault.message.contains(&format!("{} apply failed with exit code 1", engine.name)), "{fault:?}");
    // The one that failed is in the state too, tainted.
    assert_eq!(fault.resources, Some(2));
}

#[tokio::test]
async fn a_missing_engine_is_reported_with_the_searched_folders() {
    let bench = Bench::new(&[("main.tf", "")]);
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("PATH".to_owned(), "/no/such/folder".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    };
    let fault = bench.run(TaskRequest::Engine(own)).await.faulted();
    assert!(fault.message.contains("pulumi") && fault.message.contains("/no/such/folder"), "{fault:?}");
}

#[tokio::test]
async fn the_engine_is_searched_in_the_path_of_the_script_only() {
    // Terraform is in the runner's own PATH.
    let bench = Bench::new(&[("main.tf", "")]);
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("PATH".to_owned(), "/no/such/folder".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    let fault = bench.run(TaskRequest::Engine(own)).await.faulted();
    let said = "cannot find the program \"terraform\": looked in /no/such/folder (";
    assert!(fault.message.starts_with(said), "{fault:?}");
}

/// A Go program that runs out of memory ends so, too.
async fn exit_code_2_without_a_plan_is_a_failure(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    bench.run(init()).await.completed();
    let with = |hook: &str| {
        let own = EngineTask { before_hook: Some(hook.to_owned()), ..EngineTask::new(Task::Plan, ENGINE) };
        TaskRequest::Engine(own)
    };
    let crash = wrap(engine.name.as_str(), "echo 'fatal error: runtime: out of memory' >&2; exit 2");
    let fault = bench.run(with(&crash)).await.faulted();
    assert!(fault.message.starts_with(&format!("{} plan failed with exit code 2", engine.name)), "{fault:?}");
    assert!(fault.details.contains("out of memory"), "{fault:?}");
    // Whoever asks for the flag in the environment gets the plan that there is.
    let ran = bench.run(with("export TF_CLI_ARGS_plan=-detailed-exitcode")).await;
    assert_eq!(counts(ran).create_count, 1);
}

#[tokio::test]
async fn a_parameter_name_with_an_assignment_is_refused() {
    let bench = Bench::new(&[("main.tf", "")]);
    bench.run(init()).await.completed();
    let fault = bench.run(plan_with(&[("a=1\nb", "2")], FlagLists::default())).await.faulted();
    assert!(fault.message.contains("not the name of a variable"), "{fault:?}");
}

#[tokio::test]
async fn preparing_twice_gives_the_same_script() {
    let bench = Bench::new(&[("main.tf", "")]);
    bench.run(init()).await.completed();
    let context = bench.context();
    let mut scripts = Vec::new();
    for _ in 0..2 {
        match prepare(&context, &plan()).await {
            Ok(Prepared::Run(launch)) => scripts.push(launch.script),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(scripts[0], scripts[1]);
    assert_eq!(fs::read_to_string(bench.private("plan.sh")).unwrap(), scripts[0]);
}
