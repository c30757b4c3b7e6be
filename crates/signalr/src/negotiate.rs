//! From the address of a hub to an open WebSocket: [`negotiate`], then [`upgrade`].
//!
//! A server may redirect the client to another service and issue a token for it, as Azure SignalR Service does. The
//! client's own token is never sent to another host.

use reqwest::header::{
    AUTHORIZATION, CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Upgraded};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use url::Url;

use crate::backoff::RetryPace;
use crate::http::{self, HttpRefusal, ServerText, location, without_query};

/// The same limit as in the .NET client.
const MAX_REDIRECTS: usize = 100;

/// The address of one connection, for [`upgrade`].
pub struct Negotiated {
    /// The address, including the secret connection token.
    pub url: Url,
    /// The bearer token for this address.
    pub token: Option<SecretString>,
}

impl std::fmt::Debug for Negotiated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Negotiated").field("url", &without_query(&self.url).as_str()).finish_non_exhaustive()
    }
}

/// The response to a negotiate request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NegotiateResponse {
    error: Option<String>,
    url: Option<String>,
    access_token: Option<SecretString>,
    connection_id: Option<String>,
    connection_token: Option<String>,
    #[serde(default)]
    available_transports: Vec<Transport>,
    /// Only sent by ASP.NET SignalR, which is a different protocol.
    #[serde(rename = "ProtocolVersion")]
    old_protocol_version: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Transport {
    transport: String,
    #[serde(default)]
    transfer_formats: Vec<String>,
}

impl Transport {
    fn is_supported(&self) -> bool {
        self.transport == "WebSockets" && self.transfer_formats.iter().any(|format| format == "Text")
    }
}

/// What to do after a response.
#[derive(Debug)]
enum Next {
    Redirect { url: Url, token: Option<SecretString> },
    Connect { id: String },
}

/// Decisions that the caller can make during [`negotiate`]. All methods have defaults.
pub trait Negotiation {
    /// Called with each secret from the server (a connection token, or an access token for another service) before
    /// it is used, for example to mask it in logs. Does nothing by default.
    fn learn_secret(&self, secret: &str) {
        let _ = secret;
    }

