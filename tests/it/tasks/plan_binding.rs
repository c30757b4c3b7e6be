//! An apply executes only the plan that its own job has made, byte for byte.

use std::path::Path;

use super::*;
use crate::support::pulumi::{pulumi_init, pulumi_module, pulumi_plan, pulumi_task};

test_with_terraform_and_tofu! {
    the_plan_of_another_job_is_not_applied,
    the_destroy_plan_of_another_job_is_not_applied,
    a_plan_that_changed_after_its_task_is_not_applied,
    a_plan_is_not_applied_at_another_commit,
    a_plan_is_not_applied_after_the_init_of_another_job,
    an_init_that_another_job_replaced_before_it_was_concluded_faults,
    a_plan_that_was_replaced_before_it_was_recorded_is_not_taken_for_one_of_its_job,
}

const A: u32 = 11;
const B: u32 = 12;

/// Its apply writes a file with the value of the parameter.
const MODULE: &str = "variable \"value\" { default = \"none\" }\n\
     resource \"terraform_data\" \"it\" {\n  input = var.value\n  \
     provisioner \"local-exec\" { command = \"touch applied-${var.value}\" }\n}\n";

fn plan_of(value: &str) -> TaskRequest {
    plan_with(&[("value", &format!("{value:?}"))], FlagLists::default())
}

async fn initialized(engine: &RealEngine) -> Bench {
    let bench = Bench::of(engine, &[("main.tf", MODULE)]);
    bench.run(init()).await.completed();
    bench
}

fn applied(bench: &Bench) -> Vec<String> {
    let names =
        fs::read_dir(bench.module()).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("applied-").map(str::to_owned)).collect()
}

async fn the_plan_of_another_job_is_not_applied(engine: RealEngine) {
    let bench = initialized(&engine).await;
    bench.of_job(A).run(plan_of("a")).await.completed();
    bench.of_job(B).run(plan_of("b")).await.completed();
    let fault = bench.of_job(A).run(apply()).await.faulted();
    let expected = format!("was made by job {}: run Plan first", Uuid::from_u128(B.into()));
    assert!(fault.message.ends_with(&expected), "{fault:?}");
    assert_eq!(applied(&bench), [""; 0]);
    assert_eq!(bench.of_job(B).run(apply()).await.completed(), Success::Resources(1));
    assert_eq!(applied(&bench), ["b"]);
}

async fn the_destroy_plan_of_another_job_is_not_applied(engine: RealEngine) {
    let bench = initialized(&engine).await;
    bench.of_job(A).run(plan_of("a")).await.completed();
    bench.run(apply()).await.completed();
    bench.of_job(B).run(plan_destroy()).await.completed();
    let fault = bench.of_job(A).run(destroy()).await.faulted();
    assert!(fault.message.ends_with("run PlanDestroy first"), "{fault:?}");
    assert_eq!(counts(bench.of_job(A).run(plan_destroy()).await).destroy_count, 1, "nothing was destroyed");
    assert_eq!(bench.run(destroy()).await.completed(), Success::Resources(0));
}

async fn a_plan_that_changed_after_its_task_is_not_applied(engine: RealEngine) {
    let bench = initialized(&engine).await;
    bench.of_job(B).run(plan_of("b")).await.completed();
    let of_b = fs::read(bench.private("plan.out")).unwrap();
    bench.of_job(A).run(plan_of("a")).await.completed();
    let of_a = fs::read(bench.private("plan.out")).unwrap();
    for (file, text, says) in [
        ("plan.out", Some(of_b.as_slice()), "plan.out has changed since"),
        ("plan.out", None, "plan.out is missing"),
        ("plan.tfvars", Some(b"value = \"c\"\n".as_slice()), "plan.tfvars has changed since"),
    ] {
        match text {
            Some(text) => fs::write(bench.private(file), text).unwrap(),
            None => fs::remove_file(bench.private(file)).unwrap(),
        }
        let fault = bench.run(apply()).await.faulted();
        assert!(fault.message.contains(says), "{file}: {fault:?}");
        fs::write(bench.private("plan.out"), &of_a).unwrap();
    }
    assert_eq!(applied(&bench), [""; 0]);
}

