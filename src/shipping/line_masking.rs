//! What of each record is masked before it leaves.
//!
//! Each stream of a step is one text without line breaks, whatever the records, entries and batches that it is cut into:
//! a secret that begins in one record and ends in a later one is masked in all of them. A record whose end may be
//! the beginning of a secret therefore waits for the next records of its stream, and all behind it wait with it, since
//! lines go in order. It waits in the file: what is in memory is one buffer to look ahead with. The wait ends
//! - when the text goes on, so that it is known;
//! - when the step has ended;
//! - after `JobLogStream.PeriodSeconds`;
//! - when [`MOST_AHEAD`] bytes of other streams have been written meanwhile.
//!
//! Without knowing, a beginning as long as `JobLogStream.RedactMinimumLength` is masked, and a shorter one is not.
//!
//! What a place in the file has before it is found again by reading back: after a restart, after a cut and when new
//! secrets are known. `output.log` itself is not masked: what is learnt later counts for all that was not sent.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::entry::Masked;
use super::tail::{LogTail, TailRecord};
use crate::masking::{JobSecrets, Masker, Spans, StreamCursor};
use crate::step::{RecordRef, Stream};

/// How far ahead the next record of a stream is looked for.
const MOST_AHEAD: u64 = 256 * 1024;
/// How far back the beginning of a secret is looked for.
const LOOK_BACK: u64 = 1024 * 1024;
/// The end of a line that looks like the beginning of a secret, but is shorter than this, is no reason to wait.
const SHORTEST_OPEN: usize = 4;

/// The parts of a record's text that are masked, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Masks {
    pub(super) parts: Vec<Range<usize>>,
    /// The first part goes on from an earlier record, which has the mask.
    pub(super) continued: bool,
}

impl Masks {
    /// The masks of what is left of the text from byte `start` on, when `held` bytes are put before it.
    pub(super) fn within(&self, start: usize, held: usize) -> Vec<Masked> {
        let left = self.parts.iter().enumerate().filter(|(_, part)| part.end > start);
        left.map(|(index, part)| Masked {
            part: part.start.max(start) - start + held..part.end - start + held,
            // What began before `start` was not masked when that was sent: it has been learnt since.
            shown: !(self.continued && index == 0) || start > 0,
        })
        .collect()
    }
}

/// What is known of a stream at a place between two of its records.
#[derive(Debug, Clone, Copy)]
struct Thread {
    place: StreamCursor,
    /// The last byte was masked.
    masked: bool,
}

/// A record that has been looked at.
#[derive(Debug)]
struct InspectedLine {
    at: u64,
    /// When it was looked at first: it may have waited since.
    since: Instant,
    masks: Masks,
    after: Thread,
}

/// A record whose end is not known yet.
#[derive(Debug)]
struct WaitingLine {
    at: u64,
    since: Instant,
    tail: LogTail,
    place: StreamCursor,
    /// How many bytes of the stream were seen behind the record.
    seen: usize,
    /// From where on the end of the record is known to be masked; less than 0 if an earlier record has the beginning.
    from: Option<isize>,
}

/// What is to be done with the end of a record.
#[derive(Debug)]
enum End {
    Unknown,
    Clear,
    Masked { from: isize },
}

#[derive(Debug)]
pub(super) struct LineMasker {
    path: PathBuf,
    secrets: JobSecrets,
    period: Duration,
    masker: Arc<Masker>,
    /// None when it has to be found by reading back.
    threads: Option<[Thread; 5]>,
    looked: Option<InspectedLine>,
    waiting: Option<WaitingLine>,
    /// What the last record that waited was looked ahead with.
    spare: Option<LogTail>,
    /// Room to work in, for the record and for what comes behind it.
    spans: Spans,
    ahead: Spans,
}

impl LineMasker {
    pub(super) fn new(path: &Path, secrets: JobSecrets, period: Duration) -> Self {
        Self {
            path: path.to_owned(),
            masker: secrets.masker(),
            secrets,
            period,
            threads: None,
            looked: None,
            waiting: None,
            spare: None,
            spans: Spans::default(),
            ahead: Spans::default(),
        }
    }

    /// The next record may be any other than the one behind the last.
    pub(super) fn lose_place(&mut self) {
        (self.threads, self.looked) = (None, None);
        self.stop_waiting();
    }

