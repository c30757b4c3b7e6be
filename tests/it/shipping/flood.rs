//! More lines than can be sent: a flood delays no other step, memory stays flat, and the disk has a cap.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_contract::Task;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Act, Bed, accept_all, all_messages, channel, conclude, entries, logs, number, numbered, serve, ship,
    shipped, write_lines,
};

#[tokio::test(start_paused = true)]
async fn a_flood_does_not_delay_another_job() {
    let bed = Bed::new();
    let (line, end) = channel();
    let flood = bed.step(1, Task::ApplyFromPlan);
    let quiet = bed.step(2, Task::Plan);
    write_lines(&flood.folder, 0..50_000);
    let wrote = Arc::new(Mutex::new(None));
    let (note, folder) = (Arc::clone(&wrote), quiet.folder.clone());
    let record = serve(end, move |count, _| {
        if count == 300 {
            write_lines(&folder, 0..1);
            *note.lock().unwrap() = Some(Instant::now());
        }
        Act::Accept
    });
    conclude(&flood);
    let (shipper, _stop) = bed.start(line);
    let flooded = flood.folder.clone();
    shipper.add(flood).await;
    shipper.add(quiet).await;
    while wrote.lock().unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    let before = record.lock().unwrap().len();
    // Paused time stands still during the flood, and the quiet step is polled ten times a second.
    tokio::time::advance(Duration::from_millis(101)).await;
    assert!(shipped(&shipper, &flooded).await);
    let place = logs(&record)
        .iter()
        .position(|seen| entries(seen)[0]["jobId"] == json!(Uuid::from_u128(2)))
        .expect("the quiet job's line");
    assert!(place <= before + 12, "the line came {} calls later", place - before);
}

#[tokio::test(start_paused = true)]
async fn memory_is_flat_however_much_waits_on_disk() {
    let bed = Bed::new();
    let (line, end) = channel();
    let steps: Vec<_> = (0..3).map(|job| bed.step(job, Task::Plan)).collect();
    for step in &steps {
        write_lines(&step.folder, 0..20_000);
        conclude(step);
    }
    let (shipper, _stop) = bed.start(line);
    for step in &steps {
        shipper.add(step.clone()).await;
    }
    let mut status = shipper.status();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(status.borrow_and_update().buffered_bytes, 0, "nothing is read while the server is away");
    assert_eq!((status.borrow().steps, status.borrow().connected), (3, false));

    let most = Arc::new(Mutex::new(0));
    let (seen_most, watched) = (Arc::clone(&most), shipper.status());
    let record = serve(end, move |_, _| {
        let mut most = seen_most.lock().unwrap();
        *most = watched.borrow().buffered_bytes.max(*most);
        Act::Accept
    });
    assert!(shipper.drained().await);
    assert_eq!(all_messages(&record).len(), 60_000);
    assert!(*most.lock().unwrap() <= (8 + 3) * 32 * 1024, "{} bytes at most", most.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_the_oldest_lines_of_the_largest_step_are_dropped_with_a_notice() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.max_unsent_bytes = Some(200_000);
    let (line, end) = channel();
    let (large, small) = (bed.step(1, Task::Plan), bed.step(2, Task::Plan));
    let (shipper, _stop) = bed.start(line);
    shipper.add(large.clone()).await;
    shipper.add(small.clone()).await;
    write_lines(&small.folder, 0..1000);
    let mut written = 0;
    // The flood continues while the server is away, so that lines are dropped repeatedly.
    for _ in 0..10 {
        write_lines(&large.folder, written..written + 3000);
        written += 3000;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // The disk space is really free again.
    use std::os::unix::fs::MetadataExt as _;
    let used = fs::metadata(large.folder.output_path()).unwrap().blocks() * 512;
    assert!(used < 250_000, "{used} bytes on the disk");

    conclude(&large);
    conclude(&small);
    let record = accept_all(end);
    assert!(shipper.drained().await);
    let of = |job: u128| -> Vec<Value> {
        logs(&record)
            .iter()
            .flat_map(|seen| entries(seen).clone())
            .filter(|entry| entry["jobId"] == json!(Uuid::from_u128(job)))
            .collect()
    };
    assert_eq!(of(2).len(), 1000, "the small step keeps its lines");
    let large = of(1);
    let notice = large[0]["message"].as_str().unwrap();
    assert_eq!(large[0]["level"], 3);
    let dropped: usize = notice.split(' ').next().unwrap().parse().unwrap();
    assert!(notice.contains("JobLogStream.MaxUnsentBytes"), "{notice}");
    let kept: Vec<_> = large[1..].iter().map(|entry| number(entry["message"].as_str().unwrap())).collect();
    assert_eq!(kept, (dropped..written).collect::<Vec<_>>(), "{notice}");
    assert!(kept.len() > 3000);
}

#[tokio::test(start_paused = true)]
async fn the_notice_of_the_cap_survives_a_restart() {
    let mut bed = Bed::new();
    bed.settings.job_log_stream.max_unsent_bytes = Some(20_000);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..5000);
    conclude(&step);
    let (away, _end) = channel();
    let (shipper, stop) = bed.start(away);
    shipper.add(step.clone()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.cancel();
    shipper.stopped().await;

    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    assert!(ship(&shipper, step).await);
    let all = all_messages(&record);
    let dropped: usize = all[0].split(' ').next().unwrap().parse().unwrap();
    assert_eq!(all[1..], numbered(5000)[dropped..]);
}

#[tokio::test(start_paused = true)]
async fn steps_take_turns_during_a_flood_of_one_step() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let steps: Vec<_> = (0..4).map(|job| bed.step(job, Task::Plan)).collect();
    for step in &steps {
        write_lines(&step.folder, 0..5000);
        conclude(step);
    }
    for step in &steps {
        shipper.add(step.clone()).await;
    }
    assert!(shipper.drained().await);
    // No job with more to send falls far behind the others.
    let mut sent: BTreeMap<String, usize> = BTreeMap::new();
    for seen in &logs(&record) {
        *sent.entry(entries(seen)[0]["jobId"].to_string()).or_default() += 1;
        let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
        assert!(sent.len() < 4 || most - least <= 8, "{sent:?}");
    }
    assert!(sent.values().all(|batches| *batches == 100));
}
