//! The script of a step: before hook, engine commands, after hook in one bash process.
//!
//! They share working directory, environment and shell options: an `export` or a `cd` in a before hook affects the engine. The
//! script works with any options and traps that a hook leaves behind (`set -eu`, `set -C`, a changed `IFS`).
//!
//! * **Hooks** run by `eval` of their text (with CRLF replaced by LF, as in pre-approval), so that a syntax error or an open
//!   quote is a failure of the hook and does not affect the lines after it. The exit code of a hook is that of its last
//!   command or of its `exit`.
//! * **The gate**: the script runs nothing on its own. It starts as `bash SCRIPT GATE SOCKET [LOCK]`, and asks its supervisor
//!   with `GATE gate SOCKET QUESTION` before every phase and every engine command. Without a yes, it runs nothing more
//!   (`supervisor::question`). An engine command is a gate that asks and then becomes the engine.
//! * **Phases**: a question that begins a phase also records it: `before`, `engine`, `succeeded` (all engine commands have),
//!   `collect`, `after`, and `done` at the end. If `engine` cannot be recorded, the answer is no, because there would be no
//!   trace of the engine. If the script exits with 0 in phase `before`, the hook ended it (`exit 0`): the engine never ran,
//!   and the step is not a success. An after hook may call `exit 0`, because nothing follows it.
//! * **Place**: with phase `engine`, the gate passes on its working directory and the values of [`PLACE_VARIABLES`]. A hook may
//!   have changed all of them.
//! * **Exit codes**: a failing before hook stops the script; a failing engine command skips the after hook; a failing after
//!   hook fails the script. `collect` commands print results for the runner (the plan or the state as JSON). They run here,
//!   so that they have the same environment, survive the runner and are cancelled like everything else. After an apply,
//!   nothing depends on them, because the changes are made: a failure does not fail the step. `publish` commands
//!   make copies for users: a failure is reported on stderr and does not fail the step.
//! * **Open files**: only stdin (which is empty), stdout, stderr and the module lock are open in hooks and engines. The
//!   runner's other files are never inherited, but the process that started the runner may have left files open.
//! * **The module lock** is the open file with the number `LOCK`. Bash and everything that it starts inherit it, so the module
//!   directory stays locked while any process of the step lives, even if the supervisor is killed. The number is high, so
//!   that no hook closes it by guessing (`exec 3>&-`); only a program that closes all files gives its own copy up.
//! * **A cancel** interrupts the engine that is running, and only that process; the supervisor knows it from its question. A
//!   hook gets a SIGTERM, like all of its processes. Bash is never interrupted. It goes on after both, and its next question
//!   ends it. An engine that succeeds although it was interrupted has succeeded: if nothing has to be read and no hook
//!   follows, so does the script.
//! * **The rest of the script is parsed before a hook runs**, because it is one group of commands: aliases do not affect it.
//!   Keywords cannot be replaced by functions. An engine command bypasses functions and aliases with the engine's name. A
//!   function with the path of the gate as its name could take the gate's place, but no hook defines one by accident.
//! * **The environment** reaches the engine complete, including exported functions and variables that are not valid shell
//!   names (`TF_VAR_my-var`); other shells than bash drop both.
//! * **A killed engine**: bash reports it with the line of the script, unless SIGKILL has a trap (which never runs).
//! * **Job control**, if a hook enables it, is disabled again after the hook. It would put every command into a process group
//!   of its own, where no SIGTERM to the script's group reaches it.

use std::fmt::Write as _;
use std::path::PathBuf;

use hawser_contract::Hook;

use super::command::{EngineCommand, GATE, Retry, path_word, word};
use crate::step::ScriptPhase;

/// The exit code of an interrupted script, as usual in shells.
pub const INTERRUPTED: i32 = 130;

/// How the message for a missing program starts, after `hawser: `.
pub const NO_PROGRAM: &str = "cannot find program";

/// The line on stderr after a before hook. What follows on stderr is the engine's.
pub const BEFORE_HOOK_ENDED: &str = "hawser: the before hook succeeded";

/// The line on stderr before commands that read results after the engine has failed. What follows on stderr is not the
/// engine's own error.
pub const READS_AFTER_FAILURE: &str = "hawser: reading the state after the failure";

