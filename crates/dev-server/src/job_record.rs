//! One job at the hub: its state, the results of its tasks, and its logs.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use hawser_contract::{
    LogEntry, LogLevel, Metadata, Outcome, OutputSet, PlanData, Success, Task, VariableSet,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::events::ConnectionId;
use crate::job_spec::JobSpec;

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "name")]
pub enum JobState {
    /// No eligible runner is connected.
    Queued,
    Running,
    AwaitingApproval,
    Completed,
    Failed {
        error: String,
    },
    Cancelled,
    /// The approval was refused.
    Rejected,
}

impl JobState {
    pub fn is_ended(&self) -> bool {
        !matches!(self, Self::Queued | Self::Running | Self::AwaitingApproval)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued => f.write_str("queued"),
            Self::Running => f.write_str("running"),
            Self::AwaitingApproval => f.write_str("waiting for approval"),
            Self::Completed => f.write_str("completed"),
            Self::Failed { error } => write!(f, "failed: {error}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Rejected => f.write_str("rejected"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskState {
    /// Not pushed yet.
    Pending,
    /// Pushed, without a report so far.
    Dispatched,
    Running,
    Completed,
    Cancelled,
    Faulted,
}

impl TaskState {
    fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Faulted)
    }
}

/// The state of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSnapshot {
    pub task: Task,
    pub state: TaskState,
    pub dispatched_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// The current state of a job, without its log entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSnapshot {
    pub id: Uuid,
    pub kind: String,
    pub state: JobState,
    /// The only eligible instance, if the job was submitted for one.
    pub instance: Option<String>,
    /// The instance that has the job.
    pub owner: Option<String>,
    pub module: String,
    pub submitted_at: Timestamp,
    pub tasks: Vec<TaskSnapshot>,
    pub definitive_revision: Option<String>,
    pub variables: Option<VariableSet>,
    pub plan: Option<PlanData>,
    /// Resources in the state after apply or destroy.
    pub resources: Option<u64>,
    pub outputs: Option<OutputSet>,
    /// The fault of the job's task.
    pub error: Option<JobError>,
    pub logs: LogSummary,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobError {
    pub task: Task,
    pub message: String,
    pub details: String,
    pub resources: Option<u64>,
}

/// Enough to compare the logs with the original, without keeping them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogSummary {
    pub count: u64,
    /// Lowercase hex SHA-256 over each message followed by a line feed, in the order of arrival.
    pub digest: String,
    pub last: Option<String>,
}

/// What the job is waiting for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// The task at `current`, which may not have been pushed yet.
    Task {
        current: usize,
    },
    Approval {
        next: usize,
    },
    Ended(JobState),
}

#[derive(Debug)]
pub(super) struct TaskRecord {
    pub(super) task: Task,
    pub(super) state: TaskState,
    pub(super) pushed_to: BTreeSet<String>,
    pub(super) dispatched_at: Option<Timestamp>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
    /// The connection over which the last result came.
    pub(super) ended_over: Option<ConnectionId>,
}

/// A requested cancel. It is not pushed again to runners that have answered it.
#[derive(Debug)]
pub(super) struct Cancel {
    pub(super) kind: CancelKind,
    pub(super) answered: BTreeSet<String>,
}

/// How a runner relates to a task it reports on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The current task. The runner has the job, or gets it by this report.
    Current(usize),
    /// The task was pushed to this runner, but another one has the job.
    Lost,
    /// A task of this runner that already has a result.
    Done(usize),
    NeverPushed,
    NotOutstanding,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: Uuid,
    pub(super) spec: JobSpec,
    /// Computed once, because every log entry is compared with it.
    pub(super) metadata: Metadata,
    pub(super) submitted_at: Timestamp,
    pub(super) phase: Phase,
    pub(super) tasks: Vec<TaskRecord>,
    pub(super) owner: Option<String>,
    pub(super) cancel: Option<Cancel>,
    /// Every pushed cancel. An answer to any other is refused.
    pub(super) cancels_pushed: BTreeSet<(String, CancelKind)>,
    pub(super) definitive_revision: Option<String>,
    pub(super) logs: Logs,
    pub(super) variables: Option<VariableSet>,
    /// The runner could not read all files that may declare variables.
    variables_incomplete: bool,
    plan: Option<PlanData>,
    resources: Option<u64>,
    outputs: Option<OutputSet>,
    error: Option<JobError>,
}

