//! When a batch is complete, and when it goes. Pure: times come in, decisions go out.
//!
//! A batch is full when it has `JobLogStream.BatchSizeLimit` entries or when the next line would take its message
//! beyond the limit in bytes. It goes when it is full, when the step has ended, when it is the first after a
//! silence (`EagerlyEmitFirstEvent`), or `PeriodSeconds` after its first entry. A silence is a whole period in which
//! the step sent nothing.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::entry::{EntryLine, Template, Times};
use super::line_masking::Masks;
use super::utf8_carry::{Utf8Carry, unfinished};
use crate::settings::model::JobLogStreamSettings;
use crate::step::RecordRef;

/// What an invocation needs around its arguments: `{"type":1,"invocationId":"…","target":"…","arguments":…}` and the
/// end mark are 60 bytes with the longest method name, and an invocation id of any sensible kind fits besides.
pub(super) const ENVELOPE: usize = 192;
/// The window is held in memory, so a generous server limit must not make a batch ever larger.
const LARGEST_BATCH: usize = 128 * 1024;
/// Below this an entry has no room for its text; the settings do not allow less either.
const SMALLEST_MESSAGE: usize = 4096;

/// A longer period is as good as none, and still a time that can be reckoned with.
const LONGEST_PERIOD: u64 = 365 * 24 * 3600;

const OPEN: &str = "[[";
const CLOSE: &str = "]]";

#[derive(Debug, Clone)]
pub(super) struct BatchLimits {
    entries: usize,
    /// For the arguments: the message without its envelope.
    bytes: usize,
    period: Duration,
    eager: bool,
}

impl BatchLimits {
    pub(super) fn new(settings: &JobLogStreamSettings, max_message_bytes: usize) -> Self {
        Self {
            entries: usize::try_from(settings.batch_size_limit).unwrap_or(usize::MAX).max(1),
            bytes: max_message_bytes.clamp(SMALLEST_MESSAGE, LARGEST_BATCH) - ENVELOPE,
            period: Duration::from_secs(settings.period_seconds.min(LONGEST_PERIOD)),
            eager: settings.eagerly_emit_first_event,
        }
    }

    pub(super) fn period(&self) -> Duration {
        self.period
    }

    /// Whether what comes now is the first after a silence.
    pub(super) fn is_silence(&self, last_sent: Option<Instant>, now: Instant) -> bool {
        last_sent.is_none_or(|last| now.duration_since(last) >= self.period)
    }

    /// When a batch goes: a time that is not in the future means now. `ended`: no more lines will come.
    pub(super) fn due(&self, draft: &Draft, ended: bool, now: Instant) -> Instant {
        let at_once = draft.full || ended || (self.eager && draft.after_silence);
        if at_once { now } else { draft.began + self.period }
    }
}

/// What became of a record that was offered to a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// All of it is in.
    Whole,
    /// It is too long for one message: it goes on at this byte of its text, in the next batch.
    Part { within: u64 },
    /// Nothing of it is in: the batch is full.
    Full,
}

/// A batch in the making: the argument list of an `AddLogs` call as it will be sent.
#[derive(Debug)]
pub(super) struct Draft {
    text: String,
    entries: usize,
    began: Instant,
    after_silence: bool,
    full: bool,
}

impl Draft {
    /// `now` is the time that all its entries share.
    pub(super) fn begin(began: Instant, now: Timestamp, after_silence: bool, times: &mut Times) -> Self {
        times.set_batch(now);
        let mut text = String::with_capacity(16 * 1024);
        text.push_str(OPEN);
        Self { text, entries: 0, began, after_silence, full: false }
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.capacity()
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str(CLOSE);
        self.text
    }

    /// Takes a record, from byte `within` of its text on. A line is cut only when it would not fit into a batch of
    /// its own, and never within a part that is masked.
    #[expect(clippy::too_many_arguments, reason = "all of it is the log's, and in use there one by one")]
    pub(super) fn push(
        &mut self,
        record: &RecordRef<'_>,
        within: u64,
        masks: &Masks,
        carry: &mut Utf8Carry,
        template: &Template,
        times: &mut Times,
        policy: &BatchLimits,
    ) -> Pushed {
        if self.entries >= policy.entries {
            self.full = true;
            return Pushed::Full;
        }
        let start = usize::try_from(within).unwrap_or(usize::MAX).min(record.text.len());
        let held = carry.held(record.stream);
        let held_length = held.len();
        let joined: Cow<'_, [u8]> = if held.is_empty() {
            Cow::Borrowed(&record.text[start..])
        } else {
            Cow::Owned([held, &record.text[start..]].concat())
        };
        // What is masked at the end is gone, with the character that it may be cut in.
        let ends_masked = masks.parts.last().is_some_and(|part| part.end == record.text.len());
        let whole = !record.continues || ends_masked;
        let end = joined.len() - if whole { 0 } else { unfinished(&joined) };
        if end == 0 && !joined.is_empty() {
            carry.set(record.stream, &joined);
            return Pushed::Whole;
        }
        let line = EntryLine {
            micros: record.micros,
            stream: record.stream,
            text: &joined[..end],
            masks: &masks.within(start, held_length),
            continues: record.continues,
        };

