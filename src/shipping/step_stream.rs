//! One step on its way to the server: what was sent, what was acknowledged, and what comes next.
//!
//! ```text
//!            next() → Send                  all calls answered, one of them badly
//!   reading ───────────────→ waiting ───────────────────────────────────────→ back to the acknowledged place
//!      ↑                        │ acknowledged, in order
//!      └────────────────────────┘ … until the log has ended → the result → finished
//! ```
//!
//! What is on its way stands in [`window`](super::window). After a refusal one call at a time is made until one is accepted, so
//! that what was accepted behind it is sent twice once, and not with every attempt.

use std::io;

use hawser_contract::names::method;
use hawser_signalr::CallError;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{info, warn};

use super::batch::BatchLimits;
use super::cap::{self, Dropped};
use super::entry::Labels;
use super::line_masking::LineMasker;
use super::outcome_call::{self, OutcomeCallError};
use super::reader::{LogReader, Mark, Offer, POLL};
use super::window::{ANSWER_TIMEOUT, Payload, Window};
use crate::base::retry::Retry;
use crate::masking::{JobSecrets, SecretStore};
use crate::step::{FolderError, Step, StepFolder, StepWork};

/// Calls of one step that may be unacknowledged: enough to hide the way to the server and back.
const LANE_WINDOW: usize = 4;

/// What was refused so often in a row is not taken for a moment's trouble. With the delays in between this takes some ten
/// seconds.
const STUCK: u32 = 5;

/// A step whose log and result are to be sent.
#[derive(Debug, Clone)]
pub struct ShippedStep {
    pub folder: StepFolder,
    /// None for a source refresh, which belongs to no job and has no log on the server.
    pub labels: Option<Labels>,
    /// Order of arrival: steps of one job go in this order, each completely before the next.
    pub sequence: u64,
}

impl ShippedStep {
    pub fn of(step: &Step) -> Self {
        let labels = match &step.work {
            StepWork::Task(request) => Some(Labels::of(&request.common, request.task.task())),
            StepWork::Refresh(_) => None,
        };
        Self { folder: step.folder.clone(), sequence: step.sequence, labels }
    }
}

/// What a lane wants to do.
#[derive(Debug)]
pub(super) enum Next {
    Send {
        method: String,
        arguments: String,
    },
    /// Nothing before this time.
    At(Instant),
    /// Nothing before an answer or a nudge.
    Wait,
    /// The folder is no longer there: an earlier lane, or a person, was done with it.
    Gone,
    /// The step cannot be finished: it is to be put aside for a person to look at.
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
    /// Whoever waits for the step to be shipped.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// What the step must not say.
    secrets: JobSecrets,
    log: Option<LogReader>,
    acknowledged: Mark,
    unsaved: bool,
    concluded: bool,
    looked: Option<Instant>,
    /// There is nothing to do before this time, unless something happens to the lane.
    rests_until: Option<Instant>,
    window: Window,
    last_sent: Option<Instant>,
    retry: Retry,
}

impl StepStream {
    pub(super) fn new(step: ShippedStep, secret_store: &SecretStore, now: Instant) -> Self {
        let position = step.folder.shipped();
        let acknowledged = Mark::at(&step.folder.output_path(), position).unwrap_or_else(|error| {
            warn!(step = step.folder.name(), "cannot look back in output.log: {error}");
            Mark { position, ..Mark::default() }
        });
        Self {
            secrets: secret_store.job(step.labels.as_ref().map(|labels| labels.job_id)),
            step,
            waiting: Vec::new(),
            log: None,
            acknowledged,
            unsaved: false,
            concluded: false,
            looked: None,
            rests_until: None,
            window: Window::new(now),
            last_sent: None,
            retry: Retry::new(),
        }
    }

    /// The outcome is written, so the log will not grow any more.
    pub(super) fn conclude(&mut self) {
        self.concluded = true;
        self.rests_until = None;
    }

