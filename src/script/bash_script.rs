//! The script of a step: before hook, engine commands, after hook in one bash process.
//!
//! They share working directory, environment and shell options: an `export` or a `cd` in a before hook affects the engine. The
//! script works with any options and traps that a hook leaves behind (`set -eu`, `set -C`, a changed `IFS`).
//!
//! * **Hooks** run by `eval` of their text (with CRLF replaced by LF, as in pre-approval), so that a syntax error or an open
//!   quote is a failure of the hook and does not affect the lines after it. The exit code of a hook is that of its last
//!   command or of its `exit`.
//! * **Phases**: the script appends each phase that it reaches to the file `part` in the step folder: `before`, `engine`,
//!   `collect`, `after`, and `done` at the end. Even a full disk usually has room for these lines. If `engine` cannot be
//!   written, the engine is not run, because there would be no record of it. If the script exits with 0 in phase `before`, the
//!   hook ended it (`exit 0`): the engine never ran, and the step is not a success. An after hook may call `exit 0`, because
//!   nothing follows it. The file `command` names the running engine command, if it is not the main command of the task.
//! * **Place**: before the engine runs, the script writes its working directory and the values of [`PLACE_VARIABLES`] to the
//!   file `place`, each followed by a NUL byte. A hook may have changed all of them.
//! * **Exit codes**: a failing before hook stops the script; a failing engine command skips the after hook; a failing after
//!   hook fails the script. `collect` commands print results for the runner (the plan or the state as JSON). They run here,
//!   so that they have the same environment, survive the runner and are cancelled like everything else. After an apply,
//!   nothing depends on them, because the changes are made: a failure does not fail the step. `publish` commands
//!   make copies for users: a failure is reported on stderr and does not fail the step.
//! * **Open files**: only stdin (which is empty), stdout and stderr are open in hooks and engines. The runner's own files are
//!   never inherited, but the process that started the runner may have left files open.
//! * **Interrupts** reach both bash and the engine. Bash waits until the running command has shut down, and then starts
//!   nothing more: in a hook it exits at once, after an engine command only if another command would follow. A hook may
//!   have replaced the trap, so the script also checks for `cancel.json`. Bash handles an interrupt between any two commands,
//!   so the last check (`hawser_go`) runs where nothing can come in between: in the subshell that becomes the engine, and
//!   in the phase of the hook itself, where the trap exits.
//!
//!   An interrupt that arrives while bash is about to start a command reaches only bash, which then waits for that command
//!   to end before it handles the interrupt. For engine commands, `hawser_run` closes this gap: the process that becomes the
//!   engine makes the last check for `cancel.json`, which is written before any interrupt is sent. From then on, an
//!   interrupt ends that process. This process is a newly started bash, because a subshell would handle interrupts itself
//!   until it becomes the engine. For the commands of a hook, the supervisor interrupts processes that missed the
//!   interrupt, until the script reports in the file `noticed` that it noticed it. The script writes this file before it does
//!   anything else. A hook whose text contains `trap` may clean up in its own way, so there the file is written in advance.
//! * **The environment** reaches the engine complete, including exported functions and variables that are not valid shell
//!   names (`TF_VAR_my-var`); other shells than bash drop both. The bash that becomes the engine runs no code from the
//!   environment or the home directory (`--norc -p`); only `SHELLOPTS`, `IFS` and `PS4` are reset.
//! * **A killed engine**: bash reports it with the line of the script, unless SIGKILL has a trap (which never runs).
//! * **Job control**, if a hook enables it, would put the engine into its own process group, where no interrupt reaches it.
//!   It is disabled again after the hook.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hawser_contract::Hook;

use super::command::{EngineCommand, Retry, path_word, word};
use crate::step::COLLECT;

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

/// The phase that a script is in, or was in when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptPhase {
    Before,
    Engine,
    Collect,
    After,
    Done,
}

impl ScriptPhase {
    pub const ALL: [Self; 5] = [Self::Before, Self::Engine, Self::Collect, Self::After, Self::Done];

    /// The name in the step's `part` file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Engine => "engine",
            Self::Collect => COLLECT,
            Self::After => "after",
            Self::Done => "done",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.word() == word)
    }
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

/// The message if phase `engine` cannot be recorded.
const NOT_RECORDED: &str =
    "Error: hawser cannot write to the step folder (is the disk full?), so the engine was not run";

