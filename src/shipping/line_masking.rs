//! Finds the parts of each record that are masked before it is sent.
//!
//! Each stream of a step is one text without line breaks, no matter how it is cut into records, entries and batches: a secret
//! that begins in one record and ends in a later one is masked in all of them. A record whose end may be the beginning of a
//! secret therefore waits for the next records of its stream, and all records after it wait too, because lines are sent in
//! order. They wait in the file; memory holds one buffer to look ahead. The wait ends
//! - when the text continues and settles it;
//! - when the step has ended;
//! - after `JobLogStream.PeriodSeconds`;
//! - when [`MOST_AHEAD`] bytes of other streams have been written in the meantime.
//!
//! If it is still unsettled then, a beginning as long as `JobLogStream.RedactMinimumLength` is masked, and a shorter one is
//! not.
//!
//! The text before a position is found by reading back: after a restart, after a disconnect, and when there are new secrets.
//! `output.log` itself is not masked: new secrets apply to everything that was not sent.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::masking::{JobSecrets, Masker, Spans, StreamCursor};
use crate::step::{FoundRecord, RecordReader, RecordRef, Stream};

/// How far ahead to look for the next record of a stream.
const MOST_AHEAD: u64 = 256 * 1024;
/// How far back to look for the beginning of a secret.
const LOOK_BACK: u64 = 1024 * 1024;
/// A record does not wait if less than this of its end looks like the beginning of a secret.
const SHORTEST_OPEN: usize = 4;

/// The masked parts of a record's text, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Masks {
    pub(super) parts: Vec<Range<usize>>,
    /// The first part continues from an earlier record, which has the mask.
    pub(super) continued: bool,
}

/// The state of a stream between two of its records.
#[derive(Debug, Clone, Copy)]
struct Thread {
    place: StreamCursor,
    /// The last byte was masked.
    masked: bool,
}

/// A record whose masks are known.
#[derive(Debug)]
struct InspectedLine {
    at: u64,
    /// When it was first inspected: it may have waited since.
    since: Instant,
    masks: Masks,
    after: Thread,
}

/// A record whose end is not settled yet.
#[derive(Debug)]
struct WaitingLine {
    at: u64,
    since: Instant,
    place: StreamCursor,
    /// How many bytes of the stream were seen after the record.
    seen: usize,
    /// Where the masked end of the record begins; negative if in an earlier record.
    from: Option<isize>,
}

#[derive(Debug)]
pub(super) struct LineMasker {
    path: PathBuf,
    secrets: JobSecrets,
    period: Duration,
    masker: Arc<Masker>,
    /// None if it has to be found by reading back.
    threads: Option<[Thread; 5]>,
    inspected: Option<InspectedLine>,
    waiting: Option<WaitingLine>,
    /// Reads the records after the waiting one.
    reader_ahead: RecordReader,
    /// Buffers for the matches in the record and in the records after it.
    spans: Spans,
    spans_ahead: Spans,
}

impl LineMasker {
    pub(super) fn new(path: &Path, secrets: JobSecrets, period: Duration) -> Self {
        Self {
            path: path.to_owned(),
            masker: secrets.masker(),
            secrets,
            period,
            threads: None,
            inspected: None,
            waiting: None,
            reader_ahead: RecordReader::new(path, 0),
            spans: Spans::default(),
            spans_ahead: Spans::default(),
        }
    }

    /// The next record need not be the one after the last.
    pub(super) fn lose_place(&mut self) {
        (self.threads, self.inspected, self.waiting) = (None, None, None);
    }

    /// Whether there are secrets that were learned since [`Self::prepare`].
    pub(super) fn is_behind(&self) -> bool {
        !Arc::ptr_eq(&self.secrets.masker(), &self.masker)
    }

    /// Applies new secrets; `next` is the start of the next record.
    pub(super) fn prepare(&mut self, next: u64) -> io::Result<()> {
        let mut before = None;
        if self.is_behind() {
            self.masker = self.secrets.masker();
            before = self.threads;
            self.lose_place();
        }
        if self.threads.is_none() {
            let mut threads = self.read_back(next)?;
            // Text that was sent before a secret was learned was not masked.
            for (thread, before) in threads.iter_mut().zip(before.iter().flatten()) {
                thread.masked = before.masked;
            }
            self.threads = Some(threads);
        }
        Ok(())
    }

    fn start(&self) -> Thread {
        Thread { place: self.masker.start(), masked: false }
    }

    fn read_back(&mut self, next: u64) -> io::Result<[Thread; 5]> {
        let mut threads = [self.start(); 5];
        if next == 0 || !self.masker.goes_on() {
            return Ok(threads);
        }
        let from = next.saturating_sub(LOOK_BACK);
        let mut reader = RecordReader::new(&self.path, from);
        // In the middle of the file, the first record may be incomplete.
        let mut whole = from == 0;
        while let Some(FoundRecord { record, at, next: after }) = reader.peek(false)? {
            if at >= next {
                break;
            }
            // An empty record changes nothing.
            if whole && !record.text.is_empty() {
                let thread = &mut threads[record.stream as usize];
                self.spans.clear();
                thread.place = self.masker.follow(thread.place, record.text, &mut self.spans);
                // A record that waited was most likely masked when it was sent.
                thread.masked = is_open(self.masker.open(thread.place), record.continues)
                    || ends_masked(&self.spans, record.text, thread.masked);
            }
            whole = true;
            reader.pass(after);
        }
        Ok(threads)
    }

