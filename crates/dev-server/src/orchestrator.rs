//! Decides which task goes to which runner ([`reported`] handles their reports). Pure: events in, actions out.
//!
//! A job's first task is pushed to every eligible runner. The first one that reports on it gets the job and all its
//! other tasks. Pushes are not acknowledged, so a task without any report is pushed again when the runner reconnects.
//! A running task is not, unless [`HubOptions::redispatch_on_reconnect`] is set. A refused event changes nothing.

mod reported;

use std::collections::BTreeMap;
use std::sync::Arc;

use hawser_contract::names::method;
use hawser_contract::requests::{CancelKind, CancelRequest};
use hawser_contract::{LogEntry, SourceRefresh, Task};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::events::{ConnectionId, HubEvent};
use crate::identity::Identity;
use crate::job_record::{Job, JobSnapshot, JobState, TaskState};
use crate::job_spec::JobSpec;
use crate::reports::Report;
use crate::shared::{HubOptions, LogKeeping};

#[derive(Debug)]
pub(super) enum Event {
    Submitted { job: Uuid, spec: Box<JobSpec> },
    Connected { connection: ConnectionId, instance: String },
    Disconnected { connection: ConnectionId, instance: String, reason: String },
    Reported { connection: ConnectionId, instance: String, report: Report },
    Approved { job: Uuid },
    Rejected { job: Uuid },
    CancelAsked { job: Uuid, kind: CancelKind },
    RefreshAsked { refresh: SourceRefresh, instance: Option<String> },
}

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Push { connection: ConnectionId, method: &'static str, payload: Value },
    Record(HubEvent),
    Logs(Vec<Arc<LogEntry>>),
}

/// Why an event was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("job {0} does not exist")]
    UnknownJob(Uuid),
    #[error("job {job} is not waiting for {task}")]
    NotOutstanding { job: Uuid, task: Task },
    #[error("{task} of job {job} was never pushed to {instance:?}")]
    NeverPushed { job: Uuid, task: Task, instance: String },
    #[error("another runner has job {job}")]
    ClaimLost { job: Uuid, task: Task },
    #[error("{task} of job {job} already has a result")]
    AlreadyEnded { job: Uuid, task: Task },
    #[error("the connection belongs to {expected:?}, the report names {actual:?}")]
    WrongRunner { expected: String, actual: String },
    #[error("a log entry of job {job} names module {actual} instead of {expected}")]
    WrongModule { job: Uuid, actual: String, expected: String },
    #[error("no {method} of job {job} was pushed to {instance:?}")]
    CancelNotPushed { job: Uuid, method: &'static str, instance: String },
    #[error("no refresh of this source was pushed to {instance:?}")]
    RefreshNotPushed { instance: String },
    #[error("no eligible runner is connected")]
    NoRunner,
    #[error("job {job} is {state}, not waiting for approval")]
    NotAwaitingApproval { job: Uuid, state: JobState },
    #[error("job {job} has already ended: {state}")]
    JobEnded { job: Uuid, state: JobState },
}

#[derive(Debug)]
pub(super) struct Orchestrator {
    options: HubOptions,
    identity: Identity,
    jobs: BTreeMap<Uuid, Job>,
    /// Job ids in the order of submission.
    order: Vec<Uuid>,
    runners: BTreeMap<String, ConnectionId>,
    /// Every pushed refresh and its runner. An answer to any other is refused.
    refreshes: Vec<(String, SourceRefresh)>,
}

type Actions = Vec<Action>;

impl Orchestrator {
    pub(super) fn new(options: HubOptions, identity: Identity) -> Self {
        Self {
            options,
            identity,
            jobs: BTreeMap::new(),
            order: Vec::new(),
            runners: BTreeMap::new(),
            refreshes: Vec::new(),
        }
    }

