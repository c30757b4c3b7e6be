//! The events of the hub, in order and without gaps.
//!
//! Events are kept up to [`HubOptions::keep_events`](crate::HubOptions). Each reader has its own position and starts at
//! the first event, so a late or slow reader misses nothing. A single reader may remove the events that it reads, so
//! that a long job needs no more memory than a short one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Fault, LogEntry, SourceRefresh, Task};
use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::job_record::JobState;

/// Identifies a connection of a hub. Grows with each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Something that happened at the hub.
#[derive(Debug, Clone, PartialEq)]
pub enum HubEvent {
    /// A runner requested a token and got one.
    TokenIssued,
    /// A token request, negotiation or upgrade was refused.
    Refused { instance: Option<String>, reason: String },
    /// A runner completed the handshake.
    Connected { instance: String, connection: ConnectionId },
    /// A connection ended.
    Disconnected { instance: String, connection: ConnectionId, reason: String },
    /// A job was submitted.
    Submitted { job: Uuid, kind: &'static str },
    /// A task was pushed. `again` if it was pushed to the same instance before.
    Dispatched { job: Uuid, task: Task, instance: String, again: bool },
    /// The first call about the job. `by` is its method, which should be `ReportRunningTask`.
    Claimed { job: Uuid, task: Task, instance: String, by: String },
    /// Another runner has the job. A claim was refused; any other call was acknowledged and ignored.
    ClaimLost { job: Uuid, task: Task, instance: String, method: String },
    /// A runner reported that it is running a task.
    Running { job: Uuid, task: Task, instance: String },
    /// A batch of log entries arrived.
    LogBatch { job: Uuid, instance: String, entries: usize },
    /// Only with [`LogKeeping::All`](crate::LogKeeping) and [`LogKeeping::Events`](crate::LogKeeping).
    Log(Arc<LogEntry>),
    /// Logs of a task that has a result. The result came over a lost connection, so the runner did not know.
    LogsRepeated { job: Uuid, task: Task, instance: String, entries: usize },
    /// A task ended.
    Result { job: Uuid, task: Task, instance: String, call: Call },
    /// Another result of a task that already had one. It was acknowledged.
    DuplicateResult { job: Uuid, task: Task, instance: String, call: Call },
    /// The next task of the job needs an approval.
    AwaitingApproval { job: Uuid },
    /// The job was approved.
    Approved { job: Uuid },
    /// A cancel was requested.
    CancelAsked { job: Uuid, kind: CancelKind },
    /// A cancel was pushed to a runner.
    CancelPushed { job: Uuid, kind: CancelKind, instance: String },
    /// A runner answered a cancel.
    CancelAnswered { job: Uuid, kind: CancelKind, instance: String },
    /// The job ended.
    JobEnded { job: Uuid, state: JobState },
    /// A refresh was pushed to a runner.
    RefreshPushed { refresh: SourceRefresh, instance: String },
    /// A runner answered a refresh.
    RefreshEnded { refresh: SourceRefresh, instance: String, result: Result<String, Fault> },
    /// A report on an unknown job, acknowledged because of `acknowledge_unknown_jobs`.
    UnknownJob { job: Uuid, instance: String },
    /// The runner violated the contract.
    Violation { instance: String, method: String, reason: String },
}

/// An event with its time. Numbers start at 0 and have no gaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    pub number: u64,
    pub at: Timestamp,
    pub event: HubEvent,
}

#[derive(Debug)]
pub(super) struct EventLog {
    kept: Mutex<Kept>,
    limit: usize,
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    first: u64,
    events: VecDeque<Recorded>,
}

impl EventLog {
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: Mutex::default(), limit: limit.max(1), count: watch::Sender::new(0) }
    }

    pub(super) fn record(&self, at: Timestamp, event: HubEvent) {
        let mut kept = self.kept();
        if kept.events.len() >= self.limit {
            kept.events.pop_front();
            kept.first += 1;
        }
        let number = kept.first + u64::try_from(kept.events.len()).unwrap_or(u64::MAX);
        kept.events.push_back(Recorded { number, at, event });
        self.count.send_replace(number + 1);
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Recorded> {
        self.kept().events.iter().cloned().collect()
    }

    pub(super) fn select<T>(&self, choose: impl FnMut(&Recorded) -> Option<T>) -> Vec<T> {
        self.kept().events.iter().filter_map(choose).collect()
    }
}

/// Reads events.
#[derive(Debug)]
pub struct Events {
    log: Arc<EventLog>,
    next: u64,
    /// Removes events when they are read.
    takes: bool,
    count: watch::Receiver<u64>,
}

impl Events {
    pub(super) fn new(log: &Arc<EventLog>, takes: bool) -> Self {
        Self { log: Arc::clone(log), next: 0, takes, count: log.count.subscribe() }
    }

    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Recorded> {
        let mut kept = self.log.kept();
        let event = if self.takes {
            let event = kept.events.pop_front()?;
            kept.first += 1;
            event
        } else {
            let index = usize::try_from(self.next.saturating_sub(kept.first)).ok()?;
            kept.events.get(index)?.clone()
        };
        self.next = event.number + 1;
        Some(event)
    }

