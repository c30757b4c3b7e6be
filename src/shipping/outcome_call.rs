//! The one call of a step that says how it ended, made to fit into a message.
//!
//! A result that is larger than the server's message limit can never arrive, and sending it would cost the
//! connection each time. The server is told the nearest truth that fits instead:
//! - a fault with long texts stays that fault, its details and then its message cut short, with a note;
//! - a completed task (giant outputs, thousands of output names) becomes that task's `…Faulted`, whose message says
//!   that the task itself was done, how large its result is, and which limit to raise. A server that waits for
//!   the result hears something it can act on.
//!
//! `outcome.json` keeps the whole result until the server has acknowledged one of them.

use hawser_contract::{Call, Fault, Outcome};
use serde_json::{Value, json};

use super::batch::ENVELOPE;
use super::entry::Labels;
use crate::step::{FolderError, StepFolder};

const COMPLETED: &str = "Completed";
const FAULTED: &str = "Faulted";
/// What a fault's text is cut to, in turn: the longest that fits stays.
const CUTS: [usize; 4] = [8192, 2048, 512, 128];

/// A call with its arguments as text, ready for the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutcomeCall {
    pub(super) method: String,
    pub(super) arguments: String,
    /// Why this is not what `outcome.json` says.
    pub(super) replaced: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum OutcomeCallError {
    #[error("the outcome is not there yet")]
    Missing,
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(
        "the call {method} takes {bytes} bytes, cannot be made shorter, and the server accepts {limit} (Server.MaxMessageBytes)"
    )]
    Hopeless { method: String, bytes: usize, limit: usize },
}

/// The call that tells of the step's end.
pub(super) fn parcel(
    folder: &StepFolder,
    labels: Option<&Labels>,
    max_message_bytes: usize,
) -> Result<OutcomeCall, OutcomeCallError> {
    let call = match folder.outcome() {
        Ok(Some(call)) => call,
        Ok(None) => return Err(OutcomeCallError::Missing),
        Err(error @ FolderError::Io { .. }) => return Err(error.into()),
        Err(error) => {
            let Some(labels) = labels else { return Err(error.into()) };
            let reason = format!("the task has ended, but the record of how it ended is damaged: {error}");
            let mut replaced = fit(fault(labels, &reason), Some(labels), max_message_bytes)?;
            replaced.replaced = Some(reason);
            return Ok(replaced);
        }
    };
    fit(call, labels, max_message_bytes)
}

fn fault(labels: &Labels, message: &str) -> Call {
    Outcome::Faulted(Fault::new(message)).call(labels.task, labels.job_id)
}

fn fit(
    call: Call,
    labels: Option<&Labels>,
    max_message_bytes: usize,
) -> Result<OutcomeCall, OutcomeCallError> {
    let arguments = Value::Array(call.arguments.clone()).to_string();
    let bytes = arguments.len() + ENVELOPE;
    if bytes <= max_message_bytes {
        return Ok(OutcomeCall { method: call.method, arguments, replaced: None });
    }
    let hopeless = |call: &Call| OutcomeCallError::Hopeless {
        method: call.method.clone(),
        bytes,
        limit: max_message_bytes,
    };
    if call.method.ends_with(FAULTED) {
        let note = format!(
            " … (cut: the whole text takes {bytes} bytes, more than Server.MaxMessageBytes, {max_message_bytes})"
        );
        return CUTS
            .iter()
            .map(|length| Value::Array(cut(&call.arguments, *length, &note)).to_string())
            .find(|arguments| arguments.len() + ENVELOPE <= max_message_bytes)
            .map(|arguments| OutcomeCall {
                method: call.method.clone(),
                arguments,
                replaced: Some(format!("its texts were cut to fit into {max_message_bytes} bytes")),
            })
            .ok_or_else(|| hopeless(&call));
    }
    let Some(labels) = labels.filter(|_| call.method.ends_with(COMPLETED)) else {
        return Err(hopeless(&call));
    };
    let reason = format!(
        "{task} was done, but its result takes {bytes} bytes in one message and the server accepts {max_message_bytes}: \
         raise the server's MaximumReceiveMessageSize and, to the same value, the runner's Server.MaxMessageBytes",
        task = labels.task,
    );
    let mut parcel = fit(fault(labels, &reason), None, max_message_bytes)?;
    parcel.replaced = Some(reason);
    Ok(parcel)
}

/// All texts that are longer than `length` bytes, cut there. Ids and numbers stay as they are.
fn cut(arguments: &[Value], length: usize, note: &str) -> Vec<Value> {
    arguments
        .iter()
        .map(|argument| match argument {
            Value::String(text) if text.len() > length => {
                json!(format!("{}{note}", &text[..text.floor_char_boundary(length)]))
            }
            other => other.clone(),
        })
        .collect()
}
