//! Exact dispatch: a push behind the acknowledgement of the same task is a new step, and one in front of it is a repeat.

use std::fs;

use serde_json::json;
use uuid::Uuid;

use super::scripted::{Scripted, message};
use crate::support::eventually::eventually;

/// Pushes a task again right behind each acknowledgement of its result.
async fn push_behind_acknowledgements(in_one_frame: bool) {
    const PUSHES: usize = 100;
    let mut scripted = Scripted::start().await;
    let push = message(&scripted.push(Uuid::from_u128(1)));
    scripted.peer.write(&push).await;
    for number in 1..=PUSHES {
        let (method, _, acknowledgement) = scripted.result().await;
        assert_eq!(method, "GetDefinitiveRevisionCompleted", "result {number}");
        let again = if number < PUSHES { push.as_str() } else { "" };
        if in_one_frame {
            scripted.peer.write(&format!("{acknowledgement}{again}")).await;
        } else {
            scripted.peer.write(&acknowledgement).await;
            scripted.peer.write(again).await;
        }
    }
    assert_eq!(scripted.started(), PUSHES, "every push has a run of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_in_the_frame_of_the_acknowledgement_is_a_new_step() {
    push_behind_acknowledgements(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_in_the_frame_behind_the_acknowledgement_is_a_new_step() {
    push_behind_acknowledgements(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_in_front_of_the_acknowledgement_is_a_repeat() {
    const JOBS: u128 = 30;
    let mut scripted = Scripted::start().await;
    for job in (1..=JOBS).map(Uuid::from_u128) {
        let push = message(&scripted.push(job));
        scripted.peer.write(&push).await;
        let (_, of, acknowledgement) = scripted.result().await;
        assert_eq!(of, json!(job), "no job has a second result");
        scripted.peer.write(&format!("{push}{acknowledgement}")).await;
    }
    assert_eq!(scripted.started(), JOBS as usize);
}

/// The runner died between the acknowledgement of an outcome and the removal of its folder, and a new step of the same task
/// was there already.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_outcome_in_front_of_a_new_step_is_not_sent_again() {
    let mut scripted = Scripted::start().await;
    let push = message(&scripted.push(Uuid::from_u128(1)));
    scripted.peer.write(&push).await;
    scripted.result().await;
    scripted.runner.kill();
    let [first] = scripted.runner.steps().try_into().unwrap();
    let (number, key) = first.file_name().unwrap().to_str().unwrap().split_once('.').unwrap();
    let second = first.with_file_name(format!("{:08}.{key}", number.parse::<u32>().unwrap() + 1));
    fs::create_dir(&second).unwrap();
    fs::copy(first.join("request.json"), second.join("request.json")).unwrap();

    scripted.restart().await;
    let (_, _, acknowledgement) = scripted.result().await;
    assert_eq!(scripted.started(), 2, "the result is that of the second step");
    scripted.peer.write(&acknowledgement).await;
    eventually("both folders are removed", || scripted.runner.steps().is_empty()).await;
    scripted.peer.write(&message(&scripted.push(Uuid::from_u128(2)))).await;
    let (_, job, _) = scripted.result().await;
    assert_eq!(job, json!(Uuid::from_u128(2)), "the next result is that of another job");
}
