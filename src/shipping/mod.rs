//! Shipping: every log line and every result of every step reaches the server, in order.
//!
//! ```text
//! output.log ─ RecordReader ─→ line_masking ─→ entry ─→ batch ─┐                  ┌─→ shipped (the acknowledged position)
//!                                                    reader ───┴─ step_stream ─→ shipper ─→ HubClient ─→ server
//! outcome.json ───────────────────── outcome_call ─────────────────┘              └─→ the folder is removed
//! ```
//!
//! Each step has a `step_stream`, which knows what to send next and what is in flight (`window`). The `shipper` is the one
//! loop over all of them, and they take turns (`round_robin`). `entry` writes the text of a log entry, with the help of
//! `json_text`.
//!
//! `output.log` is the only buffer: lines are read from it when they can be sent, and read again when they have to be sent
//! again. Secrets are masked on the way (`line_masking`). Memory holds no more than the window of unacknowledged calls, however
//! much is on disk. `cap` and `cap_watch` can limit the disk usage too.
//!
//! Invariants:
//! - Lines of a job are sent in the order written; a step's result is sent only after all its lines are acknowledged, and the
//!   job's next step only after that.
//! - `shipped` is never ahead of what the server has acknowledged. After a disconnect, sending continues from there: at most
//!   one window of a step (4 calls) is sent twice.
//! - No message is larger than `Server.MaxMessageBytes`.
//! - Steps take turns, one batch each, so a flood delays other steps for no longer than the window (8 calls in all).

mod batch;
mod cap;
mod cap_watch;
mod entry;
mod handle;
mod json_text;
mod line_masking;
mod outcome_call;
mod reader;
mod round_robin;
mod shipper;
mod step_stream;
mod window;

#[cfg(feature = "testing")]
pub use entry::Labels;
pub use handle::{ShipperHandle, ShippingStatus};
pub use shipper::Shipper;
pub use step_stream::ShippedStep;
