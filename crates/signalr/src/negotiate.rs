//! From a hub's address to the address of one connection, and from there to an open WebSocket.
//!
//! Negotiate may answer with the address of another service and a token for it; then that one is asked, and so on.
//! Our own token goes to no other host than the configured one.

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

use crate::http::{self, HttpRefusal, ServerText, location, shown};

/// As many as the .NET client follows.
const MAX_REDIRECTS: usize = 100;

/// Where a connection can be made, and with which token.
#[derive(Debug)]
pub struct Negotiated {
    pub url: Url,
    pub token: Option<SecretString>,
}

/// Everything that an answer to negotiate may hold.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    error: Option<String>,
    url: Option<String>,
    access_token: Option<SecretString>,
    connection_id: Option<String>,
    connection_token: Option<String>,
    #[serde(default)]
    available_transports: Vec<Transport>,
    /// Only the SignalR of old ASP.NET, which is another protocol, says this.
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
    fn serves(&self) -> bool {
        self.transport == "WebSockets" && self.transfer_formats.iter().any(|format| format == "Text")
    }
}

/// What the answer leads to.
#[derive(Debug)]
enum Next {
    Elsewhere { url: Url, token: Option<SecretString> },
    Here { id: String },
}

/// What the caller has a say in while a connection is negotiated.
pub trait Negotiation {
    /// Something secret came from the server: a connection token, or an access token for another service. Called before
    /// it is used, so that it can be masked in logs.
    fn learn_secret(&self, secret: &str);

    /// Whether to follow the server from one address to another, which the access token goes along to.
    fn allow_redirect(&self, from: &Url, to: &Url) -> Result<(), String>;
}

/// Why no connection could be negotiated or opened.
#[derive(Debug, thiserror::Error)]
pub enum NegotiateError {
    #[error("request to {url} failed: {source}")]
    Http { url: Url, source: reqwest::Error },
    #[error(transparent)]
    Status(HttpRefusal),
    #[error("unreadable negotiate response from {url}: {reason}")]
    Unreadable { url: Url, reason: String },
    #[error("the server refused to negotiate{text}")]
    Refused { text: ServerText },
    #[error("{url} does not offer WebSockets with text frames (offered: {offered})")]
    NoWebSockets { url: Url, offered: String },
    #[error("redirect from {url} to {next} not allowed: {reason}")]
    RedirectForbidden { url: Url, next: Url, reason: String },
    #[error("too many redirects ({0})")]
    TooManyRedirects(usize),
    #[error("{url} did not switch to WebSocket: {reason}")]
    NoUpgrade { url: Url, reason: String },
}

