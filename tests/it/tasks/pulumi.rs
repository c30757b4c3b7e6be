//! Pulumi: results and counts of every task, and stacks that a destroy removes.

use hawser_contract::{PulumiArrayFlag, PulumiFlag};

use super::*;
use crate::support::pulumi::{
    pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_state, pulumi_task,
};

const TWO: &str = "resources:
  a: {type: 'pulumi:index:Stash', properties: {input: one}}
  b: {type: 'pulumi:index:Stash', properties: {input: two}}
outputs: {x: mine}
";

fn none() -> FlagLists {
    FlagLists::default()
}

pub(super) fn plan(task: Task) -> TaskRequest {
    pulumi_plan(task, &[], none())
}

pub(super) fn task(task: Task) -> TaskRequest {
    pulumi_task(task, none())
}

fn hooked(task: Task, before: Option<&str>, after: Option<&str>) -> TaskRequest {
    TaskRequest::Engine(EngineTask {
        before_hook: before.map(str::to_owned),
        after_hook: after.map(str::to_owned),
        ..EngineTask::new(task, EngineName::PULUMI)
    })
}

/// Replaces the program of a module.
fn rewrite(bench: &Bench, program: &str) {
    bench.write("Pulumi.yaml", &format!("name: program\nruntime: yaml\n{program}"));
}

/// A program that was applied, or `None` without Pulumi.
async fn applied(program: &str) -> Option<Bench> {
    let bench = pulumi_module(program)?;
    bench.run(pulumi_init(&bench, &[])).await.completed();
    counts(bench.run(plan(Task::Plan)).await);
    bench.run(task(Task::ApplyFromPlan)).await.completed();
    Some(bench)
}

/// Whether the stack of a module is in its backend.
fn stack_exists(bench: &Bench) -> bool {
    pulumi_state(bench).join(".pulumi/stacks/program/snapcd.json").exists()
}

#[tokio::test]
async fn a_program_goes_through_all_its_tasks() {
    let Some(bench) = pulumi_module(
        "config:
  greeting: {type: string}
resources:
  a: {type: 'pulumi:index:Stash', properties: {input: 1}}
  b: {type: 'pulumi:index:Stash', properties: {input: 1}}
  c: {type: 'pulumi:index:Stash', properties: {input: 1}}
outputs:
  text: ${greeting}
  number: 1.5
  list: [1, a]
  object: {k: true}
  password: {fn::secret: hush}
",
    ) else {
        return;
    };
    let ran = bench.run(pulumi_init(&bench, &[(PulumiFlag::StackName, Some("dev"))])).await;
    assert!(ran.log[0].1.starts_with("pulumi 3."), "{:#?}", ran.log);
    assert_eq!(ran.completed(), Success::Done);
    let found = bench.run(task(Task::Variables)).await;
    assert_eq!(found.completed(), Success::Variables(None));

    let parameters = [("greeting", "\"it's \\\"so\\\" $HOME\""), ("password", "\"hunter2hunter2\"")];
    let flags = pulumi_flags(&[(PulumiFlag::Message, Some("two words"))], &[]);
    let ran = bench.run(pulumi_plan(Task::Plan, &parameters, flags)).await;
    assert!(!ran.says("hunter2"), "{:#?}", ran.log);
    let data = counts(ran);
    assert_eq!((data.create_count, data.total_count_after, data.outputs_create_count), (3, 3, 5));
    assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(3));
    bench.run(task(Task::Validate)).await.completed();

    let set = outputs(bench.run(task(Task::Output)).await);
    let seen: Vec<_> =
        set.outputs.iter().map(|it| (it.name.as_str(), it.kind.as_str(), it.value.as_str())).collect();
    assert_eq!(
        seen[..3],
        [("list", "tuple", "[1,\"a\"]"), ("number", "number", "1.5"), ("object", "object", "{\"k\":true}"),]
    );
    assert_eq!(seen[4], ("text", "string", "it's \"so\" $HOME"));
    let secret: Vec<_> = set.outputs.iter().filter(|it| it.sensitive == Some(true)).collect();
    assert!(matches!(secret[..], [it] if it.name == "password"), "{secret:?}");

    rewrite(
        &bench,
        "resources:
  a: {type: 'pulumi:index:Stash', properties: {input: 2}}
  b: {type: 'pulumi:index:Stash', properties: {input: 1}}
  d: {type: 'pulumi:index:Stash', properties: {input: 1}}
",
    );
    let data = counts(bench.run(plan(Task::Plan)).await);
    assert_eq!((data.create_count, data.modify_count, data.destroy_count), (1, 1, 1));
    assert_eq!((data.total_unchanged_count, data.outputs_destroy_count), (1, 5));
    assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(3));

    let ran = bench.run(plan(Task::PlanDestroy)).await;
    let named = ran.log.iter().any(|(_, line)| line.contains("Stash") && line.contains("delete"));
    assert!(named, "{:#?}", ran.log);
    let data = counts(ran);
    assert_eq!((data.destroy_count, data.total_count_before, data.total_count_after), (3, 3, 0));
    assert_eq!(bench.run(task(Task::DestroyFromPlan)).await.completed(), Success::Resources(0));
}