    /// The masks of a record, and since when it has waited; or None if it has to wait. `ended`: nothing more will be
    /// written.
    pub(super) fn look(
        &mut self,
        found: &FoundRecord<'_>,
        ended: bool,
        now: Instant,
    ) -> io::Result<Option<(&Masks, Instant)>> {
        if self.inspected.as_ref().is_none_or(|inspected| inspected.at != found.at) {
            let Some(inspected) = self.inspect(found, ended, now)? else { return Ok(None) };
            self.inspected = Some(inspected);
            self.waiting = None;
        }
        Ok(self.inspected.as_ref().map(|inspected| (&inspected.masks, inspected.since)))
    }

    /// Moves past the inspected record.
    pub(super) fn pass(&mut self, stream: Stream) {
        if let (Some(threads), Some(inspected)) = (&mut self.threads, self.inspected.take()) {
            threads[stream as usize] = inspected.after;
        }
    }

    fn inspect(
        &mut self,
        found: &FoundRecord<'_>,
        ended: bool,
        now: Instant,
    ) -> io::Result<Option<InspectedLine>> {
        let record = &found.record;
        let before = self.threads.as_ref().map_or_else(|| self.start(), |it| it[record.stream as usize]);
        self.spans.clear();
        let place = self.masker.follow(before.place, record.text, &mut self.spans);
        let is_open = is_open(self.masker.open(place), record.continues);
        if is_open && !self.settle_end(found, place, ended, now)? {
            return Ok(None);
        }
        self.masker.patterns(record.text, &mut self.spans);
        let continued = before.masked && self.spans.as_slice().first().is_some_and(|span| span.start < 0);
        let clipped =
            |span: &Range<isize>| span.start.max(0).cast_unsigned()..span.end.max(0).cast_unsigned();
        let parts = self.spans.as_slice().iter().map(clipped).filter(|part| !part.is_empty());
        let masks = Masks { parts: parts.collect(), continued };
        let after = Thread { place, masked: ends_masked(&self.spans, record.text, before.masked) };
        let since = self.waiting.as_ref().map_or(now, |waiting| waiting.since);
        Ok(Some(InspectedLine { at: found.at, since, masks, after }))
    }

    /// Looks ahead whether the end of a record belongs to a secret, and if so, masks it. False if the record has to wait.
    fn settle_end(
        &mut self,
        found: &FoundRecord<'_>,
        place: StreamCursor,
        ended: bool,
        now: Instant,
    ) -> io::Result<bool> {
        let RecordRef { stream, text, .. } = found.record;
        let length = text.len().cast_signed();
        if self.waiting.as_ref().is_none_or(|waiting| waiting.at != found.at) {
            self.reader_ahead.go_to(found.next);
            self.waiting = None;
        }
        let new = || WaitingLine { at: found.at, since: now, place, seen: 0, from: None };
        let waiting = self.waiting.get_or_insert_with(new);
        let is_settled = loop {
            // While the beginning of a secret reaches back into the record, more of it may have to be masked.
            if self.masker.open(waiting.place) <= waiting.seen {
                break true;
            }
            let Some(FoundRecord { record, next, .. }) = self.reader_ahead.peek(ended)? else { break ended };
            if record.stream == stream {
                self.spans_ahead.clear();
                waiting.place = self.masker.follow(waiting.place, record.text, &mut self.spans_ahead);
                let seen = waiting.seen.cast_signed();
                if let Some(first) = self.spans_ahead.as_slice().first().filter(|span| span.start + seen < 0)
                {
                    let from = length + seen + first.start;
                    waiting.from = Some(waiting.from.map_or(from, |earlier| earlier.min(from)));
                }
                waiting.seen += record.text.len();
            }
            self.reader_ahead.pass(next);
            if next > found.next + MOST_AHEAD {
                break true;
            }
        };
        if !is_settled && now < waiting.since + self.period {
            return Ok(false);
        }
        // Whatever still reaches back may or may not be a secret.
        let open = self.masker.open(waiting.place);
        let unsettled = (open > waiting.seen && open >= self.masker.minimum_length())
            .then(|| length - (open - waiting.seen).cast_signed());
        if let Some(from) = waiting.from.into_iter().chain(unsettled).min() {
            self.spans.add(from..length);
        }
        Ok(true)
    }
}

/// Whether a text whose last bytes are the beginning of a secret has to wait.
fn is_open(bytes: usize, continues: bool) -> bool {
    bytes >= if continues { 1 } else { SHORTEST_OPEN }
}

/// Whether the last byte of the stream is masked, after this text.
fn ends_masked(spans: &Spans, text: &[u8], before: bool) -> bool {
    if text.is_empty() {
        return before;
    }
    spans.as_slice().last().is_some_and(|span| span.end == text.len().cast_signed())
}

#[cfg(test)]
mod tests;
