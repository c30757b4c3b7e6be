//! The connection to the server: endpoint, token, and errors that name the setting to check.
//!
//! [`connect`] starts a session of [`hawser_signalr`] with its own dialer: token → negotiate → upgrade, over one HTTP
//! client.

mod dialer;
mod endpoint;
mod errors;
mod http;
mod insecure_http;
mod token;
mod unreachable;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::masking::SecretStore;

pub use endpoint::{Endpoint, Timing};
use hawser_signalr::{HubClient, Incoming};
pub use http::SetupError;

/// An HTTP client for other requests of the runner, with the same root certificates and proxies.
pub fn http_client(endpoint: &Endpoint, timing: &Timing) -> Result<reqwest::Client, SetupError> {
    http::client(endpoint, timing.request_timeout)
}

/// Starts the session with the server, which connects and reconnects until `stop` is cancelled. Fails only if the
/// settings are unusable. The secret store learns every token as soon as it is received.
pub fn connect(
    endpoint: Endpoint,
    timing: Timing,
    secret_store: SecretStore,
    stop: CancellationToken,
) -> Result<(HubClient, mpsc::Receiver<Incoming>, JoinHandle<()>), SetupError> {
    insecure_http::check_start(&endpoint)?;
    let limit = endpoint.max_message_bytes;
    let session = timing.session.clone();
    let dialer = dialer::Dialer::new(endpoint, timing, secret_store)?;
    Ok(hawser_signalr::connect(dialer, session, limit, stop))
}
