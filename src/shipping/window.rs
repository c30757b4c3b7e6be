//! The calls of one step in flight: sent, and not yet both answered and processed.
//!
//! Acknowledgements are processed in the order of the calls. A batch that was accepted after a refused one is sent again,
//! because the server must get the lines in order. The server then has that batch twice: lines are delivered at least once.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use crate::step::Position;

/// After this long without any answer for a step, its calls count as lost.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The content of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// Lines up to this position, which is acknowledged with the call.
    Lines(Position),
    Result,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Accepted,
    Failed,
}

#[derive(Debug)]
struct Sent {
    id: u64,
    payload: Payload,
    bytes: usize,
    state: State,
}

#[derive(Debug)]
pub(super) struct Window {
    sent: VecDeque<Sent>,
    /// The time of the last answer, or of the first call.
    progress: Instant,
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { sent: VecDeque::new(), progress: now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether another call may be sent, with at most `size` calls in flight. Not after a failed call: later calls would be
    /// sent again.
    pub(super) fn has_room(&self, size: usize) -> bool {
        self.sent.len() < size && self.sent.iter().all(|sent| sent.state != State::Failed)
    }

    /// The number of unanswered calls.
    pub(super) fn in_flight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.state == State::Waiting).count()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sent.iter().map(|sent| sent.bytes).sum()
    }

    /// The position up to which lines were sent.
    pub(super) fn sent_up_to(&self) -> Option<Position> {
        self.sent.iter().rev().find_map(|sent| match sent.payload {
            Payload::Lines(end) => Some(end),
            Payload::Result => None,
        })
    }

    pub(super) fn send(&mut self, id: u64, payload: Payload, bytes: usize, now: Instant) {
        if self.sent.is_empty() {
            self.progress = now;
        }
        self.sent.push_back(Sent { id, payload, bytes, state: State::Waiting });
    }

    /// Records the answer to a call and returns its payload; None if the call was given up before.
    pub(super) fn answer(&mut self, id: u64, accepted: bool, now: Instant) -> Option<Payload> {
        let sent = self.sent.iter_mut().find(|sent| sent.id == id)?;
        self.progress = now;
        sent.state = if accepted { State::Accepted } else { State::Failed };
        Some(sent.payload)
    }

    /// Removes the oldest call if it was accepted.
    pub(super) fn take_accepted(&mut self) -> Option<Payload> {
        self.sent.pop_front_if(|sent| sent.state == State::Accepted).map(|sent| sent.payload)
    }

    /// Gives up the remaining calls once all are answered: the oldest was refused. True if there were any.
    pub(super) fn give_up_answered(&mut self) -> bool {
        let is_over = !self.sent.is_empty() && self.in_flight() == 0;
        if is_over {
            self.sent.clear();
        }
        is_over
    }

    /// When to give up the unanswered calls.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.in_flight() > 0).then(|| self.progress + ANSWER_TIMEOUT)
    }

    /// Marks unanswered calls as failed once their deadline has passed. True if there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_late = self.deadline().is_some_and(|deadline| deadline <= now);
        if is_late {
            for sent in self.sent.iter_mut().filter(|sent| sent.state == State::Waiting) {
                sent.state = State::Failed;
            }
        }
        is_late
    }
}
