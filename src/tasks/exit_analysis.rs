//! The meaning of a script's exit.
//!
//! Only the exit code and the phase that the script had reached decide:
//!
//! | exit | phase | meaning |
//! |---|---|---|
//! | 0 | `done`, or `after` (the after hook left by `exit 0`) | the task is complete, also if it was cancelled |
//! | any other end | any, and the supervisor received a cancel, or `cancel.json` is there | cancelled |
//! | a failure, and no script was started | none, and `cancel.json` is there | cancelled |
//! | 0 | `before` | fault: the before hook ended the script and the engine never ran |
//! | not 0, or a signal | any | fault: that part failed |

use hawser_contract::{EngineTask, Fault, Task};

use super::{TaskContext, TaskError, engine_output};
use crate::engines::diagnostics::{Diagnostic, EngineOutput};
use crate::engines::{Engine, ResultPaths};
use crate::masking::Masker;
use crate::script::ScriptPhase;
use crate::script::bash_script::{INTERRUPTED, NO_PROGRAM};
use crate::step::{Exit, Stream};

/// The number of last lines in a fault, and their maximum length. A fault must fit into one message.
const LINES: usize = 20;
const LINE_LENGTH: usize = 300;
/// The maximum length of the first error in the message, and of all errors in the details.
const SUMMARY_LENGTH: usize = 1000;
const DETAILS_LENGTH: usize = 16 * 1024;
/// No error in the details is cut shorter than this.
const SHORTEST_ERROR: usize = 200;

/// The signal that no process survives, and the exit code that it causes.
const KILL: i32 = 9;
const KILLED: i32 = 128 + KILL;
const WHO_KILLS: &str = "usually because the machine or the container ran out of memory";

/// Whether the script or the engine was killed and could not clean up.
pub(super) fn is_kill(exit: &Exit) -> bool {
    matches!(exit, Exit::Signal(KILL) | Exit::Code(KILLED))
}

/// Whether the script completed.
pub(super) fn judge(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
    exit: &Exit,
) -> Result<(), TaskError> {
    let command = engine.command(task.task);
    let folder = &context.folder;
    let phase = folder.part();
    let engine_succeeded = phase.is_some_and(ScriptPhase::is_past_engine);
    let was_cancelled = folder.cancelled_by_supervisor()?.is_some();
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
        if was_cancelled {
            context.warn(&format!("The cancel came too late: {command} has succeeded"));
        }
        return Ok(());
    }
    if was_cancelled || folder.cancel()?.is_some() {
        if engine_succeeded {
            let changes = if task.task.applies() { ": its changes remain" } else { "" };
            context.warn(&format!("{command} succeeded anyway{changes}"));
        }
        return Err(TaskError::Cancelled);
    }
    let output = engine_output::read(folder);
    let masker = context.secrets.masker();
    let lines = last_lines(&output, &masker);
    let errors = match phase {
        Some(ScriptPhase::Engine | ScriptPhase::Collect) => errors(context, engine, task, &output),
        _ => Vec::new(),
    };
    let mut message = match exit {
        Exit::Code(0) if engine_succeeded => {
            format!("{command} succeeded, but the script ended with exit code 0 before its end")
        }
        _ => what_failed(context, &command, task, phase, exit),
    };
    let reason = not_found(&lines).map(str::to_owned).or_else(|| first(&errors, &masker));
    if let Some(reason) = reason.or_else(|| first_error(&lines).map(str::to_owned)) {
        message.push_str(": ");
        message.push_str(&reason);
    }
    let said: Vec<String> = output.0.iter().map(|(_, line)| line.clone()).collect();
    if let Some(hint) = engine.failure_hint(&said) {
        message.push_str(if message.ends_with('.') { " " } else { ". " });
        message.push_str(hint);
    }
    let details = if errors.is_empty() { lines.join("\n") } else { all(&errors, &masker) };
    Err(Fault { message, details, resources: None }.into())
}

fn errors(
    context: &TaskContext,
    engine: &dyn Engine,
    task: &EngineTask,
    output: &EngineOutput,
) -> Vec<Diagnostic> {
    let Ok(workspace) = context.workspace() else { return Vec::new() };
    let paths = ResultPaths::new(&workspace.private_dir(), context.folder.path());
    paths.map(|paths| engine.diagnostics(task.task, output, &paths)).unwrap_or_default()
}