/// The start of every script. It sets the usual umask, because files of hooks and engines may end up in packages; the private
/// folders above protect them in the working directory. `hawser_go` checks whether anything more may be started.
const HEAD: &str = r#"umask 022
hawser_part= hawser_code=0 hawser_interrupted= hawser_bash=$BASH
hawser_at() { hawser_part=$1; printf '%s\n' "$1" >>"$hawser_part_file"; }
hawser_go() { [[ -z $hawser_interrupted && ! -e $hawser_cancel_file ]]; }
hawser_interrupt() {
  printf '1\n' >|"$hawser_noticed_file"
  hawser_interrupted=1
  case $hawser_part in before | after) exit 130 ;; esac
}
hawser_run() {
  hawser_go || exit 130
  if declare -F "$1" >/dev/null; then
    "$@"
  else
    exec "$hawser_bash" --norc -p -c "$hawser_become" hawser "$hawser_cancel_file" "$@"
  fi
}
hawser_become='set +p
[[ $2 == */* ]] || type -P -- "$2" >/dev/null || echo "hawser: cannot find program $2 in PATH (${PATH-not set})" >&2
[[ ! -e $1 ]] || exit 130
shift
exec "$@"'
hawser_argument() {
  local quote="'" escaped="'\\''"
  hawser_arguments+=" '${1//$quote/$escaped}'"
}
hawser_must_be_set() {
  if [[ -z $2 ]]; then echo "hawser: \$$1 is not set, using an empty value" >&2; fi
}
trap hawser_interrupt INT
trap : KILL
exec </dev/null
for hawser_fd in /dev/fd/*; do
  if [[ ${hawser_fd##*/} -gt 2 && ! $hawser_fd -ef $0 ]]; then eval "exec ${hawser_fd##*/}>&-"; fi
done
"#;

