//! The end of a step whose driver panics.

use std::time::Duration;

use hawser_contract::{Push, Task};
use serde_json::json;

use super::*;
use crate::scheduler::tests::executor;
use crate::step::store::Created;
use crate::step::{StepKey, StepWork};

/// Long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A Validate of the module with this name.
fn step(executor: &Executor, module: &str, job: u128) -> Step {
    let job_id = Uuid::from_u128(job);
    let payload = json!({
        "jobId": job_id, "organizationId": Uuid::nil(), "engine": "terraform",
        "metadata": {"stackName": "s", "namespaceName": "n", "moduleName": module, "moduleId": Uuid::nil()},
    });
    let Ok(Push::Task(request)) = Push::read("Validate", std::slice::from_ref(&payload)) else {
        panic!("the payload is valid")
    };
    let key = StepKey::task(job_id, Task::Validate);
    let Created::New(folder) = executor.store.create(&key, "Validate", &payload).unwrap() else {
        panic!("the step is new")
    };
    Step { folder, work: StepWork::Task(request) }
}

#[tokio::test]
async fn a_driver_that_panics_faults_its_step_and_frees_its_slot() {
    let directory = tempfile::tempdir().unwrap();
    let executor = Arc::new(executor(directory.path(), CancellationToken::new()));
    let (load, _) = watch::channel(Load::default());
    let mut dispatch = Dispatch::new(Arc::clone(&executor), load);
    let [first, second] = [("a", 1), ("b", 2)].map(|(module, job)| step(&executor, module, job));
    dispatch.arrive(first.clone(), RecoveryPhase::Prepare);
    dispatch.arrive(second.clone(), RecoveryPhase::Prepare);
    assert_eq!(dispatch.queue.load(), Load { running: 1, waiting: 1 });
    // Its driver waits for a connection. A panic takes its place.
    dispatch.drives.shutdown().await;
    dispatch.spawn(first.name(), async { panic!("this panic is intended") });
    while dispatch.steps.contains_key(&first.name()) {
        let ended = tokio::time::timeout(LIMIT, dispatch.drives.join_next()).await.unwrap().unwrap();
        dispatch.on_ended(ended);
    }
    let outcome = first.folder.outcome().unwrap().unwrap();
    assert!(matches!(outcome.outcome, Outcome::Faulted(_)), "{outcome:?}");
    assert!(!dispatch.steps[&second.name()].waiting, "the second step has the slot");
    assert_eq!(dispatch.queue.load(), Load { running: 1, waiting: 0 });
}

#[tokio::test]
async fn a_second_panic_frees_the_slot_too() {
    let directory = tempfile::tempdir().unwrap();
    let executor = Arc::new(executor(directory.path(), CancellationToken::new()));
    let (load, _) = watch::channel(Load::default());
    let mut dispatch = Dispatch::new(Arc::clone(&executor), load);
    let step = step(&executor, "a", 1);
    dispatch.arrive(step.clone(), RecoveryPhase::Prepare);
    dispatch.drives.shutdown().await;
    for panics in 1..=2 {
        dispatch.on_ended(Ok((step.name(), DriveEnd::Panicked)));
        dispatch.drives.shutdown().await;
        assert_eq!(dispatch.queue.load().running, 2 - panics);
    }
}