    /// Decides whether to follow a redirect; an error explains why not. By default, redirects from HTTPS to HTTP are
    /// refused.
    fn allow_redirect(&self, from: &Url, to: &Url) -> Result<(), String> {
        match (from.scheme(), to.scheme()) {
            ("https", "http") => Err("target does not use HTTPS".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Why a connection could not be negotiated or opened.
#[derive(Debug, thiserror::Error)]
pub enum NegotiateError {
    /// The request failed.
    #[error("request to {url} failed: {source}")]
    Http {
        /// The requested URL, without its query.
        url: Url,
        /// The cause, without the URL.
        source: reqwest::Error,
    },
    /// The response has an unexpected status.
    #[error(transparent)]
    Status(Box<HttpRefusal>),
    /// The response is malformed.
    #[error("invalid negotiate response from {url} ({reason})")]
    Unreadable {
        /// The requested URL.
        url: Url,
        /// What is wrong with the response.
        reason: String,
    },
    /// The response contains an error.
    #[error("server refused to negotiate{text}")]
    Refused {
        /// The error.
        text: ServerText,
    },
    /// The server does not offer a supported transport.
    #[error("{url} does not offer WebSockets with text frames (offered: {offered})")]
    NoWebSockets {
        /// The requested URL.
        url: Url,
        /// The transports that the server offers.
        offered: String,
    },
    /// [`Negotiation::allow_redirect`] refused a redirect.
    #[error("redirect from {url} to {next} not allowed ({reason})")]
    RedirectForbidden {
        /// The requested URL.
        url: String,
        /// The target of the redirect.
        next: String,
        /// Why it is not allowed.
        reason: String,
    },
    /// There were more than this many redirects.
    #[error("too many redirects ({0})")]
    TooManyRedirects(usize),
    /// The connection did not become a WebSocket.
    #[error("failed to upgrade {url} to a WebSocket ({reason})")]
    NoUpgrade {
        /// The requested URL.
        url: Url,
        /// What is wrong with the response.
        reason: String,
    },
}

impl NegotiateError {
    /// The query may contain a token.
    fn http(url: &Url, source: reqwest::Error) -> Self {
        Self::Http { url: without_query(url), source: source.without_url() }
    }

    /// When to try again: soon after failures of the network and of the server, later after refusals.
    pub fn pace(&self) -> RetryPace {
        match self {
            Self::Http { .. } | Self::NoUpgrade { .. } => RetryPace::Soon,
            Self::Status(refusal)
                if refusal.status.is_server_error() || matches!(refusal.status.as_u16(), 408 | 429) =>
            {
                RetryPace::Soon
            }
            _ => RetryPace::Later,
        }
    }
}

/// Asks a hub for the address of one connection. Follows redirects of the protocol.
pub async fn negotiate(
    http: &Client,
    hub: Url,
    token: Option<SecretString>,
    caller: &impl Negotiation,
) -> Result<Negotiated, NegotiateError> {
    let mut url = hub;
    let mut token = token;
    for _ in 0..=MAX_REDIRECTS {
        let request = http.post(negotiate_url(&url)).body("");
        let mut response = send(authorized(request, token.as_ref()), &url).await?;
        let body = http::body(&mut response).await.map_err(|source| NegotiateError::http(&url, source))?;
        if !response.status().is_success() {
            return Err(NegotiateError::Status(Box::new(refusal(&url, &response, &body))));
        }
        match read(&body, &url)? {
            Next::Connect { id } => {
                // The id authenticates the connection.
                caller.learn_secret(&id);
                url.query_pairs_mut().append_pair("id", &id);
                return Ok(Negotiated { url, token });
            }
            Next::Redirect { url: next, token: given } => {
                if let Some(given) = &given {
                    caller.learn_secret(given.expose_secret());
                }
                caller.allow_redirect(&url, &next).map_err(|reason| NegotiateError::RedirectForbidden {
                    url: without_query(&url).into(),
                    next: without_query(&next).into(),
                    reason,
                })?;
                let same_host = next.origin() == url.origin();
                token = given.or(token.filter(|_| same_host));
                url = next;
            }
        }
    }
    Err(NegotiateError::TooManyRedirects(MAX_REDIRECTS))
}

/// Appends `/negotiate` to the path and the version to the query.
fn negotiate_url(hub: &Url) -> Url {
    let mut url = hub.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("negotiate");
    }
    url.query_pairs_mut().append_pair("negotiateVersion", "1");
    url
}

fn read(body: &[u8], url: &Url) -> Result<Next, NegotiateError> {
    let unreadable =
        |reason: &str| NegotiateError::Unreadable { url: without_query(url), reason: reason.to_owned() };
    let answer: NegotiateResponse = serde_json::from_slice(body).map_err(|error| {
        unreadable(if error.is_data() { "a field has the wrong type" } else { "not JSON" })
    })?;
    if let Some(error) = answer.error {
        return Err(NegotiateError::Refused { text: ServerText::new(&error) });
    }
    if answer.old_protocol_version.is_some() {
        return Err(unreadable("the server uses ASP.NET SignalR, not ASP.NET Core SignalR"));
    }
    if let Some(next) = answer.url {
        let next = url.join(&next).map_err(|_| unreadable("the redirect target is not a URL"))?;
        if !matches!(next.scheme(), "http" | "https") || !next.has_host() {
            return Err(unreadable("the redirect target is not an http URL"));
        }
        return Ok(Next::Redirect { url: next, token: answer.access_token });
    }
    if !answer.available_transports.iter().any(Transport::is_supported) {
        let offered: Vec<_> = answer.available_transports.into_iter().map(|offer| offer.transport).collect();
        let offered = if offered.is_empty() { "nothing".to_owned() } else { offered.join(", ") };
        return Err(NegotiateError::NoWebSockets { url: without_query(url), offered });
    }
    // Version 0 of negotiate has no connection token and uses the connection id instead.
    let id = answer.connection_token.or(answer.connection_id);
    Ok(Next::Connect { id: id.ok_or_else(|| unreadable("no connection token"))? })
}

/// Opens the WebSocket and returns the stream below it.
pub async fn upgrade(http: &Client, target: &Negotiated) -> Result<Upgraded, NegotiateError> {
    let url = &target.url;
    let key = generate_key();
    let request = http
        .get(url.clone())
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key);
    let mut response = send(authorized(request, target.token.as_ref()), url).await?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        if status.is_success() {
            return Err(no_upgrade(url, format!("status {status}")));
        }
        // The body is only additional information.
        let body = http::body(&mut response).await.unwrap_or_default();
        return Err(NegotiateError::Status(Box::new(refusal(url, &response, &body))));
    }
    let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT).and_then(|value| value.to_str().ok());
    if accept != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err(no_upgrade(url, "wrong Sec-WebSocket-Accept header".to_owned()));
    }
    response.upgrade().await.map_err(|error| no_upgrade(url, error.without_url().to_string()))
}

