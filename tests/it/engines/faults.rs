//! Faults name the error of the engine, with the real engines.

use std::fs;

use hawser::tasks::TaskError;
use hawser_contract::requests::CancelKind;
use hawser_contract::{
    EngineTask, Fault, Flag, FlagLists, InitOptions, PulumiFlag, Task, TaskRequest, TerraformFlag,
};

use crate::support::pulumi::{pulumi_flags, pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::real_engines::{RealEngine, terraform_and_tofu};
use crate::support::steps::{Bench, Interrupt};
use crate::support::wrap;

fn task(engine: &RealEngine, task: Task) -> EngineTask {
    EngineTask::new(task, engine.name.clone())
}

/// A module with a plan.
async fn planned(engine: &RealEngine, text: &str) -> Bench {
    let bench = Bench::new(&[("main.tf", text)]).with_engine(engine);
    // Not the settings of this machine.
    let variables = [("TF_CLI_CONFIG_FILE".to_owned(), "/dev/null".to_owned())];
    let init = InitOptions { resolved_env_vars: variables.into(), ..InitOptions::default() };
    bench.run(TaskRequest::Engine(EngineTask { init, ..task(engine, Task::Init) })).await.completed();
    bench.run(TaskRequest::Engine(task(engine, Task::Plan))).await.completed();
    bench
}

async fn apply_fault(bench: &Bench, engine: &RealEngine, before_hook: &str, flags: FlagLists) -> Fault {
    let before_hook = Some(before_hook.to_owned());
    let apply = EngineTask { before_hook, flags, ..task(engine, Task::ApplyFromPlan) };
    bench.run(TaskRequest::Engine(apply)).await.faulted()
}

/// Each failure prints 40 lines.
const FAILS_THREE_TIMES: &str = r#"resource "terraform_data" "it" {
  count = 3
  provisioner "local-exec" {
    command = "seq 40 | sed 's/^/a line of output /'; exit 3"
  }
}
"#;

#[tokio::test]
async fn all_of_three_long_errors_are_reported() {
    for engine in terraform_and_tofu() {
        let bench = planned(&engine, FAILS_THREE_TIMES).await;
        for color in [true, false] {
            let flags = if color { vec![] } else { vec![Flag::new(TerraformFlag::NoColor, None)] };
            let flags = FlagLists { terraform_flags: flags.into(), ..FlagLists::default() };
            let fault = apply_fault(&bench, &engine, "", flags).await;
            let start = format!(
                "{} apply failed with exit code 1: 3 errors, the first: terraform_data.it[",
                engine.name
            );
            assert!(fault.message.starts_with(&start), "{fault:?}");
            let reason = "] (main.tf:3): local-exec provisioner error: Error running command 'seq 40";
            assert!(fault.message.contains(reason), "{fault:?}");
            for at in 0..3 {
                assert!(fault.details.contains(&format!("with terraform_data.it[{at}]")), "{fault:?}");
            }
            assert_eq!(fault.details.matches("a line of output 40").count(), 3, "{fault:?}");
            // The failed resources are tainted. The plan is stale.
            bench.run(TaskRequest::Engine(task(&engine, Task::Plan))).await.completed();
        }
    }
}

#[tokio::test]
async fn a_failed_read_of_the_state_does_not_hide_the_error() {
    for engine in terraform_and_tofu() {
        let bench = planned(&engine, FAILS_THREE_TIMES).await;
        let (name, says) = (&engine.name, "printf '\\nError: not shown\\n%s' \"$(seq 30)\"");
        let fails_to_show = wrap(name.as_str(), &format!("if [[ $1 == show ]]; then {says} >&2; exit 1; fi"));
        let fault = apply_fault(&bench, &engine, &fails_to_show, FlagLists::default()).await;
        assert!(fault.message.contains("3 errors, the first: terraform_data.it["), "{fault:?}");
        assert!(!fault.message.contains("not shown") && !fault.details.contains("not shown"), "{fault:?}");
        assert_eq!(fault.resources, None);
    }
}

const PRINTS_ERROR: &str = "printf '\\nError: of the hook\\n\\n' >&2";

#[tokio::test]
async fn an_error_that_a_hook_printed_is_not_the_engines() {
    for engine in terraform_and_tofu() {
        let bench = planned(&engine, FAILS_THREE_TIMES).await;
        let fault = apply_fault(&bench, &engine, PRINTS_ERROR, FlagLists::default()).await;
        assert!(fault.message.contains(": 3 errors, the first: terraform_data.it["), "{fault:?}");
        assert!(!fault.details.contains("of the hook"), "{fault:?}");
    }
}