    fn stop_waiting(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.spare = Some(waiting.tail);
        }
    }

    /// Whether more has been learnt than was taken up.
    pub(super) fn is_behind(&self) -> bool {
        !Arc::ptr_eq(&self.secrets.masker(), &self.masker)
    }

    /// Takes up what has been learnt; `next` is the start of the next record.
    pub(super) fn prepare(&mut self, next: u64) -> io::Result<()> {
        let masker = self.secrets.masker();
        let mut before = None;
        if !Arc::ptr_eq(&masker, &self.masker) {
            self.masker = masker;
            before = self.threads;
            self.lose_place();
        }
        if self.threads.is_none() {
            let mut threads = self.read_back(next)?;
            // What was sent before something was learnt was not masked by it.
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

    fn thread(&self, stream: Stream) -> Thread {
        self.threads.as_ref().map_or_else(|| self.start(), |threads| threads[stream as usize])
    }

    fn read_back(&mut self, next: u64) -> io::Result<[Thread; 5]> {
        let mut threads = [self.start(); 5];
        if next == 0 || !self.masker.goes_on() {
            return Ok(threads);
        }
        let from = next.saturating_sub(LOOK_BACK);
        let mut tail = LogTail::new(self.path.clone(), from);
        // In the middle of the file the first is half a record.
        let mut whole = from == 0;
        while let Some(TailRecord { record, at, next: behind }) = tail.peek(false)? {
            if at >= next {
                break;
            }
            // An empty record changes nothing.
            if whole && !record.text.is_empty() {
                let thread = &mut threads[record.stream as usize];
                self.spans.clear();
                thread.place = self.masker.follow(thread.place, record.text, &mut self.spans);
                // What waited was masked when it went on, most likely.
                thread.masked = is_open(self.masker.open(thread.place), record.continues)
                    || ends_masked(&self.spans, record.text, thread.masked);
            }
            whole = true;
            tail.pass(behind);
        }
        Ok(threads)
    }

    /// What of a record is masked, and since when it has waited; or None when it has to wait. `ended`: nothing will be
    /// written any more.
    pub(super) fn look(
        &mut self,
        found: &TailRecord<'_>,
        ended: bool,
        now: Instant,
    ) -> io::Result<Option<(&Masks, Instant)>> {
        if self.looked.as_ref().is_none_or(|looked| looked.at != found.at) {
            let Some(looked) = self.judge(found, ended, now)? else { return Ok(None) };
            self.looked = Some(looked);
            self.stop_waiting();
        }
        Ok(self.looked.as_ref().map(|looked| (&looked.masks, looked.since)))
    }

    /// Leaves a record behind that has been looked at.
    pub(super) fn pass(&mut self, stream: Stream) {
        if let (Some(threads), Some(looked)) = (&mut self.threads, self.looked.take()) {
            threads[stream as usize] = looked.after;
        }
    }

    fn judge(
        &mut self,
        found: &TailRecord<'_>,
        ended: bool,
        now: Instant,
    ) -> io::Result<Option<InspectedLine>> {
        let record = &found.record;
        let before = self.thread(record.stream);
        self.spans.clear();
        let place = self.masker.follow(before.place, record.text, &mut self.spans);
        let open = self.masker.open(place);
        if is_open(open, record.continues) {
            match self.end_of(found, place, ended, now)? {
                End::Unknown => return Ok(None),
                End::Masked { from } => self.spans.add(from..record.text.len().cast_signed()),
                End::Clear => {}
            }
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

    /// Looks ahead whether the end of a record belongs to a secret.
    fn end_of(
        &mut self,
        found: &TailRecord<'_>,
        place: StreamCursor,
        ended: bool,
        now: Instant,
    ) -> io::Result<End> {
        let RecordRef { stream, text, .. } = found.record;
        let length = text.len().cast_signed();
        if self.waiting.as_ref().is_none_or(|waiting| waiting.at != found.at) {
            let mut tail = self.spare.take().unwrap_or_else(|| LogTail::new(self.path.clone(), found.next));
            tail.go_to(found.next);
            self.waiting = Some(WaitingLine { at: found.at, since: now, tail, place, seen: 0, from: None });
        }
        let Some(waiting) = &mut self.waiting else { return Ok(End::Unknown) };
        let known = loop {
            // As long as the beginning of a secret reaches back into the record, more of it may have to be masked.
            if self.masker.open(waiting.place) <= waiting.seen {
                break true;
            }
            let Some(TailRecord { record, next, .. }) = waiting.tail.peek(ended)? else { break ended };
            if record.stream == stream {
                self.ahead.clear();
                waiting.place = self.masker.follow(waiting.place, record.text, &mut self.ahead);
                let seen = waiting.seen.cast_signed();
                if let Some(first) = self.ahead.as_slice().first().filter(|span| span.start + seen < 0) {
                    let from = length + seen + first.start;
                    waiting.from = Some(waiting.from.map_or(from, |earlier| earlier.min(from)));
                }
                waiting.seen += record.text.len();
            }
            waiting.tail.pass(next);
            if next > found.next + MOST_AHEAD {
                break true;
            }
        };
        if !known && now < waiting.since + self.period {
            return Ok(End::Unknown);
        }
        // Whatever still reaches back is not known to be a secret.
        let open = self.masker.open(waiting.place);
        let from = (open > waiting.seen && open >= self.masker.minimum_length())
            .then(|| length - (open - waiting.seen).cast_signed());
        Ok(match (waiting.from, from) {
            (Some(one), Some(other)) => End::Masked { from: one.min(other) },
            (Some(from), None) | (None, Some(from)) => End::Masked { from },
            (None, None) => End::Clear,
        })
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
