//! The line to the server: one authenticated SignalR connection after another, for ever.
//!
//! ```text
//! session ── makes one after another ──→ connection ── drives ──→ machine (pure) ── reads ──→ codec (pure)
//!    └── dialer: token → negotiate → upgrade, over one HTTP client
//! ```
//!
//! [`connect`] starts it all. The rest of the runner holds a [`Line`] for its calls and takes [`Pushed`] messages
//! from a channel. Whoever takes them should not wait for the answer of a call of its own before it takes the next: when a
//! thousand are waiting the connection reads no further, and answers come the same way.

mod backoff;
pub mod codec;
mod connection;
mod dialer;
mod endpoint;
mod http;
mod inbox;
pub mod line;
mod machine;
mod meter;
mod negotiate;
mod problem;
mod reach;
mod repeats;
mod session;
mod token;
mod trust;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::redact::Vault;

pub use endpoint::{Endpoint, Timing};
pub(crate) use http::authorities;
pub use http::{AuthoritiesError, SetupError};
pub use line::{CallError, Line, LineStatus, Pending, Pushed};

/// An HTTP client with the settings of the line (authorities, proxies), for what the runner fetches besides.
pub fn http_client(endpoint: &Endpoint, timing: &Timing) -> Result<reqwest::Client, SetupError> {
    http::client(endpoint, timing.request_timeout)
}

/// Starts the session with the server, which connects and reconnects until `stop` is cancelled. Fails only for what
/// no retry can heal: settings that cannot be used. Every token goes to the vault the moment that it is there.
pub fn connect(
    endpoint: Endpoint,
    timing: Timing,
    vault: Vault,
    stop: CancellationToken,
) -> Result<(Line, mpsc::Receiver<Pushed>, JoinHandle<()>), SetupError> {
    trust::check_start(&endpoint)?;
    let limit = endpoint.max_message_bytes;
    let dialer = dialer::Dialer::new(endpoint, timing.clone(), vault)?;
    let (line, end) = line::line();
    let (inbox, pushes) = inbox::inbox();
    let session = session::Session::new(dialer, timing, limit, end, inbox, stop);
    Ok((line, pushes, tokio::spawn(session.run())))
}
