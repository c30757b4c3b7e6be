//! The token endpoint: client credentials in, opaque bearer tokens out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::time::Instant;

use crate::identity::{Identity, random_secret};

/// The scope that runners request.
const SCOPE: &str = "snapcd_scope";

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

/// Why a token request is refused (RFC 6749).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenRefusal {
    #[error("{0} is missing or repeated")]
    Missing(&'static str),
    #[error("grant type {0:?} is not supported, only client_credentials")]
    Grant(String),
    #[error("unknown scope {0:?}, only snapcd_scope is supported")]
    Scope(String),
    #[error("unknown client {0:?}, or wrong secret")]
    Client(String),
}

impl TokenRefusal {
    /// The `error` member of the response, and its HTTP status.
    pub(super) fn code(&self) -> (&'static str, u16) {
        match self {
            Self::Missing(_) => ("invalid_request", 400),
            Self::Grant(_) => ("unsupported_grant_type", 400),
            Self::Scope(_) => ("invalid_scope", 400),
            Self::Client(_) => ("invalid_client", 401),
        }
    }
}

/// Checks the form of a token request.
pub(super) fn check_request(identity: &Identity, form: &[u8]) -> Result<(), TokenRefusal> {
    let members: Vec<(String, String)> = url::form_urlencoded::parse(form).into_owned().collect();
    let member = |name: &'static str| {
        let mut values = members.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone());
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value),
            _ => Err(TokenRefusal::Missing(name)),
        }
    };
    let grant = member("grant_type")?;
    if grant != "client_credentials" {
        return Err(TokenRefusal::Grant(grant));
    }
    let (client, secret, scope) = (member("client_id")?, member("client_secret")?, member("scope")?);
    if client != identity.full_client_id() || secret != identity.client_secret.expose_secret() {
        return Err(TokenRefusal::Client(client));
    }
    if scope != SCOPE {
        return Err(TokenRefusal::Scope(scope));
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
        check_request(identity, form.as_bytes())
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
            assert_eq!(request(&identity, &[(name, value)]).unwrap_err().code().0, code, "{name}");
        }
        assert_eq!(check_request(&identity, b"").unwrap_err(), TokenRefusal::Missing("grant_type"));
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
