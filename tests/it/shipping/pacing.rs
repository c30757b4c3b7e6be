//! When something is sent, and how much at once.

use std::time::Duration;

use hawser_contract::Task;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Bed, accept_all, channel, conclude, connected_line, entries, logs, methods, ship, shipped, write_lines,
};

#[tokio::test(start_paused = true)]
async fn the_result_waits_for_the_last_acknowledgement() {
    let bed = Bed::new();
    let (line, mut end) = connected_line();
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    let folder = step.folder.clone();
    shipper.add(step).await;
    let mut window = Vec::new();
    // Only four calls are sent without an answer, however long it takes.
    for _ in 0..4 {
        window.push(end.outgoing.recv().await.unwrap());
    }
    assert!(tokio::time::timeout(Duration::from_secs(30), end.outgoing.recv()).await.is_err());
    for call in window {
        call.answer.send(Ok(Value::Null)).unwrap();
    }
    for _ in 4..20 {
        let call = end.outgoing.recv().await.unwrap();
        assert_eq!(call.method, "AddLogs");
        assert!(end.outgoing.len() <= 3);
        call.answer.send(Ok(Value::Null)).unwrap();
    }
    let result = end.outgoing.recv().await.unwrap();
    assert_eq!(result.method, "PlanCompleted");
    result.answer.send(Ok(Value::Null)).unwrap();
    assert!(shipped(&shipper, &folder).await);
}

/// Writes a line at each of the given times (ms) and returns when batches arrived and how large they were.
async fn batches(bed: &Bed, lines: &[(u64, usize)]) -> Vec<(u64, usize)> {
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let begin = Instant::now();
    shipper.add(step.clone()).await;
    for (at, count) in lines {
        tokio::time::sleep_until(begin + Duration::from_millis(*at)).await;
        write_lines(&step.folder, 0..*count);
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    stop.cancel();
    logs(&record)
        .iter()
        .map(|seen| (u64::try_from((seen.at - begin).as_millis()).unwrap() / 200 * 200, entries(seen).len()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_line_after_a_silence_is_sent_at_once_and_the_rest_after_the_period() {
    let lines = [(1000, 1), (2010, 1), (3010, 2), (20_010, 1)];
    assert_eq!(batches(&Bed::new(), &lines).await, [(1000, 1), (7000, 3), (20_000, 1)]);
}

#[tokio::test(start_paused = true)]
async fn without_eager_sending_every_line_waits_for_its_period() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.eagerly_emit_first_event = false;
    let lines = [(1010, 1), (2010, 1), (20_010, 1)];
    assert_eq!(batches(&bed, &lines).await, [(6000, 2), (25_000, 1)]);
}

#[tokio::test(start_paused = true)]
async fn full_batches_do_not_wait() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.batch_size_limit = 10;
    let lines = [(1010, 1), (2010, 25)];
    assert_eq!(batches(&bed, &lines).await, [(1000, 1), (2000, 10), (2000, 10), (7000, 5)]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_shipper_does_not_poll() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    // Paused time jumps from one timer to the next: with ten polls a second, this year would not end.
    tokio::time::sleep(Duration::from_secs(365 * 24 * 3600)).await;
    let step = bed.step(1, Task::Plan);
    conclude(&step);
    assert!(ship(&shipper, step).await);
    assert_eq!(methods(&record), ["PlanCompleted"]);
}
