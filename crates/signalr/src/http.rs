//! Reading HTTP answers: bounded bodies, and URLs and texts that may be shown.

use reqwest::{Response, StatusCode};
use url::Url;

/// What an answer of the token endpoint or of negotiate may take; both are small.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// An HTTP answer that is not the one hoped for. The URL has lost its query, which may hold a token.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{url} answered {status}{text}")]
pub struct HttpRefusal {
    pub url: Url,
    pub status: StatusCode,
    pub location: String,
    pub text: ServerText,
}

/// The URL as it may be shown: a query may hold a token.
pub fn shown(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url
}

/// Where an answer redirects to, without what might be secret.
pub fn location(url: &Url, response: &Response) -> String {
    response
        .headers()
        .get(reqwest::header::LOCATION)
        .and_then(|value| url.join(value.to_str().ok()?).ok())
        .map_or_else(|| "an unknown address".to_owned(), |target| shown(&target).to_string())
}

/// What the server said about it, for the end of a parenthesis or sentence: empty, or `: text`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerText(String);

/// Longer texts are stack traces and error pages.
const SAID_CHARACTERS: usize = 300;

impl ServerText {
    pub fn new(text: &str) -> Self {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.chars().take(SAID_CHARACTERS).collect())
    }

    /// The text of an error answer: an OAuth error, a problem document, plain text; nothing for a page of HTML.
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

/// The body of an answer, cut where it grows beyond all reason.
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
