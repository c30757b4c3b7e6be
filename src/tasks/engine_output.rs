//! The engine's own part of a step's output.
//!
//! Hooks and the engine write to the same two pipes, so `output.log` does not record which of them a line is from. The script
//! records when it starts the engine: older records are from the before hook. The last lines of a hook may still be in the
//! pipe at that time, so a few of them may be taken for the engine's; never the other way around. After a failure, what commands of ours print on stderr comes after [`READS_AFTER_FAILURE`].

use std::fs;

use crate::engines::diagnostics::EngineOutput;
use crate::engines::failed_step::began;
use crate::script::ScriptPhase;
use crate::script::bash_script::READS_AFTER_FAILURE;
use crate::step::{FoundRecord, RecordReader, StepFolder, Stream};

/// How far back in the log to look. Engines print errors last.
const TAIL: u64 = 1024 * 1024;

/// The part of the engine, or everything if the engine never ran.
pub(super) fn read(folder: &StepFolder, phase: Option<ScriptPhase>) -> EngineOutput {
    let since = folder.engine_started().filter(|_| began(phase));
    let own = since.map(|since| read_since(folder, since)).filter(|own| !own.0.is_empty());
    // No lines: there are none, or the clock was set back in between.
    own.unwrap_or_else(|| read_since(folder, i64::MIN))
}

fn read_since(folder: &StepFolder, since: i64) -> EngineOutput {
    let path = folder.output_path();
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    let start = length.saturating_sub(TAIL);
    let mut reader = RecordReader::new(path, start);
    let mut lines = Vec::new();
    // The start of a line that continues in the next record of its stream.
    let mut partial = [(Stream::Stdout, Vec::new()), (Stream::Stderr, Vec::new())];
    let mut reads_results = false;
    while let Ok(Some(FoundRecord { record, at, next })) = reader.peek(true) {
        // The first record is probably cut off at its start.
        let is_whole = start == 0 || at > start;
        let text = partial.iter_mut().find(|(stream, _)| *stream == record.stream);
        if let Some((_, text)) = text.filter(|_| is_whole && record.micros >= since) {
            text.extend_from_slice(record.text);
            if !record.continues {
                let line = String::from_utf8_lossy(text);
                let line = console::strip_ansi_codes(&line).trim_end().to_owned();
                text.clear();
                let of_stderr = record.stream == Stream::Stderr;
                reads_results |= of_stderr && line == READS_AFTER_FAILURE;
                if !(of_stderr && reads_results) {
                    lines.push((record.stream, line));
                }
            }
        }
        reader.pass(next);
    }
    EngineOutput(lines)
}
