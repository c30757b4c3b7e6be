//! Which texts count as secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::value::RawValue;

use crate::engines::hcl_values;
use crate::masking::{Rules, url_credentials};

/// The secrets that were found so far, each once.
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

    /// A text that is secret for sure.
    pub(crate) fn add(&mut self, text: &str) {
        self.secrets.extend(self.rules.secret_in(text).map(str::to_owned));
    }

    /// A text in which credentials may stand, whatever it is called.
    pub(crate) fn credentials_in(&mut self, text: &str) {
        for secret in url_credentials::credentials(text, self.rules) {
            self.add(&secret);
        }
    }

    /// The URL of a source.
    pub(crate) fn source(&mut self, url: &str) {
        for secret in url_credentials::of_source(url, self.rules) {
            self.add(&secret);
        }
    }

    /// A value in which credentials may stand, and that may be a list or an object: each text of that may be a URL as a
    /// whole.
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

    /// The value of a variable or setting, which its name may give away.
    pub(crate) fn named(&mut self, name: &str, value: &str) {
        self.credentials_within(value);
        if self.rules.is_secret_name(name) && !is_existing_path(value) && !self.document(value) {
            self.add(value);
        }
    }

    /// JSON in a secret text, such as the key file of a service account: the members with secret names count, and where
    /// there are none, every value. Says whether it was JSON.
    fn document(&mut self, value: &str) -> bool {
        let value = value.trim();
        if !value.starts_with(['{', '[']) {
            return false;
        }
        let Ok(root) = serde_json::from_str::<&RawValue>(value) else { return false };
        let mut members = Vec::new();
        named_texts(root, None, self.rules, DEEPEST, &mut members);
        let texts = if members.is_empty() { hcl_values::json_texts(root) } else { members };
        for text in texts {
            self.add(&text);
        }
        // A document of many lines would be masked line by line, and many of its lines are no secret.
        if !value.contains('\n') {
            self.add(value);
        }
        true
    }

    /// The texts of a secret value: each counts.
    pub(crate) fn texts(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        for text in texts {
            self.secret(text.as_ref());
            self.credentials_in(text.as_ref());
        }
    }

    /// A text that is secret as a whole, and may be a document that an engine takes apart.
    fn secret(&mut self, text: &str) {
        self.add(text);
        self.document(text);
    }

    /// A secret value as Terraform writes one: every string and number in it counts.
    pub(crate) fn hcl(&mut self, encoded: &str) {
        let encoded = encoded.trim();
        match hcl_edit::parser::parse_expr(encoded) {
            Ok(expression) => {
                self.texts(hcl_values::texts(&expression));
                // As it stands between the quotes: an engine that quotes its input prints it so.
                if let Some(inner) = encoded.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                    self.add(inner);
                }
            }
            // What is no HCL at all was not encoded.
            Err(_) => self.secret(encoded),
        }
    }

    /// A secret value as an environment variable or `-var` has it: a text as it is, or a list or object in HCL.
    pub(crate) fn text_or_hcl(&mut self, value: &str) {
        self.credentials_within(value);
        if value.trim_start().starts_with(['[', '{']) && hcl_edit::parser::parse_expr(value.trim()).is_ok() {
            self.hcl(value);
        } else {
            self.secret(value);
        }
    }

    /// A secret value as JSON.
    pub(crate) fn json(&mut self, value: &RawValue) {
        self.texts(hcl_values::json_texts(value));
    }
}

/// A path to a secret is none itself, and masked it would make a log useless.
fn is_existing_path(value: &str) -> bool {
    let value = value.trim();
    match value.strip_prefix("~/") {
        Some(rest) => dirs::home_dir().is_some_and(|home| home.join(rest).exists()),
        None => value.starts_with(['/', '.']) && !value.contains('\n') && Path::new(value).exists(),
    }
}

/// How deep a document is looked into.
const DEEPEST: usize = 64;

/// The texts of all members with secret names.
fn named_texts(value: &RawValue, name: Option<&str>, rules: &Rules, depth: usize, found: &mut Vec<String>) {
    if depth == 0 {
        return;
    }
    if name.is_some_and(|name| rules.is_secret_name(name)) {
        found.extend(hcl_values::json_texts(value));
    } else if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get()) {
        for (name, value) in members {
            named_texts(value, Some(&name), rules, depth - 1, found);
        }
    } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get()) {
        for item in items {
            named_texts(item, None, rules, depth - 1, found);
        }
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
    fn a_secret_name_makes_a_secret_unless_the_value_plainly_is_none() {
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
    fn of_a_key_file_in_a_variable_only_the_key_counts() {
        let file = "{\n \"type\": \"service_account\",\n \"project_id\": \"my-project\",\n \"private_key\": \
                    \"-----BEGIN\\nabcdef\\n\",\n \"nested\": [{\"token\": \"t0ken-x\"}]\n}";
        assert_eq!(found(|it| it.named("GOOGLE_CREDENTIALS", file)), ["-----BEGIN\nabcdef", "t0ken-x"]);
        let one_line = r#"{"user":"somebody","hush":"hunter22"}"#;
        assert_eq!(found(|it| it.named("MY_SECRET", one_line)), ["hunter22", "somebody", one_line]);
    }

    #[test]
    fn of_a_key_file_in_a_sensitive_value_the_key_counts_too_and_harmless_members_do_not() {
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
    fn every_string_and_long_number_of_a_sensitive_value_counts() {
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
