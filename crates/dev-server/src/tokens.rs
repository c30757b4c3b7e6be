//! The token endpoint: client credentials in, opaque bearer tokens out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use crate::identity::{Identity, random_secret};

/// The scope that runners request.
const SCOPE: &str = "snapcd_scope";

/// The content type of a token request.
const FORM: &str = "application/x-www-form-urlencoded";

/// The issued tokens and when they expire.
#[derive(Debug)]
pub(super) struct Tokens {
    lifetime: Duration,
    issued: Mutex<HashMap<String, Instant>>,
}

impl Tokens {
    pub(super) fn new(lifetime: Duration) -> Self {
        Self { lifetime, issued: Mutex::default() }
    }

    pub(super) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    pub(super) fn issue(&self) -> String {
        let (token, now) = (random_secret(), Instant::now());
        let mut issued = self.issued();
        issued.retain(|_, until| *until > now);
        issued.insert(token.clone(), now + self.lifetime);
        token
    }

    /// When the token expires. `None` if it is unknown or has expired.
    pub(super) fn check(&self, token: &str) -> Option<Instant> {
        self.issued().get(token).copied().filter(|until| *until > Instant::now())
    }

    fn issued(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a token request is refused: the HTTP status, and the members of the response (RFC 6749).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenRefusal {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) reason: String,
}

/// Checks a token request.
pub(super) fn check_request(
    identity: &Identity,
    content_type: &str,
    form: &[u8],
) -> Result<(), TokenRefusal> {
    let refuse = |code, reason| Err(TokenRefusal { status: StatusCode::BAD_REQUEST, code, reason });
    if !content_type.starts_with(FORM) {
        return refuse("invalid_request", format!("content type is {content_type:?}, not {FORM}"));
    }
    let members: Vec<(String, String)> = url::form_urlencoded::parse(form).into_owned().collect();
    let member = |name| {
        let mut values = members.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        values.next().filter(|_| values.next().is_none())
    };
    let (Some(grant), Some(client), Some(secret), Some(scope)) =
        (member("grant_type"), member("client_id"), member("client_secret"), member("scope"))
    else {
        let reason = "grant_type, client_id, client_secret and scope are each required once";
        return refuse("invalid_request", reason.to_owned());
    };
    if grant != "client_credentials" {
        return refuse("unsupported_grant_type", format!("unsupported grant type {grant:?}"));
    }
    if client != identity.full_client_id() || secret != identity.client_secret.expose_secret() {
        let reason = format!("unknown client {client:?}, or wrong secret");
        return Err(TokenRefusal { status: StatusCode::UNAUTHORIZED, code: "invalid_client", reason });
    }
    if scope != SCOPE {
        return refuse("invalid_scope", format!("unknown scope {scope:?}, only {SCOPE} is supported"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(identity: &Identity, change: &[(&str, &str)]) -> Result<(), TokenRefusal> {
        let mut members = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("scope", SCOPE.to_owned()),
            ("client_id", identity.full_client_id()),
            ("client_secret", identity.client_secret.expose_secret().to_owned()),
        ];
        for (name, value) in change {
            members.retain(|(key, _)| key != name);
            members.push((name, (*value).to_owned()));
        }
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish();
        check_request(identity, FORM, form.as_bytes())
    }

    #[test]
    fn a_token_requires_the_right_client_grant_and_scope() {
        let identity = Identity::generate();
        request(&identity, &[]).unwrap();
        let codes = [
            ("grant_type", "password", "unsupported_grant_type"),
            ("scope", "other", "invalid_scope"),
            ("client_secret", "wrong", "invalid_client"),
            ("client_id", &identity.client_id, "invalid_client"),
        ];
        for (name, value, code) in codes {
            assert_eq!(request(&identity, &[(name, value)]).unwrap_err().code, code, "{name}");
        }
        assert_eq!(check_request(&identity, FORM, b"").unwrap_err().code, "invalid_request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_expires() {
        let tokens = Tokens::new(Duration::from_secs(60));
        let token = tokens.issue();
        assert!(tokens.check(&token).is_some());
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(tokens.check(&token).is_none());
        assert!(tokens.check("other").is_none());
    }
}