    /// Calls that wait for their answer.
    pub(super) fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// Bytes in memory: the batch in the making and the calls that are not answered.
    pub(super) fn buffered(&self) -> usize {
        self.log.as_ref().map_or(0, LogReader::buffered) + self.window.bytes()
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.retry.problem()
    }

    /// Whatever was refused is tried at once, and counted from now on.
    pub(super) fn start_over(&mut self) {
        self.retry.start_over();
        self.rests_until = None;
    }

    /// Whether it goes wrong again and again.
    pub(super) fn is_stuck(&self) -> bool {
        self.retry.failures() >= STUCK
    }

    /// Whether the step has ended, for a lane that may not have had its turn yet.
    pub(super) fn has_outcome(&self) -> bool {
        self.concluded || self.step.folder.path().join("outcome.json").exists()
    }

    /// What to do now. A call that is handed out counts as sent, under this id.
    pub(super) fn next(
        &mut self,
        id: u64,
        policy: &BatchLimits,
        max_message_bytes: usize,
        now: Instant,
    ) -> Next {
        // Others' answers wake the loop too, and a flood makes many: the disk is not asked each time.
        if let Some(time) = self.rests_until.filter(|time| *time > now) {
            return Next::At(time);
        }
        let next = self.decide(id, policy, max_message_bytes, now);
        self.rests_until = if let Next::At(time) = next { Some(time) } else { None };
        next
    }

    fn decide(&mut self, id: u64, policy: &BatchLimits, max_message_bytes: usize, now: Instant) -> Next {
        if !self.window.has_room(if self.retry.problem().is_some() { 1 } else { LANE_WINDOW }) {
            return Next::Wait;
        }
        if let Some(until) = self.retry.not_before(now) {
            return Next::At(until);
        }
        if !self.look_for_outcome(now) {
            return Next::Gone;
        }
        match self.offer(policy, now) {
            Ok(Offer::Batch { arguments, end }) => {
                self.last_sent = Some(now);
                self.window.send(id, Payload::Lines(end), arguments.len(), now);
                Next::Send { method: method::ADD_LOGS.to_owned(), arguments }
            }
            Ok(Offer::At(time)) => Next::At(time),
            Ok(Offer::Ended) if !self.window.is_empty() => Next::Wait,
            Ok(Offer::Ended) => self.result(id, max_message_bytes, now),
            Err(error) => self.stumble(&format!("its log cannot be read: {error}"), now),
        }
    }

    /// Looks whether the outcome has been written; false when somebody has removed the folder.
    fn look_for_outcome(&mut self, now: Instant) -> bool {
        if self.concluded || self.looked.is_some_and(|last| now.duration_since(last) < POLL) {
            return true;
        }
        self.looked = Some(now);
        self.concluded = self.has_outcome();
        self.concluded || !self.step.folder.is_gone()
    }

