//! Connection errors, with the setting to check.

use hawser_signalr::http::{HttpRefusal, ServerText};
use hawser_signalr::{CloseReason, DialError, NegotiateError, RetryPace};
use url::Url;

use super::endpoint::Endpoint;
use super::unreachable::unreachable;

/// Why there is no connection. The text names the setting to check.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct ConnectError {
    text: String,
    pace: RetryPace,
    /// The server rejected the token of the connection.
    pub(super) is_unauthorized: bool,
}

impl ConnectError {
    /// An error that may be gone at any moment.
    pub(super) fn soon(text: String) -> Self {
        Self { text, pace: RetryPace::Soon, is_unauthorized: false }
    }

    /// An error that someone has to fix, here or on the server.
    pub(super) fn later(text: String) -> Self {
        Self { text, pace: RetryPace::Later, is_unauthorized: false }
    }

    /// An invalid response to the token request.
    pub(super) fn invalid_token(url: &Url, reason: &str) -> Self {
        Self::later(format!("invalid token response from {url} ({reason}): check Server.Url"))
    }

    /// An unexpected response to the token request.
    pub(super) fn from_token_status(response: HttpRefusal) -> Self {
        let HttpRefusal { status, text, .. } = &response;
        match status.as_u16() {
            400 | 401 | 403 => Self::later(format!(
                "server rejected the runner's credentials ({status}{text}): check Runner.Credentials.ClientId, \
                 Runner.Credentials.ClientSecret and Runner.OrganizationId"
            )),
            404 | 407 | 300..=399 => Self::from_common_status(response),
            _ => Self::server_error(&response),
        }
    }

    /// An unexpected response to negotiate or to the upgrade.
    fn from_status(response: HttpRefusal, endpoint: &Endpoint) -> Self {
        let HttpRefusal { url, text, .. } = &response;
        match response.status.as_u16() {
            401 => Self {
                is_unauthorized: true,
                ..Self::later(format!(
                    "server rejected the runner's token at {url} (401{text}): \
                     check Runner.OrganizationId and Runner.Credentials.ClientId"
                ))
            },
            403 => Self::later(format!(
                "server does not allow these credentials to connect as runner {} (403{text}): check Runner.Id, and on the \
                 server that the service principal of Runner.Credentials.ClientId may use that runner",
                endpoint.runner_id
            )),
            409 => Self::instance_taken(&endpoint.instance, text),
            408 | 429 | 500.. => Self::server_error(&response),
            _ => Self::from_common_status(response),
        }
    }

    fn from_common_status(HttpRefusal { url, status, location, text }: HttpRefusal) -> Self {
        Self::later(match status.as_u16() {
            404 => {
                format!("{url} not found (404{text}): check Server.Url, including its path, and Runner.Id")
            }
            407 => format!(
                "proxy rejected the credentials (407{text}): check the user and password in HTTP_PROXY or HTTPS_PROXY"
            ),
            300..=399 => format!("{url} redirects to {location}: set Server.Url to the final address"),
            _ => format!(
                "server rejected the request at {url} ({status}{text}): \
                 check Server.Url, Runner.Id and Runner.OrganizationId"
            ),
        })
    }

    fn server_error(HttpRefusal { url, status, text, .. }: &HttpRefusal) -> Self {
        Self::soon(format!("server error at {url} ({status}{text}): if this persists, check Server.Url"))
    }

    /// After a lost connection, the server may keep our old one for half a minute.
    fn instance_taken(instance: &str, text: &ServerText) -> Self {
        Self::soon(format!(
            "another runner is connected as instance {instance:?}{text}: \
             give each replica its own name in Runner.Instance"
        ))
    }

    /// A failure of negotiate or of the upgrade.
    pub(super) fn from_negotiate(error: NegotiateError, endpoint: &Endpoint) -> Self {
        let hint = match error {
            NegotiateError::Http { url, source } => return unreachable(&url, source),
            NegotiateError::Status(response) => return Self::from_status(*response, endpoint),
            NegotiateError::NoUpgrade { .. } => {
                "check Server.Url, and that proxies and ingresses on the way allow WebSockets"
            }
            NegotiateError::Unreadable { .. } | NegotiateError::TooManyRedirects(_) => "check Server.Url",
            NegotiateError::Refused { .. } => "check Runner.Id and Runner.OrganizationId",
            NegotiateError::NoWebSockets { .. } => "enable them on the server",
            NegotiateError::RedirectForbidden { .. } => {
                "configure the server to redirect to an https address"
            }
        };
        Self { text: format!("{error}: {hint}"), pace: error.pace(), is_unauthorized: false }
    }

    /// The end of an open connection.
    pub(super) fn from_close(reason: &CloseReason, instance: &str, token_expired: bool) -> Self {
        let text = match reason {
            CloseReason::HandshakeRefused(text) | CloseReason::SocketClosed { text, .. } => text.as_str(),
            CloseReason::Closed { error, .. } => error.as_deref().unwrap_or_default(),
            _ => return Self::soon(reason.to_string()),
        };
        let shown = ServerText::new(text);
        if names_instance_as_taken(text) {
            return Self::instance_taken(instance, &shown);
        }
        match reason {
            CloseReason::HandshakeRefused(_) => Self::later(format!(
                "server refused the handshake{shown}: \
                 check that Server.Url is the address of a runner hub, and Runner.Id"
            )),
            _ if token_expired => {
                Self::soon(format!("server closed the connection because its token expired{shown}"))
            }
            CloseReason::Closed { allow_reconnect: false, .. } => Self::later(format!(
                "server closed the connection and does not allow a reconnect{shown}: \
                 check Runner.Id and Runner.Credentials"
            )),
            _ => Self::soon(reason.to_string()),
        }
    }
}

/// The protocol has no code for an instance name that is in use, so the text decides. The word "instance" is not enough:
/// .NET's most common error is "object reference not set to an instance of an object".
fn names_instance_as_taken(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let words = ["already", "another", "connected", "in use", "taken"];
    text.contains("instance") && words.iter().any(|word| text.contains(word))
}

impl DialError for ConnectError {
    fn pace(&self) -> RetryPace {
        self.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(error: &str, token_expired: bool) -> String {
        let reason = CloseReason::Closed { error: Some(error.to_owned()), allow_reconnect: true };
        ConnectError::from_close(&reason, "blue", token_expired).to_string()
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
