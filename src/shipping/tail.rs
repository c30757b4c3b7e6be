//! Reads `output.log` from a place on, in bounded pieces, while somebody else goes on writing it.
//!
//! However long the file and its lines are, a [`LogTail`] holds one buffer of [`BUFFER`] bytes. A line that does
//! not fit (only something that is no record can be so long) comes in pieces, each marked as going on. NUL bytes
//! where a record should start are a hole that [`super::cap`] has made, and are skipped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use jiff::Timestamp;

use super::cap;
use crate::step::records::MAX_TEXT;
use crate::step::{RecordRef, Stream};

/// Four of the longest records: large enough that reading costs little, small enough to have one per step.
const BUFFER: usize = 4 * MAX_TEXT;
/// A line longer than this is no record (text, time and marks) and is taken in pieces.
const LONGEST_LINE: usize = MAX_TEXT + 64;

/// A record and the place where the next one starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct TailRecord<'a> {
    pub(super) record: RecordRef<'a>,
    pub(super) at: u64,
    pub(super) next: u64,
}

#[derive(Debug)]
pub(super) struct LogTail {
    path: PathBuf,
    file: Option<File>,
    buffer: Box<[u8]>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    /// The place in the file of `buffer[start]`.
    offset: u64,
    /// What is no record has no time of its own and takes that of the record before it.
    last_micros: Option<i64>,
}

impl LogTail {
    pub(super) fn new(path: PathBuf, offset: u64) -> Self {
        Self {
            path,
            file: None,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            offset,
            last_micros: None,
        }
    }

    /// Goes to the start of a record; what was read ahead is forgotten.
    pub(super) fn go_to(&mut self, offset: u64) {
        (self.start, self.end, self.offset) = (0, 0, offset);
    }

    /// Leaves a record behind that [`Self::peek`] has shown.
    pub(super) fn pass(&mut self, next: u64) {
        let length = usize::try_from(next.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        self.start = self.start.saturating_add(length).min(self.end);
        self.offset = next;
    }

    /// The record at this place, or None when there is no complete one yet. `ended` says that nobody writes any
    /// more: then a last line without a newline is complete too.
    pub(super) fn peek(&mut self, ended: bool) -> io::Result<Option<TailRecord<'_>>> {
        let mut searched = 0;
        let (length, newline) = loop {
            if self.start < self.end && self.buffer[self.start] == 0 {
                self.skip_hole()?;
                searched = 0;
                continue;
            }
            let unread = &self.buffer[self.start..self.end];
            // An empty line is no record: it ended a write that looked torn.
            if unread.first() == Some(&b'\n') {
                self.pass(self.offset + 1);
                searched = 0;
                continue;
            }
            if let Some(found) = memchr::memchr(b'\n', &unread[searched..]) {
                break (searched + found, true);
            }
            if unread.len() >= LONGEST_LINE {
                break (LONGEST_LINE, false);
            }
            searched = unread.len();
            if self.fill()? == 0 {
                if !ended || searched == 0 {
                    return Ok(None);
                }
                break (searched, false);
            }
        };
        let line = &self.buffer[self.start..self.start + length];
        let next = self.offset + length as u64 + u64::from(newline);
        let record = RecordRef::parse(line).unwrap_or_else(|| RecordRef {
            micros: self.last_micros.unwrap_or_else(|| Timestamp::now().as_microsecond()),
            stream: Stream::Stdout,
            text: line,
            continues: length == LONGEST_LINE && !newline,
        });
        self.last_micros = Some(record.micros);
        Ok(Some(TailRecord { record, at: self.offset, next }))
    }

    /// Reads on behind what is in the buffer; 0 means that there is no more for now.
    fn fill(&mut self) -> io::Result<usize> {
        if self.file.is_none() {
            // A step that has written nothing has no file yet.
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        let Some(file) = &self.file else { return Ok(0) };
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            match file.read_at(&mut self.buffer[self.end..], self.offset + self.end as u64) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn skip_hole(&mut self) -> io::Result<()> {
        let unread = &self.buffer[self.start..self.end];
        match unread.iter().position(|byte| *byte != 0) {
            Some(zeros) => self.pass(self.offset + zeros as u64),
            None => {
                let behind = self.offset + unread.len() as u64;
                let data = match &self.file {
                    Some(file) => cap::next_data(file, behind)?,
                    None => behind,
                };
                self.go_to(data);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::RecordWriter;

    #[test]
    fn the_newline_that_ends_a_torn_write_is_no_line_of_the_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output.log");
        RecordWriter::open(&path).unwrap().append(b"1 o one\n\n\n2 o \n3 o two\n\n").unwrap();
        let mut tail = LogTail::new(path, 0);
        let mut texts = Vec::new();
        while let Some(found) = tail.peek(true).unwrap() {
            texts.push((found.record.micros, String::from_utf8_lossy(found.record.text).into_owned()));
            let next = found.next;
            tail.pass(next);
        }
        let expected = [(1, "one"), (2, ""), (3, "two")].map(|(micros, text)| (micros, text.to_owned()));
        assert_eq!(texts, expected);
    }
}
