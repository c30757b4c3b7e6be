//! Collects the secrets of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::value::RawValue;

use crate::engines::hcl_values;
use crate::masking::{Rules, url_credentials};

#[derive(Debug)]
pub(crate) struct SecretCollector<'r> {
    rules: &'r Rules,
    secrets: BTreeSet<String>,
}

impl<'r> SecretCollector<'r> {
    pub(crate) fn new(rules: &'r Rules) -> Self {
        Self { rules, secrets: BTreeSet::new() }
    }

    pub(crate) fn rules(&self) -> &'r Rules {
        self.rules
    }

    pub(crate) fn into_secrets(self) -> Vec<String> {
        self.secrets.into_iter().collect()
    }

    pub(crate) fn extend(&mut self, secrets: impl IntoIterator<Item = String>) {
        self.secrets.extend(secrets);
    }

    /// Adds a secret.
    pub(crate) fn add(&mut self, text: &str) {
        self.secrets.extend(self.rules.secret_in(text).map(str::to_owned));
    }

    /// Adds the credentials in a text.
    pub(crate) fn credentials_in(&mut self, text: &str) {
        for secret in url_credentials::credentials(text, self.rules) {
            self.add(&secret);
        }
    }

    /// Adds the credentials in the URL of a source.
    pub(crate) fn source(&mut self, url: &str) {
        for secret in url_credentials::of_source(url, self.rules) {
            self.add(&secret);
        }
    }

    /// Adds the credentials in a value, which may be a list or an object of URLs.
    pub(crate) fn credentials_within(&mut self, value: &str) {
        self.credentials_in(value);
        let value = value.trim();
        if !value.starts_with(['"', '[', '{', '<']) || !value.contains(":") {
            return;
        }
        let texts = match serde_json::from_str::<&RawValue>(value) {
            Ok(json) => hcl_values::json_texts(json),
            Err(_) => {
                hcl_edit::parser::parse_expr(value).map(|it| hcl_values::texts(&it)).unwrap_or_default()
            }
        };
        texts.iter().for_each(|text| self.credentials_in(text));
    }

    /// Adds the values of all variables with secret names.
    pub(crate) fn all_named(&mut self, variables: &BTreeMap<String, String>) {
        for (name, value) in variables {
            self.named(name, value);
        }
    }

    /// Adds the value of a variable or setting if its name is secret, or else the credentials in it.
    pub(crate) fn named(&mut self, name: &str, value: &str) {
        self.credentials_within(value);
        if self.rules.is_secret_name(name) && !is_existing_path(value) && !self.document(value) {
            self.add(value);
        }
    }

    /// Adds the secrets in a JSON document, such as the key file of a service account: the members with secret names, or all
    /// values if there are none. False if the text is not JSON.
    fn document(&mut self, value: &str) -> bool {
        let value = value.trim();
        if !value.starts_with(['{', '[']) {
            return false;
        }
        let Ok(root) = serde_json::from_str::<&RawValue>(value) else { return false };
        let members = hcl_values::json_texts_of(root, &|name| self.rules.is_secret_name(name));
        let texts = if members.is_empty() { hcl_values::json_texts(root) } else { members };
        for text in texts {
            self.add(&text);
        }
        // A document of several lines would be masked line by line, and most of its lines are not secret.
        if !value.contains('\n') {
            self.add(value);
        }
        true
    }

    /// Adds all texts of a secret value.
    pub(crate) fn texts(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        for text in texts {
            self.secret(text.as_ref());
            self.credentials_in(text.as_ref());
        }
    }

    /// Adds a secret text, which may be a JSON document.
    fn secret(&mut self, text: &str) {
        self.add(text);
        self.document(text);
    }

    /// Adds all strings and numbers in a secret HCL value.
    pub(crate) fn hcl(&mut self, encoded: &str) {
        let encoded = encoded.trim();
        match hcl_edit::parser::parse_expr(encoded) {
            Ok(expression) => {
                self.texts(hcl_values::texts(&expression));
                // With its escapes, because an engine may quote its input.
                if let Some(inner) = encoded.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                    self.add(inner);
                }
            }
            // A value that is not HCL was not encoded.
            Err(_) => self.secret(encoded),
        }
    }

    /// Adds a secret value of an environment variable or `-var`: a plain text, or a list or object in HCL.
    pub(crate) fn text_or_hcl(&mut self, value: &str) {
        self.credentials_within(value);
        if value.trim_start().starts_with(['[', '{']) && hcl_edit::parser::parse_expr(value.trim()).is_ok() {
            self.hcl(value);
        } else {
            self.secret(value);
        }
    }

    /// Adds a secret JSON value.
    pub(crate) fn json(&mut self, value: &RawValue) {
        self.texts(hcl_values::json_texts(value));
    }
}

