//! Errors as the server is told of them.

use std::error::Error;

use hawser_contract::Fault;

use super::TaskError;
use crate::base::process::{NotFound, ProcessError};
use crate::engines::{EngineError, UnknownEngine};
use crate::script::ScriptError;
use crate::settings::Refusal;
use crate::sources::SourceError;
use crate::step::FolderError;
use crate::workspace::WorkspaceError;

/// The error with its causes in one sentence; a cause that its effect has quoted already is not said again.
pub(super) fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// The first line is the message; what follows it are the details.
fn told(error: &dyn Error) -> Fault {
    let text = sentence(error);
    let (message, details) = text.split_once('\n').unwrap_or((&text, ""));
    Fault { message: message.to_owned(), details: details.to_owned(), resources: None }
}

fn fault(error: &dyn Error) -> TaskError {
    TaskError::Faulted(told(error))
}

/// A refusal may be said by others on its way, such as the submodule that it is about.
fn fault_or_refusal(error: &dyn Error, refusal: Option<&Refusal>) -> TaskError {
    match refusal {
        Some(refusal) => TaskError::Refused { refusal: Box::new(refusal.clone()), fault: told(error) },
        None => fault(error),
    }
}

impl From<Refusal> for TaskError {
    fn from(refusal: Refusal) -> Self {
        fault_or_refusal(&refusal, Some(&refusal))
    }
}

impl From<WorkspaceError> for TaskError {
    fn from(error: WorkspaceError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault_or_refusal(&error, error.refusal()) }
    }
}

impl From<SourceError> for TaskError {
    fn from(error: SourceError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault_or_refusal(&error, error.refusal()) }
    }
}

impl From<ProcessError> for TaskError {
    fn from(error: ProcessError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault(&error) }
    }
}

macro_rules! faults {
    ($($error:ty),+) => {
        $(impl From<$error> for TaskError {
            fn from(error: $error) -> Self {
                fault(&error)
            }
        })+
    };
}
faults!(EngineError, UnknownEngine, ScriptError, NotFound, FolderError);
