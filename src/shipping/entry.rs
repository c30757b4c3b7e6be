//! A record becomes a log entry, as JSON text, in one pass and without copies in between.
//!
//! - The message is the record's text as it came, ANSI escapes included. Bytes that are not UTF-8 become U+FFFD,
//!   as [`String::from_utf8_lossy`] has it. A character that two records of one line share is put together again
//!   ([`utf8_carry`](super::utf8_carry)).
//! - stdout and stderr are `Information`; stderr has the tag `"stream": "stderr"`, since text on stderr is not a
//!   failure. The runner's own lines have the level that they were written with.
//! - A line that does not fit into one entry is sent as several. All but the last have the tag
//!   `"continues": "true"`: the message goes on in the next entry of that stream. Joined, they are the line again. A
//!   line is only cut between characters.

use std::fmt::Write as _;
use std::ops::Range;

use hawser_contract::{Common, LogLevel, Task};
use jiff::Timestamp;
use uuid::Uuid;

use super::json_text::append_escaped;
use crate::masking::MASK;
use crate::step::Stream;

/// What every entry of a step says about where it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    pub job_id: Uuid,
    pub module_id: Uuid,
    pub stack_name: String,
    pub namespace_name: String,
    pub module_name: String,
    pub task: Task,
}

impl Labels {
    pub fn of(common: &Common, task: Task) -> Self {
        Self {
            job_id: common.job_id,
            module_id: common.metadata.module_id,
            stack_name: common.metadata.stack_name.clone(),
            namespace_name: common.metadata.namespace_name.clone(),
            module_name: common.metadata.module_name.clone(),
            task,
        }
    }
}

/// Names are the server's own, but one that filled a message would leave no room for the line. A real one is a
/// directory name and shorter than this.
const LONGEST_NAME: usize = 512;

/// The parts of an entry that are the same for all lines of a step.
#[derive(Debug)]
pub(super) struct Template {
    before_time: String,
    after_batch_time: String,
    after_message: String,
}

impl Template {
    pub(super) fn new(labels: &Labels) -> Self {
        let mut after_batch_time = format!(
            "\",\"stackId\":null,\"namespaceId\":null,\"moduleId\":\"{}\",\"stackName\":\"",
            labels.module_id
        );
        append_escaped(&mut after_batch_time, labels.stack_name.as_bytes(), LONGEST_NAME);
        after_batch_time.push_str("\",\"namespaceName\":\"");
        append_escaped(&mut after_batch_time, labels.namespace_name.as_bytes(), LONGEST_NAME);
        after_batch_time.push_str("\",\"moduleName\":\"");
        append_escaped(&mut after_batch_time, labels.module_name.as_bytes(), LONGEST_NAME);
        after_batch_time.push_str("\",\"level\":");
        Self {
            before_time: format!("{{\"jobId\":\"{}\",\"timestamp\":\"", labels.job_id),
            after_batch_time,
            after_message: format!("\",\"taskName\":\"{}\",\"tags\":", labels.task),
        }
    }

    /// Appends an entry with as much of the line's text as fits into `room` bytes, and returns how many bytes of
    /// it that were. An entry that does not hold all of it is marked as going on.
    pub(super) fn append(
        &self,
        out: &mut String,
        line: &EntryLine<'_>,
        times: &mut Times,
        room: usize,
    ) -> usize {
        // The longest tags and the closing brace are kept free, so that only the text has to give way.
        let limit = (out.len() + room).saturating_sub(LONGEST_TAGS + 1);
        out.push_str(&self.before_time);
        times.append(out, line.micros);
        out.push_str("\",\"batchTimeStamp\":\"");
        out.push_str(&times.batch);
        out.push_str(&self.after_batch_time);
        out.push(level_digit(line.stream));
        out.push_str(",\"message\":\"");
        let room = limit.saturating_sub(out.len() + self.after_message.len());
        let taken = append_masked(out, line, room);
        out.push_str(&self.after_message);
        out.push_str(tags(line.stream, line.continues || taken < line.text.len()));
        out.push('}');
        taken
    }
}

/// A line, or the part of it that is to become an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLine<'a> {
    pub(super) micros: i64,
    pub(super) stream: Stream,
    pub(super) text: &'a [u8],
    /// What of the text is masked, in order.
    pub(super) masks: &'a [Masked],
    pub(super) continues: bool,
}

/// A part of a line that is masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Masked {
    pub(super) part: Range<usize>,
    /// The mask stands here, and not in an earlier entry.
    pub(super) shown: bool,
}

