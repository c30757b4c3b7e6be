//! One job at the hub: its state, the results of its tasks, and its logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use hawser_contract::{
    Fault, LogEntry, LogLevel, Metadata, Outcome, OutputSet, PlanData, Success, Task, VariableSet,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::events::ConnectionId;
use crate::job_spec::JobSpec;
use crate::orchestrator::Refusal;

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "name")]
pub enum JobState {
    /// No eligible runner is connected.
    Queued,
    /// A task was pushed, or is about to be.
    Running,
    /// The job waits for [`EmbeddedHub::approve`](crate::EmbeddedHub::approve) or `reject`.
    AwaitingApproval,
    /// All tasks have completed.
    Completed,
    /// A task faulted, or the job sets variables that the module does not declare.
    Failed { error: String },
    /// The job was cancelled.
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

/// The number of log entries and the last message, known even if the hub does not keep the entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogSummary {
    pub count: u64,
    pub last: Option<String>,
}

/// How a task was handed out, in addition to its [`TaskSnapshot`].
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub(super) pushed_to: BTreeSet<String>,
    /// The connection over which the last result came.
    pub(super) ended_over: Option<ConnectionId>,
}

/// How a runner relates to a task that was pushed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The current task. The runner has the job, or gets it by this report.
    Current(usize),
    /// A task of this runner that already has a result.
    Done(usize),
    /// Another runner has the job.
    Lost,
}

#[derive(Debug)]
pub(super) struct Job {
    /// What clients see. [`Job::snapshot`] adds the summary of the logs.
    pub(super) shown: JobSnapshot,
    pub(super) spec: JobSpec,
    /// Computed once, because every log entry is compared with it.
    pub(super) metadata: Metadata,
    /// The index of the task that is next to end.
    current: usize,
    /// One for each task.
    pub(super) deliveries: Vec<Delivery>,
    /// The last requested cancel.
    pub(super) cancel: Option<CancelKind>,
    /// Every pushed cancel, and whether it was answered.
    pub(super) cancels_pushed: BTreeMap<(String, CancelKind), bool>,
    pub(super) logs: Logs,
    /// The runner could not read all files that may declare variables.
    variables_incomplete: bool,
}

impl Job {
    pub(super) fn new(id: Uuid, spec: JobSpec, now: Timestamp, keep_logs: bool) -> Self {
        let pending = |task| TaskSnapshot {
            task,
            state: TaskState::Pending,
            dispatched_at: None,
            started_at: None,
            ended_at: None,
        };
        let tasks: Vec<_> = spec.kind.tasks().into_iter().map(pending).collect();
        let shown = JobSnapshot {
            id,
            kind: spec.kind.name().to_owned(),
            state: if tasks.is_empty() { JobState::Completed } else { JobState::Queued },
            instance: spec.instance.clone(),
            owner: None,
            module: format!("{}/{}/{}", spec.stack_name, spec.namespace_name, spec.module_name),
            submitted_at: now,
            definitive_revision: None,
            variables: None,
            plan: None,
            resources: None,
            outputs: None,
            error: None,
            logs: LogSummary::default(),
            tasks,
        };
        Self {
            deliveries: shown.tasks.iter().map(|_| Delivery::default()).collect(),
            shown,
            metadata: spec.metadata(),
            spec,
            current: 0,
            cancel: None,
            cancels_pushed: BTreeMap::new(),
            logs: Logs::new(keep_logs),
            variables_incomplete: false,
        }
    }

    pub(super) fn id(&self) -> Uuid {
        self.shown.id
    }

    pub(super) fn snapshot(&self) -> JobSnapshot {
        JobSnapshot { logs: self.logs.summary(), ..self.shown.clone() }
    }

    /// The index of the task that the job is waiting for, which may not have been pushed yet.
    pub(super) fn current(&self) -> Option<usize> {
        matches!(self.shown.state, JobState::Queued | JobState::Running).then_some(self.current)
    }

    /// Whether this runner is eligible for the current task.
    pub(super) fn is_for(&self, instance: &str) -> bool {
        self.shown.owner.as_ref().or(self.shown.instance.as_ref()).is_none_or(|only| only == instance)
    }

