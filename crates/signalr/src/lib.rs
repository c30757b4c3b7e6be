//! SignalR's JSON hub protocol over WebSockets: both halves of the codec, and a client that reconnects for ever.
//!
//! ```text
//! session ── makes one after another ──→ connection ── drives ──→ protocol (pure) ── reads ──→ codec (pure)
//!    └── Dial: your way to an upgraded stream, for example with negotiate and upgrade
//! ```
//!
//! [`connect`] starts a session. Its calls go through a [`Line`], and messages that the server pushes arrive on a
//! channel. Whoever takes them should not wait for the answer of a call of its own before it takes the next: when a
//! thousand are waiting the connection reads no further, and answers come the same way.

mod activity;
mod backoff;
pub mod client;
pub mod codec;
mod connection;
pub mod http;
mod inbox;
mod log_throttle;
pub mod negotiate;
mod protocol;
mod session;
mod timing;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use backoff::{Backoff, Pace};
pub use client::{CallError, Line, LineStatus, Pending, Pushed};
pub use log_throttle::Repeats;
pub use negotiate::NegotiateError;
pub use protocol::Ending;
pub use session::{Dial, DialError};
pub use timing::Timing;

/// Starts a session, which connects and reconnects until `stop` is cancelled. `max_message_bytes` is the largest message
/// that the server accepts.
pub fn connect<D: Dial + 'static>(
    dialer: D,
    timing: Timing,
    max_message_bytes: usize,
    stop: CancellationToken,
) -> (Line, mpsc::Receiver<Pushed>, JoinHandle<()>) {
    let (line, end) = client::line();
    let (inbox, pushes) = inbox::inbox();
    let session = session::Session::new(dialer, timing, max_message_bytes, end, inbox, stop);
    (line, pushes, tokio::spawn(session.run()))
}
