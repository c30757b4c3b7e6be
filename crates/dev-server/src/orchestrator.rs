//! Decides which task goes to which runner ([`reported`] handles their reports). Pure: events in, actions out.
//!
//! A job's first task is pushed to every eligible runner. The first one that reports on it gets the job and all its
//! other tasks. Pushes are not acknowledged, so a task without any report is pushed again when the runner reconnects.
//! A running task is not, unless [`DispatchRules::redispatch_on_reconnect`] is set. A refused event changes nothing.

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
use crate::job_record::{Cancel, Job, JobSnapshot, JobState, Phase, TaskState};
use crate::job_spec::JobSpec;
use crate::reports::Report;

#[derive(Debug, Clone)]
pub(super) struct DispatchRules {
    pub(super) organization_id: Uuid,
    pub(super) runner_id: Uuid,
    pub(super) redispatch_on_reconnect: bool,
    pub(super) acknowledge_unknown_jobs: bool,
    pub(super) keep_logs: bool,
}

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
    Logs(Vec<Arc<LogEntry<'static>>>),
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
    #[error("{task} of job {job} already has a result")]
    AlreadyEnded { job: Uuid, task: Task },
    #[error("the connection belongs to {expected:?}, the report names {actual:?}")]
    WrongRunner { expected: String, actual: String },
    #[error("a log entry of job {job} has {member} {actual:?} instead of {expected:?}")]
    WrongName { job: Uuid, member: &'static str, actual: String, expected: String },
    #[error("no {method} of job {job} was pushed to {instance:?}")]
    CancelNotPushed { job: Uuid, method: &'static str, instance: String },
    #[error("no refresh of {url:?} at {revision:?} was requested")]
    RefreshNotRequested { url: String, revision: String },
    #[error("job {job} is {state}, not waiting for approval")]
    NotAwaitingApproval { job: Uuid, state: JobState },
    #[error("job {job} has already ended: {state}")]
    JobEnded { job: Uuid, state: JobState },
}

#[derive(Debug)]
struct Refresh {
    refresh: SourceRefresh,
    requested: Option<String>,
    pushed_to: Option<String>,
    answered: bool,
}

#[derive(Debug)]
pub(super) struct Orchestrator {
    rules: DispatchRules,
    jobs: BTreeMap<Uuid, Job>,
    /// Job ids in the order of submission.
    order: Vec<Uuid>,
    runners: BTreeMap<String, ConnectionId>,
    refreshes: Vec<Refresh>,
}

type Actions = Vec<Action>;

impl Orchestrator {
    pub(super) fn new(rules: DispatchRules) -> Self {
        Self {
            rules,
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
            Event::RefreshAsked { refresh, instance } => Ok(self.refresh_asked(refresh, instance)),
        }
    }

    pub(super) fn snapshot(&self, job: Uuid) -> Option<JobSnapshot> {
        self.jobs.get(&job).map(Job::snapshot)
    }

    pub(super) fn snapshots(&self) -> Vec<JobSnapshot> {
        self.order.iter().filter_map(|job| self.snapshot(*job)).collect()
    }

    pub(super) fn logs(&self, job: Uuid, from: usize) -> Option<Vec<Arc<LogEntry<'static>>>> {
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
        let job = Job::new(id, spec, now, self.rules.keep_logs);
        let mut actions = vec![Action::Record(HubEvent::Submitted { job: id, kind })];
        if let Phase::Ended(state) = &job.phase {
            actions.push(Action::Record(HubEvent::JobEnded { job: id, state: state.clone() }));
        }
        self.jobs.insert(id, job);
        self.order.push(id);
        actions.extend(self.dispatch(now, id));
        actions
    }

    /// Pushes the job's current task to every eligible runner.
    fn dispatch(&mut self, now: Timestamp, id: Uuid) -> Actions {
        let Self { jobs, runners, rules, .. } = self;
        let Some(job) = jobs.get_mut(&id) else { return Vec::new() };
        runners
            .iter()
            .filter(|(instance, _)| job.is_for(instance))
            .map(|(instance, connection)| (instance.clone(), *connection))
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|(instance, connection)| push_task(job, rules, now, &instance, connection))
            .collect()
    }

    fn connected(&mut self, now: Timestamp, connection: ConnectionId, instance: &str) -> Actions {
        let mut actions =
            vec![Action::Record(HubEvent::Connected { instance: instance.to_owned(), connection })];
        self.runners.insert(instance.to_owned(), connection);
        let Self { jobs, order, rules, .. } = self;
        for id in order.iter() {
            let Some(job) = jobs.get_mut(id) else { continue };
            let Phase::Task { current } = job.phase else { continue };
            if !job.is_for(instance) {
                continue;
            }
            let running = matches!(job.tasks[current].state, TaskState::Running);
            if !running || rules.redispatch_on_reconnect {
                actions.extend(push_task(job, rules, now, instance, connection));
            }
            actions.extend(push_cancel(job, instance, connection));
        }
        for refresh in &mut self.refreshes {
            actions.extend(push_refresh(refresh, instance, connection));
        }
        actions
    }

    fn decided(&mut self, now: Timestamp, id: Uuid, approved: bool) -> Result<Actions, Refusal> {
        let job = self.job(id)?;
        let Phase::Approval { next } = job.phase else {
            return Err(Refusal::NotAwaitingApproval { job: id, state: job.state() });
        };
        if !approved {
            return Ok(end(job, JobState::Rejected));
        }
        job.phase = Phase::Task { current: next };
        let mut actions = vec![Action::Record(HubEvent::Approved { job: id })];
        actions.extend(self.dispatch(now, id));
        Ok(actions)
    }

    fn cancel_asked(&mut self, id: Uuid, kind: CancelKind) -> Result<Actions, Refusal> {
        let Self { jobs, runners, .. } = self;
        let job = jobs.get_mut(&id).ok_or(Refusal::UnknownJob(id))?;
        let mut actions = vec![Action::Record(HubEvent::CancelAsked { job: id, kind })];
        match job.state() {
            JobState::Queued | JobState::AwaitingApproval => {
                actions.extend(end(job, JobState::Cancelled));
            }
            JobState::Running => {
                // A second request is allowed, for example a kill after a graceful cancel.
                job.cancel = Some(Cancel { kind, answered: std::collections::BTreeSet::new() });
                for (instance, connection) in runners.iter() {
                    actions.extend(push_cancel(job, instance, *connection));
                }
            }
            state => return Err(Refusal::JobEnded { job: id, state }),
        }
        Ok(actions)
    }

    fn refresh_asked(&mut self, refresh: SourceRefresh, requested: Option<String>) -> Actions {
        let mut refresh = Refresh { refresh, requested, pushed_to: None, answered: false };
        let actions = self
            .runners
            .iter()
            .flat_map(|(instance, connection)| push_refresh(&mut refresh, instance, *connection))
            .collect();
        self.refreshes.push(refresh);
        actions
    }
}

