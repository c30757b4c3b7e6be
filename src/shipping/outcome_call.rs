//! The call that reports a step's outcome, made to fit into one message.
//!
//! A call above the server's message limit can never arrive, and sending it would cost the connection each time. The
//! server gets the closest outcome that fits instead:
//! - a fault keeps its kind; its details and message are truncated, with a note;
//! - a completed task (huge outputs, thousands of output names) becomes `…Faulted`, and the message explains that the
//!   task succeeded, how large its result is, and which limit to raise.
//!
//! `outcome.json` holds the whole outcome until the server acknowledges the call.

use hawser_contract::{Fault, Outcome, StepOutcome, Subject};
use serde_json::Value;

use super::batch::ENVELOPE;
use super::step_stream::ShippedStep;
use crate::step::FolderError;

/// Lengths to truncate the texts of a fault to; the first that fits is used.
const TEXT_LIMITS: [usize; 4] = [8192, 2048, 512, 128];

/// A call with its arguments as JSON, ready to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutcomeCall {
    pub(super) method: String,
    pub(super) arguments: String,
    /// Why this differs from `outcome.json`.
    pub(super) replaced: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum OutcomeCallError {
    #[error("no outcome yet")]
    Missing,
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(
        "{method} takes {bytes} bytes and cannot be truncated; the server accepts at most {limit} (Server.MaxMessageBytes)"
    )]
    TooLong { method: String, bytes: usize, limit: usize },
}

/// The call that reports the outcome of a step.
pub(super) fn read(step: &ShippedStep, max_message_bytes: usize) -> Result<OutcomeCall, OutcomeCallError> {
    match (step.folder.outcome(), &step.labels) {
        (Ok(Some(outcome)), _) => fit(outcome, max_message_bytes),
        (Ok(None), _) => Err(OutcomeCallError::Missing),
        (Err(error @ FolderError::Io { .. }), _) | (Err(error), None) => Err(error.into()),
        (Err(error), Some(labels)) => {
            let reason = format!("the task has ended, but the record of its outcome is damaged: {error}");
            let fault = Outcome::Faulted(Fault::new(&reason)).of(labels.task, labels.job_id);
            Ok(OutcomeCall { replaced: Some(reason), ..fit(fault, max_message_bytes)? })
        }
    }
}

fn fit(step: StepOutcome, limit: usize) -> Result<OutcomeCall, OutcomeCallError> {
    let (call, bytes) = sized(&step);
    if bytes <= limit {
        return Ok(call);
    }
    match (step.subject, step.outcome) {
        (subject, Outcome::Faulted(fault)) => {
            let note = format!(
                " … (cut: the whole text takes {bytes} bytes, the limit is {limit}, see Server.MaxMessageBytes)"
            );
            TEXT_LIMITS
                .iter()
                .map(|length| {
                    let fault = Fault {
                        message: truncate(&fault.message, *length, &note),
                        details: truncate(&fault.details, *length, &note),
                        resources: fault.resources,
                    };
                    sized(&StepOutcome { subject: subject.clone(), outcome: Outcome::Faulted(fault) })
                })
                .find(|(_, bytes)| *bytes <= limit)
                .map(|(call, _)| OutcomeCall {
                    replaced: Some(format!("texts truncated to fit into {limit} bytes")),
                    ..call
                })
                .ok_or(OutcomeCallError::TooLong { method: call.method, bytes, limit })
        }
        (subject @ Subject::Task { .. }, Outcome::Completed(_)) => {
            let reason = format!(
                "{task} succeeded, but its result takes {bytes} bytes in one message and the server accepts at most {limit}: \
                 raise the server's MaximumReceiveMessageSize and, to the same value, the runner's \
                 Server.MaxMessageBytes",
                task = subject.name(),
            );
            let outcome = Outcome::Faulted(Fault::new(&reason));
            Ok(OutcomeCall { replaced: Some(reason), ..fit(StepOutcome { subject, outcome }, limit)? })
        }
        _ => Err(OutcomeCallError::TooLong { method: call.method, bytes, limit }),
    }
}

/// The call with the size of its message.
fn sized(outcome: &StepOutcome) -> (OutcomeCall, usize) {
    let call = outcome.call();
    let arguments = Value::Array(call.arguments).to_string();
    let bytes = arguments.len() + ENVELOPE;
    (OutcomeCall { method: call.method, arguments, replaced: None }, bytes)
}

fn truncate(text: &str, length: usize, note: &str) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    format!("{}{note}", &text[..text.floor_char_boundary(length)])
}
