//! Copies both pipes of the script into `output.log`, in the order in which they are read.

use std::io::{self, PipeReader, Read as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use memchr::{memchr_iter, memrchr};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use super::lifecycle::Event;
use super::lines::Lines;
use crate::base::retry;
use crate::step::records::{Stamp, encode_message};
use crate::step::{RecordWriter, Stream};

/// The capacity of a pipe.
const CHUNK: usize = 64 * 1024;
/// Records of a chunk of empty lines take twenty times its size, so they are written in several batches.
const BATCH: usize = 256 * 1024;
/// How many chunks are read after a stop. The pipes hold less than that.
const LAST_CHUNKS: usize = 32;

/// `output.log`, and the count of records that could not be written to it.
#[derive(Debug)]
pub(super) struct OutputLog {
    writer: RecordWriter,
    gap: Option<Gap>,
    /// Reports the first loss, once.
    lost: Option<mpsc::Sender<Event>>,
}

/// Lost records at the end of the file.
#[derive(Debug)]
struct Gap {
    records: usize,
    reason: String,
    retry_at: Instant,
}

impl OutputLog {
    pub(super) fn new(writer: RecordWriter, lost: mpsc::Sender<Event>) -> Self {
        Self { writer, gap: None, lost: Some(lost) }
    }

    pub(super) fn say(&mut self, stream: Stream, message: &str) {
        let mut records = Vec::new();
        encode_message(&mut records, Timestamp::now(), stream, message);
        self.append(&records);
    }

    /// Writes records, or counts them as lost. Never waits for disk space.
    fn append(&mut self, records: &[u8]) {
        if let Some(gap) = &mut self.gap {
            let now = Instant::now();
            if now < gap.retry_at {
                gap.records += count(records);
                return;
            }
            gap.retry_at = now + retry::OUTPUT;
        }
        if let Err(error) = self.close_gap() {
            self.lose(records, &error);
        } else if let Err((written, error)) = self.writer.append_counted(records) {
            let whole = memrchr(b'\n', &records[..written]).map_or(0, |at| at + 1);
            self.lose(&records[whole..], &error);
        }
    }

    fn lose(&mut self, records: &[u8], error: &io::Error) {
        let reason = error.to_string();
        if let Some(lost) = self.lost.take() {
            // The channel has room for every event.
            let _ = lost.try_send(Event::OutputLost(reason.clone()));
        }
        let gap = self.gap.get_or_insert_with(|| Gap {
            records: 0,
            reason,
            retry_at: Instant::now() + retry::OUTPUT,
        });
        gap.records += count(records);
    }

    /// Records how many lines are missing. The newline terminates a partially written record.
    fn close_gap(&mut self) -> io::Result<()> {
        let Some(gap) = &self.gap else { return Ok(()) };
        let mut record = b"\n".to_vec();
        let message = format!("{} lines are missing here, failed to write them: {}", gap.records, gap.reason);
        encode_message(&mut record, Timestamp::now(), Stream::Warning, &message);
        self.writer.append(&record)?;
        self.gap = None;
        Ok(())
    }

    /// Makes the written records survive a power cut.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.close_gap()?;
        self.writer.sync()
    }
}

fn count(records: &[u8]) -> usize {
    memchr_iter(b'\n', records).count()
}

/// The log, shared by the pump and the main loop.
pub(super) type SharedLog = Arc<Mutex<OutputLog>>;

/// A panic in one thread must not prevent the other from writing.
pub(super) fn lock(log: &Mutex<OutputLog>) -> MutexGuard<'_, OutputLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of the two pipes.
#[derive(Debug)]
struct Source {
    pipe: PipeReader,
    stream: Stream,
    lines: Lines,
}

/// Reads both pipes until they are closed, or until the other end of `stop` is dropped. Runs in its own thread, because a slow
/// disk must not delay a cancel.
#[derive(Debug)]
pub(super) struct Pump {
    sources: Vec<Source>,
    stop: PipeReader,
    log: SharedLog,
    records: Vec<u8>,
}

impl Pump {
    pub(super) fn new(stdout: PipeReader, stderr: PipeReader, stop: PipeReader, log: SharedLog) -> Self {
        let source = |pipe, stream| Source { pipe, stream, lines: Lines::default() };
        let sources = vec![source(stdout, Stream::Stdout), source(stderr, Stream::Stderr)];
        Self { sources, stop, log, records: Vec::new() }
    }

    pub(super) fn run(mut self) {
        let mut chunk = vec![0; CHUNK];
        let mut chunks_left = usize::MAX;
        while !self.sources.is_empty() && chunks_left > 0 {
            let Some((ready, stopped)) = self.poll() else { continue };
            if stopped {
                chunks_left = chunks_left.min(LAST_CHUNKS + 1) - 1;
                if ready.is_empty() {
                    break;
                }
            }
            // In reverse, so that removing one does not move the others.
            for at in ready.into_iter().rev() {
                self.read(at, &mut chunk);
            }
        }
        for mut source in std::mem::take(&mut self.sources) {
            self.end(&mut source);
        }
    }

    /// Waits for input. Returns the readable sources and whether to stop, or `None` after a signal.
    fn poll(&self) -> Option<(Vec<usize>, bool)> {
        let mut waiting: Vec<_> =
            self.sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
        waiting.push(PollFd::new(&self.stop, PollFlags::IN));
        poll(&mut waiting, None).ok()?;
        let stopped = waiting.pop().is_some_and(|stop| !stop.revents().is_empty());
        let ready = waiting.iter().enumerate().filter(|(_, source)| !source.revents().is_empty());
        Some((ready.map(|(at, _)| at).collect(), stopped))
    }

    fn read(&mut self, at: usize, chunk: &mut [u8]) {
        let source = &mut self.sources[at];
        match source.pipe.read(chunk) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Ok(0) | Err(_) => {
                let mut source = self.sources.remove(at);
                self.end(&mut source);
            }
            Ok(length) => {
                let stamp = Stamp::new(Timestamp::now());
                source.lines.feed(&chunk[..length], |text, continues| {
                    stamp.encode(&mut self.records, source.stream, text, continues);
                    if self.records.len() >= BATCH {
                        lock(&self.log).append(&self.records);
                        self.records.clear();
                    }
                });
                self.flush();
            }
        }
    }

    fn end(&mut self, source: &mut Source) {
        let stamp = Stamp::new(Timestamp::now());
        source
            .lines
            .finish(|text, continues| stamp.encode(&mut self.records, source.stream, text, continues));
        self.flush();
    }

    fn flush(&mut self) {
        if !self.records.is_empty() {
            lock(&self.log).append(&self.records);
            self.records.clear();
        }
    }
}
