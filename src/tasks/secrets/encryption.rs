//! `TF_ENCRYPTION`: settings with which OpenTofu encrypts plans and states, in HCL or JSON.
//!
//! Key providers have many names for their credentials, so every string is secret unless its name says otherwise.

use std::collections::BTreeMap;

use hcl_edit::structure::Body;
use serde_json::value::RawValue;

use crate::engines::hcl_values;

pub(super) const VARIABLE: &str = "TF_ENCRYPTION";

/// Settings whose values are not secret and often appear in logs.
const HARMLESS: [&str; 7] = [
    "region",
    "key_spec",
    "hash_function",
    "kms_key_id",
    "kms_encryption_key",
    "encrypted_metadata_alias",
    "endpoint",
];

pub(super) fn secrets(settings: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(json) = serde_json::from_str::<&RawValue>(settings.trim()) {
        add_json(json, &mut found);
    } else if let Ok(body) = settings.parse::<Body>() {
        add_hcl(&body, &mut found);
    }
    found
}

fn add_hcl(body: &Body, found: &mut Vec<String>) {
    for attribute in body.attributes().filter(|it| !HARMLESS.contains(&it.key.as_str())) {
        found.extend(hcl_values::texts(&attribute.value));
    }
    body.blocks().for_each(|block| add_hcl(&block.body, found));
}

fn add_json(value: &RawValue, found: &mut Vec<String>) {
    let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get()) else {
        // References have the form "${key_provider.pbkdf2.key}".
        return found
            .extend(hcl_values::json_texts(value).into_iter().filter(|text| !text.starts_with("${")));
    };
    for (_, value) in members.into_iter().filter(|(name, _)| !HARMLESS.contains(&name.as_str())) {
        add_json(value, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_in_hcl_and_json_are_found_without_references_and_regions() {
        let hcl = r#"
            key_provider "pbkdf2" "key" {
              passphrase = "hcl-phrase"
            }
            key_provider "aws_kms" "key" {
              region     = "eu-central-1"
              key_spec   = "AES_256"
              secret_key = "hcl-secret"
              assume_role = { role_arn = "hcl-role" }
            }
            method "aes_gcm" "it" {
              keys = key_provider.pbkdf2.key
            }
            state {
              method   = method.aes_gcm.it
              enforced = true
            }"#;
        assert_eq!(secrets(hcl), ["hcl-phrase", "hcl-secret", "hcl-role"]);
        let json = r#"{"key_provider": {"pbkdf2": {"key": {"passphrase": "json-phrase", "key_length": 32}}},
            "method": {"aes_gcm": {"it": {"keys": "${key_provider.pbkdf2.key}"}}},
            "state": [{"method": "${method.aes_gcm.it}"}]}"#;
        assert_eq!(secrets(json), ["32", "json-phrase"]);
        assert!(secrets("neither HCL {").is_empty());
    }
}
