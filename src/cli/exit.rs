//! The one place that decides exit codes and prints errors and hints.

use std::process::ExitCode;

use super::out;

/// Exit codes, after sysexits.h.
const FAILED: u8 = 1;
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const TEMPORARY: u8 = 75;
const SETTINGS: u8 = 78;

/// Exit codes of programs that run another one, as in shells.
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The command ran, but its task failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(FAILED, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub fn settings(message: impl Into<String>) -> Self {
        Self::new(SETTINGS, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(UNAVAILABLE, message)
    }

    pub fn temporary(message: impl Into<String>) -> Self {
        Self::new(TEMPORARY, message)
    }

    /// The program to run in place of this one exists and cannot be started.
    pub(super) fn not_started(message: impl Into<String>) -> Self {
        Self::new(NOT_STARTED, message)
    }

    /// There is no such program.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(NOT_FOUND, message)
    }

    /// A signal ended the command. The exit code is the one a shell uses; the caller has printed the message.
    pub(super) fn interrupted(signal: u8) -> Self {
        Self::new(128 + signal, "")
    }

    /// A child process that ran in place of this one failed, and has printed the reason.
    pub(super) fn of_child(code: Option<i32>) -> Self {
        Self::new(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED), "")
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

pub(super) fn usage(error: &clap::Error) -> ExitCode {
    // Help and version go to stdout and are not errors.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

pub(super) fn code(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    if !failure.message.is_empty() {
        out::aside(format_args!("error: {}", failure.message));
    }
    if let Some(hint) = failure.hint {
        out::aside(format_args!("hint: {hint}"));
    }
    ExitCode::from(failure.code)
}
