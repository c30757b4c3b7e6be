//! When a batch is complete, and when it is sent. Pure: it gets times and returns decisions.
//!
//! A batch is full when it has `JobLogStream.BatchSizeLimit` entries, or when its message would exceed the limit in bytes with
//! the next line. It is sent when it is full, when the step has ended, when it is the first after a silence
//! (`EagerlyEmitFirstEvent`), or `PeriodSeconds` after its first entry. A silence is a whole period in which the step sent
//! nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::entry::EntryWriter;
use super::line_masking::Masks;
use crate::settings::model::JobLogStreamSettings;
use crate::step::RecordRef;

/// The size of an invocation without its arguments: `{"type":1,"invocationId":"…","target":"…","arguments":…}` and the
/// terminator take 60 bytes with the longest method name, which leaves room for the invocation id.
pub(super) const ENVELOPE: usize = 192;
/// The window is held in memory, so a generous server limit must not make batches larger and larger.
const LARGEST_BATCH: usize = 128 * 1024;
/// A smaller message has no room for the text of an entry. The settings do not allow less either.
const SMALLEST_MESSAGE: usize = 4096;

/// Prevents overflows in sums of times.
const LONGEST_PERIOD: u64 = 365 * 24 * 3600;

const OPEN: &str = "[[";
const CLOSE: &str = "]]";

#[derive(Debug, Clone)]
pub(super) struct BatchLimits {
    entries: usize,
    /// For the arguments: the message without its envelope.
    bytes: usize,
    /// `Server.MaxMessageBytes`
    pub(super) message_bytes: usize,
    pub(super) period: Duration,
    eager: bool,
}

impl BatchLimits {
    pub(super) fn new(settings: &JobLogStreamSettings, max_message_bytes: usize) -> Self {
        Self {
            entries: usize::try_from(settings.batch_size_limit).unwrap_or(usize::MAX).max(1),
            bytes: max_message_bytes.clamp(SMALLEST_MESSAGE, LARGEST_BATCH) - ENVELOPE,
            message_bytes: max_message_bytes,
            period: Duration::from_secs(settings.period_seconds.min(LONGEST_PERIOD)),
            eager: settings.eagerly_emit_first_event,
        }
    }

    /// Whether the next entry is the first after a silence.
    pub(super) fn is_silence(&self, last_sent: Option<Instant>, now: Instant) -> bool {
        last_sent.is_none_or(|last| now.duration_since(last) >= self.period)
    }

    /// When to send a batch: a time that is not in the future means now. `ended`: no more lines will come.
    pub(super) fn due(&self, draft: &Draft, ended: bool, now: Instant) -> Instant {
        let at_once = draft.full || ended || (self.eager && draft.after_silence);
        if at_once { now } else { draft.began + self.period }
    }
}

/// The result of adding a record to a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The whole rest of the record was added.
    Whole,
    /// The record is too long for one message and continues at this byte of its text in the next batch.
    Part { within: u64 },
    /// Nothing was added, because the batch is full.
    Full,
}

/// A batch in the making: the arguments of an `AddLogs` call as they will be sent.
#[derive(Debug)]
pub(super) struct Draft {
    text: String,
    entries: usize,
    began: Instant,
    after_silence: bool,
    full: bool,
}

impl Draft {
    pub(super) fn begin(began: Instant, after_silence: bool) -> Self {
        let mut text = String::with_capacity(16 * 1024);
        text.push_str(OPEN);
        Self { text, entries: 0, began, after_silence, full: false }
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.capacity()
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str(CLOSE);
        self.text
    }

    /// Adds a record, from byte `within` of its text on. A line is cut only if it does not fit into a batch of its own, and
    /// never within a masked part.
    pub(super) fn push(
        &mut self,
        record: &RecordRef<'_>,
        within: u64,
        masks: &Masks,
        entries: &mut EntryWriter,
        limits: &BatchLimits,
    ) -> Pushed {
        if self.entries >= limits.entries {
            self.full = true;
            return Pushed::Full;
        }
        let before = self.text.len();
        if self.entries > 0 {
            self.text.push(',');
        }
        let start = usize::try_from(within).unwrap_or(usize::MAX).min(record.text.len());
        let limit = limits.bytes - CLOSE.len();
        let end = entries.append(&mut self.text, record, start, masks, limit.saturating_sub(before + 1));
        let fits = end == record.text.len() && self.text.len() <= limit;
        if !fits && self.entries > 0 {
            self.text.truncate(before);
            self.full = true;
            return Pushed::Full;
        }
        self.entries += 1;
        self.full = !fits || self.entries >= limits.entries;
        if fits { Pushed::Whole } else { Pushed::Part { within: end as u64 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipping::Labels;
    use crate::step::Stream;
    use hawser_contract::{Metadata, Task};

    fn policy(entries: u32, bytes: usize) -> BatchLimits {
        let settings = JobLogStreamSettings { batch_size_limit: entries, ..JobLogStreamSettings::default() };
        BatchLimits::new(&settings, bytes)
    }

    fn push_all(texts: &[&[u8]], policy: &BatchLimits) -> (Draft, Vec<Pushed>) {
        let mut entries = EntryWriter::new(&Labels {
            job_id: uuid::Uuid::nil(),
            task: Task::Plan,
            module: Metadata {
                module_id: uuid::Uuid::nil(),
                stack_name: "s".to_owned(),
                namespace_name: "n".to_owned(),
                module_name: "m".to_owned(),
                source_subdirectory: None,
            },
        });
        let mut draft = Draft::begin(Instant::now(), false);
        let pushed = texts
            .iter()
            .map(|text| {
                let record = RecordRef { micros: 0, stream: Stream::Stdout, text, continues: false };
                draft.push(&record, 0, &Masks::default(), &mut entries, policy)
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
    async fn a_batch_is_sent_when_full_at_the_end_after_a_silence_or_after_the_period() {
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