#[tokio::test]
async fn hooks_run_around_the_commands_of_pulumi() {
    let Some(bench) = applied(TWO).await else { return };
    let ran = bench.run(hooked(Task::Plan, Some("echo before: Plan"), Some("echo after: Plan"))).await;
    hooks::in_order(&ran, &["before: Plan", "Previewing update", "after: Plan"]);
    counts(ran);
    bench.run(plan(Task::PlanDestroy)).await.completed();
    let hook = Some("exit 3");
    let fault = bench.run(hooked(Task::DestroyFromPlan, None, hook)).await.faulted();
    assert_eq!(fault.message, "pulumi destroy succeeded, but DestroyAfterHook failed with exit code 3");
    assert_eq!(fault.resources, Some(0));
}

/// When a supervisor has let go of the module before its runner is back, another runner may be quicker.
#[tokio::test]
async fn results_do_not_depend_on_later_changes_to_the_module() {
    let Some(bench) = pulumi_module(
        "resources: {a: {type: 'pulumi:index:Stash', properties: {input: 1}}}\noutputs: {x: mine}\n",
    ) else {
        return;
    };
    bench.run(pulumi_init(&bench, &[])).await.completed();

    // A plan that another task may have replaced is not recorded, so it is concluded at once.
    assert_eq!(counts(bench.run(plan(Task::Plan)).await).create_count, 1);
    let applied = bench.executed(task(Task::ApplyFromPlan)).await;
    let printed = bench.executed(task(Task::Output)).await;

    rewrite(
        &bench,
        "resources:
  a: {type: 'pulumi:index:Stash', properties: {input: 1}}
  b: {type: 'pulumi:index:Stash', properties: {input: 1}}
  c: {type: 'pulumi:index:Stash', properties: {input: 1}}
outputs: {x: of another}
",
    );
    assert_eq!(counts(bench.run(plan(Task::Plan)).await).create_count, 2);
    assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(3));
    bench.run(task(Task::Output)).await.completed();
    assert_eq!(counts(bench.run(plan(Task::PlanDestroy)).await).destroy_count, 3);

    // Safe to repeat, too.
    for _ in 0..2 {
        assert_eq!(applied.concluded().await.completed(), Success::Resources(1));
        assert_eq!(outputs(printed.concluded().await).outputs[0].value, "mine");
    }
    // The names that users know these files by.
    for (name, text) in [
        ("plan.json", "resourcePlans"),
        ("destroy_preview.json", "changeSummary"),
        ("export.json", "deployment"),
        ("output.json", "of another"),
    ] {
        let found = fs::read_to_string(bench.private(name)).unwrap();
        assert!(found.contains(text), "{name}: {found}");
    }
}

