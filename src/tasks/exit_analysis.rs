//! The meaning of a script's exit.
//!
//! Only the exit code and the phase that the script had reached decide:
//!
//! | exit | phase | meaning |
//! |---|---|---|
//! | 0 | `done`, or `after` (the after hook left by `exit 0`) | the task is complete |
//! | any other end | any, and `cancel.json` is there | cancelled |
//! | a failure, and no script was started | none, and `cancel.json` is there | cancelled |
//! | 0 | `before` | fault: the before hook ended the script and the engine never ran |
//! | not 0, or a signal | any | fault: that part failed |

use std::fs;

use hawser_contract::{EngineTask, Fault, Task};

use super::{TaskContext, TaskError};
use crate::engines::Engine;
use crate::masking::Masker;
use crate::script::ScriptPhase;
use crate::script::bash_script::{INTERRUPTED, NO_PROGRAM};
use crate::step::{Exit, FoundRecord, RecordReader, Stream};

/// The number of last lines in a fault, and their maximum length. A fault must fit into one message.
const LINES: usize = 20;
const LINE_LENGTH: usize = 300;
/// How far back in the log to look for them.
const TAIL: u64 = 256 * 1024;

/// Whether the script completed.
pub(super) fn judge(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
    exit: &Exit,
) -> Result<(), TaskError> {
    let command = engine.command(task.task);
    let folder = &context.folder;
    let phase = folder.part().and_then(|word| ScriptPhase::from_word(&word));
    // The script only continues after the engine commands if all of them have succeeded.
    let engine_succeeded =
        matches!(phase, Some(ScriptPhase::Collect | ScriptPhase::After | ScriptPhase::Done));
    if let Exit::Failure(failure) = exit {
        // A cancel before the supervisor started the script.
        if folder.cancel()?.is_some() && folder.supervisor()?.is_none() {
            return Err(TaskError::Cancelled);
        }
        let after =
            if engine_succeeded { format!("; {command} had succeeded before") } else { String::new() };
        return Err(Fault::new(format!("{failure}{after}")).into());
    }
    if *exit == Exit::Code(0) && matches!(phase, Some(ScriptPhase::Done | ScriptPhase::After)) {
        return Ok(());
    }
    if folder.cancel()?.is_some() {
        if task.task.applies() && engine_succeeded {
            context.warn(&format!("{command} succeeded anyway: its changes remain"));
        }
        return Err(TaskError::Cancelled);
    }
    let lines = last_lines(context);
    let not_found = not_found(&lines);
    let mut message = match exit {
        Exit::Code(0) if engine_succeeded => {
            format!("{command} succeeded, but the script ended with exit code 0 before its end")
        }
        _ => what_failed(context, &command, task, phase, exit),
    };
    if let Some(error) = not_found.or_else(|| first_error(&lines)) {
        message.push_str(": ");
        message.push_str(error);
    }
    if let Some(hint) = engine.failure_hint(&lines) {
        message.push_str(". ");
        message.push_str(hint);
    }
    Err(Fault { message, details: lines.join("\n"), resources: None }.into())
}

fn what_failed(
    context: &TaskContext,
    command: &str,
    task: &EngineTask,
    phase: Option<ScriptPhase>,
    exit: &Exit,
) -> String {
    let [before, after] = task.hooks().map(|hook| hook.map_or("a hook", |hook| hook.name));
    let who = match phase {
        None => "the script".to_owned(),
        Some(ScriptPhase::Before) => before.to_owned(),
        Some(ScriptPhase::Engine) => context.folder.engine_command().unwrap_or_else(|| command.to_owned()),
        Some(ScriptPhase::Collect) if task.task == Task::Init => {
            format!("{command} succeeded, but recording that in the plugin cache")
        }
        Some(ScriptPhase::Collect) => format!("{command} succeeded, but reading its result"),
        Some(ScriptPhase::After | ScriptPhase::Done) => format!("{command} succeeded, but {after}"),
    };
    match exit {
        Exit::Code(0) if phase == Some(ScriptPhase::Before) => format!(
            "{who} ended the script with exit code 0 before the engine ran, so {command} was not run (a before hook must not \
             call exit)"
        ),
        Exit::Code(0) => format!("the script ended early, during {who}"),
        Exit::Code(INTERRUPTED) => format!("{who} was interrupted (exit code {INTERRUPTED})"),
        Exit::Code(code) => format!("{who} failed with exit code {code}"),
        Exit::Signal(signal) => format!("{who} was ended by signal {signal}"),
        Exit::Failure(reason) => format!("{who} failed: {reason}"),
    }
}

/// The message of the script about a missing program.
fn not_found(lines: &[String]) -> Option<&str> {
    let mut messages = lines.iter().filter_map(|line| line.strip_prefix("hawser: "));
    messages.rfind(|line| line.starts_with(NO_PROGRAM))
}

/// The first error message of the engine, without the frame around it.
fn first_error(lines: &[String]) -> Option<&str> {
    lines.iter().find_map(|line| {
        let text = line.trim_start_matches(['│', '|', ' ']);
        ["Error: ", "error: "].iter().any(|start| text.starts_with(start)).then_some(text)
    })
}

/// The last lines of stderr, or of stdout if stderr is empty.
fn last_lines(context: &TaskContext) -> Vec<String> {
    let mut lines = tail(context, Stream::Stderr);
    if lines.is_empty() {
        lines = tail(context, Stream::Stdout);
    }
    lines.drain(..lines.len().saturating_sub(LINES));
    lines
}

/// The end of a stream of the script, as plain text without empty lines and without secrets.
pub(super) fn tail(context: &TaskContext, stream: Stream) -> Vec<String> {
    let path = context.folder.output_path();
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    let start = length.saturating_sub(TAIL);
    let mut reader = RecordReader::new(path, start);
    let mut text = String::new();
    while let Ok(Some(FoundRecord { record, at, next })) = reader.peek(false) {
        // The first record is probably cut off at its start.
        let is_whole = start == 0 || at > start;
        if is_whole && record.stream == stream {
            text.push_str(&console::strip_ansi_codes(&String::from_utf8_lossy(record.text)));
            text.push('\n');
        }
        reader.pass(next);
    }
    masked_lines(&text, &context.secrets.masker())
}

/// Masks before it cuts anything, because half of a secret would not be recognized.
fn masked_lines(text: &str, masker: &Masker) -> Vec<String> {
    let masked = masker.text(text);
    let lines = masked.lines().map(|line| line.trim_end().chars().take(LINE_LENGTH).collect());
    lines.filter(|line: &String| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masking::Rules;

    #[test]
    fn a_secret_on_two_lines_is_masked_even_if_the_first_line_is_cut() {
        let masker = Masker::new(["first-half-second-half"], &Rules::new(&Default::default()).unwrap());
        let text = format!("{}first-half-\nsecond-half \x20\n\nend", "x".repeat(LINE_LENGTH - 3));
        let cut = format!("{}***", "x".repeat(LINE_LENGTH - 3));
        assert_eq!(masked_lines(&text, &masker), [&cut, "end"]);
    }
}
