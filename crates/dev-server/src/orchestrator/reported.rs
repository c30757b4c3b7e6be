//! Handles the reports of runners.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use hawser_contract::names::method;
use hawser_contract::{Call, Fault, LogEntry, Metadata, Outcome, SourceRefresh, Subject, Task};
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::{Action, Actions, Orchestrator, Refusal};
use crate::events::{ConnectionId, HubEvent};
use crate::job_record::{Job, JobState, Standing, TaskState};
use crate::reports::Report;

impl Orchestrator {
    pub(super) fn reported(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        instance: &str,
        report: Report,
    ) -> Result<Actions, Refusal> {
        if self.options.acknowledge_unknown_jobs
            && let Some(job) = job_of(&report).filter(|job| !self.jobs.contains_key(job))
        {
            return Ok(vec![Action::Record(HubEvent::UnknownJob { job, instance: instance.to_owned() })]);
        }
        match report {
            Report::Running { job, task, runner, instance: reported } => {
                if runner != self.identity.runner_id || reported != instance {
                    let expected = format!("{} {instance}", self.identity.runner_id);
                    return Err(Refusal::WrongRunner { expected, actual: format!("{runner} {reported}") });
                }
                running(self.job(job)?, now, instance, task)
            }
            Report::Logs(entries) => self.logged(now, connection, instance, entries),
            Report::Outcome { job, task, outcome, call } => {
                let index = match self.job(job)?.standing(instance, task)? {
                    Standing::Current(index) => index,
                    Standing::Done(index) => {
                        self.job(job)?.deliveries[index].ended_over = Some(connection);
                        let instance = instance.to_owned();
                        return Ok(vec![Action::Record(HubEvent::DuplicateResult {
                            job,
                            task,
                            instance,
                            call,
                        })]);
                    }
                    Standing::Lost => return Ok(vec![claim_lost(job, task, instance, &call.method)]),
                };
                self.ended(now, (connection, instance), (job, index), &outcome, call)
            }
            Report::CancelAnswered { job, kind } => {
                let (method, instance) = (kind.pushed_as(), instance.to_owned());
                match self.job(job)?.cancels_pushed.get_mut(&(instance.clone(), kind)) {
                    None => Err(Refusal::CancelNotPushed { job, method, instance }),
                    Some(answered) => {
                        *answered = true;
                        Ok(vec![Action::Record(HubEvent::CancelAnswered { job, kind, instance })])
                    }
                }
            }
            Report::Refreshed { source, result } => self.refreshed(instance, &source, result),
        }
    }

    /// Records the result of a job's current task, and advances the job.
    fn ended(
        &mut self,
        now: Timestamp,
        (connection, instance): (ConnectionId, &str),
        (id, index): (Uuid, usize),
        outcome: &Outcome,
        call: Call,
    ) -> Result<Actions, Refusal> {
        let job = self.job(id)?;
        let task = job.shown.tasks[index].task;
        let mut actions = claim(job, now, instance, index, &call.method);
        let instance = instance.to_owned();
        actions.push(Action::Record(HubEvent::Result { job: id, task, instance, call }));
        job.conclude(index, outcome, connection, now);
        match &job.shown.state {
            JobState::AwaitingApproval => {
                actions.push(Action::Record(HubEvent::AwaitingApproval { job: id }));
            }
            state if state.is_ended() => {
                actions.push(Action::Record(HubEvent::JobEnded { job: id, state: state.clone() }));
            }
            _ => actions.extend(self.dispatch(now, id)),
        }
        Ok(actions)
    }

