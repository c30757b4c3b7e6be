//! Turns a record into a log entry, as JSON text, in one pass and without intermediate copies.
//!
//! - The message is the unchanged text of the record, including ANSI escapes. Bytes that are not UTF-8 become U+FFFD, as in
//!   [`String::from_utf8_lossy`].
//! - stdout and stderr are `Information`; stderr has the tag `"stream": "stderr"`, because text on stderr is not a
//!   failure. The runner's own lines keep their level.
//! - A line that does not fit into one entry is sent as several. All but the last have the tag
//!   `"continues": "true"`: the message continues in the next entry of that stream. Joined, they are the line again. A
//!   line is cut only between characters.

use std::fmt::Write as _;

use hawser_contract::{LogLevel, Metadata, Task};
use jiff::Timestamp;
use uuid::Uuid;

use super::json_text::append_escaped;
use super::line_masking::Masks;
use crate::masking::MASK;
use crate::step::{RecordRef, Stream};

/// The fields that are the same in every entry of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    pub job_id: Uuid,
    pub task: Task,
    pub module: Metadata,
}

/// A name that fills a message would leave no room for the line. Real names are directory names and shorter than this.
const LONGEST_NAME: usize = 512;

/// Writes the entries of a step. The parts that all of them share are written once.
#[derive(Debug)]
pub(super) struct EntryWriter {
    before_time: String,
    after_batch_time: String,
    after_message: String,
    /// The time that all entries of a batch share.
    batch_time: String,
    /// Lines of one second share all but the fraction, which makes a flood cheaper by a third.
    second: i64,
    /// `2026-11-03T12:34:56`
    second_text: String,
}

impl EntryWriter {
    pub(super) fn new(labels: &Labels) -> Self {
        let Metadata { module_id, stack_name, namespace_name, module_name, .. } = &labels.module;
        let mut after_batch_time =
            format!("\",\"stackId\":null,\"namespaceId\":null,\"moduleId\":\"{module_id}\"");
        let names =
            [("stackName", stack_name), ("namespaceName", namespace_name), ("moduleName", module_name)];
        for (member, name) in names {
            let _ = write!(after_batch_time, ",\"{member}\":\"");
            append_escaped(&mut after_batch_time, name.as_bytes(), LONGEST_NAME);
            after_batch_time.push('"');
        }
        after_batch_time.push_str(",\"level\":");
        Self {
            before_time: format!("{{\"jobId\":\"{}\",\"timestamp\":\"", labels.job_id),
            after_batch_time,
            after_message: format!("\",\"taskName\":\"{}\",\"tags\":", labels.task),
            batch_time: String::new(),
            second: i64::MIN,
            second_text: String::new(),
        }
    }

    /// Sets the time that all entries of the next batch share.
    pub(super) fn set_batch_time(&mut self, time: Timestamp) {
        let mut text = std::mem::take(&mut self.batch_time);
        text.clear();
        self.append_time(&mut text, time.as_microsecond());
        self.batch_time = text;
    }

    /// Appends an entry with as much of the record's text, from byte `start` on, as fits into `room` bytes. Returns the byte
    /// at which the next entry continues. An entry that does not hold the whole rest is marked as continuing.
    pub(super) fn append(
        &mut self,
        out: &mut String,
        record: &RecordRef<'_>,
        start: usize,
        masks: &Masks,
        room: usize,
    ) -> usize {
        // Room for the longest tags and the closing brace is reserved, so that only the text is cut.
        let limit = (out.len() + room).saturating_sub(LONGEST_TAGS + 1);
        out.push_str(&self.before_time);
        self.append_time(out, record.micros);
        out.push_str("\",\"batchTimeStamp\":\"");
        out.push_str(&self.batch_time);
        out.push_str(&self.after_batch_time);
        out.push(level_digit(record.stream));
        out.push_str(",\"message\":\"");
        let room = limit.saturating_sub(out.len() + self.after_message.len());
        let end = append_masked(out, record.text, start, masks, room);
        out.push_str(&self.after_message);
        out.push_str(tags(record.stream, record.continues || end < record.text.len()));
        out.push('}');
        end
    }

    fn append_time(&mut self, out: &mut String, micros: i64) {
        let (second, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        if second != self.second {
            self.second = second;
            // A time outside the calendar means a damaged record, whose text is still sent.
            let time = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
            self.second_text = time.to_string();
            self.second_text.truncate(self.second_text.len() - 1);
        }
        out.push_str(&self.second_text);
        // Writing to a String cannot fail.
        let _ = write!(out, ".{fraction:06}Z");
    }
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

/// Appends the text from byte `start` on, with its masks, as far as it fits into `room` bytes. Returns where it stopped. A
/// masked part is taken whole or not at all.
fn append_masked(out: &mut String, text: &[u8], start: usize, masks: &Masks, room: usize) -> usize {
    let limit = out.len() + room;
    let mut done = start;
    for (index, part) in masks.parts.iter().enumerate().filter(|(_, part)| part.end > start) {
        done += append_escaped(out, &text[done..part.start.max(done)], limit.saturating_sub(out.len()));
        // A part that began before `start` was sent unmasked: its secret has been learned since.
        let has_mask = !(masks.continued && index == 0) || start > 0;
        let mask = if has_mask { MASK } else { "" };
        if done < part.start || out.len() + mask.len() > limit {
            return done;
        }
        out.push_str(mask);
        done = part.end;
    }
    done + append_escaped(out, &text[done..], limit.saturating_sub(out.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::LogEntry;

    fn writer() -> EntryWriter {
        EntryWriter::new(&Labels {
            job_id: Uuid::from_u128(1),
            task: Task::ApplyFromPlan,
            module: Metadata {
                module_id: Uuid::from_u128(2),
                stack_name: "a \"stack\"".to_owned(),
                namespace_name: "\u{1}".repeat(10_000),
                module_name: "mödule\n".to_owned(),
                source_subdirectory: None,
            },
        })
    }

    #[test]
    fn an_entry_equals_the_serialized_contract_type() {
        let mut writer = writer();
        let batch: Timestamp = "2026-11-03T12:34:57.5Z".parse().unwrap();
        writer.set_batch_time(batch);
        for (micros, stream, text, continues) in [
            (1_793_709_296_000_001, Stream::Stdout, "plain", false),
            (-1, Stream::Stderr, "\u{1b}[31mred\u{1b}[0m \"q\" \\ \t\r\u{7f}\u{2028}", true),
            (i64::MAX, Stream::Warning, "", false),
        ] {
            let mut out = String::new();
            let record = RecordRef { micros, stream, text: text.as_bytes(), continues };
            assert_eq!(writer.append(&mut out, &record, 0, &Masks::default(), 4000), text.len());
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
