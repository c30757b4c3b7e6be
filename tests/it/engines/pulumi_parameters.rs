//! Parameters of Pulumi: values in the configuration of the stack.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hawser_contract::requests::GetModule;
use hawser_contract::{FlagLists, PulumiArrayFlag, PulumiFlag, Source, Success, Task};
use serde_json::json;

use crate::support::git::Repo;
use crate::support::module::git_source;
use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::real_engines::real;
use crate::support::steps::{Bench, Ran};
use crate::support::write_program;

/// A program that shows the values that it gets. Secret ones make its outputs secret.
const SHOWS: &str = "config: {size: {type: string, default: none}, dbPassword: {type: string, default: none}}
resources: {a: {type: 'pulumi:index:Stash', properties: {input: '${size} ${dbPassword}'}}}
outputs: {size: '${size}'}
";

const FILE: &str = "Pulumi.snapcd.yaml";

fn plan(parameters: &[(&str, &str)]) -> hawser_contract::TaskRequest {
    pulumi_plan(Task::Plan, parameters, FlagLists::default())
}

fn config(bench: &Bench) -> String {
    fs::read_to_string(bench.module().join(FILE)).unwrap()
}

async fn size(bench: &Bench) -> String {
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
    match bench.run(pulumi_task(Task::Output, FlagLists::default())).await.completed() {
        Success::Outputs(Some(set)) => set.outputs[0].value.clone(),
        other => panic!("{other:?}"),
    }
}

/// Puts a Pulumi in front that records its arguments.
fn record_arguments(bench: &mut Bench) -> std::path::PathBuf {
    let folder = bench.root.path().join("recorder");
    let (calls, program) = (folder.join("calls"), folder.join("pulumi"));
    let engine = real(hawser_contract::EngineName::PULUMI).unwrap().folder;
    fs::create_dir(&folder).unwrap();
    let real = engine.join("pulumi");
    let text =
        format!("#!/bin/bash\necho \"$*\" >>'{}'\nexec '{}' \"$@\"\n", calls.display(), real.display());
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    bench.settings["Engine"] = json!({"AdditionalBinaryPaths": [folder, engine]});
    calls
}

