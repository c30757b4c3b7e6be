//! What counts as a secret, by the `JobLogStream.Redact…` settings.

use regex::Regex;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::base::wildcard::Wildcard;
use crate::settings::model::JobLogStreamSettings;

/// Words that a secret variable may well hold (a default, a switch, a placeholder) and that a log cannot do without. The
/// last is what Pulumi prints in place of a secret.
const WORDS: [&str; 15] = [
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

/// The settings of redaction, ready for use.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Shorter values are never masked.
    pub minimum_length: usize,
    secret: Vec<Wildcard>,
    harmless: Vec<Wildcard>,
    /// What these match within a line is masked.
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
            secret: secret.into_iter().map(Wildcard::in_any_case).collect(),
            harmless: harmless.into_iter().map(|name| Wildcard::in_any_case(&name[1..])).collect(),
            patterns: patterns
                .map(|(index, pattern)| Regex::new(pattern).map_err(|source| RulesError { index, source }))
                .collect::<Result<_, _>>()?,
            values: settings.redact_values.clone(),
        })
    }

    /// Whether a variable of this name holds a secret.
    pub fn is_secret_name(&self, name: &str) -> bool {
        self.secret.iter().any(|pattern| pattern.matches(name))
            && !self.harmless.iter().any(|pattern| pattern.matches(name))
    }

    /// What of a secret text is to be masked: all but the white space around it, which a file that it was read from may have
    /// added. Nothing of one that is too short, or a common word.
    pub fn secret_in<'a>(&self, text: &'a str) -> Option<&'a str> {
        let text = text.trim();
        let is_word = || WORDS.iter().any(|word| word.eq_ignore_ascii_case(text));
        (text.len() >= self.minimum_length && !is_word()).then_some(text)
    }

    /// The values that the settings name.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(ExposeSecret::expose_secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_told_from_names_of_their_files() {
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
    fn a_pattern_that_is_none_is_named() {
        let settings =
            JobLogStreamSettings { redact_patterns: vec!["a".into(), "(".into()], ..Default::default() };
        assert!(Rules::new(&settings).unwrap_err().to_string().contains("RedactPatterns.1"));
    }
}
