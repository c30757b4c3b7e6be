//! The records of `output.log`: one line each, `{microseconds since 1970} {stream} {text}\n`.
//!
//! The stream is one letter: `o` stdout, `e` stderr, and for the runner's own lines `i` information, `w` warning,
//! `x` error. A capital letter means that the line continues in the next record of that stream, because lines longer than
//! [`MAX_TEXT`] are split. The text is the unchanged bytes of the line without its terminator. It need not be UTF-8 but
//! cannot contain a newline.
//!
//! The file is append-only and each record is one write, so both the supervisor and the runner may write. Readers take only
//! complete records. A tail without a newline is a write in progress, or was cut off by a crash; the next writer terminates
//! it. Readers skip empty lines, which appear when a writer terminates a write that was still in progress. Any other line
//! that is not a record is read as text of stdout, so nothing is lost.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;

/// The longest text of one record. Limits the memory that an endless line can use.
pub const MAX_TEXT: usize = 16 * 1024;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
    Information,
    Warning,
    Error,
}

impl Stream {
    fn letter(self) -> u8 {
        match self {
            Self::Stdout => b'o',
            Self::Stderr => b'e',
            Self::Information => b'i',
            Self::Warning => b'w',
            Self::Error => b'x',
        }
    }

    fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter.to_ascii_lowercase() {
            b'o' => Self::Stdout,
            b'e' => Self::Stderr,
            b'i' => Self::Information,
            b'w' => Self::Warning,
            b'x' => Self::Error,
            _ => return None,
        })
    }
}

/// Splits a line into the texts of its records, each with whether the line continues after it. An empty line is one empty
/// text.
pub fn pieces(line: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        if text.len() <= MAX_TEXT {
            return Some((text, false));
        }
        let (piece, after) = text.split_at(cut(text));
        rest = Some(after);
        Some((piece, true))
    })
}

/// Where to split a text that is longer than [`MAX_TEXT`]: never inside a UTF-8 character, so that each record can be shown
/// on its own. Depends only on the bytes up to `MAX_TEXT`.
pub fn cut(text: &[u8]) -> usize {
    let starts_character = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xC0 != 0x80);
    (MAX_TEXT - 3..=MAX_TEXT).rev().find(starts_character).unwrap_or(MAX_TEXT)
}

/// The encoded time of records. All records of one read have the same time.
#[derive(Debug)]
pub struct Stamp(String);

impl Stamp {
    pub fn new(time: Timestamp) -> Self {
        Self(time.as_microsecond().to_string())
    }

    /// Appends one record to `buffer`. `text` must not contain a newline or be longer than [`MAX_TEXT`].
    pub fn encode(&self, buffer: &mut Vec<u8>, stream: Stream, text: &[u8], continues: bool) {
        let letter = if continues { stream.letter().to_ascii_uppercase() } else { stream.letter() };
        buffer.extend_from_slice(self.0.as_bytes());
        buffer.extend_from_slice(&[b' ', letter, b' ']);
        buffer.extend_from_slice(text);
        buffer.push(b'\n');
    }
}

/// Appends one record to `buffer`. `text` must not contain a newline or be longer than [`MAX_TEXT`].
pub fn encode(buffer: &mut Vec<u8>, time: Timestamp, stream: Stream, text: &[u8], continues: bool) {
    Stamp::new(time).encode(buffer, stream, text, continues);
}

/// Appends the records of a message, which may have several lines.
pub fn encode_message(buffer: &mut Vec<u8>, time: Timestamp, stream: Stream, message: &str) {
    let stamp = Stamp::new(time);
    for line in message.trim_end_matches('\n').split('\n') {
        for (text, continues) in pieces(line.strip_suffix('\r').unwrap_or(line).as_bytes()) {
            stamp.encode(buffer, stream, text, continues);
        }
    }
}

/// Appends records to `output.log`.
#[derive(Debug)]
pub struct RecordWriter {
    file: File,
}

impl RecordWriter {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            // If another writer is in the middle of a write, this adds an empty line after it, which readers skip.
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self { file })
    }

    /// Writes a message, which may have several lines.
    pub fn say(&mut self, stream: Stream, message: &str) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(message.len() + 32);
        encode_message(&mut buffer, Timestamp::now(), stream, message);
        self.append(&buffer)
    }

    /// Writes encoded records.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.append_counted(records).map_err(|(_, error)| error)
    }

    /// Like [`append`](Self::append). An error comes with the number of bytes written before it.
    pub fn append_counted(&mut self, records: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while let Some(rest) = records.get(written..).filter(|rest| !rest.is_empty()) {
            match self.file.write(rest) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    /// Makes the written records survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// How far a file has been read or acknowledged: the start of a record, and the number of bytes of its text that are done (a
/// record that does not fit into one message is sent in parts).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub record: u64,
    pub within: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:020} {:020}", self.record, self.within)
    }
}

impl FromStr for Position {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (record, within) = text.trim().split_once(' ').unwrap_or((text.trim(), "0"));
        Ok(Self { record: record.parse()?, within: within.parse()? })
    }
}

/// A record that borrows from a buffer, so that reading large logs copies nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Microseconds since 1970.
    pub micros: i64,
    pub stream: Stream,
    pub text: &'a [u8],
    /// The line continues in the next record of this stream.
    pub continues: bool,
}

impl<'a> RecordRef<'a> {
    /// Parses a line of the file without its newline. Returns `None` if it is not a record.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let space = memchr::memchr(b' ', line)?;
        let (time, [_, letter, b' ', text @ ..]) = line.split_at(space) else { return None };
        let micros = std::str::from_utf8(time).ok()?.parse().ok()?;
        let stream = Stream::from_letter(*letter)?;
        Some(Self { micros, stream, text, continues: letter.is_ascii_uppercase() })
    }
}

#[cfg(test)]
mod tests;