#[tokio::test]
async fn a_parameter_that_is_no_longer_sent_is_removed() {
    let Some(bench) = pulumi_module(SHOWS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(plan(&[("size", "\"large\""), ("other", "1")])).await.completed();
    assert_eq!(size(&bench).await, "large");
    let ran = bench.run(plan(&[("other", "1")])).await;
    assert!(ran.says("no longer sent") && ran.says("size"), "{:#?}", ran.log);
    ran.completed();
    assert_eq!(size(&bench).await, "none");
    assert!(config(&bench).contains("program:other") && !config(&bench).contains("program:size"));
}

#[tokio::test]
async fn a_committed_value_is_back_when_the_parameter_that_replaced_it_is_no_longer_sent() {
    let Some(bench) = pulumi_module(SHOWS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let committed = format!("{}config:\n  program:size: committed # in March\n", config(&bench));
    bench.write(FILE, &committed);
    bench.run(plan(&[("size", "\"large\""), ("other", "1")])).await.completed();
    assert_eq!(size(&bench).await, "large");
    // A plan that failed has set them too.
    let unknown = pulumi_flags(&[(PulumiFlag::Remove, None)], &[]);
    bench.run(pulumi_plan(Task::Plan, &[("size", "\"other\"")], unknown)).await.faulted();
    bench.run(plan(&[("other", "1")])).await.completed();
    assert_eq!(size(&bench).await, "committed");
    assert!(config(&bench).contains("# in March"), "{}", config(&bench));
    bench.run(plan(&[])).await.completed();
    assert_eq!(config(&bench), committed);
}

/// A task may name another stack than Init.
fn on_stack(task: Task, parameters: &[(&str, &str)], stack: &str) -> hawser_contract::TaskRequest {
    pulumi_plan(task, parameters, pulumi_flags(&[(PulumiFlag::StackName, Some(stack))], &[]))
}

#[tokio::test]
async fn the_parameters_of_each_stack_are_remembered() {
    let Some(bench) = pulumi_module(NEEDS_LATER) else { return };
    for stack in ["dev", "prod"] {
        bench.run(pulumi_init(&bench, &[(PulumiFlag::StackName, Some(stack))])).await.completed();
    }
    bench.run(on_stack(Task::Plan, &[("size", "\"dev-size\""), ("other", "1")], "dev")).await.completed();
    bench.run(on_stack(Task::Plan, &[("size", "\"prod-size\"")], "prod")).await.completed();
    for stack in ["dev", "prod"] {
        let ran = bench.run(on_stack(Task::Validate, &[], stack)).await;
        assert!(previewed(&ran), "{stack}: {:#?}", ran.log);
        ran.completed();
    }
    bench.run(on_stack(Task::Plan, &[("other", "1")], "dev")).await.completed();
    let of = |stack| fs::read_to_string(bench.module().join(format!("Pulumi.{stack}.yaml"))).unwrap();
    assert!(of("dev").contains("program:other") && !of("dev").contains("dev-size"), "{}", of("dev"));
    assert!(of("prod").contains("prod-size"), "{}", of("prod"));
}

/// An older Pulumi does not read options from variables.
#[tokio::test]
async fn an_older_pulumi_of_a_before_hook_gets_all_parameters() {
    let Some(mut bench) = pulumi_module(SHOWS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let folder = bench.root.path().join("older");
    fs::create_dir(&folder).unwrap();
    let real = real(hawser_contract::EngineName::PULUMI).unwrap().folder.join("pulumi");
    let text = format!("#!/bin/bash\nunset \"${{!PULUMI_OPTION_@}}\"\nexec '{}' \"$@\"\n", real.display());
    write_program(&folder.join("pulumi"), &text);
    let calls = record_arguments(&mut bench);
    let hook = format!("export PATH='{}':\"$PATH\"", folder.display());
    let own = |parameters: &[(&str, &str)]| {
        let hawser_contract::TaskRequest::Engine(task) = plan(parameters) else { unreachable!() };
        let before_hook = Some(hook.clone());
        hawser_contract::TaskRequest::Engine(hawser_contract::EngineTask { before_hook, ..task })
    };
    bench.run(own(&[("size", "\"large\""), ("dbPassword", "\"value-hush\"")])).await.completed();
    assert!(config(&bench).contains("program:size: large") && config(&bench).contains("secure: "));
    bench.run(own(&[("dbPassword", "\"value-hush\"")])).await.completed();
    assert!(!config(&bench).contains("program:size"), "{}", config(&bench));
    // The hook's Pulumi ran, and not the recorder.
    assert_eq!(fs::read_to_string(calls).unwrap_or_default().replace("version\n", ""), "");
}

#[tokio::test]
async fn parameters_keep_what_the_committed_configuration_contains() {
    let Some(mut bench) = pulumi_module(SHOWS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let salt = config(&bench);
    assert!(salt.starts_with("encryptionsalt:"), "{salt}");
    bench.write(FILE, &format!("# Reviewed in March.\n{salt}config:\n  program:zone: b # the second\n"));
    let calls = record_arguments(&mut bench);
    let mut parameters: Vec<(String, String)> =
        (0..20).map(|number| (format!("p{number}"), format!("\"value-{number}\""))).collect();
    parameters.push(("size".to_owned(), "\"it's <large>\\n\"".to_owned()));
    parameters.push(("dbPassword".to_owned(), "\"value-hush\"".to_owned()));
    let parameters: Vec<_> = parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    bench.run(plan(&parameters)).await.completed();

    let text = config(&bench);
    for kept in ["# Reviewed in March.", salt.trim(), "program:zone: b # the second", "program:p7: value-7"] {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    // Secret by its name.
    assert!(text.contains("program:dbPassword:\n    secure: ") && !text.contains("hush"), "{text}");
    let mode = fs::metadata(bench.module().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let calls = fs::read_to_string(calls).unwrap();
    assert!(!calls.contains("value-") && !calls.contains("large"), "{calls}");
    // One process for all of them takes a fraction of a second; one for each takes a quarter of a second each.
    assert_eq!(calls.lines().filter(|call| call.starts_with("config ")).count(), 1, "{calls}");
    let without_stack = |call: &&str| !call.contains("--stack snapcd") && *call != "version";
    assert_eq!(calls.lines().find(without_stack), None, "{calls}");
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
}

#[tokio::test]
async fn keys_that_the_project_declares_as_secret_or_as_collections_are_set_as_such() {
    let program = "config:
  plain: {type: string}
  pin:
    type: string
    secret: true
  zones: {type: array, items: {type: string}}
  labels:
    type: object
outputs: {zone: '${zones[1]}', size: '${plain}'}
";
    let Some(bench) = pulumi_module(program) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let parameters = [
        ("plain", "\"seen\""),
        ("pin", "\"hush-hush\""),
        ("program:zones", "[\"a\", \"b\"]"),
        ("labels", "{ team = \"x\" }"),
    ];
    bench.run(plan(&parameters)).await.completed();
    let text = config(&bench);
    assert!(text.contains("program:pin:\n    secure: ") && !text.contains("hush"), "{text}");
    assert!(text.contains("program:plain: seen"), "{text}");
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();
    match bench.run(pulumi_task(Task::Output, FlagLists::default())).await.completed() {
        Success::Outputs(Some(set)) => {
            assert!(set.outputs.iter().any(|it| it.name == "zone" && it.value == "b"), "{set:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn large_values_and_values_of_flags_are_set_too() {
    let Some(bench) = pulumi_module(SHOWS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let large = "x".repeat(200_000);
    let values = [("large", format!("\"{large}\"")), ("size", "\"small\"".to_owned())];
    let half = format!("\"{}\"", "y".repeat(70_000));
    let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let values = [values.as_slice(), &[("half", &half), ("other_half", &half)]].concat();
    let file = (PulumiFlag::ConfigFile, Some("own.yaml"));
    bench.write("own.yaml", &config(&bench));
    let arrays =
        [(PulumiArrayFlag::Config, "size=of the flag"), (PulumiArrayFlag::Config, "apiToken=hush-hush")];
    let flags = || pulumi_flags(&[file], &arrays);
    bench.run(pulumi_plan(Task::Plan, &values, flags())).await.completed();
    let text = fs::read_to_string(bench.module().join("own.yaml")).unwrap();
    assert!(
        text.contains(&large) && text.contains("other_half") && !text.contains("hush-hush"),
        "{text:.400}"
    );
    assert!(!config(&bench).contains("config:"));
    // The apply sets the values of the flags again, and the plan still fits.
    bench.run(pulumi_task(Task::ApplyFromPlan, flags())).await.completed();
    match bench.run(pulumi_task(Task::Output, FlagLists::default())).await.completed() {
        Success::Outputs(Some(set)) => assert_eq!(set.outputs[0].value, "of the flag"),
        other => panic!("{other:?}"),
    }
}

/// Needs a parameter to be previewed.
const NEEDS_LATER: &str =
    "config: {size: {type: string, default: none}, other: {type: string, default: none}}
resources: {a: {type: 'pulumi:index:Stash', properties: {input: '${size} ${other}'}}}
";

const NEEDS: &str = "config: {size: {type: string}}
resources: {a: {type: 'pulumi:index:Stash', properties: {input: '${size}'}}}
";

fn previewed(ran: &Ran) -> bool {
    ran.says("Previewing update")
}

#[tokio::test]
async fn validate_previews_only_after_a_plan_has_set_the_parameters() {
    let Some(bench) = pulumi_module(NEEDS) else { return };
    let validate = || pulumi_task(Task::Validate, FlagLists::default());
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let ran = bench.run(validate()).await;
    assert!(!previewed(&ran) && ran.says("no plan has set the parameters"), "{:#?}", ran.log);
    ran.completed();
    bench.run(plan(&[("size", "\"large\"")])).await.completed();
    let ran = bench.run(validate()).await;
    assert!(previewed(&ran), "{:#?}", ran.log);
    ran.completed();

    // The configuration is removed with the stack.
    bench
        .run(pulumi_plan(Task::PlanDestroy, &[("size", "\"large\"")], FlagLists::default()))
        .await
        .completed();
    let remove = pulumi_flags(&[(PulumiFlag::Remove, None)], &[]);
    bench.run(pulumi_task(Task::DestroyFromPlan, remove)).await.completed();
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let ran = bench.run(validate()).await;
    assert!(!previewed(&ran), "{:#?}", ran.log);
    ran.completed();
}

#[tokio::test]
async fn validate_of_a_new_revision_does_not_preview_with_the_parameters_of_the_old_one() {
    let Some(bench) = pulumi_module(NEEDS) else { return };
    let text = |program: &str| format!("name: program\nruntime: yaml\n{program}");
    let repo = Repo::with(&[("Pulumi.yaml", &text(NEEDS))]);
    let get = |commit: String| {
        let source = Source { source_definitive_revision: Some(commit), ..git_source(&repo.url(), "main") };
        hawser_contract::TaskRequest::GetModule(source, GetModule::default())
    };
    fs::remove_dir_all(bench.module()).unwrap();
    bench.run(get(repo.head())).await.completed();
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(plan(&[("size", "\"large\"")])).await.completed();
    let validate = || pulumi_task(Task::Validate, FlagLists::default());
    let ran = bench.run(validate()).await;
    assert!(previewed(&ran), "{:#?}", ran.log);
    ran.completed();

    repo.commit(&[("Pulumi.yaml", &text(&NEEDS.replace("size", "height")))]);
    bench.run(get(repo.head())).await.completed();
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let ran = bench.run(validate()).await;
    assert!(!previewed(&ran), "{:#?}", ran.log);
    ran.completed();
    // The old parameters are not forgotten, as they are still in the configuration.
    assert!(config(&bench).contains("program:size"), "{}", config(&bench));
    bench.run(plan(&[("height", "\"tall\"")])).await.completed();
    assert!(!config(&bench).contains("program:size"), "{}", config(&bench));
}

#[tokio::test]
async fn validate_of_a_new_stack_checks_the_project_and_its_language() {
    let Some(bench) = pulumi_module(NEEDS) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let text = fs::read_to_string(bench.module().join("Pulumi.yaml")).unwrap();
    bench.write("Pulumi.yaml", &text.replace("runtime: yaml", "runtime: cobol"));
    let fault = bench.run(pulumi_task(Task::Validate, FlagLists::default())).await.faulted();
    assert!(fault.message.contains("pulumi-language-cobol"), "{fault:?}");
}

#[tokio::test]
async fn flags_that_clash_with_the_runners_arguments_are_left_out() {
    let Some(bench) = pulumi_module("outputs: {text: hello}\n") else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let debugger = [(PulumiArrayFlag::AttachDebugger, "program")];
    let ran = bench.run(pulumi_plan(Task::Plan, &[], pulumi_flags(&[], &debugger))).await;
    assert!(ran.says("ignoring Pulumi array flag AttachDebugger: "), "{:#?}", ran.log);
    ran.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed();

    let ran = bench
        .run(pulumi_task(
            Task::Output,
            pulumi_flags(&[(PulumiFlag::Shell, None), (PulumiFlag::Json, Some("false"))], &[]),
        ))
        .await;
    assert!(
        ran.says("ignoring Pulumi flag Shell: ") && ran.says("ignoring Pulumi flag Json: "),
        "{:#?}",
        ran.log
    );
    assert!(matches!(ran.completed(), Success::Outputs(Some(set)) if set.outputs[0].value == "hello"));

    let flags = pulumi_flags(&[(PulumiFlag::SkipPreview, None), (PulumiFlag::Json, Some("false"))], &[]);
    let ran = bench.run(pulumi_plan(Task::PlanDestroy, &[], flags)).await;
    assert!(ran.says("ignoring Pulumi flag SkipPreview: "), "{:#?}", ran.log);
    ran.completed();
    // Where they make sense, they are passed on.
    let ran = bench
        .run(pulumi_task(Task::DestroyFromPlan, pulumi_flags(&[(PulumiFlag::SkipPreview, None)], &[])))
        .await;
    assert!(!ran.says("ignoring"), "{:#?}", ran.log);
    ran.completed();
}
