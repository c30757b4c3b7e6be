//! The way to the server: endpoint, token, and what to look at when the connection fails.
//!
//! [`connect`] starts a session of [`hawser_signalr`] with a dialer of ours: token → negotiate → upgrade, over one HTTP
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
use hawser_signalr::{HubClient, Invocation};
pub use http::SetupError;

/// An HTTP client with the settings of the line (authorities, proxies), for what the runner fetches besides.
pub fn http_client(endpoint: &Endpoint, timing: &Timing) -> Result<reqwest::Client, SetupError> {
    http::client(endpoint, timing.request_timeout)
}

/// Starts the session with the server, which connects and reconnects until `stop` is cancelled. Fails only for what
/// no retry can heal: settings that cannot be used. Every token goes to the secret store the moment that it is there.
pub fn connect(
    endpoint: Endpoint,
    timing: Timing,
    secret_store: SecretStore,
    stop: CancellationToken,
) -> Result<(HubClient, mpsc::Receiver<Invocation>, JoinHandle<()>), SetupError> {
    insecure_http::check_start(&endpoint)?;
    let limit = endpoint.max_message_bytes;
    let session = timing.session.clone();
    let dialer = dialer::Dialer::new(endpoint, timing, secret_store)?;
    Ok(hawser_signalr::connect(dialer, session, limit, stop))
}
