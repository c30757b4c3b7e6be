//! The records of `output.log`: one line each, `{microseconds since 1970} {stream} {text}\n`.
//!
//! The stream is one letter: `o` stdout, `e` stderr, and for the runner's own lines `i` information,
//! `w` warning, `x` error. A capital letter means that the line goes on in the next record of that stream
//! (lines longer than [`MAX_TEXT`] are kept in several records). The text is the line's bytes as they came,
//! without its end mark; they need not be UTF-8 but cannot contain a newline.
//!
//! The file is only ever appended to, each record in one write, so the supervisor and the runner may both
//! write. A reader takes complete records only; a tail without a newline is a write in progress, or was torn by
//! a crash, in which case the next writer ends it. A line that is no record at all is read as text of stdout: nothing is ever thrown away.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;

/// The longest text of one record. It bounds the memory that a line without an end can take.
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
        Self::parse(line).unwrap_or_else(|| Self {
            time: Timestamp::now(),
            stream: Stream::Stdout,
            text: line.to_vec(),
            continues: false,
        })
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

/// Appends one record to `buffer`. `text` must not contain a newline and be no longer than [`MAX_TEXT`].
pub fn encode(buffer: &mut Vec<u8>, time: Timestamp, stream: Stream, text: &[u8], continues: bool) {
    let letter = if continues { stream.letter().to_ascii_uppercase() } else { stream.letter() };
    // Writing to a Vec cannot fail.
    let _ = write!(buffer, "{} {} ", time.as_microsecond(), char::from(letter));
    buffer.extend_from_slice(text);
    buffer.push(b'\n');
}

/// Appends records to `output.log`.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self { file })
    }

    /// Writes a message of any length and number of lines.
    pub fn say(&mut self, stream: Stream, message: &str) -> io::Result<()> {
        let now = Timestamp::now();
        let mut buffer = Vec::with_capacity(message.len() + 32);
        for line in message.trim_end_matches('\n').split('\n') {
            let line = line.strip_suffix('\r').unwrap_or(line).as_bytes();
            let mut chunks = line.chunks(MAX_TEXT).peekable();
            if chunks.peek().is_none() {
                encode(&mut buffer, now, stream, b"", false);
            }
            while let Some(chunk) = chunks.next() {
                encode(&mut buffer, now, stream, chunk, chunks.peek().is_some());
            }
        }
        self.append(&buffer)
    }

    /// Writes records that [`encode`] has made.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.file.write_all(records)
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
pub struct Reader {
    file: BufReader<File>,
    offset: u64,
}

impl Reader {
    pub fn open(path: &Path, offset: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self { file: BufReader::with_capacity(64 * 1024, file), offset })
    }

    /// Where the next record starts.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next complete record, or None when there is none yet.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        let mut line = Vec::new();
        let read = self.file.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            // A write in progress. Look again from its start next time.
            self.file.seek(SeekFrom::Start(self.offset))?;
            return Ok(None);
        }
        line.pop();
        self.offset += read as u64;
        Ok(Some(Record::read(&line)))
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
