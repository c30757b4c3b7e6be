//! Turns errors into faults for the server.

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

/// The error with its causes in one sentence. A cause that is already quoted is not repeated.
pub(super) fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        cause = error.source();
    }
    text
}

/// The first line is the message, the rest are the details. `refusal` is the cause of the error, if it is one.
fn fault(error: &dyn Error, refusal: Option<&Refusal>) -> TaskError {
    let text = sentence(error);
    let (message, details) = text.split_once('\n').unwrap_or((&text, ""));
    let fault = Fault { message: message.to_owned(), details: details.to_owned(), resources: None };
    match refusal {
        Some(refusal) => TaskError::Refused { refusal: Box::new(refusal.clone()), fault },
        None => TaskError::Faulted(fault),
    }
}

impl From<Refusal> for TaskError {
    fn from(refusal: Refusal) -> Self {
        fault(&refusal, Some(&refusal))
    }
}

impl From<WorkspaceError> for TaskError {
    fn from(error: WorkspaceError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault(&error, error.refusal()) }
    }
}

impl From<SourceError> for TaskError {
    fn from(error: SourceError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault(&error, error.refusal()) }
    }
}

impl From<ProcessError> for TaskError {
    fn from(error: ProcessError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { fault(&error, None) }
    }
}

macro_rules! faults {
    ($($error:ty),+) => {
        $(impl From<$error> for TaskError {
            fn from(error: $error) -> Self {
                fault(&error, None)
            }
        })+
    };
}
faults!(EngineError, UnknownEngine, ScriptError, NotFound, FolderError);