    pub(super) fn standing(&self, instance: &str, task: Task) -> Result<Standing, Refusal> {
        let job = self.id();
        let tasks = &self.shown.tasks;
        let (index, standing) = match self.current().filter(|index| tasks[*index].task == task) {
            Some(index) => (index, Standing::Current(index)),
            None => {
                let ended = tasks.iter().rposition(|it| it.task == task && it.ended_at.is_some());
                let index = ended.ok_or(Refusal::NotOutstanding { job, task })?;
                (index, Standing::Done(index))
            }
        };
        if !self.deliveries[index].pushed_to.contains(instance) {
            return Err(Refusal::NeverPushed { job, task, instance: instance.to_owned() });
        }
        let owned = self.shown.owner.as_deref().is_none_or(|owner| owner == instance);
        Ok(if owned { standing } else { Standing::Lost })
    }

    /// Records the result of the task at `index` and advances the job.
    pub(super) fn conclude(
        &mut self,
        index: usize,
        outcome: &Outcome,
        connection: ConnectionId,
        now: Timestamp,
    ) {
        let task = self.shown.tasks[index].task;
        let (task_state, state) = match outcome {
            Outcome::Completed(success) => {
                self.store_result(success);
                (
                    TaskState::Completed,
                    self.undeclared_variables(success).unwrap_or_else(|| self.after(index)),
                )
            }
            Outcome::Cancelled => (TaskState::Cancelled, JobState::Cancelled),
            Outcome::Faulted(fault) => {
                let Fault { message, details, resources } = fault.clone();
                let error = format!("{task}: {message}");
                self.shown.error = Some(JobError { task, message, details, resources });
                (TaskState::Faulted, JobState::Failed { error })
            }
        };
        self.deliveries[index].ended_over = Some(connection);
        self.current = index + 1;
        let shown = &mut self.shown;
        (shown.tasks[index].state, shown.tasks[index].ended_at) = (task_state, Some(now));
        shown.state = state;
    }

    pub(super) fn logged(&mut self, entry: &Arc<LogEntry>) {
        self.logs.add(entry);
        // The task logs a warning for each unreadable file, always before its result.
        let is_warning = matches!(entry.level, LogLevel::Warning | LogLevel::Error | LogLevel::Fatal);
        self.variables_incomplete |= is_warning && entry.task_name == Task::Variables;
    }

    fn store_result(&mut self, success: &Success) {
        let shown = &mut self.shown;
        match success {
            Success::Done => {}
            Success::Revision(revision) => shown.definitive_revision = Some(revision.clone()),
            Success::Variables(set) => shown.variables.clone_from(set),
            Success::Plan(data) => shown.plan = Some((**data).clone()),
            Success::Resources(count) => shown.resources = Some(*count),
            Success::Outputs(set) => shown.outputs.clone_from(set),
        }
    }

    /// Fails the job if it sets variables that the module does not declare.
    fn undeclared_variables(&self, success: &Success) -> Option<JobState> {
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
        Some(JobState::Failed { error })
    }

    /// The state after the task at `index` has completed.
    fn after(&self, index: usize) -> JobState {
        match self.shown.tasks.get(index + 1) {
            None => JobState::Completed,
            // The task finished before the cancel reached it. No other task is started.
            Some(_) if self.cancel.is_some() => JobState::Cancelled,
            Some(next) if self.spec.needs_approval && next.task.applies() => JobState::AwaitingApproval,
            Some(_) => JobState::Running,
        }
    }
}

/// The log entries of a job, or only their summary.
#[derive(Debug)]
pub(super) struct Logs {
    kept: Option<Vec<Arc<LogEntry>>>,
    count: u64,
    last: Option<Arc<LogEntry>>,
}

impl Logs {
    fn new(keep: bool) -> Self {
        Self { kept: keep.then(Vec::new), count: 0, last: None }
    }

    fn add(&mut self, entry: &Arc<LogEntry>) {
        self.count += 1;
        self.last = Some(Arc::clone(entry));
        if let Some(kept) = &mut self.kept {
            kept.push(Arc::clone(entry));
        }
    }

    pub(super) fn from(&self, index: usize) -> Vec<Arc<LogEntry>> {
        let kept = self.kept.as_deref().unwrap_or_default();
        kept.get(index..).unwrap_or_default().to_vec()
    }

    fn summary(&self) -> LogSummary {
        LogSummary { count: self.count, last: self.last.as_ref().map(|entry| entry.message.clone()) }
    }
}