    pub(super) fn on(&mut self, now: Timestamp, event: Event) -> Result<Actions, Refusal> {
        match event {
            Event::Submitted { job, spec } => Ok(self.submitted(now, job, *spec)),
            Event::Connected { connection, instance } => Ok(self.connected(now, connection, &instance)),
            Event::Disconnected { connection, instance, reason } => {
                self.runners.retain(|_, known| *known != connection);
                Ok(vec![Action::Record(HubEvent::Disconnected { instance, connection, reason })])
            }
            Event::Reported { connection, instance, report } => {
                self.reported(now, connection, &instance, report)
            }
            Event::Approved { job } => self.decided(now, job, true),
            Event::Rejected { job } => self.decided(now, job, false),
            Event::CancelAsked { job, kind } => self.cancel_asked(job, kind),
            Event::RefreshAsked { refresh, instance } => self.refresh_asked(refresh, instance.as_deref()),
        }
    }

    pub(super) fn snapshot(&self, job: Uuid) -> Option<JobSnapshot> {
        self.jobs.get(&job).map(Job::snapshot)
    }

    pub(super) fn snapshots(&self) -> Vec<JobSnapshot> {
        self.order.iter().filter_map(|job| self.snapshot(*job)).collect()
    }

    pub(super) fn logs(&self, job: Uuid, from: usize) -> Option<Vec<Arc<LogEntry>>> {
        self.jobs.get(&job).map(|job| job.logs.from(from))
    }

    /// Instance names of the connected runners.
    pub(super) fn runners(&self) -> Vec<String> {
        self.runners.keys().cloned().collect()
    }

    fn job(&mut self, job: Uuid) -> Result<&mut Job, Refusal> {
        self.jobs.get_mut(&job).ok_or(Refusal::UnknownJob(job))
    }

    fn submitted(&mut self, now: Timestamp, id: Uuid, spec: JobSpec) -> Actions {
        let kind = spec.kind.name();
        let job = Job::new(id, spec, now, matches!(self.options.logs, LogKeeping::All));
        let mut actions = vec![Action::Record(HubEvent::Submitted { job: id, kind })];
        if job.shown.state.is_ended() {
            actions.push(Action::Record(HubEvent::JobEnded { job: id, state: job.shown.state.clone() }));
        }
        self.jobs.insert(id, job);
        self.order.push(id);
        actions.extend(self.dispatch(now, id));
        actions
    }

