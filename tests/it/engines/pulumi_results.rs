//! What the server gets from the real Pulumi: counts and outputs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hawser_contract::{FlagLists, OutputValue, PlanData, PulumiFlag, Success, Task};
use serde_json::Value;

use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::steps::{Bench, Ran};

/// Creates, modifies, destroys, recreates, unchanged.
type Counts = [u64; 5];

fn counts(data: &PlanData) -> Counts {
    let PlanData { create_count, modify_count, destroy_count, recreate_count, .. } = *data;
    [create_count, modify_count, destroy_count, recreate_count, data.total_unchanged_count]
}

/// The counts of Pulumi's own summary, by the names of its operations, without the stack.
fn without_stack(mut summary: BTreeMap<String, u64>, stack: &str) -> Counts {
    *summary.get_mut(stack).unwrap() -= 1;
    ["create", "update", "delete", "replace", "unchanged"].map(|name| summary.get(name).copied().unwrap_or(0))
}

/// The summary that `pulumi preview` prints.
fn printed_summary(ran: &Ran) -> BTreeMap<String, u64> {
    let lines = ran.log.iter().map(|(_, line)| line.trim()).skip_while(|line| *line != "Resources:").skip(1);
    let mut summary = BTreeMap::new();
    for part in lines.take_while(|line| !line.is_empty()).flat_map(|line| line.split(". ")) {
        let words: Vec<&str> = part.trim_start_matches(['+', '-', '~', ' ']).split(' ').collect();
        match words[..] {
            [count, "to", name] | [count, name @ "unchanged"] => {
                summary.insert(name.to_owned(), count.parse().unwrap());
            }
            [_, "changes"] => {}
            // What Pulumi prints on stderr may come in between.
            _ => assert!(words[0].parse::<u64>().is_err(), "{part:?}"),
        }
    }
    summary
}

async fn init(bench: &Bench) {
    bench.run(pulumi_init(bench, &[])).await.completed();
}

fn program(bench: &Bench, text: &str) {
    bench.write("Pulumi.yaml", &format!("name: program\nruntime: yaml\n{text}"));
}

/// Plans, and checks that the counts are those of Pulumi. `stack` is what happens to the stack.
async fn planned(bench: &Bench, stack: &str) -> PlanData {
    let ran = bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await;
    let summary = without_stack(printed_summary(&ran), stack);
    let Success::Plan(data) = ran.completed() else { panic!("not a plan") };
    assert_eq!(counts(&data), summary);
    *data
}

async fn destroy_planned(bench: &Bench, flags: FlagLists, stack: &str) -> PlanData {
    let ran = bench.run(pulumi_plan(Task::PlanDestroy, &[], flags)).await;
    let Success::Plan(data) = ran.completed() else { panic!("not a plan") };
    let preview = fs::read(bench.private("destroy_preview.json")).unwrap();
    let preview: Value = serde_json::from_slice(&preview).unwrap();
    let mut summary: BTreeMap<String, u64> =
        serde_json::from_value(preview["changeSummary"].clone()).unwrap();
    if let Some(same) = summary.remove("same") {
        summary.insert("unchanged".to_owned(), same);
    }
    assert_eq!(counts(&data), without_stack(summary, stack));
    *data
}

