//! The stream of one step to the server: what was sent, what was acknowledged, and what is next.
//!
//! ```text
//!            next() → Send                  all calls answered, one refused
//!   reading ───────────────→ waiting ─────────────────────────────────→ back to the acknowledged position
//!      ↑                        │ acknowledged, in order
//!      └────────────────────────┘ … until the log has ended → the result → finished
//! ```
//!
//! The [`window`](super::window) holds the calls in flight. After a refusal, one call at a time is sent until one is
//! accepted, so that later accepted calls are repeated once and not with every attempt.

use std::io;

use hawser_contract::names::method;
use hawser_signalr::CallError;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::batch::BatchLimits;
use super::cap::{self, Dropped};
use super::entry::Labels;
use super::outcome_call::{self, OutcomeCallError};
use super::reader::{LogReader, Offer, POLL};
use super::window::{ANSWER_TIMEOUT, Payload, Window};
use crate::base::retry::Retry;
use crate::masking::{JobSecrets, SecretStore};
use crate::step::{FolderError, Position, RecordReader, Step, StepFolder, StepWork};

/// The maximum number of unacknowledged calls of one step: enough to hide the round trip to the server.
const STREAM_WINDOW: usize = 4;

/// A step is stuck after this many failures in a row, which takes about ten seconds.
const STUCK: u32 = 5;

/// A step to ship.
#[derive(Debug, Clone)]
pub struct ShippedStep {
    pub folder: StepFolder,
    /// None for a source refresh, which has no job and no log on the server.
    pub labels: Option<Labels>,
}

impl ShippedStep {
    pub fn of(step: &Step) -> Self {
        let labels = match &step.work {
            StepWork::Task(request) => Some(Labels {
                job_id: request.common.job_id,
                task: request.task.task(),
                module: request.common.metadata.clone(),
            }),
            StepWork::Refresh(_) => None,
        };
        Self { folder: step.folder.clone(), labels }
    }

    /// A step with nothing to ship but its outcome.
    pub fn answer(folder: StepFolder) -> Self {
        Self { folder, labels: None }
    }
}

/// What a stream does next.
#[derive(Debug)]
pub(super) enum Next {
    Send {
        method: String,
        arguments: String,
        payload: Payload,
    },
    /// Nothing until this time.
    At(Instant),
    /// Nothing until an answer or a command arrives.
    Wait,
    /// The folder was removed.
    Gone,
    /// The step cannot be shipped, and is set aside for inspection.
    GiveUp {
        reason: String,
    },
}

/// What follows from an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    Nothing,
    /// The connection that the call was made on is gone.
    Disconnected,
    /// The result is acknowledged: the step is done.
    Finished,
}

#[derive(Debug)]
pub(super) struct StepStream {
    pub(super) step: ShippedStep,
    limits: BatchLimits,
    /// Masked in the log of this step.
    secrets: JobSecrets,
    log: Option<LogReader>,
    acknowledged: Position,
    unsaved: bool,
    concluded: bool,
    looked: Option<Instant>,
    /// Nothing to do until this time, unless a command or an answer arrives.
    rests_until: Option<Instant>,
    window: Window,
    retry: Retry,
}

impl StepStream {
    pub(super) fn new(
        step: ShippedStep,
        limits: BatchLimits,
        secret_store: &SecretStore,
        now: Instant,
    ) -> Self {
        Self {
            limits,
            secrets: secret_store.job(step.labels.as_ref().map(|labels| labels.job_id)),
            log: None,
            acknowledged: step.folder.shipped(),
            step,
            unsaved: false,
            concluded: false,
            looked: None,
            rests_until: None,
            window: Window::new(now),
            retry: Retry::new(),
        }
    }

    /// The outcome is written, so the log is complete.
    pub(super) fn conclude(&mut self) {
        self.concluded = true;
        self.rests_until = None;
    }

    /// The number of unanswered calls.
    pub(super) fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// Bytes in memory: the current batch and the unanswered calls.
    pub(super) fn buffered(&self) -> usize {
        self.log.as_ref().map_or(0, LogReader::buffered) + self.window.bytes()
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.retry.problem()
    }

    /// Retries refused calls at once, and counts failures from zero.
    pub(super) fn start_over(&mut self) {
        self.retry.start_over();
        self.rests_until = None;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.retry.failures() >= STUCK
    }

    /// Whether the step has ended, even if this stream has not had its turn yet.
    pub(super) fn has_outcome(&self) -> bool {
        self.concluded || self.step.folder.path().join("outcome.json").exists()
    }

    /// What to do now. A returned call counts as sent under this id.
    pub(super) fn next(&mut self, id: u64, now: Instant) -> Next {
        // Answers to other streams wake the loop often: do not read the disk each time.
        if let Some(time) = self.rests_until.filter(|time| *time > now) {
            return Next::At(time);
        }
        let next = self.decide(id, now);
        self.rests_until = if let Next::At(time) = next { Some(time) } else { None };
        next
    }

    fn decide(&mut self, id: u64, now: Instant) -> Next {
        if !self.window.has_room(if self.retry.problem().is_some() { 1 } else { STREAM_WINDOW }) {
            return Next::Wait;
        }
        if let Some(until) = self.retry.not_before(now) {
            return Next::At(until);
        }
        if !self.look_for_outcome(now) {
            return Next::Gone;
        }
        match self.offer(now) {
            Ok(Offer::Batch { arguments, end }) => {
                let payload = Payload::Lines(end);
                self.window.send(id, payload, arguments.len(), now);
                Next::Send { method: method::ADD_LOGS.to_owned(), arguments, payload }
            }
            Ok(Offer::At(time)) => Next::At(time),
            Ok(Offer::Ended) if !self.window.is_empty() => Next::Wait,
            Ok(Offer::Ended) => self.result(id, now),
            Err(error) => self.retry_later(&format!("failed to read the log: {error}"), now),
        }
    }

