//! The edge to the network: how a session gets a connection.

use std::convert::Infallible;
use std::time::Duration;

use reqwest::{Client, Upgraded};
use secrecy::SecretString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use url::Url;

use crate::backoff::RetryPace;
use crate::negotiate::{NegotiateError, Negotiation, negotiate, upgrade};
use crate::protocol::CloseReason;

/// Opens connections for a session. [`HttpDialer`] is a ready-made implementation.
///
/// Implement this to refresh tokens, to use another HTTP client, or to explain failures in your own words.
pub trait Dial: Send {
    /// The stream below the WebSocket.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Why there is no connection.
    type Error: DialError;

    /// Opens a connection and returns a stream that was upgraded to the WebSocket protocol.
    fn dial(&mut self) -> impl Future<Output = Result<Self::Stream, Self::Error>> + Send;

    /// Runs while a connection is open, for example to renew a token. Does nothing by default.
    fn maintain(&mut self) -> impl Future<Output = Infallible> + Send {
        std::future::pending()
    }

    /// Converts the reason for which a connection ended into an error.
    fn closed(&mut self, reason: CloseReason) -> Self::Error;
}

/// Why there is no connection. The session logs it, publishes it in
/// [`ConnectionStatus::Connecting`](crate::ConnectionStatus::Connecting) and tries again.
pub trait DialError: std::fmt::Display + Send {
    /// When to try again.
    fn pace(&self) -> RetryPace;
}

/// Connects to a hub over HTTP: negotiates, then upgrades to a WebSocket.
///
/// Build the client with `http1_only()`, because HTTP/2 has no upgrade.
#[derive(Debug, Clone)]
pub struct HttpDialer {
    /// Sends the requests.
    pub client: Client,
    /// The address of the hub, `http://…` or `https://…`.
    pub url: Url,
    /// The bearer token, if the hub requires one.
    pub token: Option<SecretString>,
    /// The time limit for one attempt.
    pub timeout: Duration,
}

/// Why an [`HttpDialer`] has no connection.
#[derive(Debug, thiserror::Error)]
pub enum HttpDialError {
    /// The connection could not be negotiated or opened.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// The attempt took too long.
    #[error("connecting to the server timed out after {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The connection was open and has ended.
    #[error(transparent)]
    Closed(#[from] CloseReason),
}

impl DialError for HttpDialError {
    fn pace(&self) -> RetryPace {
        match self {
            Self::Negotiate(error) => error.pace(),
            Self::TimedOut(_) => RetryPace::Soon,
            Self::Closed(reason) => reason.pace(),
        }
    }
}

impl Negotiation for HttpDialer {}

impl Dial for HttpDialer {
    type Stream = Upgraded;
    type Error = HttpDialError;

    async fn dial(&mut self) -> Result<Upgraded, HttpDialError> {
        let attempt = async {
            let target = negotiate(&self.client, self.url.clone(), self.token.clone(), self).await?;
            upgrade(&self.client, &target).await
        };
        let opened =
            timeout(self.timeout, attempt).await.map_err(|_| HttpDialError::TimedOut(self.timeout))?;
        Ok(opened?)
    }

    fn closed(&mut self, reason: CloseReason) -> HttpDialError {
        reason.into()
    }
}