        let before = self.text.len();
        if self.entries > 0 {
            self.text.push(',');
        }
        let limit = policy.bytes - CLOSE.len();
        let taken = template.append(&mut self.text, &line, times, limit.saturating_sub(before + 1));
        let fits = taken == end && self.text.len() <= limit;
        if !fits && self.entries > 0 {
            self.text.truncate(before);
            self.full = true;
            return Pushed::Full;
        }
        self.entries += 1;
        self.full = !fits || self.entries >= policy.entries;
        if fits {
            carry.set(record.stream, &joined[end..]);
            Pushed::Whole
        } else {
            carry.set(record.stream, &[]);
            Pushed::Part { within: (start + taken.saturating_sub(held_length)) as u64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipping::Labels;
    use crate::step::Stream;
    use hawser_contract::Task;

    fn policy(entries: u32, bytes: usize) -> BatchLimits {
        let settings = JobLogStreamSettings { batch_size_limit: entries, ..JobLogStreamSettings::default() };
        BatchLimits::new(&settings, bytes)
    }

    fn push_all(texts: &[&[u8]], policy: &BatchLimits) -> (Draft, Vec<Pushed>) {
        let template = Template::new(&Labels {
            job_id: uuid::Uuid::nil(),
            module_id: uuid::Uuid::nil(),
            stack_name: "s".to_owned(),
            namespace_name: "n".to_owned(),
            module_name: "m".to_owned(),
            task: Task::Plan,
        });
        let mut times = Times::new();
        let mut carry = Utf8Carry::default();
        let mut draft = Draft::begin(Instant::now(), Timestamp::UNIX_EPOCH, false, &mut times);
        let pushed = texts
            .iter()
            .map(|text| {
                let record = RecordRef { micros: 0, stream: Stream::Stdout, text, continues: false };
                draft.push(&record, 0, &Masks::default(), &mut carry, &template, &mut times, policy)
            })
            .collect();
        (draft, pushed)
    }

    #[test]
    fn a_batch_is_full_by_entries() {
        let (draft, pushed) = push_all(&[b"a", b"b", b"c"], &policy(2, 32 * 1024));
        assert_eq!(pushed, [Pushed::Whole, Pushed::Whole, Pushed::Full]);
        assert!(draft.is_full());
    }

    #[test]
    fn a_batch_is_full_by_bytes_and_a_line_that_would_fit_alone_is_not_cut() {
        let text = [b'x'; 2000];
        let (draft, pushed) = push_all(&[&text, &text, b""], &policy(50, 4096));
        assert_eq!(pushed[..2], [Pushed::Whole, Pushed::Full]);
        assert!(draft.finish().len() + ENVELOPE <= 4096);
    }

    #[test]
    fn empty_lines_fill_a_batch_to_the_limit_and_not_beyond() {
        let (draft, pushed) = push_all(&[b"".as_slice(); 50], &policy(50, 4096));
        assert_eq!(pushed.last(), Some(&Pushed::Full));
        assert!(draft.finish().len() + ENVELOPE <= 4096);
    }

    #[test]
    fn a_line_too_long_for_any_batch_is_cut_in_a_batch_of_its_own() {
        let text = [b'\\'; 10_000];
        let (draft, pushed) = push_all(&[&text], &policy(50, 4096));
        let [Pushed::Part { within }] = pushed[..] else { panic!("{pushed:?}") };
        let message = draft.finish();
        assert!((4096 - 64..=4096).contains(&(message.len() + ENVELOPE)), "{}", message.len());
        assert_eq!(message.matches(r"\\").count() as u64, within);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_goes_full_at_the_end_after_a_silence_or_by_its_age() {
        let policy = policy(2, 32 * 1024);
        let now = Instant::now();
        let (mut draft, _) = push_all(&[b"a"], &policy);
        assert_eq!(policy.due(&draft, false, now), now + Duration::from_secs(5));
        assert_eq!(policy.due(&draft, true, now), now);
        draft.after_silence = true;
        assert_eq!(policy.due(&draft, false, now), now);
        assert_eq!(policy.due(&push_all(&[b"a", b"b"], &policy).0, false, now), now);
        assert!(policy.is_silence(None, now));
        assert!(!policy.is_silence(Some(now), now + Duration::from_secs(4)));
        assert!(policy.is_silence(Some(now), now + Duration::from_secs(5)));
    }
}