fn no_upgrade(url: &Url, reason: String) -> NegotiateError {
    NegotiateError::NoUpgrade { url: without_query(url), reason }
}

fn authorized(request: RequestBuilder, token: Option<&SecretString>) -> RequestBuilder {
    let header = token.and_then(|token| {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
        value.set_sensitive(true);
        Some(value)
    });
    match header {
        Some(value) => request.header(AUTHORIZATION, value),
        None => request,
    }
}

async fn send(request: RequestBuilder, url: &Url) -> Result<Response, NegotiateError> {
    request.send().await.map_err(|source| NegotiateError::http(url, source))
}

fn refusal(url: &Url, response: &Response, body: &[u8]) -> HttpRefusal {
    HttpRefusal {
        url: without_query(url),
        status: response.status(),
        location: location(url, response),
        text: ServerText::from_body(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn negotiate_is_appended_to_the_path_and_keeps_the_query() {
        assert_eq!(
            negotiate_url(&url("https://h/p/hub?a=b%20c")).as_str(),
            "https://h/p/hub/negotiate?a=b%20c&negotiateVersion=1"
        );
        assert_eq!(
            negotiate_url(&url("https://h/client/?hub=x")).as_str(),
            "https://h/client/negotiate?hub=x&negotiateVersion=1"
        );
    }

    fn problem(body: &str) -> String {
        read(body.as_bytes(), &url("https://h/hub?secret=1")).unwrap_err().to_string()
    }

    #[test]
    fn an_unusable_response_is_explained() {
        assert!(problem(r#"{"error":"no such user"}"#).contains("no such user"));
        assert!(problem("<html>").contains("not JSON"));
        assert!(problem("{}").contains("offered: nothing"));
        assert!(problem(r#"{"ProtocolVersion":"1.5"}"#).contains("ASP.NET Core"));
        assert!(problem(r#"{"url":"ftp://elsewhere/"}"#).contains("not an http URL"));
        let sse = r#"{"connectionToken":"t","availableTransports":[
            {"transport":"ServerSentEvents","transferFormats":["Text"]},
            {"transport":"WebSockets","transferFormats":["Binary"]}]}"#;
        assert!(problem(sse).contains("ServerSentEvents, WebSockets"));
        let no_id = r#"{"availableTransports":[{"transport":"WebSockets","transferFormats":["Text"]}]}"#;
        assert!(problem(no_id).contains("no connection token"));
        for body in ["{}", "<html>", sse, no_id] {
            assert!(!problem(body).contains("secret"), "the query is not shown");
        }
    }

    #[test]
    fn version_0_of_negotiate_uses_the_connection_id() {
        let body = br#"{"connectionId":"c","availableTransports":[
            {"transport":"WebSockets","transferFormats":["Text","Binary"]}]}"#;
        let Ok(Next::Connect { id }) = read(body, &url("https://h/")) else { panic!("not here") };
        assert_eq!(id, "c");
    }
}