impl Script<'_> {
    /// The text of the script. `part` and `cancel` are files of the step folder.
    pub fn text(&self, part: &Path, cancel: &Path) -> Result<String, ScriptError> {
        let mut text = String::from("#!/usr/bin/env bash\n");
        let title: String = self.title.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        let _ = writeln!(text, "# {title}");
        let _ = writeln!(text, "hawser_part_file={}", path_word(part)?);
        let _ = writeln!(text, "hawser_cancel_file={}", path_word(cancel)?);
        let _ = writeln!(text, "hawser_noticed_file={}", path_word(&part.with_file_name("noticed"))?);
        // Created with the supervisor's umask, so that they are private.
        let beside = ["place", "command", "noticed"].map(|name| part.with_file_name(name));
        for file in [part.to_owned()].iter().chain(&beside) {
            let _ = writeln!(text, "{{ : >>{}; }} 2>/dev/null || :", path_word(file)?);
        }
        text.push_str(HEAD);
        if let Some(hook) = self.before {
            self.hook(&mut text, ScriptPhase::Before, hook)?;
        }
        let _ = writeln!(text, "\nhawser_go || exit {INTERRUPTED}");
        if self.before.is_some() {
            let ended = word("a text", BEFORE_HOOK_ENDED)?;
            // The final `:` is for `set -e`, because `printf` fails if a hook has closed stderr.
            let _ = writeln!(text, "printf '%s\\n' {ended} >&2 || :");
        }
        let variables = PLACE_VARIABLES.map(|name| format!("\"${{{name}-}}\"")).join(" ");
        let place = path_word(&part.with_file_name("place"))?;
        let _ = writeln!(text, "printf '%s\\0' \"${{PWD-}}\" {variables} >|{place} || :");
        let _ = writeln!(text, "hawser_at {} || {{", ScriptPhase::Engine.word());
        let _ = writeln!(text, "printf '%s\\n' {} >&2\nexit 1\n}}", word("a text", NOT_RECORDED)?);
        let mut known_as = None;
        for command in &self.engine {
            // `||` prevents a `set -e` or an ERR trap of the hook from taking effect.
            let _ = writeln!(text, "if [[ $hawser_code == 0 ]]; then");
            let _ = writeln!(text, "hawser_go || exit {INTERRUPTED}");
            if known_as != command.known_as {
                known_as = command.known_as;
                let name = word("a name", known_as.unwrap_or_default())?;
                let file = path_word(&part.with_file_name("command"))?;
                let _ = writeln!(text, "printf '%s\\n' {name} >|{file} || :");
            }
            if let Some(hidden) = &command.hidden {
                text.push_str(&hidden.lines()?);
            }
            match &command.retry {
                None => {
                    let _ = writeln!(text, "{} || hawser_code=$?", command.line()?);
                }
                Some(retry) => text.push_str(&with_retry(command, retry)?),
            }
            if let Some((code, file)) = &command.also_success {
                let file = path_word(file)?;
                let _ =
                    writeln!(text, "if [[ $hawser_code == {code} && -e {file} ]]; then hawser_code=0; fi");
            }
            text.push_str("fi\n");
        }
        text.push_str("if [[ $hawser_code != 0 ]]; then\n");
        if self.collect_after_failure {
            let reading = word("a text", READS_AFTER_FAILURE)?;
            let _ = writeln!(text, "if hawser_go; then printf '%s\\n' {reading} >&2 || :; fi");
            for command in &self.collect {
                let _ = writeln!(text, "if hawser_go; then {} || :; fi", command.line()?);
            }
            self.publish(&mut text, true)?;
        }
        text.push_str("exit \"$hawser_code\"\nfi\n");
        if !self.collect.is_empty() || !self.publish.is_empty() {
            let _ = writeln!(text, "\nhawser_at {} || :", ScriptPhase::Collect.word());
            for command in self.collect.iter().filter(|it| !it.only_after_failure) {
                let _ = writeln!(text, "hawser_go || exit {INTERRUPTED}");
                let line = command.line()?;
                let _ = match self.collect_after_failure {
                    true => writeln!(text, "{line} || hawser_go || exit {INTERRUPTED}"),
                    false => writeln!(text, "{line} || exit $?"),
                };
            }
            self.publish(&mut text, false)?;
        }
        if let Some(hook) = self.after {
            self.hook(&mut text, ScriptPhase::After, hook)?;
        }
        let _ = writeln!(text, "\nhawser_at {} || :\nexit 0", ScriptPhase::Done.word());
        Ok(text)
    }

    fn publish(&self, text: &mut String, has_failed: bool) -> Result<(), ScriptError> {
        for command in self.publish.iter().filter(|it| has_failed || !it.only_after_failure) {
            let place = command.words.last().map_or("its place", String::as_str);
            let failed = format!(
                "hawser: failed to copy the result to {place}, which may now be missing or incomplete; the task does not \
                 need this copy"
            );
            let failed = word("a path", &failed)?;
            // The final `:` is for `set -e`, because `printf` fails if a hook has closed stderr.
            let _ = writeln!(
                text,
                "if hawser_go; then {} || printf '%s\\n' {failed} >&2 || :; fi",
                command.line()?
            );
        }
        Ok(())
    }

    fn hook(&self, text: &mut String, part: ScriptPhase, hook: Hook<'_>) -> Result<(), ScriptError> {
        // Pre-approval ignores trailing whitespace. To bash, a carriage return or a no-break space is part of the last word.
        let code = word(hook.name, hook.text.replace("\r\n", "\n").trim_end())?;
        let _ = writeln!(text, "\n# {}", hook.name);
        // Checked twice: a script that exits here has not reached the phase. Within the phase, the trap exits.
        let _ = writeln!(text, "hawser_go || exit {INTERRUPTED}\nhawser_at {} || :", part.word());
        let _ = writeln!(text, "hawser_go || exit {INTERRUPTED}");
        if hook.text.contains("trap") {
            text.push_str("printf '1\\n' >|\"$hawser_noticed_file\"\n");
        }
        // Not in an `if` or before `||`, which would disable a `set -e` inside the hook.
        let _ = writeln!(text, "eval {code}\nhawser_code=$?\nset +m");
        let _ = writeln!(text, "if [[ $hawser_code != 0 ]]; then exit \"$hawser_code\"; fi");
        Ok(())
    }
}

/// The lines for a command that may be followed by another one.
fn with_retry(command: &EngineCommand, retry: &Retry) -> Result<String, ScriptError> {
    let (file, wanted) = (path_word(&retry.stderr)?, word("a text", retry.text)?);
    // A pipe to a second process would need that process to survive an interrupt, so stderr goes to a file.
    Ok(format!(
        "{} 2>|{file} || hawser_code=$?\n\
         hawser_stderr=$(<{file}) || :\n\
         if [[ $hawser_code != 0 && $hawser_stderr == *{wanted}* ]] && hawser_go; then\n\
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
