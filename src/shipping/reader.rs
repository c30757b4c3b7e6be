//! Reads the log of one step: turns records into batches, and can go back to any earlier position.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use tokio::time::{Duration, Instant};

use super::batch::{BatchLimits, Draft, Pushed};
use super::entry::{EntryWriter, Labels};
use super::line_masking::LineMasker;
use crate::masking::JobSecrets;
use crate::step::{Position, RecordReader};

/// How often to check a running step for more lines.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// What can be sent of the log.
#[derive(Debug)]
pub(super) enum Offer {
    /// The arguments of an `AddLogs` call, and the position after it.
    Batch { arguments: String, end: Position },
    /// Nothing before this time.
    At(Instant),
    /// There will be no more.
    Ended,
}

#[derive(Debug)]
pub(super) struct LogReader {
    limits: BatchLimits,
    entries: EntryWriter,
    records: RecordReader,
    masker: LineMasker,
    next: Position,
    draft: Option<Draft>,
    /// Where the draft begins.
    draft_from: Position,
    pub(super) last_batch: Option<Instant>,
}

impl LogReader {
    pub(super) fn open(
        path: &Path,
        labels: &Labels,
        from: Position,
        secrets: JobSecrets,
        limits: BatchLimits,
    ) -> Self {
        Self {
            entries: EntryWriter::new(labels),
            records: RecordReader::new(path, from.record),
            masker: LineMasker::new(path, secrets, limits.period),
            limits,
            next: from,
            draft: None,
            draft_from: from,
            last_batch: None,
        }
    }

    /// Goes back to an earlier position: everything after it is read again.
    pub(super) fn go_to(&mut self, position: Position) {
        self.records.go_to(position.record);
        self.masker.lose_place();
        self.next = position;
        self.draft = None;
    }

    pub(super) fn buffered(&self) -> usize {
        self.draft.as_ref().map_or(0, Draft::bytes)
    }

    /// The next batch, if it is due. `ended`: all lines have been written.
    pub(super) fn offer(&mut self, ended: bool, now: Instant) -> io::Result<Offer> {
        self.read(ended, now)?;
        let Some(draft) = self.draft.take() else {
            return Ok(if ended { Offer::Ended } else { Offer::At(now + POLL) });
        };
        let due = self.limits.due(&draft, ended, now);
        if due > now {
            self.draft = Some(draft);
            return Ok(Offer::At(due.min(now + POLL)));
        }
        self.last_batch = Some(now);
        Ok(Offer::Batch { arguments: draft.finish(), end: self.next })
    }

    /// Reads until the batch is full, or until there are no more records that can be sent now.
    fn read(&mut self, ended: bool, now: Instant) -> io::Result<()> {
        // New secrets are masked in the current batch too.
        if self.draft.is_some() && self.masker.is_behind() {
            self.go_to(self.draft_from);
        }
        self.masker.prepare(self.next.record)?;
        while let Some(found) = self.records.peek(ended)? {
            if self.draft.as_ref().is_some_and(Draft::is_full) {
                break;
            }
            let Some((masks, since)) = self.masker.look(&found, ended, now)? else { break };
            if self.draft.is_none() {
                self.draft_from = self.next;
                self.entries.set_batch_time(Timestamp::now());
            }
            let after_silence = self.limits.is_silence(self.last_batch, now);
            let draft = self.draft.get_or_insert_with(|| Draft::begin(since, after_silence));
            // After a hole, the record is not the one of the position, and none of it has been sent.
            let within = if self.next.record == found.at { self.next.within } else { 0 };
            match draft.push(&found.record, within, masks, &mut self.entries, &self.limits) {
                Pushed::Whole => {
                    self.masker.pass(found.record.stream);
                    let next = found.next;
                    self.next = Position { record: next, within: 0 };
                    self.records.pass(next);
                }
                Pushed::Part { within } => self.next = Position { record: found.at, within },
                Pushed::Full => break,
            }
        }
        Ok(())
    }
}
