//! Writes what the script asks about and the supervisor's own log lines. Runs in its own thread, because a slow disk must not
//! delay a cancel.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use super::gate::Asked;
use super::output::{SharedLog, lock};
use super::question::Question;
use crate::step::{ScriptPhase, StepFolder, Stream};

/// Entries that wait for the disk. The supervisor writes few, and the script asks one question after another.
const WAITING: usize = 64;

#[derive(Debug)]
enum Entry {
    Line(Stream, String),
    Question(Asked),
}

/// A question, and whether it was recorded.
pub(super) type Recorded = (Asked, io::Result<()>);

#[derive(Debug)]
pub(super) struct Recorder {
    entries: SyncSender<Entry>,
    thread: JoinHandle<()>,
}

impl Recorder {
    pub(super) fn start(
        folder: &StepFolder,
        log: SharedLog,
        recorded: mpsc::Sender<Recorded>,
    ) -> io::Result<Self> {
        let (entries, waiting) = sync_channel(WAITING);
        let folder = folder.clone();
        let thread = thread::Builder::new().spawn(move || run(&folder, &log, &waiting, &recorded))?;
        Ok(Self { entries, thread })
    }

    pub(super) fn say(&self, stream: Stream, message: &str) {
        let _ = self.entries.try_send(Entry::Line(stream, message.to_owned()));
    }

    /// If there is no room, the connection is closed, which refuses the question.
    pub(super) fn record(&self, asked: Asked) {
        let _ = self.entries.try_send(Entry::Question(asked));
    }

    /// Waits until everything is written.
    pub(super) fn finish(self) {
        drop(self.entries);
        let _ = self.thread.join();
    }
}

fn run(folder: &StepFolder, log: &SharedLog, waiting: &Receiver<Entry>, recorded: &mpsc::Sender<Recorded>) {
    let mut command = String::new();
    for entry in waiting {
        match entry {
            Entry::Line(stream, message) => lock(log).say(stream, &message),
            Entry::Question(asked) => {
                let written = record(folder, &asked.question, &mut command);
                // If the main loop has ended, the question is dropped, which refuses it.
                let _ = recorded.blocking_send((asked, written));
            }
        }
    }
}

fn record(folder: &StepFolder, question: &Question, command: &mut String) -> io::Result<()> {
    match question {
        Question::Phase { phase, place } => {
            if *phase == ScriptPhase::Engine {
                // `hawser exec` and messages depend on the place, and no result does.
                let _ = write(&folder.place_path(), false, place);
            }
            write(&folder.part_path(), true, format!("{}\n", phase.word()).as_bytes())
        }
        Question::Engine { name, .. } if name != command => {
            let written = write(&folder.command_path(), false, format!("{name}\n").as_bytes());
            command.clone_from(name);
            written
        }
        Question::Engine { .. } | Question::Next => Ok(()),
    }
}

fn write(path: &Path, append: bool, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(append)
        .write(true)
        .truncate(!append)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}
