//! Why the line is not up, in words that name the setting to look at.

use reqwest::StatusCode;
use url::Url;

use super::backoff::Pace;
use super::endpoint::Endpoint;
use super::machine::Ending;
use super::reach::Unreachable;

/// Everything that may keep the line from being up. Each text says what to look at.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error(
        "the server refused the runner's credentials ({status}{text}): \
         check Runner.Credentials.ClientId, Runner.Credentials.ClientSecret and Runner.OrganizationId"
    )]
    BadCredentials { status: StatusCode, text: Said },
    #[error("the answer to the token request at {url} cannot be read ({reason}): check Server.Url")]
    TokenAnswer { url: Url, reason: String },
    #[error(
        "the server did not accept the runner's token at {url} (401{text}): \
         check Runner.OrganizationId and Runner.Credentials.ClientId"
    )]
    Unauthorized { url: Url, text: Said },
    #[error(
        "the server does not let these credentials connect as runner {runner_id} (403{text}): \
         check Runner.Id, and on the server that the service principal of Runner.Credentials.ClientId may be that runner"
    )]
    Forbidden { runner_id: uuid::Uuid, text: Said },
    #[error("there is nothing at {url} (404{text}): check Server.Url, its path included, and Runner.Id")]
    NotFound { url: Url, text: Said },
    #[error(
        "another runner is connected as instance {instance:?}{text}: \
         give each replica a name of its own in Runner.Instance"
    )]
    InstanceTaken { instance: String, text: Said },
    #[error("{url} answers with a redirect to {location}: put the address that it leads to in Server.Url")]
    Redirected { url: Url, location: String },
    #[error(
        "the proxy wants other credentials (407{text}): check user and password in HTTP_PROXY or HTTPS_PROXY"
    )]
    ProxyCredentials { text: Said },
    #[error("the server is not able to answer at {url} ({status}{text}); if this lasts, check Server.Url")]
    ServerTrouble { url: Url, status: StatusCode, text: Said },
    #[error(
        "the server refused the request at {url} ({status}{text}): \
         check Server.Url, Runner.Id and Runner.OrganizationId"
    )]
    Refused { url: Url, status: StatusCode, text: Said },
    #[error("the answer to negotiate at {url} cannot be read ({reason}): check Server.Url")]
    NegotiateAnswer { url: Url, reason: String },
    #[error("the server refused to negotiate{text}: check Runner.Id and Runner.OrganizationId")]
    NegotiateRefused { text: Said },
    #[error(
        "the server at {url} offers no WebSocket with text frames (it offers {offered}): switch it on there"
    )]
    NoWebSockets { url: Url, offered: String },
    #[error(
        "{url} sends the connection on to {next}, where it does not go ({reason}): have the server name an https address"
    )]
    RedirectForbidden { url: String, next: String, reason: &'static str },
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
    HandshakeRefused { text: Said },
    #[error(
        "the server closed the connection and wants no other{text}: check Runner.Id and Runner.Credentials"
    )]
    TurnedAway { text: Said },
    #[error("the server closed the connection, whose token had run out{text}")]
    TokenRanOut { text: Said },
    #[error("{0}")]
    Ended(Ending),
}

/// What the server said about it, for the end of a parenthesis or sentence: empty, or `: text`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said(String);

/// Longer texts are stack traces and error pages.
const SAID_CHARACTERS: usize = 300;

impl Said {
    pub(super) fn new(text: &str) -> Self {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.chars().take(SAID_CHARACTERS).collect())
    }

    /// The text of an error answer: an OAuth error, a problem document, plain text; nothing for a page of HTML.
    pub(super) fn from_body(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        if let Ok(serde_json::Value::Object(members)) = serde_json::from_slice(body) {
            let find = |wanted: &str| {
                members
                    .iter()
                    .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
                    .and_then(|(_, v)| v.as_str())
            };
            let known = ["error", "error_description", "title", "detail", "message"];
            return Self::new(&known.into_iter().filter_map(find).collect::<Vec<_>>().join(": "));
        }
        if text.trim_start().starts_with('<') { Self::default() } else { Self::new(&text) }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

impl Problem {
    /// An answer to negotiate or to the upgrade that is not the one hoped for.
    pub(super) fn from_status(answer: &Refusal, endpoint: &Endpoint) -> Self {
        let Refusal { url, status, location, text } = answer.clone();
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

    /// An answer to the token request that is not a token.
    pub(super) fn from_token_status(answer: Refusal) -> Self {
        let Refusal { url, status, location, text } = answer;
        match status.as_u16() {
            400 | 401 | 403 => Self::BadCredentials { status, text },
            404 => Self::NotFound { url, text },
            407 => Self::ProxyCredentials { text },
            300..=399 => Self::Redirected { url, location },
            _ => Self::ServerTrouble { url, status, text },
        }
    }

    /// The end of a connection that was there.
    pub(super) fn from_ending(ending: Ending, instance: &str, token_ran_out: bool) -> Self {
        // The protocol has no code for a name that is taken, so its text has to say it. The word alone does not: .NET's
        // commonest failure is an "object reference not set to an instance of an object".
        let taken = |text: &str| {
            let text = text.to_ascii_lowercase();
            text.contains("instance")
                && ["already", "another", "connected", "in use", "taken"]
                    .iter()
                    .any(|word| text.contains(word))
        };
        match &ending {
            Ending::HandshakeRefused(text)
            | Ending::Closed { error: Some(text), .. }
            | Ending::SocketClosed { text, .. }
                if taken(text) =>
            {
                Self::InstanceTaken { instance: instance.to_owned(), text: Said::new(text) }
            }
            Ending::HandshakeRefused(text) => Self::HandshakeRefused { text: Said::new(text) },
            Ending::Closed { error, .. } if token_ran_out => {
                Self::TokenRanOut { text: Said::new(error.as_deref().unwrap_or_default()) }
            }
            Ending::SocketClosed { text, .. } if token_ran_out => Self::TokenRanOut { text: Said::new(text) },
            Ending::Closed { error, allow_reconnect: false } => {
                Self::TurnedAway { text: Said::new(error.as_deref().unwrap_or_default()) }
            }
            _ => Self::Ended(ending),
        }
    }

    /// How soon to try again.
    pub(super) fn pace(&self) -> Pace {
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
            | Self::TurnedAway { .. } => Pace::Slow,
            Self::Unreachable(_)
            // After a cut the server may still hold on to our own last connection for half a minute.
            | Self::InstanceTaken { .. }
            | Self::ServerTrouble { .. }
            | Self::NoUpgrade { .. }
            | Self::TokenRanOut { .. }
            | Self::Ended(_) => Pace::Quick,
        }
    }
}

/// An HTTP answer that is not the one hoped for. The URL has lost its query, which may hold a token.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{url} answered {status}{text}")]
pub(super) struct Refusal {
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) location: String,
    pub(super) text: Said,
}

/// The URL as it may be shown: a query may hold a token.
pub(super) fn shown(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(error: &str, token_ran_out: bool) -> String {
        let ending = Ending::Closed { error: Some(error.to_owned()), allow_reconnect: true };
        Problem::from_ending(ending, "blue", token_ran_out).to_string()
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
