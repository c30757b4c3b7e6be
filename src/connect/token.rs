//! The runner's access token: requested with its client credentials, renewed before it expires.
//!
//! A connection keeps the token with which it was opened. While it is open, [`Tokens::keep_fresh`] renews the cached
//! token, so that the next connection can be opened at once, and so that revoked credentials are noticed early.
//!
//! Neither the secret nor a token is ever logged. Errors contain the server's text, with the secret masked.

use std::convert::Infallible;
use std::time::Duration;

use hawser_signalr::http::{self, HttpRefusal, ServerText, location};
use hawser_signalr::{Backoff, DialError as _, LogThrottle};
use reqwest::Client;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;
use url::Url;

use super::endpoint::{Endpoint, Timing};
use super::errors::ConnectError;
use super::unreachable::{timed_out, unreachable};
use crate::masking::SecretStore;

const SCOPE: &str = "snapcd_scope";

/// The lifetime of a token if the server does not specify one.
const ASSUMED_LIFETIME: Duration = Duration::from_secs(300);

/// Longer lifetimes are cut to this.
const LONGEST_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A token is renewed this long before it expires, or with a quarter of its lifetime left if that is shorter.
const LONGEST_MARGIN: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Tokens {
    http: Client,
    url: Url,
    client_id: String,
    secret: SecretString,
    timing: Timing,
    /// Learns every token.
    secret_store: SecretStore,
    cached: Option<Token>,
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) value: SecretString,
    pub(super) expires_at: Instant,
    /// New connections use it until then.
    fresh_until: Instant,
    renew_at: Instant,
}

impl Token {
    fn new(value: SecretString, requested_at: Instant, lifetime: Option<Duration>, floor: Duration) -> Self {
        let lifetime = lifetime.unwrap_or(ASSUMED_LIFETIME).min(LONGEST_LIFETIME);
        let fresh_for = lifetime - (lifetime / 4).min(LONGEST_MARGIN);
        Self {
            value,
            expires_at: requested_at + lifetime,
            fresh_until: requested_at + fresh_for,
            renew_at: requested_at + fresh_for.max(floor),
        }
    }
}

impl Tokens {
    pub(super) fn new(http: Client, endpoint: &Endpoint, timing: &Timing, secret_store: SecretStore) -> Self {
        Self {
            http,
            url: endpoint.token_url(),
            client_id: endpoint.full_client_id(),
            secret: endpoint.client_secret.clone(),
            timing: timing.clone(),
            secret_store,
            cached: None,
        }
    }

    /// The token for a new connection, and whether it was requested just now.
    pub(super) async fn bearer(&mut self) -> Result<(Token, bool), ConnectError> {
        match &self.cached {
            Some(token) if Instant::now() < token.fresh_until => Ok((token.clone(), false)),
            _ => Ok((self.renew().await?, true)),
        }
    }

    /// Discards the cached token, because the server rejected it.
    pub(super) fn forget(&mut self) {
        self.cached = None;
    }

    /// Renews the token each time before it expires.
    pub(super) async fn keep_fresh(&mut self) -> Infallible {
        let mut backoff = Backoff::new(&self.timing.session);
        let mut throttle = LogThrottle::default();
        loop {
            let renew_at = self
                .cached
                .as_ref()
                .map_or_else(|| Instant::now() + self.timing.token_renewal_floor, |token| token.renew_at);
            sleep_until(renew_at).await;
            while let Err(error) = self.renew().await {
                let delay = backoff.next(error.pace(), fastrand::f64()).max(self.timing.token_renewal_floor);
                throttle.failed("failed to renew the token", &error.to_string(), delay, Instant::now());
                sleep(delay).await;
            }
            backoff.reset();
            throttle.recovered("token renewed after failures", Instant::now());
        }
    }

    async fn renew(&mut self) -> Result<Token, ConnectError> {
        let requested_at = Instant::now();
        let (value, lifetime) = timeout(self.timing.request_timeout, self.request())
            .await
            .map_err(|_| timed_out(&self.url))??;
        let token = Token::new(value, requested_at, lifetime, self.timing.token_renewal_floor);
        debug!(lifetime = ?lifetime, renew_after = ?(token.renew_at - requested_at), "token received");
        self.cached = Some(token.clone());
        Ok(token)
    }