    /// Waits for the next event, without a time limit.
    pub async fn next(&mut self) -> Recorded {
        loop {
            self.count.borrow_and_update();
            if let Some(event) = self.try_next() {
                return event;
            }
            if self.count.changed().await.is_err() {
                // Unreachable: `self.log` holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Skips events until `choose` returns a value.
    pub async fn find<T>(&mut self, mut choose: impl FnMut(&HubEvent) -> Option<T>) -> T {
        loop {
            if let Some(value) = choose(&self.next().await.event) {
                return value;
            }
        }
    }
}

impl fmt::Display for HubEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenIssued => write!(f, "token issued"),
            Self::Refused { instance: Some(instance), reason } => write!(f, "refused {instance}: {reason}"),
            Self::Refused { instance: None, reason } => write!(f, "refused: {reason}"),
            Self::Connected { instance, .. } => write!(f, "{instance} connected"),
            Self::Disconnected { instance, reason, .. } => write!(f, "{instance} disconnected: {reason}"),
            Self::Submitted { job, kind } => write!(f, "job {job} submitted ({kind})"),
            Self::Dispatched { job, task, instance, again } => {
                write!(f, "job {job} {task} pushed {}to {instance}", if *again { "again " } else { "" })
            }
            Self::Claimed { job, task, instance, .. } => write!(f, "job {job} {task} claimed by {instance}"),
            Self::ClaimLost { job, task, instance, method } => {
                write!(f, "job {job} {task}: {method} from {instance} ignored, another runner has the job")
            }
            Self::Running { job, task, instance } => write!(f, "job {job} {task} running on {instance}"),
            Self::LogBatch { job, instance, entries } => {
                write!(f, "job {job} {entries} log entries from {instance}")
            }
            // The start of the ID is enough to tell jobs apart and to search for one.
            Self::Log(entry) => {
                let job = entry.job_id.simple().to_string();
                let line = format!("job {} {} | {}", &job[..8], entry.task_name, entry.message);
                write!(f, "{}", line.trim_end())
            }
            Self::LogsRepeated { job, task, instance, entries } => {
                write!(f, "job {job} {task}: {instance} sent {entries} log entries again after a reconnect")
            }
            Self::Result { job, instance, call, .. } => {
                write!(f, "job {job} {} from {instance}", call.method)
            }
            Self::DuplicateResult { job, instance, call, .. } => {
                write!(f, "job {job} {} from {instance} (duplicate)", call.method)
            }
            Self::AwaitingApproval { job } => write!(f, "job {job} is waiting for approval"),
            Self::Approved { job } => write!(f, "job {job} approved"),
            Self::CancelAsked { job, kind } => write!(f, "job {job} cancel requested ({})", word(*kind)),
            Self::CancelPushed { job, kind, instance } => {
                write!(f, "job {job} {} pushed to {instance}", kind.pushed_as())
            }
            Self::CancelAnswered { job, kind, instance } => {
                write!(f, "job {job} {}Completed from {instance}", kind.pushed_as())
            }
            Self::JobEnded { job, state } => write!(f, "job {job} ended: {state}"),
            Self::RefreshPushed { refresh, instance } => {
                write!(f, "refresh of {} pushed to {instance}", refresh.source_url)
            }
            Self::RefreshEnded { refresh, instance, result: Ok(revision) } => {
                write!(f, "refresh of {} by {instance}: {revision}", refresh.source_url)
            }
            Self::RefreshEnded { refresh, instance, result: Err(fault) } => {
                write!(f, "refresh of {} by {instance} faulted: {}", refresh.source_url, fault.message)
            }
            Self::UnknownJob { job, instance } => {
                write!(f, "job {job} is unknown, report from {instance} acknowledged and dropped")
            }
            Self::Violation { instance, method, reason } => {
                write!(f, "VIOLATION by {instance} in {method}: {reason}")
            }
        }
    }
}

fn word(kind: CancelKind) -> &'static str {
    match kind {
        CancelKind::Graceful => "graceful",
        CancelKind::Kill => "kill",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taking_reader_gets_each_event_once_and_removes_it() {
        let log = Arc::new(EventLog::new(usize::MAX));
        let mut taker = Events::new(&log, true);
        for round in 0..3 {
            log.record(Timestamp::UNIX_EPOCH, HubEvent::TokenIssued);
            log.record(Timestamp::UNIX_EPOCH, HubEvent::TokenIssued);
            let taken = [taker.try_next(), taker.try_next(), taker.try_next()];
            let numbers = taken.map(|event| event.map(|it| it.number));
            assert_eq!(numbers, [Some(round * 2), Some(round * 2 + 1), None]);
            assert!(log.all().is_empty());
        }
        // Another reader starts after the removed events.
        log.record(Timestamp::UNIX_EPOCH, HubEvent::TokenIssued);
        assert_eq!(Events::new(&log, false).try_next().map(|it| it.number), Some(6));
    }
}