    /// Checks for `outcome.json`; false if the folder was removed.
    fn look_for_outcome(&mut self, now: Instant) -> bool {
        if self.concluded || self.looked.is_some_and(|last| now.duration_since(last) < POLL) {
            return true;
        }
        self.looked = Some(now);
        self.concluded = self.has_outcome();
        self.concluded || !self.step.folder.is_gone()
    }

    fn offer(&mut self, now: Instant) -> io::Result<Offer> {
        let Some(labels) = &self.step.labels else {
            return Ok(if self.concluded { Offer::Ended } else { Offer::At(now + POLL) });
        };
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                // Load the secrets that an earlier process recorded before sending anything.
                self.step.folder.recall_secrets(&self.secrets).map_err(io::Error::other)?;
                let (path, secrets) = (self.step.folder.output_path(), self.secrets.clone());
                none.insert(LogReader::open(&path, labels, self.acknowledged, secrets, self.limits.clone()))
            }
        };
        log.offer(self.concluded, now)
    }

    fn result(&mut self, id: u64, now: Instant) -> Next {
        match outcome_call::read(&self.step, self.limits.message_bytes) {
            Ok(call) => {
                if let Some(reason) = call.replaced
                    && self.retry.problem().is_none()
                {
                    let (step, method) = (self.step.folder.name(), &call.method);
                    warn!(step, method, reason, "result replaced");
                }
                self.window.send(id, Payload::Result, call.arguments.len(), now);
                Next::Send { method: call.method, arguments: call.arguments, payload: Payload::Result }
            }
            Err(OutcomeCallError::Missing) => {
                self.concluded = false;
                Next::At(now + POLL)
            }
            Err(OutcomeCallError::Folder(error @ FolderError::Io { .. })) => {
                self.retry_later(&error.to_string(), now)
            }
            Err(error) => Next::GiveUp { reason: error.to_string() },
        }
    }

    fn retry_later(&mut self, problem: &str, now: Instant) -> Next {
        if self.retry.failed(problem, now) {
            warn!(step = self.step.folder.name(), error = problem, "shipping failed, retrying");
        }
        self.retry.not_before(now).map_or(Next::Wait, Next::At)
    }

    /// Handles the answer to a call. An unknown id belongs to a call that was given up.
    pub(super) fn answered(&mut self, id: u64, answer: Result<(), CallError>, now: Instant) -> Reaction {
        let Some(payload) = self.window.answer(id, answer.is_ok(), now) else { return Reaction::Nothing };
        self.rests_until = None;
        let mut reaction = Reaction::Nothing;
        if let Err(error) = answer {
            if error == CallError::Disconnected {
                reaction = Reaction::Disconnected;
            } else if self.retry.failed(&error.to_string(), now) {
                let payload = if payload == Payload::Result { "result" } else { "logs" };
                warn!(step = self.step.folder.name(), payload, %error, "server refused call, retrying");
            }
        }
        if self.settle() { Reaction::Finished } else { reaction }
    }

    /// Moves forward over accepted calls, or back once all calls are answered and one was refused. True once the result
    /// is accepted.
    fn settle(&mut self) -> bool {
        while let Some(payload) = self.window.take_accepted() {
            if let Some(problem) = self.retry.problem() {
                debug!(step = self.step.folder.name(), error = problem, "call accepted after retries");
            }
            self.retry.succeeded();
            let Payload::Lines(end) = payload else { return true };
            self.acknowledged = end;
            self.unsaved = true;
        }
        if self.window.give_up_answered()
            && let Some(log) = &mut self.log
        {
            log.go_to(self.acknowledged);
        }
        false
    }

    /// When to give up the unanswered calls.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.window.deadline()
    }

    /// Gives up calls whose deadline has passed. They are sent again.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.window.expire(now) {
            return;
        }
        let timeout = ANSWER_TIMEOUT;
        warn!(step = self.step.folder.name(), ?timeout, "server did not answer, sending again");
        self.settle();
    }

    /// Saves the acknowledged position.
    pub(super) fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        if let Err(error) = self.step.folder.set_shipped(self.acknowledged) {
            // Harmless: after a restart, more is sent again.
            warn!(step = self.step.folder.name(), %error, "failed to save position");
        }
    }

    /// The disk space of unacknowledged lines.
    pub(super) fn unsent_bytes(&self) -> io::Result<u64> {
        match self.step.labels {
            Some(_) => cap::used(&self.step.folder.output_path(), self.acknowledged.record),
            None => Ok(0),
        }
    }

    /// Drops the oldest unsent lines until `bytes` are dropped or none is left.
    pub(super) fn drop_oldest(&mut self, bytes: u64) -> io::Result<Option<Dropped>> {
        let sent = self.window.sent_up_to().unwrap_or(self.acknowledged);
        let path = self.step.folder.output_path();
        let from = if sent.within == 0 {
            sent.record
        } else {
            // The rest of a partly sent line is still sent.
            let mut reader = RecordReader::new(&path, sent.record);
            let Some(found) = reader.peek(false)? else { return Ok(None) };
            found.next
        };
        let dropped = cap::drop_oldest(&path, from, bytes)?;
        if dropped.is_some()
            && let Some(log) = &mut self.log
        {
            log.go_to(sent);
        }
        Ok(dropped)
    }
}
