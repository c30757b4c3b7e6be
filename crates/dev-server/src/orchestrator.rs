//! Which task goes to which runner ([`reported`]: what every word of a runner means). Pure: events in, actions out.
//!
//! A job's first task is pushed to every connected runner that may have it; the first that says a word of it
//! has the job, and the rest of the tasks go to that one. A push is not acknowledged by anybody, so a task of
//! which its runner has said nothing is pushed again when the runner comes back; one that is known to
//! run is not, unless [`Policy::redispatch_on_reconnect`] asks for it. A refused event changes nothing.

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
pub(super) struct Policy {
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
    Note(HubEvent),
    Logs(Vec<Arc<LogEntry<'static>>>),
}

/// Why an event could not be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no job {0}")]
    UnknownJob(Uuid),
    #[error("{task} of job {job} is not outstanding")]
    NotOutstanding { job: Uuid, task: Task },
    #[error("{task} of job {job} was never pushed to {instance:?}")]
    NeverPushed { job: Uuid, task: Task, instance: String },
    #[error("{task} of job {job} has its result already")]
    AlreadyEnded { job: Uuid, task: Task },
    #[error("the connection is that of {expected:?}, the report is that of {said:?}")]
    WrongRunner { expected: String, said: String },
    #[error("a log entry of job {job} has {member} {said:?} in place of {expected:?}")]
    WrongName { job: Uuid, member: &'static str, said: String, expected: String },
    #[error("no {method} of job {job} was pushed to {instance:?}")]
    CancelNotPushed { job: Uuid, method: &'static str, instance: String },
    #[error("no refresh of {url:?} at {revision:?} was asked for")]
    RefreshNotAsked { url: String, revision: String },
    #[error("job {job} is {state}, not waiting for approval")]
    NotAwaitingApproval { job: Uuid, state: JobState },
    #[error("job {job} has ended already: {state}")]
    JobEnded { job: Uuid, state: JobState },
}

#[derive(Debug)]
struct Refresh {
    refresh: SourceRefresh,
    wanted: Option<String>,
    pushed_to: Option<String>,
    answered: bool,
}

#[derive(Debug)]
pub(super) struct Orchestrator {
    policy: Policy,
    jobs: BTreeMap<Uuid, Job>,
    /// Job ids in the order of submission.
    order: Vec<Uuid>,
    runners: BTreeMap<String, ConnectionId>,
    refreshes: Vec<Refresh>,
}

type Actions = Vec<Action>;

impl Orchestrator {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
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
                Ok(vec![Action::Note(HubEvent::Disconnected { instance, connection, reason })])
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
        let job = Job::new(id, spec, now, self.policy.keep_logs);
        let mut actions = vec![Action::Note(HubEvent::Submitted { job: id, kind })];
        if let Phase::Ended(state) = &job.phase {
            actions.push(Action::Note(HubEvent::JobEnded { job: id, state: state.clone() }));
        }
        self.jobs.insert(id, job);
        self.order.push(id);
        actions.extend(self.dispatch(now, id));
        actions
    }

    /// Pushes the job's current task to every connected runner that may have it.
    fn dispatch(&mut self, now: Timestamp, id: Uuid) -> Actions {
        let Self { jobs, runners, policy, .. } = self;
        let Some(job) = jobs.get_mut(&id) else { return Vec::new() };
        runners
            .iter()
            .filter(|(instance, _)| job.is_for(instance))
            .map(|(instance, connection)| (instance.clone(), *connection))
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|(instance, connection)| push_task(job, policy, now, &instance, connection))
            .collect()
    }

    fn connected(&mut self, now: Timestamp, connection: ConnectionId, instance: &str) -> Actions {
        let mut actions =
            vec![Action::Note(HubEvent::Connected { instance: instance.to_owned(), connection })];
        self.runners.insert(instance.to_owned(), connection);
        let Self { jobs, order, policy, .. } = self;
        for id in order.iter() {
            let Some(job) = jobs.get_mut(id) else { continue };
            let Phase::Task { current } = job.phase else { continue };
            if !job.is_for(instance) {
                continue;
            }
            let unheard = !matches!(job.tasks[current].state, TaskState::Running);
            if unheard || policy.redispatch_on_reconnect {
                actions.extend(push_task(job, policy, now, instance, connection));
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
        let mut actions = vec![Action::Note(HubEvent::Approved { job: id })];
        actions.extend(self.dispatch(now, id));
        Ok(actions)
    }

    fn cancel_asked(&mut self, id: Uuid, kind: CancelKind) -> Result<Actions, Refusal> {
        let Self { jobs, runners, .. } = self;
        let job = jobs.get_mut(&id).ok_or(Refusal::UnknownJob(id))?;
        let mut actions = vec![Action::Note(HubEvent::CancelAsked { job: id, kind })];
        match job.state() {
            JobState::Queued | JobState::AwaitingApproval => {
                actions.extend(end(job, JobState::Cancelled));
            }
            JobState::Running => {
                // Asking again is fine: a kill after a graceful cancel is the usual reason to.
                job.cancel = Some(Cancel { kind, answered: std::collections::BTreeSet::new() });
                for (instance, connection) in runners.iter() {
                    actions.extend(push_cancel(job, instance, *connection));
                }
            }
            state => return Err(Refusal::JobEnded { job: id, state }),
        }
        Ok(actions)
    }

    fn refresh_asked(&mut self, refresh: SourceRefresh, wanted: Option<String>) -> Actions {
        let mut refresh = Refresh { refresh, wanted, pushed_to: None, answered: false };
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
    vec![Action::Note(HubEvent::JobEnded { job: job.id, state })]
}

fn push_task(
    job: &mut Job,
    policy: &Policy,
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
        policy.organization_id,
        job.definitive_revision.as_deref(),
        job.variables.as_ref(),
    );
    vec![
        Action::Push { connection, method: task.pushed_as(), payload: request.write() },
        Action::Note(HubEvent::Dispatched { job: job.id, task, instance: instance.to_owned(), again }),
    ]
}

/// Tells a runner of a cancel that it has not answered yet, if the job's outstanding task was pushed to it.
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
        Action::Note(HubEvent::CancelPushed { job: job.id, kind, instance: instance.to_owned() }),
    ]
}

/// A refresh goes to one runner, and to the same one again when it comes back without having answered.
fn push_refresh(refresh: &mut Refresh, instance: &str, connection: ConnectionId) -> Actions {
    let taken = refresh.pushed_to.as_deref().or(refresh.wanted.as_deref());
    if refresh.answered || taken.is_some_and(|other| other != instance) {
        return Vec::new();
    }
    refresh.pushed_to = Some(instance.to_owned());
    vec![
        Action::Push { connection, method: method::SOURCE_REFRESH, payload: json!(refresh.refresh) },
        Action::Note(HubEvent::RefreshPushed {
            refresh: refresh.refresh.clone(),
            instance: instance.to_owned(),
        }),
    ]
}

#[cfg(test)]
mod tests;
