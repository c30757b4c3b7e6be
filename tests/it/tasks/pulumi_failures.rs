//! Pulumi commands that fail or are stopped, with the provider of `tests/engines/pulumi-hawser`.

use hawser_contract::PulumiFlag;
use hawser_contract::requests::CancelKind;

use super::pulumi::task;
use super::*;
use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::steps::Interrupt;

fn plan() -> TaskRequest {
    pulumi::plan(Task::Plan)
}

/// A program with a resource that works, and after it a resource with these properties.
fn program(thing: &str) -> String {
    format!(
        "resources:
  good: {{type: 'pulumi:index:Stash', properties: {{input: 1}}}}
  thing:
    type: hawser:index:Thing
    properties: {{{thing}}}
    options: {{dependsOn: ['${{good}}']}}
"
    )
}

const URN: &str = "urn:pulumi:snapcd::program::hawser:index:Thing::thing";

/// A module with this program that was initialized and planned, or `None` without Pulumi.
async fn planned(thing: &str) -> Option<Bench> {
    let bench = pulumi_module(&program(thing))?;
    bench.run(pulumi_init(&bench, &[])).await.completed();
    assert_eq!(counts(bench.run(plan()).await).create_count, 2);
    Some(bench)
}

/// A planned module whose apply waits for a file that nobody writes.
async fn waiting() -> Option<Bench> {
    planned("gate: /no/such/file").await
}

fn when_it_waits(kind: CancelKind) -> Option<Interrupt<'static>> {
    Some(Interrupt { at: "hawser:index:Thing thing creating", kind })
}

#[tokio::test]
async fn the_fault_names_the_command_that_failed() {
    let Some(bench) = pulumi_module("config: {key: {type: string}}\noutputs: {x: '${key}'}\n") else {
        return;
    };
    let login = [
        (PulumiFlag::CloudUrl, Some("http://127.0.0.1:1")),
        (PulumiFlag::OidcOrg, Some("acme")),
        (PulumiFlag::OidcToken, Some("file:///no/such/token")),
    ];
    let fault = bench.run(pulumi_init(&bench, &login)).await.faulted();
    assert!(fault.message.starts_with("pulumi login failed with exit code "), "{fault:?}");
    assert!(fault.message.contains("/no/such/token"), "{fault:?}");

    bench.run(pulumi_init(&bench, &[])).await.completed();
    let fault = bench.run(plan()).await.faulted();
    assert!(fault.message.starts_with("pulumi preview failed with exit code "), "{fault:?}");

    // The preview reads a separate configuration file.
    let own =
        pulumi_flags(&[(PulumiFlag::ConfigFile, Some("own.yaml")), (PulumiFlag::Diff, Some("false"))], &[]);
    counts(bench.run(pulumi_plan(Task::Plan, &[("key", "\"from the file\"")], own)).await);
    let planned = fs::read_to_string(bench.private("plan.json")).unwrap();
    assert!(planned.contains("from the file"), "{planned}");
}

#[tokio::test]
async fn a_failed_update_reports_its_exit_code_and_resources() {
    let Some(bench) = planned("fail: create").await else { return };
    let fault = bench.run(task(Task::ApplyFromPlan)).await.faulted();
    assert!(fault.message.starts_with("pulumi up failed with exit code "), "{fault:?}");
    assert_eq!(fault.resources, Some(1));
    assert!(!bench.rescued().exists());
}

