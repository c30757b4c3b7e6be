//! The calls of one step that are on their way: sent, and not yet both answered and taken into account.
//!
//! Acknowledgements count in the order of the calls: one that was accepted behind one that was refused is sent again,
//! since the server must have the lines in order (it then has that batch twice).

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use super::reader::Mark;

/// A server that has answered nothing of a step for so long has forgotten about it.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a call carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// Lines up to this place, which is acknowledged with the call.
    Lines(Mark),
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
    cargo: Payload,
    bytes: usize,
    state: State,
}

#[derive(Debug)]
pub(super) struct Window {
    sent: VecDeque<Sent>,
    /// The last time that the server showed it knows of these calls.
    progress: Instant,
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { sent: VecDeque::new(), progress: now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether one more call may be made when so many may be on their way. None is while one has failed: what comes behind it
    /// would be sent again.
    pub(super) fn has_room(&self, size: usize) -> bool {
        self.sent.len() < size && self.sent.iter().all(|sent| sent.state != State::Failed)
    }

    /// Calls that wait for their answer.
    pub(super) fn in_flight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.state == State::Waiting).count()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sent.iter().map(|sent| sent.bytes).sum()
    }

    /// How far lines are on their way.
    pub(super) fn sent_up_to(&self) -> Option<Mark> {
        self.sent.iter().rev().find_map(|sent| match sent.cargo {
            Payload::Lines(end) => Some(end),
            Payload::Result => None,
        })
    }

    pub(super) fn send(&mut self, id: u64, cargo: Payload, bytes: usize, now: Instant) {
        if self.sent.is_empty() {
            self.progress = now;
        }
        self.sent.push_back(Sent { id, cargo, bytes, state: State::Waiting });
    }

    /// Takes the answer of a call and returns what it carried; None when it was given up before.
    pub(super) fn answer(&mut self, id: u64, accepted: bool, now: Instant) -> Option<Payload> {
        let sent = self.sent.iter_mut().find(|sent| sent.id == id)?;
        self.progress = now;
        sent.state = if accepted { State::Accepted } else { State::Failed };
        Some(sent.cargo)
    }

    /// Takes out the oldest call if it was accepted.
    pub(super) fn take_accepted(&mut self) -> Option<Payload> {
        self.sent.pop_front_if(|sent| sent.state == State::Accepted).map(|sent| sent.cargo)
    }

    /// Gives up what is left when all of it is answered: the oldest was not accepted. True when there was anything.
    pub(super) fn give_up_answered(&mut self) -> bool {
        let is_over = !self.sent.is_empty() && self.in_flight() == 0;
        if is_over {
            self.sent.clear();
        }
        is_over
    }

    /// When the calls that wait are to be given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.in_flight() > 0).then(|| self.progress + ANSWER_TIMEOUT)
    }

    /// Counts calls whose deadline has passed as failed. True when there are any.
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