    fn offer(&mut self, policy: &BatchLimits, now: Instant) -> io::Result<Offer> {
        let Some(labels) = &self.step.labels else {
            return Ok(if self.concluded { Offer::Ended } else { Offer::At(now + POLL) });
        };
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                // Nothing is sent before the secrets are known that an earlier run has noted in the folder.
                self.step.folder.recall_secrets(&self.secrets).map_err(io::Error::other)?;
                let path = self.step.folder.output_path();
                let veil = LineMasker::new(&path, self.secrets.clone(), policy.period());
                none.insert(LogReader::open(&path, labels, self.acknowledged, veil))
            }
        };
        let silence = policy.is_silence(self.last_sent, now);
        log.offer(policy, self.concluded, silence, now)
    }

    fn result(&mut self, id: u64, max_message_bytes: usize, now: Instant) -> Next {
        match outcome_call::parcel(&self.step.folder, self.step.labels.as_ref(), max_message_bytes) {
            Ok(parcel) => {
                if let Some(reason) = parcel.replaced
                    && self.retry.problem().is_none()
                {
                    warn!(
                        step = self.step.folder.name(),
                        "sent {} instead of the result: {reason}", parcel.method
                    );
                }
                self.window.send(id, Payload::Result, parcel.arguments.len(), now);
                Next::Send { method: parcel.method, arguments: parcel.arguments }
            }
            // The nudge was early; the file will come.
            Err(OutcomeCallError::Missing) => {
                self.concluded = false;
                Next::At(now + POLL)
            }
            Err(OutcomeCallError::Folder(error @ FolderError::Io { .. })) => {
                self.stumble(&error.to_string(), now)
            }
            Err(error) => Next::GiveUp { reason: error.to_string() },
        }
    }

    fn stumble(&mut self, problem: &str, now: Instant) -> Next {
        if self.retry.failed(problem, now) {
            warn!(step = self.step.folder.name(), "{problem}; trying again until it works");
        }
        self.retry.not_before(now).map_or(Next::Wait, Next::At)
    }

    /// Takes the answer of a call. An id that is not known any more was given up before.
    pub(super) fn answered(&mut self, id: u64, answer: Result<(), CallError>, now: Instant) -> Reaction {
        let Some(cargo) = self.window.answer(id, answer.is_ok(), now) else { return Reaction::Nothing };
        self.rests_until = None;
        let mut reaction = Reaction::Nothing;
        if let Err(error) = answer {
            if error == CallError::Disconnected {
                reaction = Reaction::Disconnected;
            } else if self.retry.failed(&error.to_string(), now) {
                let what = if cargo == Payload::Result { "the result" } else { "log lines" };
                warn!(step = self.step.folder.name(), "{what}: {error}; sending again until it is accepted");
            }
        }
        if self.settle() { Reaction::Finished } else { reaction }
    }

    /// Moves on over what was accepted, or back when all is answered and not all was accepted. True when the
    /// result was accepted.
    fn settle(&mut self) -> bool {
        while let Some(cargo) = self.window.take_accepted() {
            if let Some(problem) = self.retry.problem() {
                info!(step = self.step.folder.name(), "accepted after all, after: {problem}");
            }
            self.retry.succeeded();
            let Payload::Lines(end) = cargo else { return true };
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

    /// When the calls that wait are to be given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.window.deadline()
    }

    /// Gives calls up whose deadline has passed: they are sent again.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.window.expire(now) {
            return;
        }
        warn!(
            step = self.step.folder.name(),
            "the server has not answered for {} s; sending again",
            ANSWER_TIMEOUT.as_secs()
        );
        self.settle();
    }

    /// Notes on disk how far the server has acknowledged.
    pub(super) fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        if let Err(error) = self.step.folder.set_shipped(self.acknowledged.position) {
            // Nothing is lost by this: after a restart more is sent again.
            warn!(step = self.step.folder.name(), "{error}");
        }
    }

    /// Disk that lines take which are not acknowledged.
    pub(super) fn unsent_bytes(&self) -> io::Result<u64> {
        match self.step.labels {
            Some(_) => cap::used(&self.step.folder.output_path(), self.acknowledged.position.record),
            None => Ok(0),
        }
    }

    /// Gives up the oldest lines that were not sent, at least so many bytes of them if there are so many.
    pub(super) fn give_way(&mut self, bytes: u64) -> io::Result<Option<Dropped>> {
        let mark = self.window.sent_up_to().unwrap_or(self.acknowledged);
        let path = self.step.folder.output_path();
        let from = if mark.position.within == 0 {
            mark.position.record
        } else {
            // The rest of a line that has been sent in part still goes.
            let mut tail = super::tail::LogTail::new(path.clone(), mark.position.record);
            let Some(found) = tail.peek(false)? else { return Ok(None) };
            found.next
        };
        let dropped = cap::drop_oldest(&path, from, bytes)?;
        if dropped.is_some()
            && let Some(log) = &mut self.log
        {
            log.go_to(mark);
        }
        Ok(dropped)
    }
}
