//! Engine commands as lines of bash, with every value quoted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{LONGEST_WORD, ScriptError, quote};

/// One engine command: a program with its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineCommand {
    pub words: Vec<String>,
    /// Arguments that are passed in an environment variable.
    pub hidden: Option<HiddenArguments>,
    /// Variables for this command only. They are literal like arguments, but other users cannot read them.
    pub variables: Vec<(&'static str, String)>,
    /// Receives stdout instead of the log.
    pub stdout: Option<PathBuf>,
    /// The input of the command; empty if not set.
    pub stdin: Option<String>,
    /// Another exit code that means success, if this file exists.
    pub also_success: Option<(i32, PathBuf)>,
    /// The name for messages, if this is not the main command of the task. Without arguments, which may be secret.
    pub known_as: Option<&'static str>,
    /// For commands in `collect`: run only after the engine has failed.
    pub only_after_failure: bool,
    /// For commands in `engine`: what to run instead if this one fails for a certain reason.
    pub retry: Option<Box<Retry>>,
    /// Whether only the user can read the files that it creates.
    pub private_files: bool,
}

/// A command for the case that another one fails and its stderr contains a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub text: &'static str,
    /// Receives the stderr of the first command, which is copied to the log if there is no retry.
    pub stderr: PathBuf,
    /// It has the same hidden arguments as the first command.
    pub command: EngineCommand,
}

/// Arguments that may contain secrets. Every user of the machine can read argument lists, so these are passed in an
/// environment variable from which the engine reads more arguments (`TF_CLI_ARGS_init`), each in single quotes.
///
/// Later arguments win, and the engine reads the variable of the command, then `TF_CLI_ARGS`, then its command line (checked
/// with Terraform 1.11). To have the precedence of the command line, the arguments come after the user's own, and the value
/// of `TF_CLI_ARGS` is moved into the variable before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenArguments {
    pub variable: &'static str,
    pub arguments: Vec<Vec<Piece>>,
}

/// A part of a text with references to environment variables. The references are resolved when the script runs, so that a
/// before hook can export the variables. Their values are never interpreted as shell code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Variable(String),
}

impl Piece {
    /// Finds `$NAME` and `${NAME}` in a text. Other dollar signs are literal.
    pub fn split(text: &str) -> Vec<Self> {
        let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once('$') {
            plain.push_str(before);
            let (inner, closing) = match after.strip_prefix('{') {
                Some(inner) => (inner, "}"),
                None => (after, ""),
            };
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let (name, end) = inner.split_at(inner.bytes().take_while(|byte| is_part(*byte)).count());
            let is_name = name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
            if let Some(end) = end.strip_prefix(closing).filter(|_| is_name) {
                pieces.extend([Self::Text(std::mem::take(&mut plain)), Self::Variable(name.to_owned())]);
                rest = end;
            } else {
                plain.push('$');
                rest = after;
            }
        }
        pieces.push(Self::Text(plain + rest));
        pieces.retain(|piece| *piece != Self::Text(String::new()));
        pieces
    }
}

impl HiddenArguments {
    /// The minimum length of the variable, including its name.
    fn length(&self) -> usize {
        let texts = self.arguments.iter().flatten().map(|piece| match piece {
            // A single quote becomes four characters.
            Piece::Text(text) => text.len() + 3 * text.matches('\'').count(),
            Piece::Variable(_) => 0,
        });
        // Each argument has its quotes and a space, and two spaces separate them from the existing value.
        self.variable.len() + 1 + 2 + 3 * self.arguments.len() + texts.sum::<usize>()
    }

    /// The lines that fill `hawser_arguments`.
    pub(super) fn lines(&self) -> Result<String, ScriptError> {
        let mut lines = String::from("hawser_arguments=\n");
        for argument in &self.arguments {
            let mut text = String::new();
            for piece in argument {
                match piece {
                    Piece::Text(plain) => text.push_str(&word("an argument", plain)?),
                    Piece::Variable(name) => {
                        let _ = writeln!(lines, "hawser_must_be_set {name} \"${{{name}+set}}\"");
                        let _ = write!(text, "\"${{{name}-}}\"");
                    }
                }
            }
            let _ = writeln!(lines, "hawser_argument {text}");
        }
        Ok(lines)
    }
}

impl EngineCommand {
    pub fn new(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { words: words.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    pub fn stdout(mut self, path: PathBuf) -> Self {
        self.stdout = Some(path);
        self
    }

    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Sets a variable for this command only.
    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub fn also_success(mut self, code: i32, if_exists: PathBuf) -> Self {
        self.also_success = Some((code, if_exists));
        self
    }

    pub fn known_as(mut self, name: &'static str) -> Self {
        self.known_as = Some(name);
        self
    }

    pub fn only_after_failure(mut self) -> Self {
        self.only_after_failure = true;
        self
    }

    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(Box::new(retry));
        self
    }

    pub fn private_files(mut self) -> Self {
        self.private_files = true;
        self
    }

    /// Returns a helpful error for values that are too long for the operating system. The values of references in hidden
    /// arguments are only known when the script runs.
    fn check_lengths(&self) -> Result<(), ScriptError> {
        let hidden = self.hidden.as_ref().map(|it| ("the arguments in the environment", it.length()));
        let variables =
            self.variables.iter().map(|(name, value)| ("a variable", name.len() + 1 + value.len()));
        let words = self.words.iter().map(|word| ("an argument", word.len()));
        match hidden.into_iter().chain(variables).chain(words).find(|(_, bytes)| *bytes > LONGEST_WORD) {
            Some((what, bytes)) => {
                let program = self.words.first().cloned().unwrap_or_default();
                Err(ScriptError::TooLong { what, program, bytes })
            }
            None => Ok(()),
        }
    }

    /// The line of bash that runs it: the gate, which becomes the program.
    pub(super) fn line(&self) -> Result<String, ScriptError> {
        self.check_lengths()?;
        let mut line = String::new();
        for (name, value) in &self.variables {
            let _ = write!(line, "{name}={} ", word("a variable", value)?);
        }
        if let Some(HiddenArguments { variable, .. }) = &self.hidden {
            let _ = write!(
                line,
                "{variable}=\"${{{variable}-}} ${{TF_CLI_ARGS-}} $hawser_arguments\" TF_CLI_ARGS= "
            );
        }
        let _ = write!(line, "{GATE} engine");
        if self.private_files {
            line.push_str(" --private");
        }
        if let Some(name) = self.known_as {
            let _ = write!(line, " --as {}", word("a name", name)?);
        }
        for argument in &self.words {
            let _ = write!(line, " {}", word("an argument", argument)?);
        }
        if let Some(path) = &self.stdout {
            // `>|` overwrites even if a hook has set `noclobber`.
            let _ = write!(line, " >|{}", path_word(path)?);
        }
        if let Some(text) = &self.stdin {
            // Bash adds a newline to a here-string.
            let _ = write!(line, " <<<{}", word("an input", text)?);
        }
        Ok(line)
    }
}

/// The command that asks the supervisor. `readonly` keeps hooks from changing it by accident.
pub(super) const GATE: &str = "\"$hawser_gate\" gate \"$hawser_socket\"";

pub(super) fn word(what: &str, text: &str) -> Result<String, ScriptError> {
    if text.contains('\0') { Err(ScriptError::Nul { what: what.to_owned() }) } else { Ok(quote(text)) }
}

pub(super) fn path_word(path: &Path) -> Result<String, ScriptError> {
    let text = path.to_str().ok_or_else(|| ScriptError::Path { path: path.to_owned() })?;
    word("a path", text)
}