async fn applied(bench: &Bench) -> u64 {
    match bench.run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await.completed() {
        Success::Resources(count) => count,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn counts_are_those_of_pulumi_without_the_stack() {
    let Some(bench) = pulumi_module(
        "resources:
  mine: {type: 'pulumi:providers:hawser'}
  a: {type: 'hawser:index:Thing', properties: {value: 1, key: k}}
  b: {type: 'hawser:index:Thing', properties: {value: 1, key: k}, options: {provider: '${mine}'}}
  c: {type: 'hawser:index:Thing', properties: {key: k}, options: {deleteBeforeReplace: true}}
  d: {type: 'hawser:index:Thing', properties: {key: '${c.key}'}}
  kept: {type: 'hawser:index:Thing', options: {protect: true}}
outputs: {same: 1, changed: 1, gone: 1}
",
    ) else {
        return;
    };
    init(&bench).await;
    let data = planned(&bench, "create").await;
    assert_eq!(counts(&data), [6, 0, 0, 0, 0]);
    assert_eq!(data.outputs_create_list, ["changed", "gone", "same"]);
    assert_eq!(applied(&bench).await, 6);
    assert_eq!(counts(&planned(&bench, "unchanged").await), [0, 0, 0, 0, 6]);

    // An update, a change of the provider, a delete, replacements in both orders, and a dependent resource with them.
    program(
        &bench,
        "resources:
  mine: {type: 'pulumi:providers:hawser'}
  a: {type: 'hawser:index:Thing', properties: {value: 2, key: k}, options: {provider: '${mine}'}}
  b: {type: 'hawser:index:Thing', properties: {value: 1, key: l}}
  c: {type: 'hawser:index:Thing', properties: {key: l}, options: {deleteBeforeReplace: true}}
  d: {type: 'hawser:index:Thing', properties: {key: '${c.key}'}}
  new: {type: 'hawser:index:Thing'}
  kept: {type: 'hawser:index:Thing', options: {protect: true}}
outputs: {same: 1, changed: 2, new: 1}
",
    );
    let data = planned(&bench, "unchanged").await;
    assert_eq!(counts(&data), [1, 1, 0, 3, 2]);
    assert_eq!((data.total_count_before, data.total_count_after), (6, 7));
    assert_eq!(
        (data.outputs_create_list, data.outputs_modify_list),
        (vec!["new".into()], vec!["changed".into()])
    );
    assert_eq!(
        (data.outputs_destroy_list, data.outputs_unchanged_list),
        (vec!["gone".into()], vec!["same".into()])
    );
    assert_eq!(applied(&bench).await, 7);

    program(
        &bench,
        "resources:
  a: {type: 'hawser:index:Thing', properties: {value: 2, key: k}}
  kept: {type: 'hawser:index:Thing', options: {protect: true}}
",
    );
    assert_eq!(counts(&planned(&bench, "unchanged").await), [0, 0, 5, 0, 2]);
    assert_eq!(applied(&bench).await, 2);
    let flags = pulumi_flags(&[(PulumiFlag::ExcludeProtected, None)], &[]);
    let data = destroy_planned(&bench, flags, "unchanged").await;
    assert_eq!(counts(&data), [0, 0, 1, 0, 1]);
}

#[tokio::test]
async fn a_component_counts_like_its_resources() {
    let Some(bench) = pulumi_module(
        "packages: {pair: ./pair}
resources: {pair: {type: 'pair:index:Pair'}}
",
    ) else {
        return;
    };
    fs::create_dir(bench.module().join("pair")).unwrap();
    bench.write(
        "pair/PulumiPlugin.yaml",
        "name: pair
runtime: yaml
components:
  Pair:
    resources:
      one: {type: 'pulumi:index:Stash', properties: {input: 1}}
      two: {type: 'pulumi:index:Stash', properties: {input: 2}}
",
    );
    init(&bench).await;
    assert_eq!(counts(&planned(&bench, "create").await), [3, 0, 0, 0, 0]);
    assert_eq!(applied(&bench).await, 3);
    let data = destroy_planned(&bench, FlagLists::default(), "delete").await;
    assert_eq!(counts(&data), [0, 0, 3, 0, 0]);
}

#[tokio::test]
async fn what_a_failed_replacement_leaves_is_neither_a_resource_nor_a_change() {
    let Some(bench) = pulumi_module(
        "resources:
  a: {type: 'hawser:index:Thing', properties: {key: k, fail: delete}}
  b: {type: 'hawser:index:Thing', properties: {key: k}, options: {deleteBeforeReplace: true}}
",
    ) else {
        return;
    };
    init(&bench).await;
    planned(&bench, "create").await;
    assert_eq!(applied(&bench).await, 2);
    program(
        &bench,
        "resources:
  a: {type: 'hawser:index:Thing', properties: {key: l, fail: delete}}
  b: {type: 'hawser:index:Thing', properties: {key: l, fail: create}, options: {deleteBeforeReplace: true}}
",
    );
    assert_eq!(counts(&planned(&bench, "unchanged").await), [0, 0, 0, 2, 0]);
    // The new a exists, the old one too, and neither the old nor the new b.
    let go_on = pulumi_flags(&[(PulumiFlag::ContinueOnError, None)], &[]);
    let fault = bench.run(pulumi_task(Task::ApplyFromPlan, go_on)).await.faulted();
    assert_eq!(fault.resources, Some(1), "{fault:?}");
    assert_eq!(counts(&planned(&bench, "unchanged").await), [0, 0, 0, 1, 1]);

    program(&bench, "resources: {a: {type: 'hawser:index:Thing', properties: {key: l, fail: delete}}}\n");
    assert_eq!(counts(&planned(&bench, "unchanged").await), [0, 0, 0, 0, 1]);
    let data = destroy_planned(&bench, FlagLists::default(), "delete").await;
    assert_eq!(counts(&data), [0, 0, 1, 0, 0]);
}

const SECRETS: &str = "
outputs:
  plain: '[secret]'
  text: {'fn::secret': hush-hush-text}
  number: {'fn::secret': 12345678}
  nested: {user: somebody, key: {'fn::secret': hush-hush-key}}
";

async fn outputs(bench: &Bench, flags: FlagLists) -> BTreeMap<String, OutputValue> {
    match bench.run(pulumi_task(Task::Output, flags)).await.completed() {
        Success::Outputs(Some(set)) => set.outputs.into_iter().map(|it| (it.name.clone(), it)).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn secret_outputs_have_their_values_and_are_sensitive() {
    let Some(bench) = pulumi_module(SECRETS) else { return };
    init(&bench).await;
    planned(&bench, "create").await;
    assert_eq!(applied(&bench).await, 0);
    let on = || pulumi_flags(&[(PulumiFlag::ShowSecrets, None)], &[]);
    for flags in [FlagLists::default(), on()] {
        let outputs = outputs(&bench, flags).await;
        let seen =
            |name: &str| (outputs[name].value.as_str(), outputs[name].kind.as_str(), outputs[name].sensitive);
        assert_eq!(seen("plain"), ("[secret]", "string", Some(false)));
        assert_eq!(seen("text"), ("hush-hush-text", "string", Some(true)));
        assert_eq!(seen("number"), ("12345678", "number", Some(true)));
        let nested = r#"{"key":"hush-hush-key","user":"somebody"}"#;
        assert_eq!(seen("nested"), (nested, "object", Some(true)));
        let mode = fs::metadata(bench.private("output.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // The server asks not to get them.
    let outputs = outputs(&bench, pulumi_flags(&[(PulumiFlag::ShowSecrets, Some("false"))], &[])).await;
    assert_eq!((outputs["text"].value.as_str(), outputs["text"].sensitive), ("[secret]", Some(true)));
}
