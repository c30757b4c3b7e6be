//! What happened at the hub, in order and without gaps.
//!
//! Every event is kept (up to [`HubOptions::keep_events`](crate::HubOptions)), and each reader has a place of its
//! own in the list that begins at the first, so a reader that comes late or is slow misses nothing. A reader that
//! is the only one may take what it has read off the list, so that a long job needs no more memory than a short one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Fault, LogEntry, SourceRefresh, Task};
use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::job_record::JobState;

/// Tells the connections of a hub apart; grows with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Debug, Clone, PartialEq)]
pub enum HubEvent {
    TokenIssued,
    /// A token, a negotiation or an upgrade that was refused.
    Refused {
        instance: Option<String>,
        reason: String,
    },
    Connected {
        instance: String,
        connection: ConnectionId,
    },
    Disconnected {
        instance: String,
        connection: ConnectionId,
        reason: String,
    },
    Submitted {
        job: Uuid,
        kind: &'static str,
    },
    /// `again` when the same task was pushed to the same instance before.
    Dispatched {
        job: Uuid,
        task: Task,
        instance: String,
        again: bool,
    },
    /// The first word of the job from anyone. It should be `ReportRunningTask`; `by` says what it was.
    Claimed {
        job: Uuid,
        task: Task,
        instance: String,
        by: String,
    },
    /// Somebody else was faster; what this runner says of the job is answered and ignored.
    ClaimLost {
        job: Uuid,
        task: Task,
        instance: String,
        method: String,
    },
    Running {
        job: Uuid,
        task: Task,
        instance: String,
    },
    LogBatch {
        job: Uuid,
        instance: String,
        entries: usize,
    },
    /// Only with [`LogKeeping::All`](crate::LogKeeping) and [`LogKeeping::Events`](crate::LogKeeping).
    Log(Arc<LogEntry<'static>>),
    /// Logs of a task whose result came over a connection that broke: the runner could not know.
    LogsRepeated {
        job: Uuid,
        task: Task,
        instance: String,
        entries: usize,
    },
    Result {
        job: Uuid,
        task: Task,
        instance: String,
        call: Call,
    },
    /// The result of a task that had one already; acknowledged once more.
    DuplicateResult {
        job: Uuid,
        task: Task,
        instance: String,
        call: Call,
    },
    AwaitingApproval {
        job: Uuid,
    },
    Approved {
        job: Uuid,
    },
    CancelAsked {
        job: Uuid,
        kind: CancelKind,
    },
    CancelPushed {
        job: Uuid,
        kind: CancelKind,
        instance: String,
    },
    CancelAnswered {
        job: Uuid,
        kind: CancelKind,
        instance: String,
    },
    JobEnded {
        job: Uuid,
        state: JobState,
    },
    RefreshPushed {
        refresh: SourceRefresh,
        instance: String,
    },
    RefreshEnded {
        refresh: SourceRefresh,
        instance: String,
        result: Result<String, Fault>,
    },
    /// An answer to a refresh that had one already.
    DuplicateRefresh {
        instance: String,
    },
    /// A report on a job that this hub does not know, acknowledged because it was told to be lenient.
    UnknownJob {
        job: Uuid,
        instance: String,
    },
    /// The runner did what the contract does not allow.
    Violation {
        instance: String,
        method: String,
        reason: String,
    },
    /// The hub did what it was told to do wrong.
    Misbehaved {
        instance: Option<String>,
        what: String,
    },
    Offline,
    Online,
}

/// An event with its time. Numbers begin at 0 and have no gaps.
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

/// A reader's place in the events.
#[derive(Debug)]
pub struct Events {
    log: Arc<EventLog>,
    next: u64,
    /// What was read is not kept for anybody else.
    takes: bool,
    count: watch::Receiver<u64>,
}

impl Events {
    pub(super) fn new(log: &Arc<EventLog>, takes: bool) -> Self {
        Self { log: Arc::clone(log), next: 0, takes, count: log.count.subscribe() }
    }

    /// The next event if it has happened already.
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

    /// The next event. Waits as long as it takes: put a deadline around it.
    pub async fn next(&mut self) -> Recorded {
        loop {
            self.count.borrow_and_update();
            if let Some(event) = self.try_next() {
                return event;
            }
            if self.count.changed().await.is_err() {
                // The log lives as long as this reader holds it, so its sender does too.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The next event of which `wanted` makes something; those before it are passed over.
    pub async fn find<T>(&mut self, mut wanted: impl FnMut(&HubEvent) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(&self.next().await.event) {
                return found;
            }
        }
    }
}

impl fmt::Display for HubEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenIssued => write!(f, "a token was issued"),
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
                write!(f, "job {job} {task}: {method} of {instance} ignored, the job is another runner's")
            }
            Self::Running { job, task, instance } => write!(f, "job {job} {task} running on {instance}"),
            Self::LogBatch { job, instance, entries } => {
                write!(f, "job {job} {entries} log entries from {instance}")
            }
            Self::Log(entry) => write!(f, "job {} {} | {}", entry.job_id, entry.task_name, entry.message),
            Self::LogsRepeated { job, task, instance, entries } => {
                write!(f, "job {job} {task}: {instance} sent {entries} log entries again after a cut")
            }
            Self::Result { job, instance, call, .. } => {
                write!(f, "job {job} {} from {instance}", call.method)
            }
            Self::DuplicateResult { job, instance, call, .. } => {
                write!(f, "job {job} {} from {instance} once more", call.method)
            }
            Self::AwaitingApproval { job } => write!(f, "job {job} waits for approval"),
            Self::Approved { job } => write!(f, "job {job} approved"),
            Self::CancelAsked { job, kind } => write!(f, "job {job} is to be cancelled ({})", word(*kind)),
            Self::CancelPushed { job, kind, instance } => {
                write!(f, "job {job} {} pushed to {instance}", kind.pushed_as())
            }
            Self::CancelAnswered { job, kind, instance } => {
                write!(f, "job {job} {} from {instance}", kind.completed_method())
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
            Self::DuplicateRefresh { instance } => write!(f, "{instance} answered a refresh once more"),
            Self::UnknownJob { job, instance } => {
                write!(f, "job {job} is unknown; the report of {instance} was acknowledged and dropped")
            }
            Self::Violation { instance, method, reason } => {
                write!(f, "VIOLATION by {instance} in {method}: {reason}")
            }
            Self::Misbehaved { what, .. } => write!(f, "misbehaved as told: {what}"),
            Self::Offline => write!(f, "the hub is offline"),
            Self::Online => write!(f, "the hub is online"),
        }
    }
}

fn word(kind: CancelKind) -> &'static str {
    match kind {
        CancelKind::Graceful => "gracefully",
        CancelKind::Kill => "by force",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_events_gets_each_once_and_leaves_nothing() {
        let log = Arc::new(EventLog::new(usize::MAX));
        let mut taker = Events::new(&log, true);
        for round in 0..3 {
            log.record(Timestamp::UNIX_EPOCH, HubEvent::Offline);
            log.record(Timestamp::UNIX_EPOCH, HubEvent::Online);
            let taken = [taker.try_next(), taker.try_next(), taker.try_next()];
            let numbers = taken.map(|event| event.map(|it| it.number));
            assert_eq!(numbers, [Some(round * 2), Some(round * 2 + 1), None]);
            assert!(log.all().is_empty());
        }
        // Another reader goes on behind what was taken.
        log.record(Timestamp::UNIX_EPOCH, HubEvent::Offline);
        assert_eq!(Events::new(&log, false).try_next().map(|it| it.number), Some(6));
    }
}
