//! Shipping: every log line and every result of every step reaches the server, in order.
//!
//! ```text
//! output.log ─ tail ─→ entry ─→ batch ─┐                               ┌─→ shipped (how far is acknowledged)
//!                             reader ──┴─ step_stream ─→ shipper ─→ HubClient ─→ server
//! outcome.json ───── outcome_call ─────────────┘                       └─→ the folder is removed
//! ```
//!
//! Each step has a `step_stream`, which knows what to send next and what is in flight (`window`). The `shipper` is the one
//! loop over all of them, and they take turns (`round_robin`). `entry` makes the text of a log entry, with the help of
//! `json_text` and `utf8_carry`.
//!
//! `output.log` is the only buffer: lines are read from it when they can be sent, and read again when they have to
//! be sent again. Secrets are masked on the way (`line_masking`). What is in memory is bounded by the window of unacknowledged
//! calls, whatever waits on the disk; and that can be bounded too (`cap`, `cap_watch`).
//!
//! What holds at all times:
//! - Lines of a job are sent in the order written; a step's result only after all its lines are acknowledged; nothing
//!   of the job's next step before that.
//! - `shipped` never runs ahead of what the server has acknowledged. After a cut, sending goes on from there: at most
//!   one window of a step (4 calls) is sent twice.
//! - No message is larger than `Server.MaxMessageBytes`.
//! - Steps take turns, one batch each, so a flood holds nobody up for longer than the window (8 calls in all).

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
mod tail;
mod utf8_carry;
mod window;

#[cfg(feature = "testing")]
pub use entry::Labels;
pub use handle::ShipperHandle;
pub use shipper::{Shipper, ShippingSettings};
pub use step_stream::ShippedStep;
