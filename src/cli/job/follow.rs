//! Shows a job at the terminal until it ends: its tasks, its log lines, and what came out.

use std::time::Duration;

use hawser_dev_server::{
    AdminClient, AdminError, FollowAnswer, JobSnapshot, JobState, TaskSnapshot, TaskState,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::super::out;
use super::{Failure, failure};
use crate::local::view;

/// How long a hub that does not answer in the middle of a job may take to come back.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Ends well only when the job completed. The job is the hub's: it goes on when whoever follows it is interrupted.
/// `options` lead the commands that are named to the same hub.
pub(super) async fn follow(client: &AdminClient, options: &str, job: Uuid) -> Result<(), Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::temporary(format!("cannot listen for signals: {error}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let kind = tokio::select! {
        done = watch(client, options, job) => return done,
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
    out::aside(format_args!(
        "the job goes on: hawser job follow {job}{options}, or hawser job cancel {job}{options}"
    ));
    Err(Failure::interrupted(number))
}

async fn watch(client: &AdminClient, options: &str, job: Uuid) -> Result<(), Failure> {
    let mut shown = FollowState::default();
    let (mut from, mut seen) = (0, String::new());
    loop {
        let FollowAnswer { job: now, logs, next, progress, runners } = news(client, job, from, &seen).await?;
        for line in &logs {
            shown.tasks_up_to(&now, Some(&line.task));
            out::foreign_line(&line.message);
        }
        // An answer may hold only a part of the logs; how it ended is told after the last of them.
        let complete = logs.is_empty();
        if complete {
            shown.tasks_up_to(&now, None);
            shown.waiting(&now, &runners, options);
        }
        if complete && now.state.is_ended() {
            return conclude(&now);
        }
        from = next;
        // What moved together with these lines has not been told yet: ask for it again, with the lines out of the way.
        if complete {
            seen = progress;
        }
    }
}

async fn news(client: &AdminClient, job: Uuid, from: usize, seen: &str) -> Result<FollowAnswer, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.follow(job, from, seen).await {
            Err(AdminError::NotRunning { .. } | AdminError::Unreadable { .. }) if Instant::now() < until => {
                sleep(RETRY_AFTER).await;
            }
            answer => return answer.map_err(failure),
        }
    }
}

/// What has been told already.
#[derive(Default)]
struct FollowState {
    begun: usize,
    ended: usize,
    waiting: Option<String>,
}

impl FollowState {
    /// Tells of the tasks that have begun and ended, as far as the one named (whose lines come now).
    fn tasks_up_to(&mut self, job: &JobSnapshot, current: Option<&str>) {
        let limit = current.and_then(|name| job.tasks.iter().position(|task| task.task.name() == name));
        for (index, task) in job.tasks.iter().enumerate() {
            if index >= self.begun && task.started_at.is_some() && limit.is_none_or(|limit| index <= limit) {
                self.begun = index + 1;
                out::line(format_args!("── {}{}", task.task, on(job, index)));
            }
            if index >= self.ended && limit.is_none_or(|limit| index < limit) && ended(task) {
                self.ended = index + 1;
                out::line(format_args!("── {} {}", task.task, ending(task)));
            }
        }
    }

    fn waiting(&mut self, job: &JobSnapshot, runners: &[String], options: &str) {
        let waits = match job.state {
            JobState::Queued => Some(format!("── waiting for {}", missing(job.instance.as_deref(), runners))),
            JobState::AwaitingApproval => {
                Some(format!("── waiting for approval: hawser job approve {0}{options} (or reject)", job.id))
            }
            _ => None,
        };
        if let Some(text) = waits.as_deref().filter(|text| self.waiting.as_deref() != Some(text)) {
            out::foreign_line(text);
        }
        self.waiting = waits;
    }
}

/// Which runner is waited for, and which ones are there in its place.
fn missing(wanted: Option<&str>, runners: &[String]) -> String {
    let Some(wanted) = wanted else { return "a runner: none is connected".to_owned() };
    if runners.is_empty() {
        format!("the runner {wanted:?}: none is connected")
    } else {
        let connected = runners.join(", ");
        format!("the runner {wanted:?}: none of that name is connected (connected: {connected})")
    }
}

fn on(job: &JobSnapshot, index: usize) -> String {
    match (&job.owner, index) {
        (Some(owner), 0) => format!(" on {owner}"),
        _ => String::new(),
    }
}

fn ended(task: &TaskSnapshot) -> bool {
    matches!(task.state, TaskState::Completed | TaskState::Cancelled | TaskState::Faulted)
}

fn ending(task: &TaskSnapshot) -> String {
    let word = match task.state {
        TaskState::Completed => "completed",
        TaskState::Cancelled => "cancelled",
        _ => "faulted",
    };
    match (task.started_at, task.ended_at) {
        (Some(start), Some(end)) => format!("{word} in {:.1} s", end.duration_since(start).as_secs_f64()),
        _ => word.to_owned(),
    }
}

fn conclude(job: &JobSnapshot) -> Result<(), Failure> {
    if let Some(plan) = &job.plan {
        out::line(format_args!(
            "plan: {} to create, {} to change, {} to replace, {} to destroy, {} unchanged",
            plan.create_count,
            plan.modify_count,
            plan.recreate_count,
            plan.destroy_count,
            plan.total_unchanged_count
        ));
    }
    for output in job.outputs.iter().flat_map(|set| &set.outputs) {
        let value = if output.sensitive == Some(true) { "(sensitive)" } else { &output.value };
        out::foreign_line(&format!("output {} = {value}", output.name));
    }
    if let Some(error) = job.error.as_ref().filter(|error| !error.details.is_empty()) {
        for line in error.details.lines() {
            out::aside(view::clean(line, false));
        }
    }
    match &job.state {
        JobState::Completed => {
            out::line(format_args!("job {} completed", job.id));
            Ok(())
        }
        state => Err(Failure::failed(format!("job {} {state}", job.id))),
    }
}
