//! Whether a task is said to have succeeded depends on what the engine did, and on nothing that happened to copies since.

use super::*;

test_with_terraform_and_tofu! {
    an_apply_succeeds_even_if_the_private_folder_is_lost_afterwards,
    outputs_are_reported_even_if_their_copy_fails,
}

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

async fn planned(engine: &RealEngine) -> Bench {
    let bench = Bench::of(engine, MODULE);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench
}

async fn an_apply_succeeds_even_if_the_private_folder_is_lost_afterwards(engine: RealEngine) {
    let bench = planned(&engine).await;
    let own = EngineTask { after_hook: replaced(), ..EngineTask::new(Task::ApplyFromPlan, ENGINE) };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert_eq!(ran.completed(), Success::Resources(1));
}

async fn outputs_are_reported_even_if_their_copy_fails(engine: RealEngine) {
    let bench = planned(&engine).await;
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
async fn outputs_of_extra_files_are_recorded_when_the_task_runs() {
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
async fn an_apply_that_succeeded_is_completed_even_if_nothing_tells_the_number_of_resources() {
    let bench = planned(&terraform()).await;
    let executed = bench.executed(apply()).await;
    fs::remove_file(bench.private("planned.json")).unwrap();
    fs::remove_file(executed.folder().join("state.json")).unwrap();
    let ran = executed.concluded().await;
    let warned = |line: &str| line.contains("reporting 0 because") && line.contains("state.json");
    assert!(ran.log.iter().any(|(stream, it)| *stream == Stream::Warning && warned(it)), "{:#?}", ran.log);
    assert_eq!(ran.completed(), Success::Resources(0));
}

/// An engine does not write symlinks to the step folder, but a hook could.
#[tokio::test]
async fn a_result_that_is_a_symlink_is_not_read() {
    let bench = planned(&terraform()).await;
    let executed = bench.executed(apply()).await;
    let state = executed.folder().join("state.json");
    let elsewhere = executed.folder().join("elsewhere.json");
    fs::rename(&state, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &state).unwrap();
    let ran = executed.concluded().await;
    assert!(ran.says("using the count of the plan (1)") && ran.says("state.json"), "{:#?}", ran.log);
    assert_eq!(ran.completed(), Success::Resources(1));
}
