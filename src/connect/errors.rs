//! Connection errors, with the setting to check.

use hawser_signalr::http::{HttpRefusal, ServerText};
use hawser_signalr::{CloseReason, DialError, NegotiateError, RetryPace};
use reqwest::StatusCode;
use url::Url;

use super::endpoint::Endpoint;
use super::unreachable::Unreachable;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error(
        "server rejected the runner's credentials ({status}{text}): \
         check Runner.Credentials.ClientId, Runner.Credentials.ClientSecret and Runner.OrganizationId"
    )]
    BadCredentials { status: StatusCode, text: ServerText },
    #[error("invalid token response from {url} ({reason}): check Server.Url")]
    InvalidTokenResponse { url: Url, reason: String },
    #[error(
        "server rejected the runner's token at {url} (401{text}): \
         check Runner.OrganizationId and Runner.Credentials.ClientId"
    )]
    Unauthorized { url: Url, text: ServerText },
    #[error(
        "server does not allow these credentials to connect as runner {runner_id} (403{text}): \
         check Runner.Id, and on the server that the service principal of Runner.Credentials.ClientId may use that runner"
    )]
    Forbidden { runner_id: uuid::Uuid, text: ServerText },
    #[error("{url} not found (404{text}): check Server.Url, including its path, and Runner.Id")]
    NotFound { url: Url, text: ServerText },
    #[error(
        "another runner is connected as instance {instance:?}{text}: \
         give each replica its own name in Runner.Instance"
    )]
    InstanceTaken { instance: String, text: ServerText },
    #[error("{url} redirects to {location}: set Server.Url to the final address")]
    Redirected { url: Url, location: String },
    #[error(
        "proxy rejected the credentials (407{text}): check the user and password in HTTP_PROXY or HTTPS_PROXY"
    )]
    ProxyCredentials { text: ServerText },
    #[error("server error at {url} ({status}{text}): if this persists, check Server.Url")]
    ServerError { url: Url, status: StatusCode, text: ServerText },
    #[error(
        "server rejected the request at {url} ({status}{text}): \
         check Server.Url, Runner.Id and Runner.OrganizationId"
    )]
    Refused { url: Url, status: StatusCode, text: ServerText },
    #[error("invalid negotiate response from {url} ({reason}): check Server.Url")]
    InvalidNegotiateResponse { url: Url, reason: String },
    #[error("server refused to negotiate{text}: check Runner.Id and Runner.OrganizationId")]
    NegotiateRefused { text: ServerText },
    #[error(
        "server at {url} does not offer WebSockets with text frames (offered: {offered}): enable them on the server"
    )]
    NoWebSockets { url: Url, offered: String },
    #[error(
        "refused to follow the redirect from {url} to {next} ({reason}): configure the server to redirect to an https address"
    )]
    RedirectForbidden { url: String, next: String, reason: String },
    #[error("too many redirects during negotiate ({0}): check Server.Url")]
    TooManyRedirects(usize),
    #[error(
        "failed to upgrade {url} to a WebSocket ({reason}): \
         check Server.Url, and that proxies and ingresses on the way allow WebSockets"
    )]
    NoUpgrade { url: Url, reason: String },
    #[error(
        "server refused the handshake{text}: check that Server.Url is the address of a runner hub, and Runner.Id"
    )]
    HandshakeRefused { text: ServerText },
    #[error(
        "server closed the connection and does not allow a reconnect{text}: check Runner.Id and Runner.Credentials"
    )]
    ReconnectForbidden { text: ServerText },
    #[error("server closed the connection because its token expired{text}")]
    TokenExpired { text: ServerText },
    #[error("{0}")]
    Ended(CloseReason),
}

impl ConnectError {
    /// Converts an unexpected response to negotiate or to the upgrade.
    pub(super) fn from_status(response: HttpRefusal, endpoint: &Endpoint) -> Self {
        let HttpRefusal { url, status, location, text } = response;
        match status.as_u16() {
            401 => Self::Unauthorized { url, text },
            403 => Self::Forbidden { runner_id: endpoint.runner_id, text },
            404 => Self::NotFound { url, text },
            407 => Self::ProxyCredentials { text },
            409 => Self::InstanceTaken { instance: endpoint.instance.clone(), text },
            300..=399 => Self::Redirected { url, location },
            408 | 429 | 500.. => Self::ServerError { url, status, text },
            _ => Self::Refused { url, status, text },
        }
    }

