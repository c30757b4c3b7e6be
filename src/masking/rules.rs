//! What counts as a secret, from the `JobLogStream.Redact…` settings.

use regex::Regex;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::base::wildcard::Wildcard;
use crate::settings::model::JobLogStreamSettings;

/// Words that are never masked: typical defaults, switches, and placeholders of secret variables that are common in logs.
/// Pulumi prints the last one instead of a secret.
const COMMON_WORDS: [&str; 15] = [
    "true",
    "false",
    "null",
    "none",
    "default",
    "enabled",
    "disabled",
    "unknown",
    "undefined",
    "required",
    "optional",
    "string",
    "secret",
    "password",
    "[secret]",
];

/// The parsed `JobLogStream.Redact…` settings.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Shorter values are never masked.
    pub minimum_length: usize,
    secret: Vec<Wildcard>,
    harmless: Vec<Wildcard>,
    /// Their matches within a line are masked.
    pub patterns: Vec<Regex>,
    values: Vec<SecretString>,
}

#[derive(Debug, Error)]
#[error("JobLogStream.RedactPatterns.{index} is not a regular expression: {source}")]
pub struct RulesError {
    pub index: usize,
    source: regex::Error,
}

impl Rules {
    pub fn new(settings: &JobLogStreamSettings) -> Result<Self, RulesError> {
        let (harmless, secret): (Vec<&str>, Vec<&str>) =
            settings.redact_names.iter().map(String::as_str).partition(|name| name.starts_with('!'));
        let patterns = settings.redact_patterns.iter().enumerate();
        Ok(Self {
            minimum_length: settings.redact_minimum_length,
            secret: secret.into_iter().map(Wildcard::case_insensitive).collect(),
            harmless: harmless.into_iter().map(|name| Wildcard::case_insensitive(&name[1..])).collect(),
            patterns: patterns
                .map(|(index, pattern)| Regex::new(pattern).map_err(|source| RulesError { index, source }))
                .collect::<Result<_, _>>()?,
            values: settings.redact_values.clone(),
        })
    }

    /// Whether the value of a variable with this name is secret.
    pub fn is_secret_name(&self, name: &str) -> bool {
        self.secret.iter().any(|pattern| pattern.matches(name))
            && !self.harmless.iter().any(|pattern| pattern.matches(name))
    }

    /// The part of a secret text to mask: without the whitespace around it, which may come from a file. None if it is too
    /// short or a common word.
    pub fn secret_in<'a>(&self, text: &'a str) -> Option<&'a str> {
        let text = text.trim();
        let is_word = || COMMON_WORDS.iter().any(|word| word.eq_ignore_ascii_case(text));
        (text.len() >= self.minimum_length && !is_word()).then_some(text)
    }

    /// The values of `JobLogStream.RedactValues`.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(ExposeSecret::expose_secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_distinguished_from_names_of_their_files() {
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        for name in [
            "ARM_CLIENT_SECRET",
            "ARM_ACCESS_KEY",
            "ARM_SAS_TOKEN",
            "ARM_CLIENT_CERTIFICATE",
            "ARM_CLIENT_CERTIFICATE_PASSWORD",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "GOOGLE_CREDENTIALS",
            "VAULT_TOKEN",
            "VAULT_SECRET_ID",
            "TF_TOKEN_app_terraform_io",
            "TF_VAR_db_password",
            "PULUMI_CONFIG_PASSPHRASE",
            "PULUMI_ACCESS_TOKEN",
            "github_token",
            "PGPASSWORD",
            "MYSQL_PWD",
            "SMTP_PASS",
            "app:apiKey",
            "app:accessKey",
            "tls_private_key_pem",
            "MY_KEY",
            "SLACK_WEBHOOK_URL",
        ] {
            assert!(rules.is_secret_name(name), "{name}");
        }
        for name in [
            "HOME",
            "PATH",
            "PWD",
            "OLDPWD",
            "KEYBOARD",
            "MONKEY",
            "key",
            "SSH_AUTH_SOCK",
            "SSH_PUBLIC_KEY",
            "ARM_CLIENT_ID",
            "ARM_CLIENT_CERTIFICATE_PATH",
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "PULUMI_CONFIG_PASSPHRASE_FILE",
            "DB_SECRET_ARN",
            "kubernetes_secret_name",
            "TOKEN_TTL",
            "password_length",
            "VAULT_TOKEN_EXPIRES_AT",
            "OIDC_TOKEN_AUDIENCE",
            "ACTIONS_ID_TOKEN_REQUEST_URL",
            "TF_VAR_state_key",
            "dynamodb_partition_key",
        ] {
            assert!(!rules.is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_reported_by_its_index() {
        let settings =
            JobLogStreamSettings { redact_patterns: vec!["a".into(), "(".into()], ..Default::default() };
        assert!(Rules::new(&settings).unwrap_err().to_string().contains("RedactPatterns.1"));
    }
}
