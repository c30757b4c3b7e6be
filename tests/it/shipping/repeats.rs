//! Disconnects, refusals, forgotten answers and restarts: which calls are sent again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_contract::Task;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Act, Bed, accept_all, all_messages, channel, conclude, connected_line, entries, logs, messages, methods,
    number, numbered, serve, ship, shipped, write_lines,
};

#[tokio::test(start_paused = true)]
async fn a_disconnect_during_shipping_loses_no_line() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bed = Bed::new();
        let (line, end) = channel();
        let mut dice = random.fork();
        let cuts = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&cuts);
        let record = serve(end, move |_, _| {
            if dice.u8(..10) == 0 {
                *counted.lock().unwrap() += 1;
                Act::Cut { arrived: dice.bool() }
            } else {
                Act::Accept
            }
        });
        let (shipper, _stop) = bed.start(line);
        let step = bed.step(1, Task::ApplyFromPlan);
        shipper.add(step.clone()).await;
        let mut written = 0;
        while written < 3000 {
            let more = written + random.usize(1..400);
            write_lines(&step.folder, written..more);
            written = more;
            tokio::time::sleep(Duration::from_millis(random.u64(..3000))).await;
        }
        conclude(&step);
        assert!(shipped(&shipper, &step.folder).await);

        let cuts = *cuts.lock().unwrap();
        let mut next = 0;
        let mut generation = 0;
        let mut total = 0;
        for seen in logs(&record) {
            let first = number(&messages(&seen)[0]);
            if seen.generation == generation {
                assert_eq!(first, next, "seed {seed}: order within a connection");
            } else {
                assert!(first <= next, "seed {seed}: lines {next} to {first} are lost");
                assert!(next - first <= 4 * 50, "seed {seed}: more than one window again");
            }
            generation = seen.generation;
            for (place, message) in messages(&seen).iter().enumerate() {
                assert_eq!(number(message), first + place);
            }
            next = first + entries(&seen).len();
            total += entries(&seen).len();
        }
        assert_eq!(next, written, "seed {seed}: all lines");
        assert!(total - written <= cuts * 4 * 50, "seed {seed}: {} repeated in {cuts} cuts", total - written);
        let results: Vec<_> = methods(&record).into_iter().filter(|method| method != "AddLogs").collect();
        assert!(!results.is_empty() && results.len() <= 1 + cuts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_refused_four_times_arrives_once() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record =
        serve(end, |count, _| if (1..5).contains(&count) { Act::Refuse("not now") } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1);
    conclude(&step);
    assert!(ship(&shipper, step).await);
    assert_eq!(
        methods(&record),
        ["AddLogs"].iter().chain(&["PlanCompleted"; 5]).copied().collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn refused_lines_are_sent_again_in_order_before_later_ones() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record =
        serve(end, |count, _| if [2, 4, 5].contains(&count) { Act::Refuse("busy") } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    assert!(ship(&shipper, step).await);
    // After line 100 was accepted, everything is in order and complete.
    let all = all_messages(&record);
    let accepted = all.iter().rposition(|message| message == "line 100").unwrap();
    assert_eq!(all[accepted..], numbered(1000)[100..]);
    assert!(all.len() <= 1000 + 6 * 50, "{} lines were sent", all.len());
}

#[tokio::test(start_paused = true)]
async fn a_new_shipper_continues_where_the_last_one_stopped() {
    let bed = Bed::new();
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..1000);
    conclude(&step);
    let mut received = Vec::new();
    {
        let (line, mut end) = connected_line();
        let (shipper, stop) = bed.start(line);
        shipper.add(step.clone()).await;
        for _ in 0..7 {
            let call = end.outgoing.recv().await.unwrap();
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            received.push(number(arguments[0][0]["message"].as_str().unwrap()));
            call.answer.send(Ok(Value::Null)).unwrap();
        }
        stop.cancel();
        shipper.stopped().await;
        assert!(!shipped(&shipper, &step.folder).await);
        assert!(!shipper.drained().await);
    }
    assert_eq!(received, [0, 50, 100, 150, 200, 250, 300]);
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    assert!(ship(&shipper, step).await);
    let all = all_messages(&record);
    let first = number(&all[0]);
    assert!((350 - 4 * 50..=350).contains(&first), "went on at line {first}");
    assert_eq!(all, numbered(1000)[first..]);
}

#[tokio::test(start_paused = true)]
async fn unacknowledged_calls_are_sent_again() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = serve(end, |count, _| if [1, 5].contains(&count) { Act::Forget } else { Act::Accept });
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    write_lines(&step.folder, 0..200);
    conclude(&step);
    assert!(ship(&shipper, step).await);
    let all = all_messages(&record);
    let last_start = all.iter().rposition(|message| message == "line 100").unwrap();
    assert_eq!(all[last_start..], numbered(200)[100..]);
    assert_eq!(all[..200], numbered(200));
    assert_eq!(methods(&record).last().unwrap(), "PlanCompleted");
}

#[tokio::test(start_paused = true)]
async fn after_a_drain_started_stuck_steps_are_counted_with_the_steps_behind_them() {
    let bed = Bed::new();
    let (line, end) = channel();
    let refused = Uuid::from_u128(1).to_string();
    let record =
        serve(
            end,
            move |_, call| {
                if call.arguments.contains(&refused) { Act::Refuse("never") } else { Act::Accept }
            },
        );
    let (shipper, _stop) = bed.start(line);
    let [init, plan, unfinished] = [Task::Init, Task::Plan, Task::Output].map(|task| bed.step(1, task));
    let other = bed.step(2, Task::Plan);
    for step in [&init, &plan, &other] {
        conclude(step);
    }
    for step in [&init, &plan, &unfinished] {
        shipper.add(step.clone()).await;
    }
    assert!(ship(&shipper, other).await);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut status = shipper.status();
    assert_eq!(
        (status.borrow().steps, status.borrow().stuck),
        (3, 0),
        "stuck steps are counted only after a drain started"
    );

    let before = methods(&record).len();
    shipper.drain().await;
    status.wait_for(|status| status.stuck == 2).await.unwrap();
    assert_eq!(methods(&record)[before..], ["InitCompleted"; 5]);
    assert_eq!(status.borrow().steps, 3);
}