#[tokio::test]
async fn results_are_reported_even_if_their_copies_fail() {
    let Some(bench) = pulumi_module(TWO) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    counts(bench.run(plan(Task::Plan)).await);
    let blocked = |task, file: &str| hooked(task, Some(&format!("mkdir -p .snapcd/{file}/{file}")), None);
    let says = |ran: &Ran, file: &str| {
        let said = format!("failed to copy the result to {}", bench.private(file).display());
        assert!(ran.says(&said), "{:#?}", ran.log);
        fs::remove_dir_all(bench.private(file)).unwrap();
    };
    let ran = bench.run(blocked(Task::ApplyFromPlan, "export.json")).await;
    says(&ran, "export.json");
    assert_eq!(ran.completed(), Success::Resources(2));

    let ran = bench.run(blocked(Task::Output, "output.json")).await;
    says(&ran, "output.json");
    assert_eq!(outputs(ran).outputs[0].value, "mine");

    let ran = bench.run(blocked(Task::PlanDestroy, "destroy_preview.json")).await;
    says(&ran, "destroy_preview.json");
    assert_eq!(counts(ran).destroy_count, 2);

    // The private folder itself is not needed to say what became of the stack, either.
    let ran = bench.run(hooked(Task::DestroyFromPlan, None, Some("rm -rf .snapcd; : >.snapcd"))).await;
    assert_eq!(ran.completed(), Success::Resources(0));
}

#[tokio::test]
async fn a_destroy_that_removes_the_stack_succeeds_with_no_resources() {
    let Some(bench) = applied(TWO).await else { return };
    let remove = || pulumi_flags(&[(PulumiFlag::Remove, None)], &[]);
    // With the flag, Pulumi would fail here, or remove an empty stack for a preview.
    let ran = bench.run(pulumi_plan(Task::PlanDestroy, &[], remove())).await;
    assert!(ran.log.iter().any(|(stream, line)| *stream == Stream::Warning && line.contains("Remove")));
    assert_eq!(counts(ran).destroy_count, 2);
    assert!(stack_exists(&bench));
    let ran = bench.run(pulumi_task(Task::DestroyFromPlan, remove())).await;
    assert_eq!(ran.completed(), Success::Resources(0));
    assert!(!stack_exists(&bench));

    // A hook that fails afterwards does not make the stack one that could not be read.
    let Some(bench) = applied(TWO).await else { return };
    bench.run(plan(Task::PlanDestroy)).await.completed();
    let TaskRequest::Engine(destroy) = hooked(Task::DestroyFromPlan, None, Some("exit 3")) else {
        unreachable!()
    };
    let fault = bench.run(TaskRequest::Engine(EngineTask { flags: remove(), ..destroy })).await.faulted();
    assert_eq!(fault.message, "pulumi destroy succeeded, but DestroyAfterHook failed with exit code 3");
}

#[tokio::test]
async fn a_stack_that_remains_despite_remove_is_counted() {
    let Some(bench) = applied(TWO).await else { return };
    let urn = "urn:pulumi:snapcd::program::pulumi:index:Stash::a";
    bench.run(plan(Task::PlanDestroy)).await.completed();
    let one = pulumi_flags(&[(PulumiFlag::Remove, None)], &[(PulumiArrayFlag::Target, urn)]);
    let ran = bench.run(pulumi_task(Task::DestroyFromPlan, one)).await;
    assert_eq!(ran.completed(), Success::Resources(1));
    assert!(stack_exists(&bench));
    let off = pulumi_flags(&[(PulumiFlag::Remove, Some("false"))], &[]);
    let ran = bench.run(pulumi_task(Task::DestroyFromPlan, off)).await;
    assert_eq!(ran.completed(), Success::Resources(0));
    assert!(stack_exists(&bench));
}
