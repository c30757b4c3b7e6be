//! Handles the reports of runners.

use std::sync::Arc;

use hawser_contract::names::method;
use hawser_contract::{Call, LogEntry, Outcome, Task};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Action, Actions, Orchestrator, Refresh, Refusal};
use crate::events::{ConnectionId, HubEvent};
use crate::job_record::{Job, Phase, Standing, TaskState};
use crate::reports::{Refreshed, Report};

/// Who sent a report.
#[derive(Clone, Copy)]
struct Sender<'a> {
    connection: ConnectionId,
    instance: &'a str,
}

impl Orchestrator {
    pub(super) fn reported(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        instance: &str,
        report: Report,
    ) -> Result<Actions, Refusal> {
        if self.rules.acknowledge_unknown_jobs
            && let Some(job) = job_of(&report).filter(|job| !self.jobs.contains_key(job))
        {
            return Ok(vec![Action::Record(HubEvent::UnknownJob { job, instance: instance.to_owned() })]);
        }
        match report {
            Report::Running { job, task, runner, instance: reported } => {
                if runner != self.rules.runner_id || reported != instance {
                    let expected = format!("{} {instance}", self.rules.runner_id);
                    return Err(Refusal::WrongRunner { expected, actual: format!("{runner} {reported}") });
                }
                running(self.job(job)?, now, instance, task)
            }
            Report::Logs(entries) => self.logged(now, connection, instance, entries),
            Report::Outcome { job, task, outcome, call } => {
                let from = Sender { connection, instance };
                self.ended(now, from, (job, task), &outcome, call)
            }
            Report::CancelAnswered { job: id, kind } => {
                let job = self.job(id)?;
                let key = (instance.to_owned(), kind);
                if !job.cancels_pushed.contains(&key) {
                    let (method, instance) = (kind.pushed_as(), key.0);
                    return Err(Refusal::CancelNotPushed { job: id, method, instance });
                }
                if let Some(cancel) = job.cancel.as_mut().filter(|cancel| cancel.kind == kind) {
                    cancel.answered.insert(key.0.clone());
                }
                Ok(vec![Action::Record(HubEvent::CancelAnswered { job: id, kind, instance: key.0 })])
            }
            Report::Refreshed(answer) => self.refreshed(instance, answer),
        }
    }

    fn ended(
        &mut self,
        now: Timestamp,
        from: Sender<'_>,
        (id, task): (Uuid, Task),
        outcome: &Outcome,
        call: Call,
    ) -> Result<Actions, Refusal> {
        let Sender { connection, instance } = from;
        let by = instance.to_owned();
        let job = self.job(id)?;
        let index = match standing(job, instance, task)? {
            Standing::Current(index) => index,
            Standing::Done(index) => {
                job.tasks[index].ended_over = Some(connection);
                let again = HubEvent::DuplicateResult { job: id, task, instance: by, call };
                return Ok(vec![Action::Record(again)]);
            }
            _ => return Ok(vec![claim_lost(job, task, instance, &call.method)]),
        };
        let mut actions = claim(job, now, instance, index, &call.method);
        actions.push(Action::Record(HubEvent::Result { job: id, task, instance: by, call }));
        job.conclude(index, outcome, connection, now);
        match &job.phase {
            Phase::Ended(state) => {
                actions.push(Action::Record(HubEvent::JobEnded { job: id, state: state.clone() }));
            }
            Phase::Approval { .. } => actions.push(Action::Record(HubEvent::AwaitingApproval { job: id })),
            Phase::Task { .. } => actions.extend(self.dispatch(now, id)),
        }
        Ok(actions)
    }

    fn logged(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        instance: &str,
        entries: Vec<LogEntry<'static>>,
    ) -> Result<Actions, Refusal> {
        // A batch is accepted or refused as a whole, so everything is checked first.
        let mut parts: Vec<(Uuid, Task, Standing, usize)> = Vec::new();
        for entry in &entries {
            let job = self.jobs.get(&entry.job_id).ok_or(Refusal::UnknownJob(entry.job_id))?;
            check_names(job, entry)?;
            let task = Task::from_name(&entry.task_name).ok_or_else(|| Refusal::WrongName {
                job: job.id,
                member: "taskName",
                actual: entry.task_name.to_string(),
                expected: "the name of a task".to_owned(),
            })?;
            if let Some((.., count)) = parts.iter_mut().find(|part| part.0 == job.id && part.1 == task) {
                *count += 1;
                continue;
            }
            let standing = standing(job, instance, task)?;
            if let Standing::Done(index) = standing
                && job.tasks[index].ended_over.is_none_or(|over| over >= connection)
            {
                return Err(Refusal::AlreadyEnded { job: job.id, task });
            }
            parts.push((job.id, task, standing, 1));
        }
        let mut actions = Vec::new();
        let mut ignored = Vec::new();
        for (id, task, standing, count) in parts {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let instance = instance.to_owned();
            match standing {
                Standing::Current(index) => {
                    actions.extend(claim(job, now, &instance, index, method::ADD_LOGS));
                    actions.push(Action::Record(HubEvent::LogBatch { job: id, instance, entries: count }));
                }
                Standing::Done(_) => {
                    let repeated = HubEvent::LogsRepeated { job: id, task, instance, entries: count };
                    actions.push(Action::Record(repeated));
                }
                _ => {
                    actions.push(claim_lost(job, task, &instance, method::ADD_LOGS));
                    ignored.push((id, task));
                }
            }
        }
        let mut accepted = Vec::with_capacity(entries.len());
        for entry in entries {
            if ignored.iter().any(|(id, task)| *id == entry.job_id && task.name() == entry.task_name) {
                continue;
            }
            let entry = Arc::new(entry);
            if let Some(job) = self.jobs.get_mut(&entry.job_id) {
                job.logged(&entry);
            }
            accepted.push(entry);
        }
        actions.push(Action::Logs(accepted));
        Ok(actions)
    }