/// The number of errors and the first of them.
fn first(errors: &[Diagnostic], masker: &Masker) -> Option<String> {
    let first = cut(&masker.text(&errors.first()?.summary), SUMMARY_LENGTH);
    Some(if errors.len() == 1 { first } else { format!("{} errors, the first: {first}", errors.len()) })
}

/// All errors, each with the same share of the space if they are too long.
fn all(errors: &[Diagnostic], masker: &Masker) -> String {
    let share = (DETAILS_LENGTH / errors.len().max(1)).max(SHORTEST_ERROR);
    let texts: Vec<String> = errors.iter().map(|error| masker.text(&error.text).into_owned()).collect();
    let fits = texts.iter().map(String::len).sum::<usize>() <= DETAILS_LENGTH;
    let shown: Vec<String> = match fits {
        true => texts,
        false => texts.iter().take(DETAILS_LENGTH / share).map(|text| cut(text, share)).collect(),
    };
    let more = errors.len() - shown.len();
    let more = (more > 0).then(|| format!("{more} more errors are in the log"));
    shown.into_iter().chain(more).collect::<Vec<_>>().join("\n\n")
}

fn cut(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    format!("{} …", text[..text.floor_char_boundary(length)].trim_end())
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
        Some(ScriptPhase::Succeeded) => format!("{command} succeeded, but the script"),
        Some(ScriptPhase::After | ScriptPhase::Done) => format!("{command} succeeded, but {after}"),
    };
    match exit {
        Exit::Code(0) if phase == Some(ScriptPhase::Before) => format!(
            "{who} ended the script with exit code 0 before the engine ran, so {command} was not run (a before hook must not \
             call exit)"
        ),
        Exit::Code(0) => format!("the script ended early, during {who}"),
        Exit::Code(INTERRUPTED) => format!("{who} was interrupted (exit code {INTERRUPTED})"),
        Exit::Code(KILLED) => format!("{who} was killed (exit code {KILLED}, SIGKILL; {WHO_KILLS})"),
        Exit::Signal(KILL) => format!("{who} was killed (SIGKILL; {WHO_KILLS})"),
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
fn last_lines(output: &EngineOutput, masker: &Masker) -> Vec<String> {
    let mut lines = plain(output, Stream::Stderr, masker);
    if lines.is_empty() {
        lines = plain(output, Stream::Stdout, masker);
    }
    lines.drain(..lines.len().saturating_sub(LINES));
    lines
}

/// The lines of a stream without empty lines and without secrets.
pub(super) fn plain(output: &EngineOutput, stream: Stream, masker: &Masker) -> Vec<String> {
    masked_lines(&output.lines(stream).collect::<Vec<_>>().join("\n"), masker)
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

    fn error(text: String) -> Diagnostic {
        Diagnostic { summary: text.replace('\n', " "), text }
    }

    #[test]
    fn secrets_in_errors_are_masked_before_anything_is_cut() {
        let masker = Masker::new(["correct horse battery"], &Rules::new(&Default::default()).unwrap());
        let text = format!("{}correct\nhorse battery", "x".repeat(SUMMARY_LENGTH - 5));
        let first = first(&[error(text)], &masker).unwrap();
        assert!(first.ends_with("x***"), "{first}");
        let text = format!("{}correct horse battery", "x".repeat(DETAILS_LENGTH / 2 - 5));
        let all = all(&[error(text.clone()), error(text)], &masker);
        assert!(!all.contains("correct") && all.matches("***").count() == 2, "{all}");
    }

    #[test]
    fn every_error_has_its_share_of_the_details() {
        let masker = Masker::new([""; 0], &Rules::new(&Default::default()).unwrap());
        let errors: Vec<_> =
            (0..100).map(|at| error(format!("error {at}: {}", "long ".repeat(1000)))).collect();
        let some = all(&errors[..30], &masker);
        assert!((0..30).all(|at| some.contains(&format!("error {at}: "))), "{some}");
        let many = all(&errors, &masker);
        assert!(many.ends_with("19 more errors are in the log"), "{many}");
        assert!(some.len().max(many.len()) < DETAILS_LENGTH + 1024);
        assert!(first(&errors, &masker).unwrap().starts_with("100 errors, the first: error 0: long "));
    }
}