fn end(job: &mut Job, state: JobState) -> Actions {
    job.phase = Phase::Ended(state.clone());
    vec![Action::Record(HubEvent::JobEnded { job: job.id, state })]
}

fn push_task(
    job: &mut Job,
    rules: &DispatchRules,
    now: Timestamp,
    instance: &str,
    connection: ConnectionId,
) -> Actions {
    let Phase::Task { current } = job.phase else { return Vec::new() };
    let record = &mut job.tasks[current];
    let task = record.task;
    let again = !record.pushed_to.insert(instance.to_owned());
    record.dispatched_at.get_or_insert(now);
    if record.state == TaskState::Pending {
        record.state = TaskState::Dispatched;
    }
    let request = job.spec.request(
        task,
        job.id,
        rules.organization_id,
        job.definitive_revision.as_deref(),
        job.variables.as_ref(),
    );
    vec![
        Action::Push { connection, method: task.pushed_as(), payload: request.write() },
        Action::Record(HubEvent::Dispatched { job: job.id, task, instance: instance.to_owned(), again }),
    ]
}

/// Pushes a cancel to a runner that has the job's current task and has not answered the cancel yet.
fn push_cancel(job: &mut Job, instance: &str, connection: ConnectionId) -> Actions {
    let Phase::Task { current } = job.phase else { return Vec::new() };
    let Some(cancel) = job.cancel.as_ref().filter(|it| !it.answered.contains(instance)) else {
        return Vec::new();
    };
    if !job.is_for(instance) || !job.tasks[current].pushed_to.contains(instance) {
        return Vec::new();
    }
    let kind = cancel.kind;
    job.cancels_pushed.insert((instance.to_owned(), kind));
    vec![
        Action::Push {
            connection,
            method: kind.pushed_as(),
            payload: json!(CancelRequest { job_id: job.id }),
        },
        Action::Record(HubEvent::CancelPushed { job: job.id, kind, instance: instance.to_owned() }),
    ]
}

/// Pushes a refresh to one runner, and again to the same one if it reconnects without an answer.
fn push_refresh(refresh: &mut Refresh, instance: &str, connection: ConnectionId) -> Actions {
    let target = refresh.pushed_to.as_deref().or(refresh.requested.as_deref());
    if refresh.answered || target.is_some_and(|other| other != instance) {
        return Vec::new();
    }
    refresh.pushed_to = Some(instance.to_owned());
    vec![
        Action::Push { connection, method: method::SOURCE_REFRESH, payload: json!(refresh.refresh) },
        Action::Record(HubEvent::RefreshPushed {
            refresh: refresh.refresh.clone(),
            instance: instance.to_owned(),
        }),
    ]
}

#[cfg(test)]
mod tests;