/// The variables that, besides the configuration, determine the location of the state.
pub const PLACE_VARIABLES: [&str; 6] = [
    "TF_WORKSPACE",
    "TF_DATA_DIR",
    "PULUMI_STACK",
    "PULUMI_BACKEND_URL",
    "PULUMI_CREDENTIALS_PATH",
    "PULUMI_HOME",
];

/// The longest argument, and the longest variable including its name, that Linux passes to a program.
pub(crate) const LONGEST_WORD: usize = 128 * 1024 - 1;

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("{what} contains a NUL byte, which is not allowed in a command line")]
    Nul { what: String },
    #[error(
        "{what} of {program} has {bytes} bytes, but Linux allows at most {LONGEST_WORD}: pass large values as parameters, which \
         are stored in a file"
    )]
    TooLong { what: &'static str, program: String, bytes: usize },
    #[error("the path {} is not UTF-8 and cannot be used in a script", path.display())]
    Path { path: PathBuf },
}

#[derive(Debug, Clone, Default)]
pub struct Script<'a> {
    /// A comment at the top of the script.
    pub title: String,
    pub before: Option<Hook<'a>>,
    /// Run in order until one fails.
    pub engine: Vec<EngineCommand>,
    /// Print results for the runner.
    pub collect: Vec<EngineCommand>,
    /// Make copies of the results for users. The last word of each is the destination.
    pub publish: Vec<EngineCommand>,
    /// Whether to collect as much as possible if the engine fails. Then the script also continues if collecting fails.
    pub collect_after_failure: bool,
    pub after: Option<Hook<'a>>,
}

/// Continues with `; … fi`.
const IF_SUCCEEDED: &str = "if [[ $hawser_code == 0 ]]; then";

/// The start of every script. It sets the usual umask, because files of hooks and engines may end up in packages; the private
/// folders above protect them in the working directory.
const HEAD: &str = r#"umask 022
readonly hawser_gate=$1 hawser_socket=$2 hawser_lock=${3-}
set --
hawser_code=0
hawser_argument() {
  local quote="'" escaped="'\\''"
  hawser_arguments+=" '${1//$quote/$escaped}'"
}
hawser_must_be_set() {
  if [[ -z $2 ]]; then echo "hawser: \$$1 is not set, using an empty value" >&2; fi
}
readonly -f hawser_argument hawser_must_be_set
trap : KILL
exec </dev/null
for hawser_fd in /dev/fd/*; do
  if [[ ${hawser_fd##*/} -gt 2 && ${hawser_fd##*/} != "$hawser_lock" && ! $hawser_fd -ef $0 ]]; then
    eval "exec ${hawser_fd##*/}>&-"
  fi
done
"#;

impl Script<'_> {
    /// The text of the script.
    pub fn text(&self) -> Result<String, ScriptError> {
        let mut text = String::from("#!/usr/bin/env bash\n");
        let title: String = self.title.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        let _ = writeln!(text, "# {title}\n{HEAD}{{");
        if let Some(hook) = self.before {
            hook_lines(&mut text, ScriptPhase::Before, hook)?;
            let ended = word("a text", BEFORE_HOOK_ENDED)?;
            // The final `:` is for `set -e`, because `printf` fails if a hook has closed stderr.
            let _ = writeln!(text, "{IF_SUCCEEDED} printf '%s\\n' {ended} >&2 || :; fi");
        }
        let _ = writeln!(text, "{IF_SUCCEEDED} {} || hawser_code=$?; fi", enter(ScriptPhase::Engine));
        let _ = writeln!(text, "{IF_SUCCEEDED}");
        for command in &self.engine {
            engine_lines(&mut text, command)?;
        }
        text.push_str("if [[ $hawser_code != 0 ]]; then :\n");
        if self.collect_after_failure {
            self.after_failure(&mut text)?;
        }
        // A success is recorded even if nothing more may be started.
        let _ = writeln!(text, "else\n{} || :", enter(ScriptPhase::Succeeded));
        if !self.collect.is_empty() || !self.publish.is_empty() {
            self.after_success(&mut text)?;
        }
        text.push_str("fi\nfi\n");
        if let Some(hook) = self.after {
            hook_lines(&mut text, ScriptPhase::After, hook)?;
        }
        let _ = writeln!(text, "{IF_SUCCEEDED} {} || :; fi", enter(ScriptPhase::Done));
        text.push_str("exit \"$hawser_code\"\n}\n");
        Ok(text)
    }

    fn after_failure(&self, text: &mut String) -> Result<(), ScriptError> {
        let reading = word("a text", READS_AFTER_FAILURE)?;
        let _ = writeln!(text, "if {GATE} next; then\nprintf '%s\\n' {reading} >&2 || :");
        for command in &self.collect {
            let _ = writeln!(text, "{} || :", command.line()?);
        }
        for command in &self.publish {
            text.push_str(&publish_line(command)?);
        }
        text.push_str("fi\n");
        Ok(())
    }

    fn after_success(&self, text: &mut String) -> Result<(), ScriptError> {
        let commands: Vec<_> = self.collect.iter().filter(|it| !it.only_after_failure).collect();
        // Without results the task fails, unless they only add something.
        let is_needed = !self.collect_after_failure && !commands.is_empty();
        let failed = if is_needed { "hawser_code=$?" } else { ":" };
        let _ = writeln!(text, "{} || {failed}", enter(ScriptPhase::Collect));
        for command in commands {
            let _ = writeln!(text, "{IF_SUCCEEDED} {} || {failed}; fi", command.line()?);
        }
        for command in self.publish.iter().filter(|it| !it.only_after_failure) {
            let _ = writeln!(text, "{IF_SUCCEEDED} {}fi", publish_line(command)?);
        }
        Ok(())
    }
}