    /// Pushes the job's current task to every eligible runner.
    fn dispatch(&mut self, now: Timestamp, id: Uuid) -> Actions {
        let Self { jobs, runners, identity, .. } = self;
        let Some(job) = jobs.get_mut(&id) else { return Vec::new() };
        runners
            .iter()
            .filter(|(instance, _)| job.is_for(instance))
            .map(|(instance, connection)| (instance.clone(), *connection))
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|(instance, connection)| push_task(job, identity, now, &instance, connection))
            .collect()
    }

    fn connected(&mut self, now: Timestamp, connection: ConnectionId, instance: &str) -> Actions {
        let mut actions =
            vec![Action::Record(HubEvent::Connected { instance: instance.to_owned(), connection })];
        self.runners.insert(instance.to_owned(), connection);
        let Self { jobs, order, options, identity, .. } = self;
        for id in order.iter() {
            let Some(job) = jobs.get_mut(id) else { continue };
            let Some(current) = job.current().filter(|_| job.is_for(instance)) else { continue };
            if job.shown.tasks[current].state != TaskState::Running || options.redispatch_on_reconnect {
                actions.extend(push_task(job, identity, now, instance, connection));
            }
            actions.extend(push_cancel(job, instance, connection));
        }
        actions
    }

    fn decided(&mut self, now: Timestamp, id: Uuid, approved: bool) -> Result<Actions, Refusal> {
        let job = self.job(id)?;
        if job.shown.state != JobState::AwaitingApproval {
            return Err(Refusal::NotAwaitingApproval { job: id, state: job.shown.state.clone() });
        }
        if !approved {
            return Ok(end(job, JobState::Rejected));
        }
        job.shown.state = JobState::Running;
        let mut actions = vec![Action::Record(HubEvent::Approved { job: id })];
        actions.extend(self.dispatch(now, id));
        Ok(actions)
    }

    fn cancel_asked(&mut self, id: Uuid, kind: CancelKind) -> Result<Actions, Refusal> {
        let Self { jobs, runners, .. } = self;
        let job = jobs.get_mut(&id).ok_or(Refusal::UnknownJob(id))?;
        let mut actions = vec![Action::Record(HubEvent::CancelAsked { job: id, kind })];
        match &job.shown.state {
            JobState::Queued | JobState::AwaitingApproval => {
                actions.extend(end(job, JobState::Cancelled));
            }
            JobState::Running => {
                // A second request is allowed, for example a kill after a graceful cancel.
                job.cancel = Some(kind);
                job.cancels_pushed.retain(|(_, pushed), answered| *pushed != kind || !*answered);
                for (instance, connection) in runners.iter() {
                    actions.extend(push_cancel(job, instance, *connection));
                }
            }
            state => return Err(Refusal::JobEnded { job: id, state: state.clone() }),
        }
        Ok(actions)
    }

    /// Pushes a refresh to this runner, or to any.
    fn refresh_asked(&mut self, refresh: SourceRefresh, only: Option<&str>) -> Result<Actions, Refusal> {
        let eligible = |(name, _): &(&String, &ConnectionId)| only.is_none_or(|only| only == *name);
        let (instance, connection) = self.runners.iter().find(eligible).ok_or(Refusal::NoRunner)?;
        let push =
            Action::Push { connection: *connection, method: method::SOURCE_REFRESH, payload: json!(refresh) };
        self.refreshes.push((instance.clone(), refresh.clone()));
        Ok(vec![push, Action::Record(HubEvent::RefreshPushed { refresh, instance: instance.clone() })])
    }
}

fn end(job: &mut Job, state: JobState) -> Actions {
    job.shown.state = state.clone();
    vec![Action::Record(HubEvent::JobEnded { job: job.id(), state })]
}

fn push_task(
    job: &mut Job,
    identity: &Identity,
    now: Timestamp,
    instance: &str,
    connection: ConnectionId,
) -> Actions {
    let Some(current) = job.current() else { return Vec::new() };
    let again = !job.deliveries[current].pushed_to.insert(instance.to_owned());
    let (id, shown) = (job.id(), &mut job.shown);
    let record = &mut shown.tasks[current];
    let task = record.task;
    record.dispatched_at.get_or_insert(now);
    if record.state == TaskState::Pending {
        record.state = TaskState::Dispatched;
    }
    shown.state = JobState::Running;
    let (revision, variables) = (shown.definitive_revision.as_deref(), shown.variables.as_ref());
    let request = job.spec.request(task, id, identity.organization_id, revision, variables);
    vec![
        Action::Push { connection, method: task.pushed_as(), payload: request.write() },
        Action::Record(HubEvent::Dispatched { job: id, task, instance: instance.to_owned(), again }),
    ]
}

/// Pushes a cancel to a runner that has the job's current task and has not answered the cancel yet.
fn push_cancel(job: &mut Job, instance: &str, connection: ConnectionId) -> Actions {
    let (Some(current), Some(kind)) = (job.current(), job.cancel) else { return Vec::new() };
    let key = (instance.to_owned(), kind);
    let is_answered = job.cancels_pushed.get(&key) == Some(&true);
    if is_answered || !job.is_for(instance) || !job.deliveries[current].pushed_to.contains(instance) {
        return Vec::new();
    }
    job.cancels_pushed.insert(key, false);
    let payload = json!(CancelRequest { job_id: job.id() });
    vec![
        Action::Push { connection, method: kind.pushed_as(), payload },
        Action::Record(HubEvent::CancelPushed { job: job.id(), kind, instance: instance.to_owned() }),
    ]
}

#[cfg(test)]
mod tests;
