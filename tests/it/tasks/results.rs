//! Whether a task is said to have succeeded depends on what the engine did, and on nothing that happened to copies since.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hawser::tasks::TaskError;

use super::*;
use crate::support::steps::Executed;

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
    let own = ApplyFromPlan { engine: ENGINE, apply_after_hook: replaced(), ..ApplyFromPlan::default() };
    let ran = bench.run(TaskRequest::ApplyFromPlan(own, FlagLists::default())).await;
    assert_eq!(ran.completed(), Success::Resources(1));
}

#[tokio::test]
async fn outputs_are_told_though_no_copy_of_them_can_be_put_into_the_module() {
    let bench = planned().await;
    bench.run(apply()).await.completed();
    let own = Output {
        engine: ENGINE,
        output_before_hook: blocked("output.json"),
        output_after_hook: replaced(),
        ..Output::default()
    };
    let ran = bench.run(TaskRequest::Output(own, FlagLists::default())).await;
    let place = bench.private("output.json");
    assert!(ran.says(&format!("the result could not be copied to {}", place.display())), "{:#?}", ran.log);
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
    let own = Output { engine: ENGINE, extra_file_names: vec!["extra.tf".into()], ..Output::default() };
    let mine = bench.executed(TaskRequest::Output(own, FlagLists::default())).await;
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

/// Makes of a step what an older build would have left: its script named no file of the step's folder, and put the result
/// into the module's private folder alone.
pub(crate) fn as_an_older_build_left_it(step: &Path, file: &str) {
    let script = step.join("script.sh");
    let text = fs::read_to_string(&script).unwrap();
    let copy = step.join(file);
    assert!(text.contains(copy.to_str().unwrap()), "{text}");
    fs::write(&script, text.replace(copy.to_str().unwrap(), "/dev/null")).unwrap();
    fs::remove_file(copy).unwrap();
}

/// The result of a task that an older build began is that of the task, or none: not what somebody else has put there since.
pub(crate) async fn is_taken_from_the_module_unless_another_task_wrote_it(
    bench: &Bench,
    executed: &Executed,
    file: &str,
) -> Success {
    as_an_older_build_left_it(executed.folder(), file);
    let result = executed.concluded().await.completed();
    assert!(executed.folder().join(file).is_file(), "it is brought once and for all");

    // From here on the module is another's.
    fs::remove_file(executed.folder().join(file)).unwrap();
    let later = SystemTime::now() + Duration::from_secs(1);
    File::options().write(true).open(bench.private(file)).unwrap().set_modified(later).unwrap();
    let ran = executed.concluded().await;
    assert!(ran.says("which an older hawser began") && ran.says("another task has written it"), "{ran:#?}");
    let Err(TaskError::Faulted(fault)) = ran.result else { panic!("{ran:#?}") };
    assert!(fault.message.contains(" succeeded, but its result could not be read: "), "{fault:?}");
    result
}

#[tokio::test]
async fn outputs_of_a_task_that_an_older_build_began_are_taken_from_where_it_left_them() {
    let bench = planned().await;
    bench.run(apply()).await.completed();
    let executed = bench.executed(output()).await;
    match is_taken_from_the_module_unless_another_task_wrote_it(&bench, &executed, "output.json").await {
        Success::Outputs(Some(set)) => assert_eq!(set.outputs[0].value, "mine"),
        other => panic!("{other:?}"),
    }
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
