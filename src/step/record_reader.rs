//! Reads `output.log` from an offset on, in bounded pieces, while other processes write to it.
//!
//! However long the file and its lines are, a [`RecordReader`] holds one buffer of [`BUFFER`] bytes. A line that is too long to be
//! a record comes in pieces, each marked as continuing. NUL bytes where a record should start are a hole, made
//! to free disk space, and are skipped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use jiff::Timestamp;

use super::records::{MAX_TEXT, RecordRef, Stream, cut};

/// Four of the longest records: large enough to read efficiently, small enough to have one per step.
const BUFFER: usize = 4 * MAX_TEXT;
/// A longer line is not a record (text, time and stream) and is returned in pieces.
const LONGEST_LINE: usize = MAX_TEXT + 64;

/// A record, where it starts, and where the next one starts.
#[derive(Debug, Clone, Copy)]
pub struct FoundRecord<'a> {
    pub record: RecordRef<'a>,
    pub at: u64,
    pub next: u64,
}

#[derive(Debug)]
pub struct RecordReader {
    path: PathBuf,
    file: Option<File>,
    /// Allocated when something is read.
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    /// The offset of `buffer[start]` in the file.
    offset: u64,
    /// The time of the last record, for lines that are not records.
    last_micros: Option<i64>,
}

impl RecordReader {
    pub fn new(path: impl Into<PathBuf>, offset: u64) -> Self {
        Self {
            path: path.into(),
            file: None,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            offset,
            last_micros: None,
        }
    }

    /// Goes to the start of a record.
    pub fn go_to(&mut self, offset: u64) {
        (self.start, self.end, self.offset) = (0, 0, offset);
    }

    /// Moves past the record that [`Self::peek`] returned.
    pub fn pass(&mut self, next: u64) {
        let length = usize::try_from(next.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        self.start = self.start.saturating_add(length).min(self.end);
        self.offset = next;
    }

    /// The record at this offset, or None if there is no complete one yet. `ended`: nothing more will be written, so a last
    /// line without a newline is complete too.
    pub fn peek(&mut self, ended: bool) -> io::Result<Option<FoundRecord<'_>>> {
        let mut searched = 0;
        let (length, newline, continues) = loop {
            if self.start < self.end && self.buffer[self.start] == 0 {
                self.skip_hole()?;
                searched = 0;
                continue;
            }
            let unread = &self.buffer[self.start..self.end];
            // An empty line is not a record: it terminated a write that looked torn.
            if unread.first() == Some(&b'\n') {
                self.pass(self.offset + 1);
                searched = 0;
                continue;
            }
            if let Some(found) = memchr::memchr(b'\n', &unread[searched..]) {
                break (searched + found, true, false);
            }
            if unread.len() >= LONGEST_LINE {
                break (cut(unread), false, true);
            }
            searched = unread.len();
            if self.fill()? == 0 {
                if !ended || searched == 0 {
                    return Ok(None);
                }
                break (searched, false, false);
            }
        };
        let line = &self.buffer[self.start..self.start + length];
        let next = self.offset + length as u64 + u64::from(newline);
        let record = RecordRef::parse(line).unwrap_or_else(|| RecordRef {
            micros: self.last_micros.unwrap_or_else(|| Timestamp::now().as_microsecond()),
            stream: Stream::Stdout,
            text: line,
            continues,
        });
        self.last_micros = Some(record.micros);
        Ok(Some(FoundRecord { record, at: self.offset, next }))
    }

    /// Reads more into the buffer. Returns 0 if there is no more at the moment.
    fn fill(&mut self) -> io::Result<usize> {
        if self.file.is_none() {
            // A step without output has no file yet.
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        let Some(file) = &self.file else { return Ok(0) };
        self.buffer.resize(BUFFER, 0);
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let read = file.read_at(&mut self.buffer[self.end..], self.offset + self.end as u64)?;
        self.end += read;
        Ok(read)
    }

    fn skip_hole(&mut self) -> io::Result<()> {
        let unread = &self.buffer[self.start..self.end];
        match (unread.iter().position(|byte| *byte != 0), &self.file) {
            (None, Some(file)) => self.go_to(next_data(file, self.offset + unread.len() as u64)?),
            (zeros, _) => self.pass(self.offset + zeros.unwrap_or(unread.len()) as u64),
        }
        Ok(())
    }
}

/// The first byte from `offset` on that is not in a hole.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => Ok(data),
        // A hole up to the end.
        Err(rustix::io::Errno::NXIO) => Ok(file.metadata()?.len().max(offset)),
        Err(rustix::io::Errno::INVAL) => Ok(offset),
        Err(error) => Err(error.into()),
    }
}