fn level_digit(stream: Stream) -> char {
    let level = match stream {
        Stream::Stdout | Stream::Stderr | Stream::Information => LogLevel::Information,
        Stream::Warning => LogLevel::Warning,
        Stream::Error => LogLevel::Error,
    };
    char::from(b'0' + level as u8)
}

const LONGEST_TAGS: usize = r#"{"continues":"true","stream":"stderr"}"#.len();

fn tags(stream: Stream, continues: bool) -> &'static str {
    match (stream, continues) {
        (Stream::Stderr, false) => r#"{"stream":"stderr"}"#,
        (Stream::Stderr, true) => r#"{"continues":"true","stream":"stderr"}"#,
        (_, false) => "null",
        (_, true) => r#"{"continues":"true"}"#,
    }
}

/// Times as text. Lines of one second share all but the fraction, which makes a flood cheaper by a third.
#[derive(Debug)]
pub(super) struct Times {
    batch: String,
    second: i64,
    /// `2026-11-03T12:34:56`
    second_text: String,
}

impl Times {
    pub(super) fn new() -> Self {
        Self { batch: String::new(), second: i64::MIN, second_text: String::new() }
    }

    /// The time that all entries of the next batch share.
    pub(super) fn set_batch(&mut self, time: Timestamp) {
        let mut text = std::mem::take(&mut self.batch);
        text.clear();
        self.append(&mut text, time.as_microsecond());
        self.batch = text;
    }

    fn append(&mut self, out: &mut String, micros: i64) {
        let (second, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        if second != self.second {
            self.second = second;
            // A time that the calendar does not know is a damaged record; its text still counts.
            let time = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
            self.second_text = time.to_string();
            self.second_text.truncate(self.second_text.len() - 1);
        }
        out.push_str(&self.second_text);
        // Writing to a String cannot fail.
        let _ = write!(out, ".{fraction:06}Z");
    }
}

/// Appends the text of a line with its masks, as far as it fits into `room` bytes, and returns how many bytes of the text
/// were taken. A part that is masked is taken whole or not at all.
fn append_masked(out: &mut String, line: &EntryLine<'_>, room: usize) -> usize {
    let limit = out.len() + room;
    let mut done = 0;
    for Masked { part, shown } in line.masks {
        let (start, end) = (part.start.min(line.text.len()), part.end.min(line.text.len()));
        done += append_escaped(out, &line.text[done..start.max(done)], limit.saturating_sub(out.len()));
        let mask = if *shown { MASK } else { "" };
        if done < start || out.len() + mask.len() > limit {
            return done;
        }
        out.push_str(mask);
        done = end.max(done);
    }
    done + append_escaped(out, &line.text[done..], limit.saturating_sub(out.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::LogEntry;

    fn template() -> Template {
        Template::new(&Labels {
            job_id: Uuid::from_u128(1),
            module_id: Uuid::from_u128(2),
            stack_name: "a \"stack\"".to_owned(),
            namespace_name: "\u{1}".repeat(10_000),
            module_name: "mödule\n".to_owned(),
            task: Task::ApplyFromPlan,
        })
    }

    #[test]
    fn an_entry_is_what_the_contract_type_writes() {
        let mut times = Times::new();
        let batch: Timestamp = "2026-11-03T12:34:57.5Z".parse().unwrap();
        times.set_batch(batch);
        for (micros, stream, text, continues) in [
            (1_793_709_296_000_001, Stream::Stdout, "plain", false),
            (-1, Stream::Stderr, "\u{1b}[31mred\u{1b}[0m \"q\" \\ \t\r\u{7f}\u{2028}", true),
            (i64::MAX, Stream::Warning, "", false),
        ] {
            let mut out = String::new();
            let line = EntryLine { micros, stream, text: text.as_bytes(), masks: &[], continues };
            assert_eq!(template().append(&mut out, &line, &mut times, 4000), text.len());
            let entry: LogEntry = serde_json::from_str(&out).unwrap();
            assert_eq!(entry.message, text);
            assert_eq!(entry.batch_time_stamp, batch);
            assert_eq!(entry.stack_name, "a \"stack\"");
            assert_eq!(entry.module_name, "mödule\n");
            assert!(entry.namespace_name.len() <= LONGEST_NAME);
            if let Ok(time) = Timestamp::from_microsecond(micros) {
                assert_eq!(entry.timestamp, time);
            }
            let tags = entry.tags.clone().unwrap_or_default();
            assert_eq!(tags.contains_key("continues"), continues);
            assert_eq!(tags.contains_key("stream"), stream == Stream::Stderr);
            let members = |text: &str| {
                let value: serde_json::Value = serde_json::from_str(text).unwrap();
                value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
            };
            assert_eq!(members(&out), members(&serde_json::to_string(&entry).unwrap()));
        }
    }
}
