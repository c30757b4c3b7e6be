//! Shows a job until it ends, in the same view as `hawser local`.

use std::pin::pin;
use std::time::Duration;

use hawser_contract::{Fault, Outcome, Success, Task};
use hawser_dev_server::{
    AdminClient, AdminError, FollowAnswer, JobSnapshot, JobState, TaskSnapshot, TaskState,
};
use jiff::Timestamp;
use tokio::time::{Instant, interval, sleep};
use uuid::Uuid;

use super::super::{out, stop_signal};
use super::{Failure, failure};
use crate::base::retry;
use crate::local::view::{Event, JobEnding, JobScreen, REFRESH, Title, Verb};

/// How long the hub may be unreachable in the middle of a job.
const OUTAGE_LIMIT: Duration = Duration::from_secs(30);

/// Succeeds only if the job completes. An interrupt ends the view, not the job. `options` are the command-line options
/// that select the same hub.
pub(super) async fn follow(client: &AdminClient, options: &str, job: Uuid) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let mut view = JobView { options, screen: None, ended: 0, owner: None, waiting: None };
    let signal = tokio::select! {
        ended = view.show(client, job) => return ended,
        signal = stop => signal,
    };
    view.draw(false);
    out::aside(format_args!(
        "The job is still running. Follow it with `hawser job follow {job}{options}`, \
         or cancel it with `hawser job cancel {job}{options}`."
    ));
    Err(Failure::interrupted(signal))
}

struct JobView<'a> {
    options: &'a str,
    /// Known with the first answer of the hub.
    screen: Option<JobScreen>,
    /// How many tasks were shown as ended.
    ended: usize,
    owner: Option<String>,
    waiting: Option<String>,
}

impl JobView<'_> {
    async fn show(&mut self, client: &AdminClient, job: Uuid) -> Result<(), Failure> {
        let mut refresh = interval(REFRESH);
        let (mut from, mut seen) = (0, String::new());
        loop {
            let answer = {
                let mut answer = pin!(next_answer(client, job, from, &seen));
                loop {
                    tokio::select! {
                        answer = &mut answer => break answer?,
                        _ = refresh.tick() => self.draw(true),
                    }
                }
            };
            self.handle(&answer);
            // One answer may contain only a part of the log. The rest of what it reports is shown after the last line.
            if answer.logs.is_empty() {
                match answer.job.state {
                    JobState::Completed => return Ok(()),
                    // The view has shown how it ended, and why.
                    state if state.is_ended() => return Err(Failure::failed("")),
                    _ => seen = answer.progress,
                }
            }
            from = answer.next;
        }
    }

    fn handle(&mut self, answer: &FollowAnswer) {
        let FollowAnswer { job, logs, runners, .. } = answer;
        self.screen.get_or_insert_with(|| JobScreen::new(title(job), job.submitted_at));
        for line in logs {
            let Some(task) = Task::from_name(&line.task) else { continue };
            self.tasks_until(job, Some(task));
            self.on(line.at, &Event::Line { task, level: line.level, text: line.message.clone() });
        }
        if logs.is_empty() {
            self.tasks_until(job, None);
            self.waiting(job, runners);
            if job.state.is_ended() {
                let fault = job.error.as_ref().map(|error| (error.task, fault(job)));
                let at = job.tasks.iter().filter_map(|task| task.ended_at).max();
                let ending = JobEnding::new(job.state.clone(), fault);
                self.on(at.unwrap_or(job.submitted_at), &Event::Finished(ending));
            }
        }
        self.draw(!job.state.is_ended());
    }

    /// Shows the tasks that have started or ended, up to the task that the next line belongs to.
    fn tasks_until(&mut self, job: &JobSnapshot, current: Option<Task>) {
        for task in job.tasks.iter().skip(self.ended) {
            let Some(started_at) = task.started_at else { break };
            if let Some(owner) = &job.owner
                && self.owner.replace(owner.clone()).is_none()
            {
                self.on(started_at, &Event::Note(format!("running on {owner}")));
            }
            self.on(started_at, &Event::Started(task.task));
            let Some(ended_at) = task.ended_at.filter(|_| current != Some(task.task)) else { break };
            self.on(ended_at, &Event::Ended(task.task, outcome(job, task)));
            self.ended += 1;
        }
    }

    fn waiting(&mut self, job: &JobSnapshot, runners: &[String]) {
        let (id, options) = (job.id, self.options);
        // Only the runner that has the job can continue it.
        let is_gone = |owner: &&String| !runners.contains(owner);
        let gone =
            job.owner.as_ref().filter(is_gone).map(|owner| format!("runner {owner:?} is not connected"));
        let waiting = match job.state {
            JobState::Queued => Some(missing_runner(job.instance.as_deref(), runners)),
            JobState::AwaitingApproval => Some(format!(
                "waiting for `hawser job approve {id}{options}` or `hawser job reject {id}{options}`{}",
                gone.map(|gone| format!("; {gone}")).unwrap_or_default()
            )),
            JobState::Running => gone.map(|gone| format!("waiting for its runner: {gone}")),
            _ => None,
        };
        if let Some(text) = waiting.clone().filter(|_| waiting != self.waiting) {
            self.on(Timestamp::now(), &Event::Note(text));
        }
        self.waiting = waiting;
    }

    fn on(&mut self, at: Timestamp, event: &Event) {
        if let Some(screen) = &mut self.screen {
            screen.on(at, event);
        }
    }

    fn draw(&mut self, with_status: bool) {
        if let Some(screen) = &mut self.screen {
            screen.draw(with_status);
        }
    }
}

