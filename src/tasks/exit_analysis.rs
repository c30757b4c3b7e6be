//! What the end of a script means.
//!
//! The exit code and the part that the script had reached decide, and nothing else:
//!
//! | code | part reached | means |
//! |---|---|---|
//! | 0 | `done`, or `after` (the after hook left by `exit 0`) | the task is complete |
//! | any other end | any, and `cancel.json` is there | cancelled |
//! | a failure, and no script was started | none, and `cancel.json` is there | cancelled |
//! | 0 | `before` | fault: the before hook ended the script and the engine never ran |
//! | not 0, or a signal | any | fault: that part failed |

use std::fmt::Write as _;
use std::fs;

use hawser_contract::{EngineTask, Fault, Task};

use super::{TaskContext, TaskError};
use crate::engines::Engine;
use crate::masking::Masker;
use crate::script::ScriptPhase;
use crate::script::bash_script::{INTERRUPTED, NO_PROGRAM};
use crate::step::{Exit, FoundRecord, RecordReader, Stream};

/// How many of the last lines a fault carries, and how long each may be. A fault has to fit into one message.
const LINES: usize = 20;
const LINE_LENGTH: usize = 300;
/// How far back in the log they are looked for.
const TAIL: u64 = 256 * 1024;

/// Whether the script did all that it was to do.
pub(super) fn judge(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
    exit: &Exit,
) -> Result<(), TaskError> {
    let command = engine.command(task.task);
    let folder = &context.folder;
    let part = folder.part().and_then(|word| ScriptPhase::from_word(&word));
    if let Exit::Failure(failure) = exit {
        // A cancel that came when the supervisor was about to begin.
        if folder.cancel()?.is_some() && folder.supervisor()?.is_none() {
            return Err(TaskError::Cancelled);
        }
        let mut message = failure.clone();
        if engine_succeeded(part) {
            let _ = write!(message, "; {command} had succeeded by then");
        }
        return Err(Fault::new(message).into());
    }
    if *exit == Exit::Code(0) && matches!(part, Some(ScriptPhase::Done | ScriptPhase::After)) {
        return Ok(());
    }
    if folder.cancel()?.is_some() {
        if task.task.applies() && engine_succeeded(part) {
            context.warn(&format!("{command} succeeded all the same: what it changed stays changed"));
        }
        return Err(TaskError::Cancelled);
    }
    let lines = last_lines(context);
    let not_found = not_found(&lines);
    let mut message = what_failed(context, &command, task, part, exit, not_found.is_some());
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

/// Whether the script got past its engine commands, which it only does when all have succeeded.
fn engine_succeeded(part: Option<ScriptPhase>) -> bool {
    matches!(part, Some(ScriptPhase::Collect | ScriptPhase::After | ScriptPhase::Done))
}

fn what_failed(
    context: &TaskContext,
    command: &str,
    task: &EngineTask,
    part: Option<ScriptPhase>,
    exit: &Exit,
    not_found: bool,
) -> String {
    let hook = |hook: Option<hawser_contract::Hook<'_>>| hook.map_or("a hook", |hook| hook.name);
    let [before, after] = task.hooks();
    let who = match part {
        None => "the script".to_owned(),
        Some(ScriptPhase::Before) => hook(before).to_owned(),
        Some(ScriptPhase::Engine) => context.folder.engine_command().unwrap_or_else(|| command.to_owned()),
        Some(ScriptPhase::Collect) if task.task == Task::Init => {
            format!("{command} succeeded, but noting that in the plugin cache")
        }
        Some(ScriptPhase::Collect) => format!("{command} succeeded, but reading its result"),
        Some(ScriptPhase::After | ScriptPhase::Done) => {
            format!("{command} succeeded, but {}", hook(after))
        }
    };
    match exit {
        Exit::Code(0) if part == Some(ScriptPhase::Before) => format!(
            "{who} ended the script with exit code 0 before the engine ran: {command} was not run (leave a before hook by \
             its end, not by exit)"
        ),
        Exit::Code(0) if engine_succeeded(part) => format!(
            "{command} succeeded, but the script ended with exit code 0 without noting that it came to its end"
        ),
        Exit::Code(0) => format!("the script ended early, while {who} ran"),
        Exit::Code(INTERRUPTED) => format!("{who} was interrupted (exit code {INTERRUPTED})"),
        Exit::Code(127) if part == Some(ScriptPhase::Engine) => {
            let why = if not_found { "the program was not found" } else { "as when a program is not found" };
            format!("{who} failed with exit code 127 ({why})")
        }
        Exit::Code(code) => format!("{who} failed with exit code {code}"),
        Exit::Signal(signal) => format!("{who} was ended by signal {signal}"),
        Exit::Failure(reason) => format!("{who} failed: {reason}"),
    }
}

/// Where the script looked for a program in vain.
fn not_found(lines: &[String]) -> Option<&str> {
    let mut said = lines.iter().filter_map(|line| line.strip_prefix("hawser: "));
    said.rfind(|line| line.starts_with(NO_PROGRAM))
}

/// What an engine calls its error, without the frame that it draws around it.
fn first_error(lines: &[String]) -> Option<&str> {
    lines.iter().find_map(|line| {
        let text = line.trim_start_matches(['│', '|', ' ']);
        ["Error: ", "error: "].iter().any(|start| text.starts_with(start)).then_some(text)
    })
}

/// The last lines of stderr, or of stdout when stderr was silent.
fn last_lines(context: &TaskContext) -> Vec<String> {
    let OutputTail { stdout, stderr } = tail(context);
    let mut lines = if stderr.is_empty() { stdout } else { stderr };
    lines.drain(..lines.len().saturating_sub(LINES));
    lines
}

/// What a script printed towards its end, as plain text without empty lines and without secrets.
#[derive(Debug, Default)]
pub(super) struct OutputTail {
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
}

pub(super) fn tail(context: &TaskContext) -> OutputTail {
    let mut tail = OutputTail::default();
    let path = context.folder.output_path();
    let masker = context.secrets.masker();
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    let start = length.saturating_sub(TAIL);
    let mut reader = RecordReader::new(path, start);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    while let Ok(Some(FoundRecord { record, at, next })) = reader.peek(false) {
        let stream = match record.stream {
            // The start is probably inside a record.
            _ if start > 0 && at == start => None,
            Stream::Stderr => Some(&mut stderr),
            Stream::Stdout => Some(&mut stdout),
            _ => None,
        };
        if let Some(stream) = stream {
            stream.push_str(&console::strip_ansi_codes(&String::from_utf8_lossy(record.text)));
            stream.push('\n');
        }
        reader.pass(next);
    }
    (tail.stdout, tail.stderr) = (masked_lines(&stdout, &masker), masked_lines(&stderr, &masker));
    tail
}

/// Masked before anything is cut or left out: half of a secret that goes over two lines would not be known for one.
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
    fn a_secret_over_two_lines_is_masked_though_the_first_line_is_cut() {
        let masker = Masker::new(["first-half-second-half"], &Rules::new(&Default::default()).unwrap());
        let text = format!("{}first-half-\nsecond-half \x20\n\nend", "x".repeat(LINE_LENGTH - 3));
        let cut = format!("{}***", "x".repeat(LINE_LENGTH - 3));
        assert_eq!(masked_lines(&text, &masker), [&cut, "end"]);
    }
}
