//! Whether a task is said to have succeeded depends on what the engine did, and on nothing that happened to copies since.

use super::*;

/// Nothing can be copied to a file of this name in the module's private folder.
fn blocked(file: &str) -> Option<String> {
    Some(format!("mkdir -p .snapcd/{file}/{file}"))
}

/// An after hook that leaves a file where the private folder was.
fn replaced() -> Option<String> {
    Some("rm -rf .snapcd; : >.snapcd".to_owned())
}

const MODULE: &[(&str, &str)] =
    &[("main.tf", "resource \"terraform_data\" \"x\" {}\noutput \"x\" { value = \"mine\" }\n")];

async fn planned() -> Bench {
    let bench = Bench::new(MODULE);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench
}

#[tokio::test]
async fn an_apply_is_no_failure_though_the_private_folder_is_lost_after_it() {
    let bench = planned().await;
    let own = EngineTask { after_hook: replaced(), ..EngineTask::new(Task::ApplyFromPlan, ENGINE) };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert_eq!(ran.completed(), Success::Resources(1));
}

#[tokio::test]
async fn outputs_are_told_though_no_copy_of_them_can_be_put_into_the_module() {
    let bench = planned().await;
    bench.run(apply()).await.completed();
    let own = EngineTask {
        before_hook: blocked("output.json"),
        after_hook: replaced(),
        ..EngineTask::new(Task::Output, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    let place = bench.private("output.json");
    assert!(ran.says(&format!("failed to copy the result to {}", place.display())), "{:#?}", ran.log);
    assert_eq!(outputs(ran).outputs[0].value, "mine");
}

#[tokio::test]
async fn which_outputs_are_of_extra_files_is_told_as_it_was_when_the_task_ran() {
    let bench = Bench::new(&[
        ("main.tf", "output \"own\" { value = 1 }\n"),
        ("extra.tf", "output \"extra\" { value = 1 }\n"),
    ]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let own =
        EngineTask { extra_file_names: vec!["extra.tf".into()], ..EngineTask::new(Task::Output, ENGINE) };
    let mine = bench.executed(TaskRequest::Engine(own)).await;
    let marked = |set: OutputSet| -> Vec<(String, bool)> {
        set.outputs.into_iter().map(|it| (it.name, it.from_extra_file)).collect()
    };
    let expected = [("extra".to_owned(), true), ("own".to_owned(), false)];

    // Another revision, in which it is the other way round.
    bench.write("main.tf", "output \"extra\" { value = 1 }\n");
    bench.write("extra.tf", "output \"own\" { value = 1 }\n");
    assert_eq!(marked(outputs(mine.concluded().await)), expected);
    fs::remove_dir_all(bench.module()).unwrap();
    assert_eq!(marked(outputs(mine.concluded().await)), expected);
}

#[tokio::test]
async fn an_apply_whose_count_is_lost_is_said_to_have_succeeded() {
    let bench = planned().await;
    let executed = bench.executed(apply()).await;
    fs::remove_file(executed.folder().join("state.json")).unwrap();
    let fault = executed.concluded().await.faulted();
    let expected =
        "terraform apply succeeded, but its result could not be read: cannot read the state as JSON";
    assert!(fault.message.starts_with(expected), "{fault:?}");
}

/// A link in the step's folder is a hook's doing and not the engine's result.
#[tokio::test]
async fn a_state_that_is_a_link_is_no_result() {
    let bench = planned().await;
    let executed = bench.executed(apply()).await;
    let state = executed.folder().join("state.json");
    let elsewhere = executed.folder().join("elsewhere.json");
    fs::rename(&state, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &state).unwrap();
    let fault = executed.concluded().await.faulted();
    assert!(fault.message.contains("state.json"), "{fault:?}");
}