    /// Converts a failure of negotiate or of the upgrade.
    pub(super) fn from_negotiate(error: NegotiateError, endpoint: &Endpoint) -> Self {
        match error {
            NegotiateError::Http { url, source } => Unreachable::new(&url, source).into(),
            NegotiateError::Status(response) => Self::from_status(*response, endpoint),
            NegotiateError::Unreadable { url, reason } => Self::InvalidNegotiateResponse { url, reason },
            NegotiateError::Refused { text } => Self::NegotiateRefused { text },
            NegotiateError::NoWebSockets { url, offered } => Self::NoWebSockets { url, offered },
            NegotiateError::RedirectForbidden { url, next, reason } => {
                Self::RedirectForbidden { url, next, reason }
            }
            NegotiateError::TooManyRedirects(times) => Self::TooManyRedirects(times),
            NegotiateError::NoUpgrade { url, reason } => Self::NoUpgrade { url, reason },
        }
    }

    /// Converts an unexpected response to the token request.
    pub(super) fn from_token_status(response: HttpRefusal) -> Self {
        let HttpRefusal { url, status, location, text } = response;
        match status.as_u16() {
            400 | 401 | 403 => Self::BadCredentials { status, text },
            404 => Self::NotFound { url, text },
            407 => Self::ProxyCredentials { text },
            300..=399 => Self::Redirected { url, location },
            _ => Self::ServerError { url, status, text },
        }
    }

    /// Converts the reason for which an open connection ended.
    pub(super) fn from_close(reason: CloseReason, instance: &str, token_expired: bool) -> Self {
        // The protocol has no code for an instance name that is in use, so the text decides. The word "instance" is
        // not enough: .NET's most common error is "object reference not set to an instance of an object".
        let taken = |text: &str| {
            let text = text.to_ascii_lowercase();
            text.contains("instance")
                && ["already", "another", "connected", "in use", "taken"]
                    .iter()
                    .any(|word| text.contains(word))
        };
        match &reason {
            CloseReason::HandshakeRefused(text)
            | CloseReason::Closed { error: Some(text), .. }
            | CloseReason::SocketClosed { text, .. }
                if taken(text) =>
            {
                Self::InstanceTaken { instance: instance.to_owned(), text: ServerText::new(text) }
            }
            CloseReason::HandshakeRefused(text) => Self::HandshakeRefused { text: ServerText::new(text) },
            CloseReason::Closed { error, .. } if token_expired => {
                Self::TokenExpired { text: ServerText::new(error.as_deref().unwrap_or_default()) }
            }
            CloseReason::SocketClosed { text, .. } if token_expired => {
                Self::TokenExpired { text: ServerText::new(text) }
            }
            CloseReason::Closed { error, allow_reconnect: false } => {
                Self::ReconnectForbidden { text: ServerText::new(error.as_deref().unwrap_or_default()) }
            }
            _ => Self::Ended(reason),
        }
    }
}

impl DialError for ConnectError {
    fn pace(&self) -> RetryPace {
        match self {
            Self::BadCredentials { .. }
            // The dialer returns this only for a new token, so another one would not help.
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Redirected { .. }
            | Self::ProxyCredentials { .. }
            | Self::Refused { .. }
            | Self::InvalidTokenResponse { .. }
            | Self::InvalidNegotiateResponse { .. }
            | Self::NegotiateRefused { .. }
            | Self::NoWebSockets { .. }
            | Self::TooManyRedirects(_)
            | Self::RedirectForbidden { .. }
            | Self::HandshakeRefused { .. }
            | Self::ReconnectForbidden { .. } => RetryPace::Later,
            Self::Unreachable(_)
            // After a lost connection, the server may keep our old one for half a minute.
            | Self::InstanceTaken { .. }
            | Self::ServerError { .. }
            | Self::NoUpgrade { .. }
            | Self::TokenExpired { .. }
            | Self::Ended(_) => RetryPace::Soon,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(error: &str, token_expired: bool) -> String {
        let reason = CloseReason::Closed { error: Some(error.to_owned()), allow_reconnect: true };
        ConnectError::from_close(reason, "blue", token_expired).to_string()
    }

    #[test]
    fn only_a_matching_text_means_that_the_instance_name_is_in_use() {
        assert!(closed("Instance 'blue' is already connected", false).contains("Runner.Instance"));
        let crash = closed("Object reference not set to an instance of an object.", false);
        assert!(crash.contains("Object reference") && !crash.contains("Runner.Instance"), "{crash}");
    }

    #[test]
    fn a_close_after_the_token_expired_includes_the_text_of_the_server() {
        let error = closed("restarting for an update", true);
        assert!(error.contains("token expired") && error.contains("restarting for an update"), "{error}");
    }
}