    fn logged(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        instance: &str,
        entries: Vec<LogEntry>,
    ) -> Result<Actions, Refusal> {
        // A batch is accepted or refused as a whole, so everything is checked first.
        let mut parts: BTreeMap<(Uuid, Task), (Standing, usize)> = BTreeMap::new();
        for entry in &entries {
            let job = self.jobs.get(&entry.job_id).ok_or(Refusal::UnknownJob(entry.job_id))?;
            check_module(job, entry)?;
            let (_, count) = match parts.entry((entry.job_id, entry.task_name)) {
                Entry::Occupied(part) => part.into_mut(),
                Entry::Vacant(part) => {
                    let standing = job.standing(instance, entry.task_name)?;
                    if let Standing::Done(index) = standing
                        && job.deliveries[index].ended_over.is_none_or(|over| over >= connection)
                    {
                        return Err(Refusal::AlreadyEnded { job: job.id(), task: entry.task_name });
                    }
                    part.insert((standing, 0))
                }
            };
            *count += 1;
        }
        let mut actions = Vec::new();
        for (&(id, task), &(standing, entries)) in &parts {
            if let Standing::Current(index) = standing {
                actions.extend(claim(self.job(id)?, now, instance, index, method::ADD_LOGS));
            }
            let by = instance.to_owned();
            actions.push(match standing {
                Standing::Current(_) => Action::Record(HubEvent::LogBatch { job: id, instance: by, entries }),
                Standing::Done(_) => {
                    Action::Record(HubEvent::LogsRepeated { job: id, task, instance: by, entries })
                }
                Standing::Lost => claim_lost(id, task, instance, method::ADD_LOGS),
            });
        }
        let is_lost = |entry: &LogEntry| {
            parts
                .get(&(entry.job_id, entry.task_name))
                .is_some_and(|(standing, _)| *standing == Standing::Lost)
        };
        let accepted: Vec<_> = entries.into_iter().filter(|entry| !is_lost(entry)).map(Arc::new).collect();
        for entry in &accepted {
            self.job(entry.job_id)?.logged(entry);
        }
        actions.push(Action::Logs(accepted));
        Ok(actions)
    }

    fn refreshed(
        &mut self,
        instance: &str,
        source: &[Value],
        result: Result<String, Fault>,
    ) -> Result<Actions, Refusal> {
        let instance = instance.to_owned();
        let is_answered = |(pushed_to, refresh): &&(String, SourceRefresh)| {
            *pushed_to == instance && Subject::SourceRefresh(refresh.clone()).identity() == source
        };
        match self.refreshes.iter().find(is_answered).map(|(_, refresh)| refresh.clone()) {
            Some(refresh) => Ok(vec![Action::Record(HubEvent::RefreshEnded { refresh, instance, result })]),
            None => Err(Refusal::RefreshNotPushed { instance }),
        }
    }
}

fn job_of(report: &Report) -> Option<Uuid> {
    match report {
        Report::Running { job, .. } | Report::Outcome { job, .. } | Report::CancelAnswered { job, .. } => {
            Some(*job)
        }
        Report::Logs(entries) => entries.first().map(|entry| entry.job_id),
        Report::Refreshed { .. } => None,
    }
}

fn running(job: &mut Job, now: Timestamp, instance: &str, task: Task) -> Result<Actions, Refusal> {
    let (id, method) = (job.id(), method::REPORT_RUNNING_TASK);
    match job.standing(instance, task)? {
        Standing::Current(index) => {
            let mut actions = claim(job, now, instance, index, method);
            actions.push(Action::Record(HubEvent::Running { job: id, task, instance: instance.to_owned() }));
            Ok(actions)
        }
        Standing::Done(_) => Err(Refusal::AlreadyEnded { job: id, task }),
        Standing::Lost => Err(Refusal::ClaimLost { job: id, task }),
    }
}

/// Records a report on the current task by the runner that has the job, or gets it by this report.
fn claim(job: &mut Job, now: Timestamp, instance: &str, index: usize, method: &str) -> Actions {
    let shown = &mut job.shown;
    let record = &mut shown.tasks[index];
    if record.state == TaskState::Dispatched {
        record.state = TaskState::Running;
        record.started_at = Some(now);
    }
    if shown.owner.is_some() {
        return Vec::new();
    }
    let (instance, by) = (instance.to_owned(), method.to_owned());
    shown.owner = Some(instance.clone());
    vec![Action::Record(HubEvent::Claimed { job: shown.id, task: record.task, instance, by })]
}

fn claim_lost(job: Uuid, task: Task, instance: &str, method: &str) -> Action {
    let (instance, method) = (instance.to_owned(), method.to_owned());
    Action::Record(HubEvent::ClaimLost { job, task, instance, method })
}

fn check_module(job: &Job, entry: &LogEntry) -> Result<(), Refusal> {
    let Metadata { stack_name, namespace_name, module_name, module_id, .. } = &job.metadata;
    let expected = ([stack_name, namespace_name, module_name], module_id);
    let actual = ([&entry.stack_name, &entry.namespace_name, &entry.module_name], &entry.module_id);
    if actual == expected {
        return Ok(());
    }
    let (actual, expected) = (format!("{actual:?}"), format!("{expected:?}"));
    Err(Refusal::WrongModule { job: job.id(), actual, expected })
}