async fn next_answer(
    client: &AdminClient,
    job: Uuid,
    from: usize,
    seen: &str,
) -> Result<FollowAnswer, Failure> {
    let until = Instant::now() + OUTAGE_LIMIT;
    loop {
        match client.follow(job, from, seen).await {
            Err(AdminError::NotRunning { .. } | AdminError::Unreadable { .. }) if Instant::now() < until => {
                sleep(retry::JOB_EVENTS).await;
            }
            answer => return answer.map_err(failure),
        }
    }
}

fn title(job: &JobSnapshot) -> Title {
    let verb = match job.kind.as_str() {
        "plan" => Verb::Plan,
        "destroy" => Verb::Destroy,
        _ => Verb::Apply,
    };
    Title { verb, subject: job.module.clone(), engine: String::new() }
}

fn missing_runner(instance: Option<&str>, runners: &[String]) -> String {
    match (instance, runners) {
        (None, _) => "waiting for a runner: none is connected".to_owned(),
        (Some(name), []) => format!("waiting for runner {name:?}: no runner is connected"),
        (Some(name), _) => {
            format!("waiting for runner {name:?}: it is not connected (connected: {})", runners.join(", "))
        }
    }
}

fn outcome(job: &JobSnapshot, task: &TaskSnapshot) -> Outcome {
    let success = match (task.state, task.task) {
        (TaskState::Cancelled, _) => return Outcome::Cancelled,
        (TaskState::Faulted, _) => return Outcome::Faulted(fault(job)),
        (_, Task::GetDefinitiveRevision) => job.definitive_revision.clone().map(Success::Revision),
        (_, Task::Variables) => Some(Success::Variables(job.variables.clone())),
        (_, Task::Plan | Task::PlanDestroy) => job.plan.clone().map(|plan| Success::Plan(Box::new(plan))),
        (_, Task::ApplyFromPlan | Task::DestroyFromPlan) => job.resources.map(Success::Resources),
        (_, Task::Output) => Some(Success::Outputs(job.outputs.clone())),
        (_, Task::GetModule | Task::Init | Task::Validate) => None,
    };
    Outcome::Completed(success.unwrap_or(Success::Done))
}

fn fault(job: &JobSnapshot) -> Fault {
    job.error.clone().map_or_else(Fault::default, |error| Fault {
        message: error.message,
        details: error.details,
        resources: error.resources,
    })
}
