//! The log of one step on its way out: reads records, makes batches, can go back to any place it has passed.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use super::batch::{BatchLimits, Draft, Pushed};
use super::entry::{Labels, Template, Times};
use super::line_masking::{LineMasker, Masks};
use super::tail::LogTail;
use super::utf8_carry::Utf8Carry;
use crate::step::{Position, RecordRef};

/// How often a step that has not ended is looked at for more lines.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How far back a restarted runner looks for the first half of a character.
const LOOK_BACK: u64 = 1024 * 1024;

/// A place between two entries: where to read on, and what of the bytes before it is still to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) position: Position,
    pub(super) carry: Utf8Carry,
}

impl Mark {
    /// The place that `shipped` names. Halves of characters are not noted there and are looked for in the file.
    pub(super) fn at(path: &Path, position: Position) -> io::Result<Self> {
        let mut carry = Utf8Carry::default();
        let from = position.record.saturating_sub(LOOK_BACK);
        if position != Position::default() {
            let mut tail = LogTail::new(path.to_owned(), from);
            while let Some(found) = tail.peek(false)? {
                if found.at >= position.record {
                    if position.within > 0 {
                        carry.set(found.record.stream, &[]);
                    }
                    break;
                }
                carry.follow(&found.record);
                let next = found.next;
                tail.pass(next);
            }
        }
        Ok(Self { position, carry })
    }
}

/// What the log has to offer.
#[derive(Debug)]
pub(super) enum Offer {
    /// The arguments of an `AddLogs` call, and the place behind it.
    Batch { arguments: String, end: Mark },
    /// Nothing before this time.
    At(Instant),
    /// There will be no more.
    Ended,
}

#[derive(Debug)]
pub(super) struct LogReader {
    template: Template,
    times: Times,
    tail: LogTail,
    veil: LineMasker,
    next: Mark,
    draft: Option<Draft>,
    /// Where the draft begins.
    draft_from: Mark,
}

impl LogReader {
    pub(super) fn open(path: &Path, labels: &Labels, from: Mark, veil: LineMasker) -> Self {
        Self {
            template: Template::new(labels),
            times: Times::new(),
            tail: LogTail::new(path.to_owned(), from.position.record),
            veil,
            next: from,
            draft: None,
            draft_from: from,
        }
    }

    /// Goes back to a place: what was read since is read again.
    pub(super) fn go_to(&mut self, mark: Mark) {
        self.tail.go_to(mark.position.record);
        self.veil.lose_place();
        self.next = mark;
        self.draft = None;
    }

    pub(super) fn buffered(&self) -> usize {
        self.draft.as_ref().map_or(0, Draft::bytes)
    }

    /// The next batch, if it is time for one. `ended`: all lines have been written.
    pub(super) fn offer(
        &mut self,
        policy: &BatchLimits,
        ended: bool,
        after_silence: bool,
        now: Instant,
    ) -> io::Result<Offer> {
        let exhausted = !self.read(policy, ended, after_silence, now)?;
        let Some(draft) = self.draft.take_if(|draft| !draft.is_empty()) else {
            return Ok(if ended { Offer::Ended } else { Offer::At(now + POLL) });
        };
        let due = policy.due(&draft, ended && exhausted, now);
        if due > now {
            self.draft = Some(draft);
            return Ok(Offer::At(due.min(now + POLL)));
        }
        Ok(Offer::Batch { arguments: draft.finish(), end: self.next })
    }

    /// Reads until the batch is full (true) or there are no more records that may go now.
    fn read(
        &mut self,
        policy: &BatchLimits,
        ended: bool,
        after_silence: bool,
        now: Instant,
    ) -> io::Result<bool> {
        // What has been learnt counts for the batch in the making, too: it is made again.
        if self.draft.is_some() && self.veil.is_behind() {
            self.go_to(self.draft_from);
        }
        self.veil.prepare(self.next.position.record)?;
        while let Some(found) = self.tail.peek(ended)? {
            if self.draft.as_ref().is_some_and(Draft::is_full) {
                return Ok(true);
            }
            let Some((masks, since)) = self.veil.look(&found, ended, now)? else { return Ok(false) };
            if self.draft.is_none() {
                self.draft_from = self.next;
            }
            let begin = || Draft::begin(since, Timestamp::now(), after_silence, &mut self.times);
            let draft = self.draft.get_or_insert_with(begin);
            // Behind a hole the position is that of the record found, and none of it has been sent.
            let at = self.next.position;
            let within = if at.record == found.at { at.within } else { 0 };
            let carry = &mut self.next.carry;
            match draft.push(&found.record, within, masks, carry, &self.template, &mut self.times, policy) {
                Pushed::Whole => {
                    self.veil.pass(found.record.stream);
                    let next = found.next;
                    self.next.position = Position { record: next, within: 0 };
                    self.tail.pass(next);
                }
                Pushed::Part { within } => {
                    self.next.position = Position { record: found.at, within };
                }
                Pushed::Full => return Ok(true),
            }
        }
        if ended {
            return Ok(!self.flush_carry(policy, after_silence, now));
        }
        Ok(self.draft.as_ref().is_some_and(Draft::is_full))
    }

    /// A line that goes on but never did, because its writer was killed: what is held back of it is no character
    /// and will not become one. False when the batch has no room left.
    fn flush_carry(&mut self, policy: &BatchLimits, after_silence: bool, now: Instant) -> bool {
        for stream in self.next.carry.streams() {
            let micros = Timestamp::now().as_microsecond();
            let record = RecordRef { micros, stream, text: b"", continues: false };
            if self.draft.is_none() {
                self.draft_from = self.next;
            }
            let begin = || Draft::begin(now, Timestamp::now(), after_silence, &mut self.times);
            let draft = self.draft.get_or_insert_with(begin);
            let carry = &mut self.next.carry;
            let masks = Masks::default();
            let pushed = draft.push(&record, 0, &masks, carry, &self.template, &mut self.times, policy);
            if pushed != Pushed::Whole {
                return false;
            }
        }
        true
    }
}