async fn a_plan_is_not_applied_at_another_commit(engine: RealEngine) {
    let repo = Repo::with(&[("main.tf", MODULE)]);
    let bench = Bench::of(&engine, &[]);
    let get = |commit: String| {
        let source = Source {
            source_type: SourceType::Git,
            source_revision_type: SourceRevisionType::Default,
            source_url: repo.url(),
            source_revision: "main".into(),
            source_definitive_revision: Some(commit),
            source_semantic_version: None,
        };
        TaskRequest::GetModule(source, GetModule::default())
    };
    let first = repo.head();
    bench.run(get(first.clone())).await.completed();
    bench.run(init()).await.completed();
    bench.run(plan_of("a")).await.completed();
    let kept = ["plan.out", "plan.tfvars", "planned.json"].map(|name| {
        let path = bench.private(name);
        (fs::read(&path).unwrap(), path)
    });
    repo.commit(&[("more.tf", "# more\n")]);
    bench.run(get(repo.head())).await.completed();
    // The runner drops plans with their revision. A hook could bring them back.
    for (text, path) in kept {
        fs::write(path, text).unwrap();
    }
    let fault = bench.run(apply()).await.faulted();
    let expected =
        format!("the plan was made for {first}, but the module is now at {}: run Plan first", repo.head());
    assert_eq!(fault.message, expected);
    assert_eq!(applied(&bench), [""; 0]);
    bench.run(plan_of("a")).await.completed();
    assert_eq!(bench.run(apply()).await.completed(), Success::Resources(1));
}

/// Its environment and its backend are not those of the plan.
async fn a_plan_is_not_applied_after_the_init_of_another_job(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", MODULE)]);
    bench.of_job(A).run(init()).await.completed();
    bench.run(plan_of("a")).await.completed();
    bench.of_job(B).run(init()).await.completed();
    let fault = bench.of_job(A).run(apply()).await.faulted();
    let expected = format!(
        "Init of job {} has run since this job made its plan: run Plan first",
        Uuid::from_u128(B.into())
    );
    assert_eq!(fault.message, expected);
    assert_eq!(applied(&bench), [""; 0]);
    // A server may run Init again in the same job.
    bench.run(init()).await.completed();
    assert_eq!(bench.run(apply()).await.completed(), Success::Resources(1));
}

async fn an_init_that_another_job_replaced_before_it_was_concluded_faults(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", MODULE)]);
    let of_a = bench.of_job(A).executed(init()).await;
    bench.of_job(B).run(init()).await.completed();
    let fault = of_a.concluded().await.faulted();
    assert!(
        fault.message.contains("another job used the module before this Init was concluded"),
        "{fault:?}"
    );
}

/// As after a restart of the runner, when another instance with the same working directory was quicker.
async fn a_plan_that_was_replaced_before_it_was_recorded_is_not_taken_for_one_of_its_job(engine: RealEngine) {
    let bench = initialized(&engine).await;
    let of_a = bench.of_job(A).executed(plan_of("a")).await;
    let of_b = bench.of_job(B).executed(plan_of("b")).await;
    let fault = of_a.concluded().await.faulted();
    assert!(fault.message.contains("ran in the module before this plan was recorded"), "{fault:?}");
    of_b.concluded().await.completed();
    let fault = bench.of_job(A).run(apply()).await.faulted();
    assert!(fault.message.contains("was made by job"), "{fault:?}");
    assert_eq!(bench.of_job(B).run(apply()).await.completed(), Success::Resources(1));
    assert_eq!(applied(&bench), ["b"]);
}

fn exists(state: &Path) -> bool {
    let text = fs::read_to_string(state.join("state/.pulumi/stacks/program/snapcd.json")).unwrap();
    text.contains("pulumi:index:Stash")
}

