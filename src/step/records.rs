//! The records of `output.log`: one line each, `{microseconds since 1970} {stream} {text}\n`.
//!
//! The stream is one letter: `o` stdout, `e` stderr, and for the runner's own lines `i` information,
//! `w` warning, `x` error. A capital letter means that the line goes on in the next record of that stream
//! (lines longer than [`MAX_TEXT`] are kept in several records). The text is the line's bytes as they came,
//! without its end mark; they need not be UTF-8 but cannot contain a newline.
//!
//! The file is only ever appended to, each record in one write, so the supervisor and the runner may both
//! write. A reader takes complete records only; a tail without a newline is a write in progress, or was torn by
//! a crash, in which case the next writer ends it. An empty line is skipped: it ended a write that only looked
//! torn. Any other line that is no record is read as text of stdout: nothing is ever thrown away.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;

/// The longest text of one record. It bounds the memory that a line without an end can take.
pub const MAX_TEXT: usize = 16 * 1024;

/// More than a record of ours can take. It bounds the memory that reading a damaged file can take.
const LONGEST_RECORD: u64 = MAX_TEXT as u64 + 64;

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

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub time: Timestamp,
    pub stream: Stream,
    pub text: Vec<u8>,
    /// The line goes on in the next record of this stream.
    pub continues: bool,
}

impl Record {
    /// Reads a line of the file, without its newline.
    fn read(line: &[u8]) -> Self {
        Self::parse(line).unwrap_or_else(|| Self::text(line.to_vec()))
    }

    /// Bytes that are no record.
    fn text(text: Vec<u8>) -> Self {
        Self { time: Timestamp::now(), stream: Stream::Stdout, text, continues: false }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let micros: i64 = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let [letter] = parts.next()? else { return None };
        Some(Self {
            time: Timestamp::from_microsecond(micros).ok()?,
            stream: Stream::from_letter(*letter)?,
            text: parts.next()?.to_vec(),
            continues: letter.is_ascii_uppercase(),
        })
    }
}

/// Cuts a line into the texts of its records, each with whether the line goes on after it. An empty line is one
/// empty text.
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

/// Where a text that is longer than [`MAX_TEXT`] is cut: not inside of a UTF-8 character, so that each record
/// of a text can be shown for itself. Only the bytes up to `MAX_TEXT` decide.
pub fn cut(text: &[u8]) -> usize {
    let starts_character = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xC0 != 0x80);
    (MAX_TEXT - 3..=MAX_TEXT).rev().find(starts_character).unwrap_or(MAX_TEXT)
}

/// The time of records, ready to be written: what is read at once carries one time.
#[derive(Debug)]
pub struct Stamp(String);

impl Stamp {
    pub fn new(time: Timestamp) -> Self {
        Self(time.as_microsecond().to_string())
    }

    /// Appends one record to `buffer`. `text` must not contain a newline and be no longer than [`MAX_TEXT`].
    pub fn encode(&self, buffer: &mut Vec<u8>, stream: Stream, text: &[u8], continues: bool) {
        let letter = if continues { stream.letter().to_ascii_uppercase() } else { stream.letter() };
        buffer.extend_from_slice(self.0.as_bytes());
        buffer.extend_from_slice(&[b' ', letter, b' ']);
        buffer.extend_from_slice(text);
        buffer.push(b'\n');
    }
}

/// Appends one record to `buffer`. `text` must not contain a newline and be no longer than [`MAX_TEXT`].
pub fn encode(buffer: &mut Vec<u8>, time: Timestamp, stream: Stream, text: &[u8], continues: bool) {
    Stamp::new(time).encode(buffer, stream, text, continues);
}

/// Appends the records of a message of any length and number of lines.
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
            // When another writer is in the middle of a write this only adds an empty line after it, which
            // readers skip.
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self { file })
    }

    /// Writes a message of any length and number of lines.
    pub fn say(&mut self, stream: Stream, message: &str) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(message.len() + 32);
        encode_message(&mut buffer, Timestamp::now(), stream, message);
        self.append(&buffer)
    }

    /// Writes records that [`encode`] has made.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.append_counted(records).map_err(|(_, error)| error)
    }

    /// As [`append`](Self::append); an error comes with how many bytes were written before it.
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

    /// Makes what was written outlast a crash of the machine.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// How far a file has been read or acknowledged: the start of a record, and how many bytes of its text are
/// done (a record that is longer than a message travels in parts).
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

/// Reads complete records from a place in the file on.
#[derive(Debug)]
pub struct RecordReader {
    file: BufReader<File>,
    /// Where the next record starts.
    offset: u64,
}

impl RecordReader {
    pub fn open(path: &Path, offset: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self { file: BufReader::with_capacity(64 * 1024, file), offset })
    }

    /// The next complete record, or None when there is none yet.
    #[cfg_attr(
        feature = "testing",
        expect(clippy::should_implement_trait, reason = "None is not the end: more may be written")
    )]
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            let mut line = Vec::new();
            let read = (&mut self.file).take(LONGEST_RECORD).read_until(b'\n', &mut line)?;
            if line.last() == Some(&b'\n') {
                line.pop();
                self.offset += read as u64;
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(Record::read(&line)));
            }
            let record = (read as u64 == LONGEST_RECORD).then(|| {
                line.truncate(MAX_TEXT);
                self.offset += line.len() as u64;
                Record { continues: true, ..Record::text(line) }
            });
            // Either no record of ours is this long: it was given as text, and goes on after that. Or it is a
            // write in progress: look again from its start next time.
            self.file.seek(SeekFrom::Start(self.offset))?;
            return Ok(record);
        }
    }
}

/// One record as it stands in a buffer, for those who read floods: nothing is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Microseconds since 1970.
    pub micros: i64,
    pub stream: Stream,
    pub text: &'a [u8],
    /// The line goes on in the next record of this stream.
    pub continues: bool,
}

impl<'a> RecordRef<'a> {
    /// Reads a line of the file, without its newline; None when it is no record.
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
