//! The token endpoint: client credentials in, opaque bearer tokens out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::time::Instant;

use crate::identity::{Identity, random_secret};

/// The one scope that a runner asks for.
const SCOPE: &str = "snapcd_scope";

/// The tokens that were issued, with the time at which each runs out.
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

    /// When the token runs out; nothing for one that is unknown or has run out.
    pub(super) fn check(&self, token: &str) -> Option<Instant> {
        self.issued().get(token).copied().filter(|until| *until > Instant::now())
    }

    pub(super) fn forget(&self) {
        self.issued().clear();
    }

    fn issued(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a token request is refused, in the words of RFC 6749.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenRefusal {
    #[error("the form has no {0}, or has it more than once")]
    Missing(&'static str),
    #[error("the grant type {0:?} is not supported, only client_credentials is")]
    Grant(String),
    #[error("the scope {0:?} is not known, only snapcd_scope is")]
    Scope(String),
    #[error("client {0:?} is not known, or its secret is wrong")]
    Client(String),
}

impl TokenRefusal {
    /// The `error` member of the answer, and its HTTP status.
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
    fn only_the_right_client_with_the_right_grant_and_scope_gets_a_token() {
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
    async fn a_token_runs_out() {
        let tokens = Tokens::new(Duration::from_secs(60));
        let token = tokens.issue();
        assert!(tokens.check(&token).is_some());
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(tokens.check(&token).is_none());
        assert!(tokens.check("other").is_none());
    }
}
