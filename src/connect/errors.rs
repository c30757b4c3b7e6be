//! Why the line is not up, in words that name the setting to look at.

use hawser_signalr::http::{HttpRefusal, ServerText};
use hawser_signalr::{CloseReason, DialError, NegotiateError, RetryPace};
use reqwest::StatusCode;
use url::Url;

use super::endpoint::Endpoint;
use super::unreachable::Unreachable;

/// Everything that may keep the line from being up. Each text says what to look at.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error(
        "the server refused the runner's credentials ({status}{text}): \
         check Runner.Credentials.ClientId, Runner.Credentials.ClientSecret and Runner.OrganizationId"
    )]
    BadCredentials { status: StatusCode, text: ServerText },
    #[error("the answer to the token request at {url} cannot be read ({reason}): check Server.Url")]
    TokenAnswer { url: Url, reason: String },
    #[error(
        "the server did not accept the runner's token at {url} (401{text}): \
         check Runner.OrganizationId and Runner.Credentials.ClientId"
    )]
    Unauthorized { url: Url, text: ServerText },
    #[error(
        "the server does not let these credentials connect as runner {runner_id} (403{text}): \
         check Runner.Id, and on the server that the service principal of Runner.Credentials.ClientId may be that runner"
    )]
    Forbidden { runner_id: uuid::Uuid, text: ServerText },
    #[error("there is nothing at {url} (404{text}): check Server.Url, its path included, and Runner.Id")]
    NotFound { url: Url, text: ServerText },
    #[error(
        "another runner is connected as instance {instance:?}{text}: \
         give each replica a name of its own in Runner.Instance"
    )]
    InstanceTaken { instance: String, text: ServerText },
    #[error("{url} answers with a redirect to {location}: put the address that it leads to in Server.Url")]
    Redirected { url: Url, location: String },
    #[error(
        "the proxy wants other credentials (407{text}): check user and password in HTTP_PROXY or HTTPS_PROXY"
    )]
    ProxyCredentials { text: ServerText },
    #[error("the server is not able to answer at {url} ({status}{text}); if this lasts, check Server.Url")]
    ServerTrouble { url: Url, status: StatusCode, text: ServerText },
    #[error(
        "the server refused the request at {url} ({status}{text}): \
         check Server.Url, Runner.Id and Runner.OrganizationId"
    )]
    Refused { url: Url, status: StatusCode, text: ServerText },
    #[error("the answer to negotiate at {url} cannot be read ({reason}): check Server.Url")]
    NegotiateAnswer { url: Url, reason: String },
    #[error("the server refused to negotiate{text}: check Runner.Id and Runner.OrganizationId")]
    NegotiateRefused { text: ServerText },
    #[error(
        "the server at {url} offers no WebSocket with text frames (it offers {offered}): switch it on there"
    )]
    NoWebSockets { url: Url, offered: String },
    #[error(
        "{url} sends the connection on to {next}, where it does not go ({reason}): have the server name an https address"
    )]
    RedirectForbidden { url: String, next: String, reason: String },
    #[error("negotiate was sent on from one address to the next {0} times: check Server.Url")]
    TooManyRedirects(usize),
    #[error(
        "{url} did not become a WebSocket ({reason}): \
         check that what stands between (proxy, ingress) lets WebSockets through, and Server.Url"
    )]
    NoUpgrade { url: Url, reason: String },
    #[error(
        "the server refused the handshake{text}: check that Server.Url leads to a runner hub, and Runner.Id"
    )]
    HandshakeRefused { text: ServerText },
    #[error(
        "the server closed the connection and wants no other{text}: check Runner.Id and Runner.Credentials"
    )]
    TurnedAway { text: ServerText },
    #[error("the server closed the connection, whose token had run out{text}")]
    TokenRanOut { text: ServerText },
    #[error("{0}")]
    Ended(CloseReason),
}

impl ConnectError {
    /// An answer to negotiate or to the upgrade that is not the one hoped for.
    pub(super) fn from_status(answer: HttpRefusal, endpoint: &Endpoint) -> Self {
        let HttpRefusal { url, status, location, text } = answer;
        match status.as_u16() {
            401 => Self::Unauthorized { url, text },
            403 => Self::Forbidden { runner_id: endpoint.runner_id, text },
            404 => Self::NotFound { url, text },
            407 => Self::ProxyCredentials { text },
            409 => Self::InstanceTaken { instance: endpoint.instance.clone(), text },
            300..=399 => Self::Redirected { url, location },
            408 | 429 | 500.. => Self::ServerTrouble { url, status, text },
            _ => Self::Refused { url, status, text },
        }
    }

