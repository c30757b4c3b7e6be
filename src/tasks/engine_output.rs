//! The engine's own part of a step's output.
//!
//! Hooks and the engine write to the same two pipes. On stderr, the script prints [`BEFORE_HOOK_ENDED`] before it runs the engine,
//! and after a failure of the engine [`READS_AFTER_FAILURE`] before it runs commands of ours. Stdout needs no such lines: the
//! results of our commands go to files, and what the engine prints there comes after what the before hook printed.

use std::fs;

use crate::engines::diagnostics::EngineOutput;
use crate::script::bash_script::{BEFORE_HOOK_ENDED, READS_AFTER_FAILURE};
use crate::step::{FoundRecord, RecordReader, StepFolder, Stream};

/// How far back in the log to look. Engines print errors last.
const TAIL: u64 = 1024 * 1024;

/// The part of the engine, and what a before hook printed on stdout; or everything if the engine never ran.
pub(super) fn read(folder: &StepFolder) -> EngineOutput {
    let path = folder.output_path();
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    let start = length.saturating_sub(TAIL);
    let mut reader = RecordReader::new(path, start);
    let mut lines: Vec<(Stream, String)> = Vec::new();
    // The start of a line that continues in the next record of its stream.
    let mut partial = [(Stream::Stdout, Vec::new()), (Stream::Stderr, Vec::new())];
    let mut reads_results = false;
    while let Ok(Some(FoundRecord { record, at, next })) = reader.peek(true) {
        // The first record is probably cut off at its start.
        let is_whole = start == 0 || at > start;
        let text = partial.iter_mut().find(|(stream, _)| *stream == record.stream);
        if let Some((_, text)) = text.filter(|_| is_whole) {
            text.extend_from_slice(record.text);
            if !record.continues {
                let line = String::from_utf8_lossy(text);
                let line = console::strip_ansi_codes(&line).trim_end().to_owned();
                text.clear();
                let of_stderr = record.stream == Stream::Stderr;
                reads_results |= of_stderr && line == READS_AFTER_FAILURE;
                // The last line of a hook may have no newline.
                if of_stderr && line.ends_with(BEFORE_HOOK_ENDED) {
                    lines.retain(|(stream, _)| *stream != record.stream);
                } else if !(of_stderr && reads_results) {
                    lines.push((record.stream, line));
                }
            }
        }
        reader.pass(next);
    }
    EngineOutput(lines)
}
