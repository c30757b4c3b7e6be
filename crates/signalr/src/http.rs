//! HTTP responses: bounded bodies, and URLs and texts that are safe to show.

use reqwest::{Response, StatusCode};
use url::Url;

/// The most that is read of a body. Responses of token and negotiate endpoints are small.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// An HTTP response with an unexpected status.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{url} returned {status}{text}")]
pub struct HttpRefusal {
    /// The requested URL without its query, which may contain a token.
    pub url: Url,
    /// The status of the response.
    pub status: StatusCode,
    /// The target of a redirect, without its query.
    pub location: String,
    /// What the server wrote about it.
    pub text: ServerText,
}

/// Removes the query of a URL, which may contain a token, so that the URL can be shown.
pub fn without_query(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url
}

/// The target of a redirect, without its query.
pub fn location(url: &Url, response: &Response) -> String {
    response
        .headers()
        .get(reqwest::header::LOCATION)
        .and_then(|value| url.join(value.to_str().ok()?).ok())
        .map_or_else(|| "an unknown address".to_owned(), |target| without_query(&target).to_string())
}

/// A short text from the server, shortened to one line.
///
/// Displayed as `: text`, or as nothing if it is empty, so that it can be appended to an error message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerText(String);

/// Longer texts are stack traces and error pages.
const MAX_CHARACTERS: usize = 300;

impl ServerText {
    /// Joins the lines of a text and cuts it to a reasonable length.
    pub fn new(text: &str) -> Self {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.chars().take(MAX_CHARACTERS).collect())
    }

    /// Reads the text of an error response: an OAuth error, a problem document (RFC 9457) or plain text. Empty for
    /// HTML.
    pub fn from_body(body: &[u8]) -> Self {
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

impl std::fmt::Display for ServerText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// Reads the body of a response, up to 1 MiB.
pub async fn body(response: &mut Response) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = MAX_BODY_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_BODY_BYTES {
            break;
        }
    }
    Ok(body)
}
