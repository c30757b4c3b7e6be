//! Cancels, and what they come to.

use hawser::step::{CancelledBy, Exit};
use hawser::tasks::{TaskError, conclude};
use hawser_contract::requests::CancelKind;

use super::*;
use crate::support::steps::{Interrupt, Ran, execute};

test_with_terraform_and_tofu! {
    a_graceful_cancel_of_an_apply_lets_the_engine_finish_and_runs_nothing_more,
    a_cancel_of_the_after_hook_logs_that_the_apply_succeeded,
    a_kill_is_a_cancel_too,
    the_lock_of_a_killed_engine_is_found_in_any_workspace,
}

/// An apply whose provisioner sleeps, and would leave a trace if it were not interrupted.
async fn sleeping(engine: &RealEngine) -> Bench {
    let bench = Bench::of(
        engine,
        &[(
            "main.tf",
            "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" {\n    command = \"echo now asleep: $$; \
         exec sleep 300.125\"\n  }\n}\n",
        )],
    );
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench
}

fn apply_with_after_hook() -> TaskRequest {
    let own = EngineTask {
        after_hook: Some("echo the after hook ran".into()),
        ..EngineTask::new(Task::ApplyFromPlan, ENGINE)
    };
    TaskRequest::Engine(own)
}

/// Whether the provisioner that said its number still sleeps. Others on this machine may run these tests, too.
fn still_sleeps(ran: &Ran) -> bool {
    let number = |line: &str| -> Option<u32> {
        let rest = line.rsplit_once("now asleep: ")?.1;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let pid = ran.log.iter().find_map(|(_, line)| number(line)).expect("it said its number");
    !fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty()
}

async fn a_graceful_cancel_of_an_apply_lets_the_engine_finish_and_runs_nothing_more(engine: RealEngine) {
    let bench = sleeping(&engine).await;
    let interrupt = Interrupt { at: "\u{1b}[0mnow asleep", kind: CancelKind::Graceful };
    let ran = bench.run_interrupted(apply_with_after_hook(), Some(interrupt)).await;
    assert!(!ran.says("succeeded anyway"), "{:#?}", ran.log);
    // The provisioner got the interrupt too, and terraform may be done with that before it comes to say anything else.
    let said = ran.says("Interrupt received") || ran.says("local-exec provisioner error");
    assert!(said, "{:#?}", ran.log);
    assert!(!ran.says("the after hook ran"), "{:#?}", ran.log);
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    assert!(!still_sleeps(&ran), "the provisioner still runs");
    assert!(!bench.module().join(".terraform.tfstate.lock.info").exists(), "the state is still locked");
    // The resource was made and its provisioner was not done: the state has it, tainted.
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(bench.module().join("terraform.tfstate")).unwrap()).unwrap();
    assert_eq!(state["resources"][0]["instances"][0]["status"], "tainted", "{state:#}");
    assert!(!bench.rescued().exists());
}

async fn a_cancel_of_the_after_hook_logs_that_the_apply_succeeded(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    let own = EngineTask {
        after_hook: Some("echo now hooking; sleep 300.125".into()),
        ..EngineTask::new(Task::ApplyFromPlan, ENGINE)
    };
    let interrupt = Interrupt { at: "now hooking", kind: CancelKind::Graceful };
    let request = TaskRequest::Engine(own);
    let ran = bench.run_interrupted(request, Some(interrupt)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    assert!(ran.says(&format!("{} apply succeeded anyway", engine.name)), "{:#?}", ran.log);
    assert_eq!(counts(bench.run(plan()).await).total_unchanged_count, 1);
}

async fn a_kill_is_a_cancel_too(engine: RealEngine) {
    let bench = sleeping(&engine).await;
    let interrupt = Interrupt { at: "\u{1b}[0mnow asleep", kind: CancelKind::Kill };
    let ran = bench.run_interrupted(apply(), Some(interrupt)).await;
    assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    // Terraform could not clean up: its lock is named.
    let lock = fs::read(bench.module().join(".terraform.tfstate.lock.info")).unwrap();
    let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
    let named = format!("The state lock {} (apply, by ", lock["ID"].as_str().unwrap());
    assert!(ran.says(&named), "{:#?}", ran.log);
    // The file does not lock the state.
    counts(bench.run(plan()).await);
}

async fn the_lock_of_a_killed_engine_is_found_in_any_workspace(engine: RealEngine) {
    let bench = sleeping(&engine).await;
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: [("TF_WORKSPACE".to_owned(), "prod".to_owned())].into(),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    bench.run(TaskRequest::Engine(own)).await.completed();
    counts(bench.run(plan()).await);
    let interrupt = Interrupt { at: "\u{1b}[0mnow asleep", kind: CancelKind::Kill };
    let ran = bench.run_interrupted(apply(), Some(interrupt)).await;
    let file = bench.module().join("terraform.tfstate.d/prod/.terraform.tfstate.lock.info");
    let lock: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(
        ran.says(&format!("The state lock {} (apply, by ", lock["ID"].as_str().unwrap())),
        "{:#?}",
        ran.log
    );
    assert!(ran.says(file.to_str().unwrap()), "{:#?}", ran.log);
}

#[tokio::test]
async fn a_cancel_after_the_end_of_the_script_has_no_effect() {
    let bench = Bench::new(&[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    let context = bench.context();
    let Ok(Prepared::Run(launch)) = prepare(&context, &apply()).await else { panic!("not prepared") };
    let exit = execute(&context.folder, &launch, None);
    context.folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    assert_eq!(conclude(&context, &apply(), &exit).await.unwrap(), Success::Resources(1));
}

#[tokio::test]
async fn a_task_that_is_cancelled_before_it_starts_does_not_start() {
    let bench = Bench::new(&[("main.tf", "")]);
    let context = bench.context();
    context.cancel.cancel();
    assert!(matches!(prepare(&context, &init()).await, Err(TaskError::Cancelled)));
    assert!(!bench.private("init.sh").exists());
}

#[tokio::test]
async fn an_unexpected_interrupt_is_a_fault() {
    let bench = Bench::new(&[("main.tf", "")]);
    let context = bench.context();
    let full = || Exit::Failure("no space left".to_owned());
    for (exit, part, expected) in [
        (Exit::Signal(9), "engine", "terraform apply was killed (SIGKILL; usually because"),
        (Exit::Code(130), "engine", "terraform apply was interrupted (exit code 130)"),
        (Exit::Code(127), "engine", "failed with exit code 127"),
        (full(), "engine", "no space left"),
        (full(), "engine\ncollect", "left; terraform apply had succeeded before"),
        (Exit::Code(0), "", "the script ended early"),
        (
            Exit::Code(1),
            "collect",
            "terraform apply succeeded, but reading its result failed with exit code 1",
        ),
    ] {
        fs::write(context.folder.part_path(), part).unwrap();
        match conclude(&context, &apply(), &exit).await {
            Err(TaskError::Faulted(fault)) => assert!(fault.message.contains(expected), "{fault:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_cancel_before_the_script_starts_cancels_the_task() {
    let bench = Bench::new(&[("main.tf", "")]);
    let context = bench.context();
    let exit = Exit::Failure("the step was cancelled before its script started".to_owned());
    context.folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    let result = conclude(&context, &init(), &exit).await;
    assert!(matches!(result, Err(TaskError::Cancelled)), "{result:?}");
}