fn enter(phase: ScriptPhase) -> String {
    format!("{GATE} phase {}", phase.word())
}

fn hook_lines(text: &mut String, phase: ScriptPhase, hook: Hook<'_>) -> Result<(), ScriptError> {
    // Pre-approval ignores trailing whitespace. To bash, a carriage return or a no-break space is part of the last word.
    let code = word(hook.name, hook.text.replace("\r\n", "\n").trim_end())?;
    let _ = writeln!(text, "\n# {}", hook.name);
    let _ = writeln!(text, "{IF_SUCCEEDED} {} || hawser_code=$?; fi", enter(phase));
    // Not in a condition or before `||`, which would disable a `set -e` inside the hook.
    let _ = writeln!(text, "{IF_SUCCEEDED}\neval {code}\nhawser_code=$?\nset +m\nfi");
    Ok(())
}

fn engine_lines(text: &mut String, command: &EngineCommand) -> Result<(), ScriptError> {
    let _ = writeln!(text, "{IF_SUCCEEDED}");
    if let Some(hidden) = &command.hidden {
        text.push_str(&hidden.lines()?);
    }
    // `||` prevents a `set -e` or an ERR trap of the hook from taking effect.
    match &command.retry {
        None => {
            let _ = writeln!(text, "{} || hawser_code=$?", command.line()?);
        }
        Some(retry) => text.push_str(&with_retry(command, retry)?),
    }
    if let Some((code, file)) = &command.also_success {
        let file = path_word(file)?;
        let _ = writeln!(text, "if [[ $hawser_code == {code} && -e {file} ]]; then hawser_code=0; fi");
    }
    text.push_str("fi\n");
    Ok(())
}

/// A copy that was refused has not failed.
fn publish_line(command: &EngineCommand) -> Result<String, ScriptError> {
    let place = command.words.last().map_or("its place", String::as_str);
    let failed = format!(
        "hawser: failed to copy the result to {place}, which may now be missing or incomplete; the task does not need this \
         copy"
    );
    let failed = word("a path", &failed)?;
    Ok(format!("{} || [[ $? == {INTERRUPTED} ]] || printf '%s\\n' {failed} >&2 || :\n", command.line()?))
}

/// The lines for a command that may be followed by another one.
fn with_retry(command: &EngineCommand, retry: &Retry) -> Result<String, ScriptError> {
    let (file, wanted) = (path_word(&retry.stderr)?, word("a text", retry.text)?);
    // A pipe to a second process would need that process to survive a cancel, so stderr goes to a file.
    Ok(format!(
        "{} 2>|{file} || hawser_code=$?\n\
         hawser_stderr=$(<{file}) || :\n\
         if [[ $hawser_code != 0 && $hawser_stderr == *{wanted}* ]]; then\n\
         hawser_code=0\n\
         {} || hawser_code=$?\n\
         elif [[ -n $hawser_stderr ]]; then\n\
         printf '%s\\n' \"$hawser_stderr\" >&2 || :\n\
         fi\n",
        command.line()?,
        retry.command.line()?
    ))
}

#[cfg(test)]
mod tests;