    fn refreshed(&mut self, instance: &str, answer: Refreshed) -> Result<Actions, Refusal> {
        let instance = instance.to_owned();
        let matches = |it: &&mut Refresh| {
            it.refresh.source_url == answer.source_url
                && it.refresh.source_revision == answer.source_revision
                && it.refresh.source_type == answer.source_type
                && it.refresh.source_revision_type == answer.source_revision_type
                && it.pushed_to.as_deref() == Some(&*instance)
        };
        let mut matching: Vec<&mut Refresh> = self.refreshes.iter_mut().filter(matches).collect();
        if matching.is_empty() {
            return Err(Refusal::RefreshNotRequested {
                url: answer.source_url,
                revision: answer.source_revision,
            });
        }
        let Some(open) = matching.iter_mut().find(|it| !it.answered) else {
            return Ok(vec![Action::Record(HubEvent::DuplicateRefresh { instance })]);
        };
        open.answered = true;
        let refresh = open.refresh.clone();
        Ok(vec![Action::Record(HubEvent::RefreshEnded { refresh, instance, result: answer.result })])
    }
}

fn job_of(report: &Report) -> Option<Uuid> {
    match report {
        Report::Running { job, .. } | Report::Outcome { job, .. } | Report::CancelAnswered { job, .. } => {
            Some(*job)
        }
        Report::Logs(entries) => entries.first().map(|entry| entry.job_id),
        Report::Refreshed(_) => None,
    }
}

fn standing(job: &Job, instance: &str, task: Task) -> Result<Standing, Refusal> {
    match job.standing(instance, task) {
        Standing::NeverPushed => {
            Err(Refusal::NeverPushed { job: job.id, task, instance: instance.to_owned() })
        }
        Standing::NotOutstanding => Err(Refusal::NotOutstanding { job: job.id, task }),
        standing => Ok(standing),
    }
}

fn running(job: &mut Job, now: Timestamp, instance: &str, task: Task) -> Result<Actions, Refusal> {
    let method = method::REPORT_RUNNING_TASK;
    match standing(job, instance, task)? {
        Standing::Current(index) => {
            let mut actions = claim(job, now, instance, index, method);
            let instance = instance.to_owned();
            actions.push(Action::Record(HubEvent::Running { job: job.id, task, instance }));
            Ok(actions)
        }
        Standing::Done(_) => Err(Refusal::AlreadyEnded { job: job.id, task }),
        _ => Ok(vec![claim_lost(job, task, instance, method)]),
    }
}

/// Records a report on the current task by the runner that has the job, or gets it by this report.
fn claim(job: &mut Job, now: Timestamp, instance: &str, index: usize, method: &str) -> Actions {
    let mut actions = Vec::new();
    let record = &mut job.tasks[index];
    if record.state == TaskState::Dispatched {
        record.state = TaskState::Running;
        record.started_at = Some(now);
    }
    if job.owner.is_none() {
        job.owner = Some(instance.to_owned());
        actions.push(Action::Record(HubEvent::Claimed {
            job: job.id,
            task: record.task,
            instance: instance.to_owned(),
            by: method.to_owned(),
        }));
    }
    actions
}

fn claim_lost(job: &Job, task: Task, instance: &str, method: &str) -> Action {
    Action::Record(HubEvent::ClaimLost {
        job: job.id,
        task,
        instance: instance.to_owned(),
        method: method.to_owned(),
    })
}

fn check_names(job: &Job, entry: &LogEntry<'_>) -> Result<(), Refusal> {
    let metadata = &job.metadata;
    let members = [
        ("stackName", &*entry.stack_name, &metadata.stack_name),
        ("namespaceName", &*entry.namespace_name, &metadata.namespace_name),
        ("moduleName", &*entry.module_name, &metadata.module_name),
    ];
    if entry.module_id != metadata.module_id {
        return Err(Refusal::WrongName {
            job: job.id,
            member: "moduleId",
            actual: entry.module_id.to_string(),
            expected: metadata.module_id.to_string(),
        });
    }
    match members.into_iter().find(|(_, actual, expected)| actual != expected) {
        Some((member, actual, expected)) => Err(Refusal::WrongName {
            job: job.id,
            member,
            actual: actual.to_owned(),
            expected: expected.clone(),
        }),
        None => Ok(()),
    }
}
