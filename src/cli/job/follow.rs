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
use crate::local::view::{self, Event, JobEnding, Screen, Title, Verb, View};

/// How long the hub may be unreachable in the middle of a job.
const OUTAGE_LIMIT: Duration = Duration::from_secs(30);

/// Succeeds only if the job completes. An interrupt ends the view, not the job. `options` are the command-line options
/// that select the same hub.
pub(super) async fn follow(client: &AdminClient, options: &str, job: Uuid) -> Result<(), Failure> {
    let stop = stop_signal()?;
    let mut view = JobView::new(options);
    let signal = tokio::select! {
        ended = view.show(client, job) => return ended,
        signal = stop => signal,
    };
    view.screen.draw(&[], None);
    out::aside(format_args!(
        "The job is still running. Follow it with `hawser job follow {job}{options}`, \
         or cancel it with `hawser job cancel {job}{options}`."
    ));
    Err(Failure::interrupted(signal))
}

struct JobView<'a> {
    options: &'a str,
    screen: Screen,
    /// Known with the first answer of the hub.
    view: Option<View>,
    submitted: Timestamp,
    /// How many tasks were shown as started, and as ended.
    started: usize,
    ended: usize,
    waiting: Option<String>,
}

impl<'a> JobView<'a> {
    fn new(options: &'a str) -> Self {
        Self {
            options,
            screen: Screen::open(),
            view: None,
            submitted: Timestamp::UNIX_EPOCH,
            started: 0,
            ended: 0,
            waiting: None,
        }
    }

    async fn show(&mut self, client: &AdminClient, job: Uuid) -> Result<(), Failure> {
        let mut refresh = interval(view::REFRESH);
        let (mut from, mut seen) = (0, String::new());
        loop {
            let answer = {
                let mut answer = pin!(next_answer(client, job, from, &seen));
                loop {
                    tokio::select! {
                        answer = &mut answer => break answer?,
                        _ = refresh.tick() => self.draw(&[]),
                    }
                }
            };
            self.handle(&answer);
            // One answer may contain only a part of the log. The rest of what it reports is shown after the last line.
            if answer.logs.is_empty() {
                match answer.job.state {
                    JobState::Completed => return Ok(()),
                    state if state.is_ended() => {
                        return Err(Failure::failed(format!("job {job} {state}")));
                    }
                    _ => seen = answer.progress,
                }
            }
            from = answer.next;
        }
    }

    fn handle(&mut self, answer: &FollowAnswer) {
        let FollowAnswer { job, logs, runners, .. } = answer;
        self.submitted = job.submitted_at;
        let mut events = Vec::new();
        for line in logs {
            let Some(task) = Task::from_name(&line.task) else { continue };
            self.tasks_until(job, Some(task), &mut events);
            events.push((line.at, Event::Line { task, level: line.level, text: line.message.clone() }));
        }
        if logs.is_empty() {
            self.tasks_until(job, None, &mut events);
            self.waiting(job, runners, &mut events);
            if job.state.is_ended() {
                let fault = job.error.as_ref().map(|error| (error.task, fault(job)));
                let at = job.tasks.iter().filter_map(|task| task.ended_at).max();
                let ending = JobEnding::new(job.state.clone(), fault);
                events.push((at.unwrap_or(job.submitted_at), Event::Finished(ending)));
            }
        }
        let view = self.view.get_or_insert_with(|| View::new(self.screen.live, title(job)));
        let lines = events.iter().flat_map(|(at, event)| view.on(event, view::since(job.submitted_at, *at)));
        let lines: Vec<String> = lines.collect();
        self.draw(&lines);
    }

    /// Adds the tasks that have started or ended, up to the task that the next line belongs to.
    fn tasks_until(
        &mut self,
        job: &JobSnapshot,
        current: Option<Task>,
        events: &mut Vec<(Timestamp, Event)>,
    ) {
        let current = current.and_then(|task| job.tasks.iter().position(|it| it.task == task));
        for (index, task) in job.tasks.iter().enumerate() {
            if let Some(at) = task.started_at
                && index >= self.started
                && current.is_none_or(|current| index <= current)
            {
                if let (0, Some(owner)) = (index, &job.owner) {
                    events.push((at, Event::Note(format!("running on {owner}"))));
                }
                self.started = index + 1;
                events.push((at, Event::Started(task.task)));
            }
            if let Some(at) = task.ended_at
                && index >= self.ended
                && current.is_none_or(|current| index < current)
            {
                self.ended = index + 1;
                events.push((at, Event::Ended(task.task, outcome(job, task))));
            }
        }
    }

    fn waiting(&mut self, job: &JobSnapshot, runners: &[String], events: &mut Vec<(Timestamp, Event)>) {
        let (id, options) = (job.id, self.options);
        let waiting = match job.state {
            JobState::Queued => Some(missing_runner(job.instance.as_deref(), runners)),
            JobState::AwaitingApproval => Some(format!(
                "waiting for `hawser job approve {id}{options}` or `hawser job reject {id}{options}`"
            )),
            _ => None,
        };
        if let Some(text) = waiting.clone().filter(|_| waiting != self.waiting) {
            events.push((Timestamp::now(), Event::Note(text)));
        }
        self.waiting = waiting;
    }

    fn draw(&mut self, lines: &[String]) {
        let now = view::since(self.submitted, Timestamp::now());
        let status = self.view.as_ref().and_then(|view| view.status(now));
        self.screen.draw(lines, status.as_deref());
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