/// Asks a hub for the address of one connection.
pub async fn negotiate(
    http: &Client,
    hub: Url,
    token: SecretString,
    caller: &impl Negotiation,
) -> Result<Negotiated, NegotiateError> {
    let mut url = hub;
    let mut token = Some(token);
    for _ in 0..=MAX_REDIRECTS {
        let request = http.post(negotiate_url(&url)).body("");
        let mut response = send(authorized(request, token.as_ref()), &url).await?;
        let body = http::body(&mut response)
            .await
            .map_err(|source| NegotiateError::Http { url: url.clone(), source })?;
        if !response.status().is_success() {
            return Err(NegotiateError::Status(refusal(&url, &response, &body)));
        }
        match read(&body, &url)? {
            Next::Here { id } => {
                // Whoever has it can speak for this connection.
                caller.learn_secret(&id);
                url.query_pairs_mut().append_pair("id", &id);
                return Ok(Negotiated { url, token });
            }
            Next::Elsewhere { url: next, token: given } => {
                if let Some(given) = &given {
                    caller.learn_secret(given.expose_secret());
                }
                caller.allow_redirect(&url, &next).map_err(|reason| NegotiateError::RedirectForbidden {
                    url: shown(&url),
                    next: shown(&next),
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

/// The hub's URL with `/negotiate` behind its path and the version behind its query.
fn negotiate_url(hub: &Url) -> Url {
    let mut url = hub.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("negotiate");
    }
    url.query_pairs_mut().append_pair("negotiateVersion", "1");
    url
}

fn read(body: &[u8], url: &Url) -> Result<Next, NegotiateError> {
    let unreadable = |reason: &str| NegotiateError::Unreadable { url: shown(url), reason: reason.to_owned() };
    let answer: Answer = serde_json::from_slice(body)
        .map_err(|error| unreadable(if error.is_data() { "a member is wrong" } else { "it is not JSON" }))?;
    if let Some(error) = answer.error {
        return Err(NegotiateError::Refused { text: ServerText::new(&error) });
    }
    if answer.old_protocol_version.is_some() {
        return Err(unreadable("it is the SignalR of ASP.NET, not of ASP.NET Core"));
    }
    if let Some(next) = answer.url {
        let next = url.join(&next).map_err(|_| unreadable("it redirects to what is not a URL"))?;
        if !matches!(next.scheme(), "http" | "https") || !next.has_host() {
            return Err(unreadable("it redirects to what is not an http URL"));
        }
        return Ok(Next::Elsewhere { url: next, token: answer.access_token });
    }
    if !answer.available_transports.iter().any(Transport::serves) {
        let offered: Vec<_> = answer.available_transports.into_iter().map(|offer| offer.transport).collect();
        let offered = if offered.is_empty() { "nothing".to_owned() } else { offered.join(", ") };
        return Err(NegotiateError::NoWebSockets { url: shown(url), offered });
    }
    // A server of the first version knows no connection token, and its connection id serves as one.
    let id = answer.connection_token.or(answer.connection_id);
    Ok(Next::Here { id: id.ok_or_else(|| unreadable("it holds no connection token"))? })
}

/// Opens the WebSocket. A refusal is an ordinary HTTP answer.
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
            return Err(no_upgrade(url, format!("it answered {status}")));
        }
        // The status says it all; a body that does not come changes nothing.
        let body = http::body(&mut response).await.unwrap_or_default();
        return Err(NegotiateError::Status(refusal(url, &response, &body)));
    }
    let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT).and_then(|value| value.to_str().ok());
    if accept != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err(no_upgrade(url, "its answer does not fit our key".to_owned()));
    }
    response.upgrade().await.map_err(|error| no_upgrade(url, error.without_url().to_string()))
}

fn no_upgrade(url: &Url, reason: String) -> NegotiateError {
    NegotiateError::NoUpgrade { url: shown(url), reason }
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
    request.send().await.map_err(|source| NegotiateError::Http { url: url.clone(), source })
}

fn refusal(url: &Url, response: &Response, body: &[u8]) -> HttpRefusal {
    HttpRefusal {
        url: shown(url),
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
    fn negotiate_goes_behind_the_path_and_keeps_the_query() {
        assert_eq!(
            negotiate_url(&url("https://h/p/runnerhub?a=b%20c")).as_str(),
            "https://h/p/runnerhub/negotiate?a=b%20c&negotiateVersion=1"
        );
        assert_eq!(
            negotiate_url(&url("https://h/client/?hub=x")).as_str(),
            "https://h/client/negotiate?hub=x&negotiateVersion=1"
        );
    }

    fn problem(body: &str) -> String {
        read(body.as_bytes(), &url("https://h/runnerhub?secret=1")).unwrap_err().to_string()
    }

    #[test]
    fn an_answer_that_leads_nowhere_says_what_is_wrong_with_it() {
        assert!(problem(r#"{"error":"no such runner"}"#).contains("no such runner"));
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
    fn a_server_of_the_first_version_is_called_back_by_its_connection_id() {
        let body = br#"{"connectionId":"c","availableTransports":[
            {"transport":"WebSockets","transferFormats":["Text","Binary"]}]}"#;
        let Ok(Next::Here { id }) = read(body, &url("https://h/")) else { panic!("not here") };
        assert_eq!(id, "c");
    }
}
