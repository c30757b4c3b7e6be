//! The runner's access token: requested with its client credentials, renewed before it expires.
//!
//! A connection keeps the token with which it was opened. While it is open, [`Tokens::keep_fresh`] renews the cached
//! token, so that the next connection can be opened at once, and so that revoked credentials are noticed early.
//!
//! Neither the secret nor a token is ever logged. Errors contain the server's text, with the secret masked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hawser_signalr::http::{self, HttpRefusal, ServerText, location};
use hawser_signalr::{Backoff, DialError as _, LogThrottle};
use oauth2::basic::BasicClient;
use oauth2::{
    AuthType, ClientId, ClientSecret, EndpointNotSet, EndpointSet, HttpRequest, HttpResponse,
    RequestTokenError, Scope, TokenResponse, TokenUrl,
};
use reqwest::Client;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;
use url::Url;

use super::endpoint::{Endpoint, Timing};
use super::errors::ConnectError;
use super::unreachable::Unreachable;
use crate::masking::SecretStore;

const SCOPE: &str = "snapcd_scope";

/// The lifetime of a token if the server does not specify one.
const ASSUMED_LIFETIME: Duration = Duration::from_secs(300);

/// Longer lifetimes are cut to this.
const LONGEST_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A token is renewed this long before it expires, or with a quarter of its lifetime left if that is shorter.
const LONGEST_MARGIN: Duration = Duration::from_secs(300);

type OauthClient = BasicClient<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

#[derive(Debug)]
pub(super) struct Tokens {
    http: Client,
    oauth: OauthClient,
    url: Url,
    secret: Arc<SecretString>,
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

/// A token, and whether it was requested just now.
#[derive(Debug)]
pub(super) struct Bearer {
    pub(super) token: Token,
    pub(super) fresh: bool,
}

impl Tokens {
    pub(super) fn new(http: Client, endpoint: &Endpoint, timing: &Timing, secret_store: SecretStore) -> Self {
        let url = endpoint.token_url();
        let oauth = BasicClient::new(ClientId::new(endpoint.full_client_id()))
            .set_client_secret(ClientSecret::new(endpoint.client_secret.expose_secret().to_owned()))
            .set_token_uri(TokenUrl::from_url(url.clone()))
            .set_auth_type(AuthType::RequestBody);
        let secret = Arc::new(endpoint.client_secret.clone());
        Self { http, oauth, url, secret, timing: timing.clone(), secret_store, cached: None }
    }