#[tokio::test]
async fn pending_operations_are_reported_with_a_copy_of_the_state() {
    let Some(bench) = planned("fail: crash").await else { return };
    let fault = bench.run(task(Task::ApplyFromPlan)).await.faulted();
    assert_eq!(fault.resources, Some(1));
    assert!(fault.message.contains(&format!("creating {URN}")), "{fault:?}");
    let kept: Vec<_> = fs::read_dir(bench.rescued()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(fault.message.contains(kept[0].to_str().unwrap()), "{fault:?}");
    let kept: serde_json::Value = serde_json::from_slice(&fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(kept["deployment"]["pending_operations"][0]["type"], "creating");
}

#[tokio::test]
async fn a_failed_update_reports_that_its_state_cannot_be_read() {
    let Some(bench) = planned("fail: crash").await else { return };
    let apply = |hook: &str| {
        TaskRequest::Engine(EngineTask {
            before_hook: Some(hook.to_owned()),
            ..EngineTask::new(Task::ApplyFromPlan, EngineName::PULUMI)
        })
    };
    let no_export = wrap("pulumi", "if [[ \"$1 $2\" == \"stack export\" ]]; then exit 255; fi");
    let fault = bench.run(apply(&no_export)).await.faulted();
    assert!(fault.message.starts_with("pulumi up "), "{fault:?}");
    assert!(fault.message.contains("Failed to read the state of the stack"), "{fault:?}");
    // Where it never began there is nothing to read.
    let fault = bench.run(apply("exit 3")).await.faulted();
    assert!(!fault.message.contains("Failed to read the state"), "{fault:?}");
}

#[tokio::test]
async fn a_failed_destroy_with_remove_counts_the_remaining_resources() {
    let Some(bench) = planned("fail: delete").await else { return };
    assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(2));
    bench.run(pulumi_plan(Task::PlanDestroy, &[], FlagLists::default())).await.completed();
    let remove = pulumi_flags(&[(PulumiFlag::Remove, None)], &[]);
    let fault = bench.run(pulumi_task(Task::DestroyFromPlan, remove)).await.faulted();
    assert!(fault.message.starts_with("pulumi destroy failed with exit code "), "{fault:?}");
    assert_eq!(fault.resources, Some(2));
}

#[tokio::test]
async fn a_protected_resource_fails_the_destroy_and_is_counted() {
    let program = "resources:
  kept: {type: 'pulumi:index:Stash', properties: {input: 1}, options: {protect: true}}
  gone: {type: 'pulumi:index:Stash', properties: {input: 1}}
";
    let Some(bench) = pulumi_module(program) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    counts(bench.run(plan()).await);
    bench.run(task(Task::ApplyFromPlan)).await.completed();
    // The preview of such a destroy fails, too.
    let without = || pulumi_flags(&[(PulumiFlag::ExcludeProtected, None)], &[]);
    bench.run(pulumi_plan(Task::PlanDestroy, &[], without())).await.completed();
    let fault = bench.run(task(Task::DestroyFromPlan)).await.faulted();
    assert_eq!(fault.resources, Some(2));
    assert!(fault.message.contains("cannot be deleted because it is protected"), "{fault:?}");
    let ran = bench.run(pulumi_task(Task::DestroyFromPlan, without())).await;
    assert_eq!(ran.completed(), Success::Resources(1));
}

#[tokio::test]
async fn a_graceful_cancel_lets_pulumi_stop_by_itself() {
    let Some(bench) = waiting().await else { return };
    let cancelled =
        bench.run_interrupted(task(Task::ApplyFromPlan), when_it_waits(CancelKind::Graceful)).await;
    assert!(matches!(cancelled.result, Err(TaskError::Cancelled)), "{cancelled:?}");
    // Pulumi has released its lock and saved what it did.
    rewrite(&bench, "value: 1");
    let data = counts(bench.run(plan()).await);
    assert_eq!((data.create_count, data.total_count_before), (1, 1));
    assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(2));
}

fn rewrite(bench: &Bench, thing: &str) {
    bench.write("Pulumi.yaml", &format!("name: program\nruntime: yaml\n{}", program(thing)));
}

#[tokio::test]
async fn an_unsupported_flag_fails_in_the_engine() {
    let Some(bench) = pulumi_module("") else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let flags = pulumi_flags(&[(PulumiFlag::Remove, None)], &[]);
    let fault = bench.run(pulumi_plan(Task::Plan, &[], flags)).await.faulted();
    assert!(fault.message.contains("unknown flag: --remove"), "{fault:?}");
}