impl Job {
    pub(super) fn new(id: Uuid, spec: JobSpec, now: Timestamp, keep_logs: bool) -> Self {
        let record = |task| TaskRecord {
            task,
            state: TaskState::Pending,
            pushed_to: BTreeSet::new(),
            dispatched_at: None,
            started_at: None,
            ended_at: None,
            ended_over: None,
        };
        let tasks: Vec<_> = spec.kind.tasks().into_iter().map(record).collect();
        let phase =
            if tasks.is_empty() { Phase::Ended(JobState::Completed) } else { Phase::Task { current: 0 } };
        Self {
            id,
            metadata: spec.metadata(),
            spec,
            submitted_at: now,
            phase,
            tasks,
            owner: None,
            cancel: None,
            cancels_pushed: BTreeSet::new(),
            definitive_revision: None,
            logs: Logs::new(keep_logs),
            variables: None,
            variables_incomplete: false,
            plan: None,
            resources: None,
            outputs: None,
            error: None,
        }
    }

    pub(super) fn state(&self) -> JobState {
        match &self.phase {
            Phase::Task { current: 0 } if self.tasks.first().is_none_or(|it| it.pushed_to.is_empty()) => {
                JobState::Queued
            }
            Phase::Task { .. } => JobState::Running,
            Phase::Approval { .. } => JobState::AwaitingApproval,
            Phase::Ended(state) => state.clone(),
        }
    }

    /// Whether this runner is eligible for the current task.
    pub(super) fn is_for(&self, instance: &str) -> bool {
        match (&self.owner, &self.spec.instance) {
            (Some(owner), _) => owner == instance,
            (None, Some(pinned)) => pinned == instance,
            (None, None) => true,
        }
    }

    pub(super) fn standing(&self, instance: &str, task: Task) -> Standing {
        let owned = self.owner.as_deref().is_none_or(|owner| owner == instance);
        if let Phase::Task { current } = self.phase
            && let Some(record) = self.tasks.get(current)
            && record.task == task
        {
            return match (record.pushed_to.contains(instance), owned) {
                (false, _) => Standing::NeverPushed,
                (true, true) => Standing::Current(current),
                (true, false) => Standing::Lost,
            };
        }
        match self.tasks.iter().rposition(|record| record.task == task && record.state.is_ended()) {
            None => Standing::NotOutstanding,
            Some(index) if !self.tasks[index].pushed_to.contains(instance) => Standing::NeverPushed,
            Some(index) if owned => Standing::Done(index),
            Some(_) => Standing::Lost,
        }
    }

    /// Records the result of the task at `index` and advances the job.
    pub(super) fn conclude(
        &mut self,
        index: usize,
        outcome: &Outcome,
        connection: ConnectionId,
        now: Timestamp,
    ) {
        let record = &mut self.tasks[index];
        record.ended_at = Some(now);
        record.ended_over = Some(connection);
        record.state = match outcome {
            Outcome::Completed(_) => TaskState::Completed,
            Outcome::Cancelled => TaskState::Cancelled,
            Outcome::Faulted(_) => TaskState::Faulted,
        };
        let task = record.task;
        self.phase = match outcome {
            Outcome::Completed(success) => {
                self.store_result(success);
                self.undeclared_variables(success).unwrap_or_else(|| self.after(index))
            }
            Outcome::Cancelled => Phase::Ended(JobState::Cancelled),
            Outcome::Faulted(fault) => {
                self.error = Some(JobError {
                    task,
                    message: fault.message.clone(),
                    details: fault.details.clone(),
                    resources: fault.resources,
                });
                Phase::Ended(JobState::Failed { error: format!("{task}: {}", fault.message) })
            }
        };
    }