    /// The token for a new connection.
    pub(super) async fn bearer(&mut self) -> Result<Bearer, ConnectError> {
        match &self.cached {
            Some(token) if Instant::now() < token.fresh_until => {
                Ok(Bearer { token: token.clone(), fresh: false })
            }
            _ => Ok(Bearer { token: self.renew().await?, fresh: true }),
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
            .map_err(|_| ConnectError::from(Unreachable::timed_out(&self.url)))??;
        let plan = RenewalPlan::new(lifetime, self.timing.token_renewal_floor);
        debug!(lifetime = ?lifetime, renew_after = ?plan.renew_after, "token received");
        let token = Token {
            value,
            expires_at: requested_at + plan.lifetime,
            fresh_until: requested_at + plan.fresh_for,
            renew_at: requested_at + plan.renew_after,
        };
        self.cached = Some(token.clone());
        Ok(token)
    }

    async fn request(&self) -> Result<(SecretString, Option<Duration>), ConnectError> {
        let send = |request| send(self.http.clone(), self.url.clone(), Arc::clone(&self.secret), request);
        let answer = self
            .oauth
            .exchange_client_credentials()
            .add_scope(Scope::new(SCOPE.to_owned()))
            .request_async(&send)
            .await
            .map_err(|error| match error {
                RequestTokenError::Request(error) => error,
                // The body may contain a token, so the error only includes the position.
                RequestTokenError::Parse(error, _) => self.invalid(error.inner().to_string()),
                other => self.invalid(other.to_string()),
            })?;
        let value = SecretString::from(answer.access_token().secret().as_str());
        self.secret_store.learn_passing(value.expose_secret());
        Ok((value, answer.expires_in()))
    }

    fn invalid(&self, reason: String) -> ConnectError {
        ConnectError::InvalidTokenResponse { url: self.url.clone(), reason }
    }
}

/// Sends a request of the `oauth2` crate with our HTTP client.
async fn send(
    http: Client,
    url: Url,
    secret: Arc<SecretString>,
    request: HttpRequest,
) -> Result<HttpResponse, ConnectError> {
    let failed = |error| ConnectError::from(Unreachable::new(&url, error));
    let request = reqwest::Request::try_from(request).map_err(failed)?;
    let mut response = http.execute(request).await.map_err(failed)?;
    let status = response.status();
    let body = http::body(&mut response).await.map_err(failed)?;
    if !status.is_success() {
        let location = location(&url, &response);
        let text = ServerText::from_body(&masked(&body, &secret));
        return Err(ConnectError::from_token_status(HttpRefusal {
            url: url.clone(),
            status,
            location,
            text,
        }));
    }
    normalized(&body)
        .map(HttpResponse::new)
        .map_err(|reason| ConnectError::InvalidTokenResponse { url, reason })
}

fn masked(body: &[u8], secret: &SecretString) -> Vec<u8> {
    let secret = secret.expose_secret();
    let text = String::from_utf8_lossy(body);
    if secret.is_empty() { body.to_vec() } else { text.replace(secret, "***").into_bytes() }
}

/// Rewrites a response for the `oauth2` crate: lowercase names, a numeric lifetime, a token type.
fn normalized(body: &[u8]) -> Result<Vec<u8>, String> {
    let value: Value = serde_json::from_slice(body).map_err(|_| "it is not JSON".to_owned())?;
    let Value::Object(members) = value else { return Err("it is not a JSON object".to_owned()) };
    let mut named: Map<String, Value> =
        members.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    // Other members are dropped, so that they cannot make the parser fail.
    let mut answer = Map::new();
    match named.remove("access_token") {
        Some(Value::String(token)) if !token.is_empty() => {
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err("its access_token is not valid in a header".to_owned());
            }
            answer.insert("access_token".to_owned(), Value::String(token));
        }
        _ => return Err("it has no access_token".to_owned()),
    }
    answer.insert("token_type".to_owned(), "bearer".into());
    if let Some(seconds) = named.get("expires_in").and_then(seconds) {
        answer.insert("expires_in".to_owned(), seconds.into());
    }
    Ok(Value::Object(answer).to_string().into_bytes())
}

/// Reads a lifetime in seconds from a number or a string.
fn seconds(value: &Value) -> Option<u64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let longest = LONGEST_LIFETIME.as_secs_f64();
    number.is_finite().then(|| Duration::from_secs_f64(number.clamp(0.0, longest)).as_secs())
}

/// When to renew a token.
#[derive(Debug, PartialEq, Eq)]
struct RenewalPlan {
    lifetime: Duration,
    fresh_for: Duration,
    renew_after: Duration,
}

impl RenewalPlan {
    fn new(lifetime: Option<Duration>, floor: Duration) -> Self {
        let lifetime = lifetime.unwrap_or(ASSUMED_LIFETIME).min(LONGEST_LIFETIME);
        let fresh_for = lifetime - (lifetime / 4).min(LONGEST_MARGIN);
        Self { lifetime, fresh_for, renew_after: fresh_for.max(floor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(lifetime: Option<u64>) -> (u64, u64) {
        let plan = RenewalPlan::new(lifetime.map(Duration::from_secs), Duration::from_secs(10));
        (plan.fresh_for.as_secs(), plan.renew_after.as_secs())
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
        let answer: Value = serde_json::from_slice(&normalized(body).unwrap()).unwrap();
        assert_eq!(
            answer,
            serde_json::json!({"access_token": "t", "token_type": "bearer", "expires_in": 61})
        );
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
            assert_eq!(seconds(&value), read, "{written}");
        }
    }

    #[test]
    fn a_response_without_a_token_is_an_error_that_does_not_quote_it() {
        for body in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"access_token":null}"#,
            r#"{"access_token":""}"#,
            r#"{"access_token":"a\nb"}"#,
        ] {
            let reason = normalized(body.as_bytes()).unwrap_err();
            assert!(reason.starts_with("it"), "{reason}");
        }
    }

    #[test]
    fn a_secret_echoed_by_the_server_is_masked() {
        let text = ServerText::from_body(&masked(br#"{"error":"bad hush!"}"#, &SecretString::from("hush")));
        assert_eq!(text.to_string(), ": bad ***!");
    }
}
