//! Opens a connection to the server: token, negotiate, upgrade.

use std::convert::Infallible;

use hawser_signalr::negotiate::{Negotiation, negotiate, upgrade};
use hawser_signalr::{CloseReason, Dial};
use reqwest::{Client, Upgraded};
use secrecy::SecretString;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::endpoint::{Endpoint, Timing};
use super::errors::ConnectError;
use super::http::{self, SetupError};
use super::insecure_http::check_redirect;
use super::token::{Token, Tokens};
use super::unreachable::timed_out;
use crate::masking::SecretStore;

#[derive(Debug)]
pub(super) struct Dialer {
    http: Client,
    endpoint: Endpoint,
    timing: Timing,
    tokens: Tokens,
    secret_store: SecretStore,
    /// When the token of the last connection expires.
    expires_at: Option<Instant>,
}

impl Dialer {
    pub(super) fn new(
        endpoint: Endpoint,
        timing: Timing,
        secret_store: SecretStore,
    ) -> Result<Self, SetupError> {
        let http = http::hub_client(&endpoint, timing.request_timeout)?;
        let tokens = Tokens::new(http.clone(), &endpoint, &timing, secret_store.clone());
        Ok(Self { http, endpoint, timing, tokens, secret_store, expires_at: None })
    }

    /// Opens a connection with this token, and discards the token if the server rejects it.
    async fn open(&mut self, token: Token) -> Result<Upgraded, ConnectError> {
        self.expires_at = Some(token.expires_at);
        let opened = self.open_with(token.value).await;
        if is_unauthorized(&opened) {
            self.tokens.forget();
        }
        opened
    }

    async fn open_with(&self, token: SecretString) -> Result<Upgraded, ConnectError> {
        let limit = self.timing.request_timeout;
        let failed = |error| ConnectError::from_negotiate(error, &self.endpoint);
        let target = timeout(limit, negotiate(&self.http, self.endpoint.hub_url(), Some(token), self))
            .await
            .map_err(|_| timed_out(&self.endpoint.server_url))?
            .map_err(failed)?;
        timeout(limit, upgrade(&self.http, &target))
            .await
            .map_err(|_| timed_out(&target.url))?
            .map_err(failed)
    }
}

impl Negotiation for Dialer {
    fn learn_secret(&self, secret: &str) {
        self.secret_store.learn_passing(secret);
    }

    fn allow_redirect(&self, from: &url::Url, to: &url::Url) -> Result<(), String> {
        check_redirect(from, to, self.endpoint.refuse_plain_http)
    }
}

impl Dial for Dialer {
    type Stream = Upgraded;
    type Error = ConnectError;

    async fn dial(&mut self) -> Result<Upgraded, ConnectError> {
        let (token, is_new) = self.tokens.bearer().await?;
        let opened = self.open(token).await;
        if is_new || !is_unauthorized(&opened) {
            return opened;
        }
        // A restarted server may not know its earlier tokens. That does not mean that the settings are wrong.
        info!("cached token rejected, requesting a new one");
        let (token, _) = self.tokens.bearer().await?;
        self.open(token).await
    }

    async fn maintain(&mut self) -> Infallible {
        self.tokens.keep_fresh().await
    }

    fn closed(&mut self, reason: CloseReason) -> ConnectError {
        let expired = self.expires_at.is_some_and(|end| Instant::now() >= end);
        ConnectError::from_close(&reason, &self.endpoint.instance, expired)
    }
}

fn is_unauthorized(opened: &Result<Upgraded, ConnectError>) -> bool {
    opened.as_ref().is_err_and(|error| error.is_unauthorized)
}