    async fn request(&self) -> Result<(SecretString, Option<Duration>), ConnectError> {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "client_credentials")
            .append_pair("client_id", &self.client_id)
            .append_pair("client_secret", self.secret.expose_secret())
            .append_pair("scope", SCOPE)
            .finish();
        let request = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(form);
        let failed = |error| unreachable(&self.url, error);
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        let body = http::body(&mut response).await.map_err(failed)?;
        if !status.is_success() {
            let (url, location) = (self.url.clone(), location(&self.url, &response));
            let text = ServerText::from_body(&masked(&body, &self.secret));
            return Err(ConnectError::from_token_status(HttpRefusal { url, status, location, text }));
        }
        let (token, lifetime) =
            read(&body).map_err(|reason| ConnectError::invalid_token(&self.url, reason))?;
        self.secret_store.learn_passing(token.expose_secret());
        Ok((token, lifetime))
    }
}

fn masked(body: &[u8], secret: &SecretString) -> Vec<u8> {
    let secret = secret.expose_secret();
    let text = String::from_utf8_lossy(body);
    if secret.is_empty() { body.to_vec() } else { text.replace(secret, "***").into_bytes() }
}

/// Reads a response: the token and its lifetime. Names are matched in any case. The errors do not quote the response,
/// which may contain a token.
fn read(body: &[u8]) -> Result<(SecretString, Option<Duration>), &'static str> {
    let Ok(value) = serde_json::from_slice(body) else { return Err("not JSON") };
    let Value::Object(members) = value else { return Err("not a JSON object") };
    let named: Map<String, Value> =
        members.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    match named.get("access_token").and_then(Value::as_str).unwrap_or_default() {
        "" => Err("no access_token"),
        token if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("access_token is not valid in a header")
        }
        token => Ok((token.into(), named.get("expires_in").and_then(lifetime))),
    }
}

/// Reads a lifetime in seconds from a number or a string.
fn lifetime(value: &Value) -> Option<Duration> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let longest = LONGEST_LIFETIME.as_secs_f64();
    seconds.is_finite().then(|| Duration::from_secs_f64(seconds.clamp(0.0, longest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many seconds a token is fresh, and when it is renewed.
    fn plan(lifetime: Option<u64>) -> (u64, u64) {
        let (now, lifetime) = (Instant::now(), lifetime.map(Duration::from_secs));
        let token = Token::new("t".into(), now, lifetime, Duration::from_secs(10));
        ((token.fresh_until - now).as_secs(), (token.renew_at - now).as_secs())
    }

    #[test]
    fn a_token_is_renewed_before_it_expires() {
        assert_eq!(plan(Some(3600)), (3300, 3300));
        assert_eq!(plan(Some(600)), (450, 450));
        assert_eq!(plan(Some(60)), (45, 45));
        assert_eq!(plan(None), (225, 225));
    }

    #[test]
    fn extreme_lifetimes_cause_neither_a_request_loop_nor_an_overflow() {
        assert_eq!(plan(Some(0)), (0, 10));
        assert_eq!(plan(Some(1)), (0, 10));
        assert_eq!(plan(Some(u64::MAX)), (86_100, 86_100));
    }

    #[test]
    fn a_response_is_read_regardless_of_the_case_of_its_names() {
        let body = br#"{"Access_Token":"t","TOKEN_TYPE":"Bearer","Expires_In":"61.5","Scope":7}"#;
        let (token, lifetime) = read(body).unwrap();
        assert_eq!((token.expose_secret(), lifetime), ("t", Some(Duration::from_millis(61_500))));
    }

    #[test]
    fn an_invalid_lifetime_is_clamped_or_ignored() {
        for (written, read) in [
            ("-5", Some(0)),
            ("1e300", Some(86_400)),
            ("18446744073709551615", Some(86_400)),
            ("\"3600\"", Some(3600)),
            ("\"NaN\"", None),
            ("\"soon\"", None),
            ("null", None),
            ("[1]", None),
        ] {
            let value: Value = serde_json::from_str(written).unwrap();
            assert_eq!(lifetime(&value), read.map(Duration::from_secs), "{written}");
        }
    }

    #[test]
    fn a_response_without_a_usable_token_is_an_error() {
        for body in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"access_token":null}"#,
            r#"{"access_token":""}"#,
            r#"{"access_token":"a\nb"}"#,
        ] {
            read(body.as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn a_secret_echoed_by_the_server_is_masked() {
        let text = ServerText::from_body(&masked(br#"{"error":"bad hush!"}"#, &SecretString::from("hush")));
        assert_eq!(text.to_string(), ": bad ***!");
    }
}