/// The second resource is created after the first.
fn creates_two(command: &str) -> String {
    format!(
        "resource \"terraform_data\" \"a\" {{}}\nresource \"terraform_data\" \"b\" {{\n  depends_on = [terraform_data.a]\n  \
         provisioner \"local-exec\" {{\n    command = \"{command}\"\n  }}\n}}\n"
    )
}

#[tokio::test]
async fn a_killed_engine_names_the_resources_that_may_exist() {
    for engine in terraform_and_tofu() {
        let bench = planned(&engine, &creates_two("kill -9 $PPID")).await;
        let ran = bench.run(TaskRequest::Engine(task(&engine, Task::ApplyFromPlan))).await;
        assert!(!ran.says("script.sh") && !ran.says("hawser_run"), "{:#?}", ran.log);
        let fault = ran.faulted();
        let start = format!("{} apply was killed (exit code 137, SIGKILL; usually because", engine.name);
        assert!(fault.message.starts_with(&start), "{fault:?}");
        let unknown = "started to create: terraform_data.b (not finished), terraform_data.a (id ";
        assert!(fault.message.contains(unknown), "{fault:?}");
    }
}

#[tokio::test]
async fn a_cancel_by_kill_names_the_resources_that_may_exist() {
    for engine in terraform_and_tofu() {
        let bench = planned(&engine, &creates_two("sleep 600")).await;
        let apply = TaskRequest::Engine(task(&engine, Task::ApplyFromPlan));
        let interrupt = Interrupt { at: "b (local-exec)", kind: CancelKind::Kill };
        let ran = bench.run_interrupted(apply, Some(interrupt)).await;
        assert!(ran.says("resources may exist that the state does not have"), "{:#?}", ran.log);
        assert!(ran.says("terraform_data.b (not finished), terraform_data.a (id "), "{:#?}", ran.log);
        assert!(matches!(ran.result, Err(TaskError::Cancelled)), "{:?}", ran.result);
    }
}

#[tokio::test]
async fn a_failing_program_is_reported_with_its_error() {
    let program = "variables:
  text:
    fn::readFile: ./text.txt
resources:
  a:
    type: pulumi:index:Stash
    properties: {input: \"${text}\"}
";
    let Some(bench) = pulumi_module(program) else { return };
    let none = FlagLists::default;
    let reason = "pulumi:pulumi:Stack (program-snapcd): Error reading file at path ./text.txt: open ./text.txt: no such file";
    bench.write("text.txt", "text");
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], none())).await.completed();
    fs::remove_file(bench.module().join("text.txt")).unwrap();

    // A line of a hook on stderr does not count.
    let TaskRequest::Engine(apply) = pulumi_task(Task::ApplyFromPlan, none()) else { unreachable!() };
    let before_hook = Some(PRINTS_ERROR.replace("Error:", "error:"));
    let fault = bench.run(TaskRequest::Engine(EngineTask { before_hook, ..apply })).await.faulted();
    assert!(fault.message.contains(reason), "{fault:?}");
    assert!(!fault.details.contains("of the hook"), "{fault:?}");

    let fault = bench.run(pulumi_plan(Task::Plan, &[], none())).await.faulted();
    assert!(fault.message.contains(reason), "{fault:?}");
    let json = pulumi_flags(&[(PulumiFlag::Json, None)], &[]);
    let fault = bench.run(pulumi_plan(Task::Plan, &[], json)).await.faulted();
    assert!(fault.message.contains("Error reading file at path ./text.txt"), "{fault:?}");
}

#[tokio::test]
async fn a_preview_of_a_destroy_names_the_protected_resource() {
    let program = "resources:
  a:
    type: pulumi:index:Stash
    properties: {input: one}
    options: {protect: true}
";
    let Some(bench) = pulumi_module(program) else { return };
    let none = FlagLists::default;
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], none())).await.completed();
    bench.run(pulumi_task(Task::ApplyFromPlan, none())).await.completed();
    let fault = bench.run(pulumi_task(Task::PlanDestroy, none())).await.faulted();
    let reason = "pulumi:index:Stash (a): Preview failed: resource \"urn:";
    assert!(fault.message.contains(reason), "{fault:?}");
    assert!(fault.message.contains("cannot be deleted because it is protected"), "{fault:?}");
}
