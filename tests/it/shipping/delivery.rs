//! All lines and then the result arrive once, and the folder is removed.

use std::fs;
use std::time::Duration;

use hawser_contract::{
    Fault, Outcome, OutputSet, SourceRefresh, SourceRevisionType, SourceType, StepOutcome, Subject, Success,
    Task,
};
use serde_json::json;
use uuid::Uuid;

use super::{
    Bed, accept_all, all_messages, channel, conclude, entries, logs, methods, numbered, ship, shipped,
    write_lines,
};

#[tokio::test(start_paused = true)]
async fn all_lines_and_then_the_result_arrive_and_the_folder_is_removed() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..120);
    conclude(&step);
    assert!(ship(&shipper, step.clone()).await);

    assert_eq!(all_messages(&record), numbered(120));
    assert_eq!(methods(&record), ["AddLogs", "AddLogs", "AddLogs", "PlanCompleted"]);
    assert!(!step.folder.path().exists());
    assert!(shipper.drained().await);
    assert_eq!(shipper.status().borrow().steps, 0);

    let first = logs(&record)[0].clone();
    let entry: hawser_contract::LogEntry = serde_json::from_value(entries(&first)[0].clone()).unwrap();
    assert_eq!(entry.job_id, Uuid::from_u128(1));
    assert_eq!((&*entry.stack_name, &*entry.namespace_name), ("stack", "name\"space"));
    assert_eq!((&*entry.module_name, entry.task_name), ("mödule", Task::Plan));
    assert_eq!(entry.tags, None);
    let written = serde_json::to_value(&entry).unwrap();
    assert_eq!(written.as_object().unwrap().len(), entries(&first)[0].as_object().unwrap().len());
    assert!(entries(&first).iter().all(|one| one["batchTimeStamp"] == entries(&first)[0]["batchTimeStamp"]));
}

#[tokio::test(start_paused = true)]
async fn steps_of_one_job_are_shipped_one_after_the_other() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let (init, plan, other) = (bed.step(1, Task::Init), bed.step(1, Task::Plan), bed.step(2, Task::Init));
    for step in [&init, &plan, &other] {
        write_lines(&step.folder, 0..200);
    }
    conclude(&plan);
    conclude(&other);
    for step in [&init, &plan] {
        shipper.add(step.clone()).await;
    }
    assert!(ship(&shipper, other).await, "another job does not wait");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!methods(&record).contains(&"PlanCompleted".to_owned()));
    conclude(&init);
    shipper.concluded(&init.folder).await;
    assert!(shipper.drained().await);
    let of_job: Vec<_> = record
        .lock()
        .unwrap()
        .iter()
        .map(|seen| match seen.method.as_str() {
            "AddLogs" => {
                (entries(seen)[0]["jobId"].clone(), entries(seen)[0]["taskName"].as_str().unwrap().to_owned())
            }
            method => (seen.arguments[0].clone(), method.to_owned()),
        })
        .filter(|(job, _)| *job == json!(Uuid::from_u128(1)))
        .map(|(_, what)| what)
        .collect();
    let mut expected = vec!["Init"; 4];
    expected.push("InitCompleted");
    expected.extend(["Plan"; 4]);
    expected.push("PlanCompleted");
    assert_eq!(of_job, expected);
}

#[tokio::test(start_paused = true)]
async fn a_result_too_large_for_the_server_becomes_a_fault() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let (output, apply) = (bed.step(1, Task::Output), bed.step(2, Task::ApplyFromPlan));
    let id = |job| json!(Uuid::from_u128(job));
    let outputs = OutputSet { timestamp: 0, checksum: "x".repeat(100_000), outputs: Vec::new() };
    let completed = Outcome::Completed(Success::Outputs(Some(outputs)));
    output.folder.set_outcome(&completed.of(Task::Output, Uuid::from_u128(1))).unwrap();
    let fault = Fault { message: "it broke".into(), details: "é\"".repeat(50_000), resources: Some(3) };
    let faulted = Outcome::Faulted(fault).of(Task::ApplyFromPlan, Uuid::from_u128(2));
    apply.folder.set_outcome(&faulted).unwrap();
    shipper.add(output).await;
    shipper.add(apply).await;
    assert!(shipper.drained().await);
    let record = record.lock().unwrap();
    assert!(record.iter().all(|seen| seen.bytes <= 32 * 1024));
    let find = |method: &str| record.iter().find(|seen| seen.method == method).unwrap().arguments.clone();
    let fault = find("OutputFaulted");
    assert_eq!(fault[0], id(1));
    let message = fault[1].as_str().unwrap();
    assert!(message.contains("100") && message.contains("32768"), "{message}");
    assert!(message.contains("Server.MaxMessageBytes"), "{message}");
    let apply = find("ApplyFromPlanFaulted");
    assert_eq!((&apply[0], &apply[1], &apply[3]), (&id(2), &json!("it broke"), &json!(3)));
    assert!(apply[2].as_str().unwrap().starts_with("é\"é\""));
    assert!(apply[2].as_str().unwrap().contains("(cut: "));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_outcome_is_reported_as_a_fault() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Validate);
    fs::write(step.folder.path().join("outcome.json"), "{").unwrap();
    assert!(ship(&shipper, step).await);
    assert_eq!(methods(&record), ["ValidateFaulted"]);
    assert!(record.lock().unwrap()[0].arguments[1].as_str().unwrap().contains("damaged"));
}

#[tokio::test(start_paused = true)]
async fn a_source_refresh_sends_its_result_and_no_log() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let mut step = bed.step(1, Task::GetModule);
    step.labels = None;
    write_lines(&step.folder, 0..10);
    shipper.add(step.clone()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let subject = Subject::SourceRefresh(SourceRefresh {
        organization_id: Uuid::nil(),
        source_url: "url".to_owned(),
        source_revision: "main".to_owned(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    });
    let outcome = Outcome::Completed(Success::Revision("abc".to_owned()));
    step.folder.set_outcome(&StepOutcome { subject, outcome }).unwrap();
    assert!(shipped(&shipper, &step.folder).await);
    assert_eq!(methods(&record), ["SourceRefreshCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_removed_step_folder_does_not_block_shipping() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    conclude(&step);
    assert!(ship(&shipper, step.clone()).await);
    // Added again after it was shipped.
    shipper.add(step).await;
    assert!(shipper.drained().await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}

/// As when the claim of the first one is refused.
#[tokio::test(start_paused = true)]
async fn a_step_behind_a_removed_one_of_its_job_is_shipped() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let [removed, next] = [Task::Init, Task::Validate].map(|task| bed.step(1, task));
    shipper.add(removed.clone()).await;
    shipper.add(next.clone()).await;
    conclude(&next);
    shipper.concluded(&next.folder).await;
    // Time is paused: it passes once the shipper has nothing to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    fs::remove_dir_all(removed.folder.path()).unwrap();
    let limit = Duration::from_secs(60);
    assert_eq!(tokio::time::timeout(limit, shipped(&shipper, &next.folder)).await, Ok(true));
    assert_eq!(methods(&record), ["ValidateCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_on_a_temporarily_missing_disk_is_shipped_later() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let (steps, away) = (bed.store.steps(), bed.store.steps().with_file_name("away"));
    shipper.add(step.clone()).await;
    fs::rename(&steps, &away).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    fs::rename(&away, &steps).unwrap();
    conclude(&step);
    assert!(shipped(&shipper, &step.folder).await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}