#[tokio::test]
async fn a_pulumi_job_applies_and_destroys_only_what_it_has_planned() {
    let program = "resources:\n  a: {type: 'pulumi:index:Stash', properties: {input: one}}\n";
    let Some(bench) = pulumi_module(program) else { return };
    let root = bench.root.path();
    let task = |task| pulumi_task(task, FlagLists::default());
    let plan = |task| pulumi_plan(task, &[], FlagLists::default());
    bench.of_job(A).run(pulumi_init(&bench, &[])).await.completed();
    bench.run(plan(Task::Plan)).await.completed();
    let fault = bench.of_job(B).run(task(Task::ApplyFromPlan)).await.faulted();
    assert!(fault.message.ends_with("run Plan first"), "{fault:?}");
    assert!(!exists(root));
    bench.of_job(A).run(task(Task::ApplyFromPlan)).await.completed();
    assert!(exists(root));
    // A destroy has no plan file.
    let fault = bench.run(task(Task::DestroyFromPlan)).await.faulted();
    assert!(fault.message.ends_with("run PlanDestroy first"), "{fault:?}");
    bench.run(plan(Task::PlanDestroy)).await.completed();
    let fault = bench.of_job(B).run(task(Task::DestroyFromPlan)).await.faulted();
    assert!(fault.message.ends_with("run PlanDestroy first"), "{fault:?}");
    assert!(exists(root));
    bench.of_job(A).run(task(Task::DestroyFromPlan)).await.completed();
    assert!(!exists(root));
}

#[tokio::test]
async fn a_pulumi_destroy_does_not_follow_another_job_to_its_backend() {
    let program = "resources:\n  a: {type: 'pulumi:index:Stash', properties: {input: one}}\n";
    let Some(bench) = pulumi_module(program) else { return };
    let root = bench.root.path();
    let task = |task| pulumi_task(task, FlagLists::default());
    let plan = |task| pulumi_plan(task, &[], FlagLists::default());
    let other = format!("file://{}", root.join("other").display());
    fs::create_dir(root.join("other")).unwrap();
    let elsewhere = || pulumi_init(&bench, &[(hawser_contract::PulumiFlag::CloudUrl, Some(&other))]);
    // Both backends have the resource.
    for (job, init) in [(B, elsewhere()), (A, pulumi_init(&bench, &[]))] {
        bench.of_job(job).run(init).await.completed();
        bench.run(plan(Task::Plan)).await.completed();
        bench.run(task(Task::ApplyFromPlan)).await.completed();
    }
    bench.run(plan(Task::PlanDestroy)).await.completed();
    bench.of_job(B).run(elsewhere()).await.completed();
    let fault = bench.of_job(A).run(task(Task::DestroyFromPlan)).await.faulted();
    assert!(fault.message.contains("Init of job"), "{fault:?}");
    assert!(exists(root));
    let text = fs::read_to_string(root.join("other/.pulumi/stacks/program/snapcd.json")).unwrap();
    assert!(text.contains("pulumi:index:Stash"), "{text}");
}

/// Both plans set parameters in the same file. Pulumi itself compares the program's resources with the plan.
#[tokio::test]
async fn a_pulumi_plan_is_not_applied_with_the_parameters_of_another_job() {
    let program = "config:\n  value: {type: string}\n\
         resources:\n  a: {type: 'pulumi:index:Stash', properties: {input: '${value}'}}\noutputs: {x: '${a.output}'}\n";
    let Some(bench) = pulumi_module(program) else { return };
    let plan = |task, value| pulumi_plan(task, &[("value", value)], FlagLists::default());
    bench.of_job(A).run(pulumi_init(&bench, &[])).await.completed();
    bench.run(plan(Task::Plan, "\"of a\"")).await.completed();
    bench.of_job(B).run(plan(Task::PlanDestroy, "\"of b\"")).await.completed();
    let applied = bench.of_job(A).run(pulumi_task(Task::ApplyFromPlan, FlagLists::default())).await;
    assert!(applied.says("violates plan"), "{:#?}", applied.log);
    applied.faulted();
}