/// The path to a secret is not secret, and masking paths would make a log useless.
fn is_existing_path(value: &str) -> bool {
    let value = value.trim();
    match value.strip_prefix("~/") {
        Some(rest) => dirs::home_dir().is_some_and(|home| home.join(rest).exists()),
        None => value.starts_with(['/', '.']) && !value.contains('\n') && Path::new(value).exists(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::model::JobLogStreamSettings;

    fn rules() -> Rules {
        Rules::new(&JobLogStreamSettings::default()).unwrap()
    }

    fn found(fill: impl FnOnce(&mut SecretCollector<'_>)) -> Vec<String> {
        let rules = rules();
        let mut found = SecretCollector::new(&rules);
        fill(&mut found);
        found.into_secrets()
    }

    #[test]
    fn values_with_secret_names_are_secret_unless_clearly_harmless() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        for (name, value, expected) in [
            ("DB_PASSWORD", "hunter22", &["hunter22"][..]),
            ("DB_PASSWORD", " hunter22\n", &["hunter22"]),
            ("DB_PASSWORD", "Default", &[]),
            ("USE_TOKEN", "true", &[]),
            ("DB_PASSWORD", "short", &[]),
            ("API_TOKEN", "12345678", &["12345678"]),
            ("GOOGLE_CREDENTIALS", &path, &[]),
            ("GOOGLE_CREDENTIALS", "/no/such/file-at-all", &["/no/such/file-at-all"]),
            ("CITY", "hamburg", &[]),
            ("ANYTHING", "postgres://me:s3cretpw@db/x", &["s3cretpw"]),
            ("ANYTHING", "postgres://me:pa'ss-w0rd@db/x", &["pa'ss-w0rd"]),
            ("ANYTHING", r#"{"url": ["postgres://me:pa'ss-w0rd@db/x"]}"#, &["pa'ss-w0rd"]),
            ("ANYTHING", r#"{"url": "postgres:\/\/me:pa'ss-w0rd@db\/x"}"#, &["pa'ss-w0rd"]),
            ("ANYTHING", r#"{ url = "postgres://me:pa'ss-w0rd@db/x" }"#, &["pa'ss-w0rd"]),
        ] {
            assert_eq!(found(|it| it.named(name, value)), expected, "{name}={value}");
        }
    }

    #[test]
    fn only_the_key_in_a_key_file_is_secret() {
        let file = "{\n \"type\": \"service_account\",\n \"project_id\": \"my-project\",\n \"private_key\": \
                    \"-----BEGIN\\nabcdef\\n\",\n \"nested\": [{\"token\": \"t0ken-x\"}]\n}";
        assert_eq!(found(|it| it.named("GOOGLE_CREDENTIALS", file)), ["-----BEGIN\nabcdef", "t0ken-x"]);
        let one_line = r#"{"user":"somebody","hush":"hunter22"}"#;
        assert_eq!(found(|it| it.named("MY_SECRET", one_line)), ["hunter22", "somebody", one_line]);
    }

    #[test]
    fn the_key_in_a_sensitive_key_file_is_secret() {
        let file = r#"{"type":"service_account","project_id":"my-project","private_key":"abc\ndef"}"#;
        let parameter = serde_json::to_string(file).unwrap();
        let expected = ["abc\ndef", file];
        assert_eq!(found(|it| it.texts([file])), expected);
        let quoted = &parameter[1..parameter.len() - 1];
        assert_eq!(found(|it| it.hcl(&parameter)), [expected[0], file, quoted]);
        let output = RawValue::from_string(parameter).unwrap();
        assert_eq!(found(|it| it.json(&output)), expected);
    }

    #[test]
    fn all_strings_and_long_numbers_of_a_sensitive_value_are_secret() {
        assert_eq!(found(|it| it.hcl("\"a\\\"quoted\\\"b\"")), ["a\"quoted\"b", "a\\\"quoted\\\"b"]);
        assert_eq!(
            found(|it| it.hcl("{ a = [\"first one\", 1234567, true], b = { c = \"second\" }, d = -7654321 }")),
            ["-7654321", "1234567", "first one", "second"]
        );
        assert_eq!(found(|it| it.hcl("<<EOT\nline one\nline two\nEOT\n")), ["line one\nline two"]);
        assert_eq!(found(|it| it.hcl("no hcl: at all")), ["no hcl: at all"]);
        assert_eq!(found(|it| it.text_or_hcl("[\"listed item\"]")), ["listed item"]);
        assert_eq!(found(|it| it.text_or_hcl("plain text {")), ["plain text {"]);
        let json = RawValue::from_string(r#"{"k":["inner text",12345678901234567890.5,null]}"#.to_owned());
        assert_eq!(found(|it| it.json(&json.unwrap())), ["12345678901234567890.5", "inner text"]);
    }
}