    pub(super) fn logged(&mut self, entry: &Arc<LogEntry<'static>>) {
        self.logs.add(entry);
        // The task logs a warning for each unreadable file, always before its result.
        let is_warning = matches!(entry.level, LogLevel::Warning | LogLevel::Error | LogLevel::Fatal);
        self.variables_incomplete |= is_warning && entry.task_name == Task::Variables.name();
    }

    fn store_result(&mut self, success: &Success) {
        match success {
            Success::Done => {}
            Success::Revision(revision) => self.definitive_revision = Some(revision.clone()),
            Success::Variables(set) => self.variables.clone_from(set),
            Success::Plan(data) => self.plan = Some((**data).clone()),
            Success::Resources(count) => self.resources = Some(*count),
            Success::Outputs(set) => self.outputs.clone_from(set),
        }
    }

    /// Fails the job if it sets variables that the module does not declare.
    fn undeclared_variables(&self, success: &Success) -> Option<Phase> {
        let Success::Variables(declared) = success else { return None };
        if self.variables_incomplete {
            // The engine warns about undeclared variables.
            return None;
        }
        let undeclared = self.spec.undeclared(declared.as_ref());
        let names: Vec<_> = undeclared.iter().map(|name| format!("{name:?}")).collect();
        let error = match &names[..] {
            [] => return None,
            [name] => format!("variable {name} is not declared by the module"),
            _ => format!("variables {} are not declared by the module", names.join(", ")),
        };
        Some(Phase::Ended(JobState::Failed { error }))
    }

    fn after(&self, index: usize) -> Phase {
        let next = index + 1;
        match self.tasks.get(next) {
            None => Phase::Ended(JobState::Completed),
            // The task finished before the cancel reached it. No other task is started.
            Some(_) if self.cancel.is_some() => Phase::Ended(JobState::Cancelled),
            Some(record) if self.spec.needs_approval && changes_infrastructure(record.task) => {
                Phase::Approval { next }
            }
            Some(_) => Phase::Task { current: next },
        }
    }

    pub(super) fn snapshot(&self) -> JobSnapshot {
        let tasks = self.tasks.iter().map(|record| TaskSnapshot {
            task: record.task,
            state: record.state,
            dispatched_at: record.dispatched_at,
            started_at: record.started_at,
            ended_at: record.ended_at,
        });
        JobSnapshot {
            id: self.id,
            kind: self.spec.kind.name().to_owned(),
            state: self.state(),
            instance: self.spec.instance.clone(),
            owner: self.owner.clone(),
            module: format!(
                "{}/{}/{}",
                self.spec.stack_name, self.spec.namespace_name, self.spec.module_name
            ),
            submitted_at: self.submitted_at,
            tasks: tasks.collect(),
            definitive_revision: self.definitive_revision.clone(),
            variables: self.variables.clone(),
            plan: self.plan.clone(),
            resources: self.resources,
            outputs: self.outputs.clone(),
            error: self.error.clone(),
            logs: self.logs.summary(),
        }
    }
}

fn changes_infrastructure(task: Task) -> bool {
    matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan)
}

/// The log entries of a job, or only their summary.
#[derive(Debug)]
pub(super) struct Logs {
    kept: Option<Vec<Arc<LogEntry<'static>>>>,
    count: u64,
    hash: Sha256,
    last: Option<Arc<LogEntry<'static>>>,
}

impl Logs {
    fn new(keep: bool) -> Self {
        Self { kept: keep.then(Vec::new), count: 0, hash: Sha256::new(), last: None }
    }

    fn add(&mut self, entry: &Arc<LogEntry<'static>>) {
        self.count += 1;
        self.hash.update(entry.message.as_bytes());
        self.hash.update(b"\n");
        self.last = Some(Arc::clone(entry));
        if let Some(kept) = &mut self.kept {
            kept.push(Arc::clone(entry));
        }
    }

    pub(super) fn from(&self, index: usize) -> Vec<Arc<LogEntry<'static>>> {
        let kept = self.kept.as_deref().unwrap_or_default();
        kept.get(index..).unwrap_or_default().to_vec()
    }

    fn summary(&self) -> LogSummary {
        LogSummary {
            count: self.count,
            digest: self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            last: self.last.as_ref().map(|entry| entry.message.to_string()),
        }
    }
}