    /// The way from the hub's address to a WebSocket ended early.
    pub(super) fn from_negotiate(error: NegotiateError, endpoint: &Endpoint) -> Self {
        match error {
            NegotiateError::Http { url, source } => Unreachable::new(&url, source).into(),
            NegotiateError::Status(answer) => Self::from_status(*answer, endpoint),
            NegotiateError::Unreadable { url, reason } => Self::NegotiateAnswer { url, reason },
            NegotiateError::Refused { text } => Self::NegotiateRefused { text },
            NegotiateError::NoWebSockets { url, offered } => Self::NoWebSockets { url, offered },
            NegotiateError::RedirectForbidden { url, next, reason } => {
                Self::RedirectForbidden { url, next, reason }
            }
            NegotiateError::TooManyRedirects(times) => Self::TooManyRedirects(times),
            NegotiateError::NoUpgrade { url, reason } => Self::NoUpgrade { url, reason },
        }
    }

    /// An answer to the token request that is not a token.
    pub(super) fn from_token_status(answer: HttpRefusal) -> Self {
        let HttpRefusal { url, status, location, text } = answer;
        match status.as_u16() {
            400 | 401 | 403 => Self::BadCredentials { status, text },
            404 => Self::NotFound { url, text },
            407 => Self::ProxyCredentials { text },
            300..=399 => Self::Redirected { url, location },
            _ => Self::ServerTrouble { url, status, text },
        }
    }

    /// The end of a connection that was there.
    pub(super) fn from_close(reason: CloseReason, instance: &str, token_ran_out: bool) -> Self {
        // The protocol has no code for a name that is taken, so its text has to say it. The word alone does not: .NET's
        // commonest failure is an "object reference not set to an instance of an object".
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
            CloseReason::Closed { error, .. } if token_ran_out => {
                Self::TokenRanOut { text: ServerText::new(error.as_deref().unwrap_or_default()) }
            }
            CloseReason::SocketClosed { text, .. } if token_ran_out => {
                Self::TokenRanOut { text: ServerText::new(text) }
            }
            CloseReason::Closed { error, allow_reconnect: false } => {
                Self::TurnedAway { text: ServerText::new(error.as_deref().unwrap_or_default()) }
            }
            _ => Self::Ended(reason),
        }
    }
}

impl DialError for ConnectError {
    fn pace(&self) -> RetryPace {
        match self {
            Self::BadCredentials { .. }
            // The dialer tells of it only when the token was got for this very attempt: another one will hardly do better.
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Redirected { .. }
            | Self::ProxyCredentials { .. }
            | Self::Refused { .. }
            | Self::TokenAnswer { .. }
            | Self::NegotiateAnswer { .. }
            | Self::NegotiateRefused { .. }
            | Self::NoWebSockets { .. }
            | Self::TooManyRedirects(_)
            | Self::RedirectForbidden { .. }
            | Self::HandshakeRefused { .. }
            | Self::TurnedAway { .. } => RetryPace::Later,
            Self::Unreachable(_)
            // After a cut the server may still hold on to our own last connection for half a minute.
            | Self::InstanceTaken { .. }
            | Self::ServerTrouble { .. }
            | Self::NoUpgrade { .. }
            | Self::TokenRanOut { .. }
            | Self::Ended(_) => RetryPace::Soon,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(error: &str, token_ran_out: bool) -> String {
        let reason = CloseReason::Closed { error: Some(error.to_owned()), allow_reconnect: true };
        ConnectError::from_close(reason, "blue", token_ran_out).to_string()
    }

    #[test]
    fn only_a_text_that_says_so_means_that_the_name_is_taken() {
        assert!(closed("Instance 'blue' is already connected", false).contains("Runner.Instance"));
        let crash = closed("Object reference not set to an instance of an object.", false);
        assert!(crash.contains("Object reference") && !crash.contains("Runner.Instance"), "{crash}");
    }

    #[test]
    fn a_close_after_the_token_ran_out_still_tells_what_the_server_said() {
        let told = closed("restarting for an update", true);
        assert!(told.contains("token had run out") && told.contains("restarting for an update"), "{told}");
    }
}
