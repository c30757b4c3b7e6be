//! The outputs of a module, from the JSON that the engine prints.
//!
//! Values keep their text, so a number with twenty digits does not lose any.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

use hawser_contract::{OutputSet, OutputValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::Engine;
use super::engine_commands::skip_to_object;
use crate::base::confined_dir::read_limited;
use crate::base::digest::hex;

/// All outputs are held in memory.
const LARGEST: u64 = 256 * 1024 * 1024;

#[derive(Deserialize)]
struct TerraformOutput {
    sensitive: Option<bool>,
    #[serde(rename = "type")]
    kind: Option<Box<RawValue>>,
    value: Option<Box<RawValue>>,
}

/// Pulumi prints this in place of a secret, which may be a part of a value. Inside a string, the quotes would be escaped.
const HIDDEN: &str = "\"[secret]\"";

/// Reads the printed outputs. `from_extra_files` names the outputs that extra files declare. `None` if the engine printed
/// nothing.
pub fn read(
    engine: &dyn Engine,
    file: File,
    from_extra_files: &BTreeSet<String>,
    timestamp: i64,
) -> io::Result<Option<OutputSet>> {
    let printed = read_limited(file, LARGEST)?;
    let mut raw = printed.as_slice();
    skip_to_object(&mut raw)?;
    // Without any JSON, parsing reports what is there instead.
    let raw = if raw.is_empty() { &printed } else { raw };
    if raw.trim_ascii().is_empty() {
        return Ok(None);
    }
    let mut outputs = engine.parse_outputs(raw)?;
    for output in &mut outputs {
        output.from_extra_file = from_extra_files.contains(&output.name);
    }
    Ok(Some(OutputSet { timestamp, checksum: hex(&Sha256::digest(raw)), outputs }))
}

pub fn parse_terraform(raw: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
    let outputs: BTreeMap<String, TerraformOutput> = serde_json::from_slice(raw)?;
    outputs
        .into_iter()
        .map(|(name, output)| {
            let value = output.value.as_deref().map_or("null", RawValue::get);
            let kind = match output.kind.as_deref().map(RawValue::get) {
                Some(kind) => type_name(kind)?,
                None => json_type(value).to_owned(),
            };
            Ok(OutputValue {
                name,
                sensitive: output.sensitive,
                kind,
                value: text(value)?,
                from_extra_file: false,
            })
        })
        .collect()
}

pub fn parse_pulumi(raw: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
    let outputs: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(raw)?;
    outputs
        .into_iter()
        .map(|(name, value)| {
            let kind = json_type(value.get()).to_owned();
            let hidden = value.get().contains(HIDDEN);
            let value = text(value.get())?;
            // With --show-secrets, a secret looks like any other value.
            Ok(OutputValue { name, sensitive: hidden.then_some(true), kind, value, from_extra_file: false })
        })
        .collect()
}

/// A type in Terraform's JSON: a name, or an array that starts with one.
fn type_name(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') {
        return serde_json::from_str(raw);
    }
    let items: Vec<serde_json::Value> = serde_json::from_str(raw)?;
    Ok(items.first().and_then(|it| it.as_str()).unwrap_or("dynamic").to_owned())
}

/// The type of a JSON text. All engines use Terraform's names.
fn json_type(raw: &str) -> &'static str {
    match raw.trim_start().bytes().next() {
        Some(b'"') => "string",
        Some(b't' | b'f') => "bool",
        Some(b'{') => "object",
        Some(b'[') => "tuple",
        Some(b'n') | None => "dynamic",
        Some(_) => "number",
    }
}

/// Strings without quotes, everything else as compact JSON.
fn text(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') { serde_json::from_str(raw) } else { Ok(compact(raw)) }
}

/// Removes the whitespace between the tokens of a JSON text.
fn compact(json: &str) -> String {
    let mut compact = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for letter in json.chars() {
        if in_string {
            compact.push(letter);
            (in_string, escaped) = (escaped || letter != '"', !escaped && letter == '\\');
        } else if !matches!(letter, ' ' | '\t' | '\n' | '\r') {
            in_string = letter == '"';
            compact.push(letter);
        }
    }
    compact
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::pulumi::Pulumi;
    use crate::engines::terraform::Terraform;
    use proptest::prelude::*;
    use std::fs;

    fn outputs(engine: &dyn Engine, json: &str) -> OutputSet {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json).unwrap();
        let extra = BTreeSet::from(["extra".to_owned()]);
        read(engine, file.reopen().unwrap(), &extra, 7).unwrap().unwrap()
    }

    fn one(json: &str) -> OutputValue {
        outputs(&Terraform::hashicorp(), &format!("{{\"x\": {json}}}")).outputs.remove(0)
    }

    #[test]
    fn values_of_every_type_keep_their_exact_text() {
        for (kind, value, expected) in [
            ("\"string\"", "\"it's \\\"é\\\" \\u6f22\\n\"", "it's \"é\" 漢\n"),
            (
                "\"number\"",
                "123456789012345678901234567890.123456789",
                "123456789012345678901234567890.123456789",
            ),
            ("\"number\"", "1e400", "1e400"),
            ("\"bool\"", "true", "true"),
            ("[\"list\", \"string\"]", "[\n  \"a b\",\n  \"c\"\n]", "[\"a b\",\"c\"]"),
            ("[\"object\", {\"a\": \"number\"}]", "{ \"a\" : 1.0 , \"z\": null }", "{\"a\":1.0,\"z\":null}"),
            ("\"dynamic\"", "null", "null"),
        ] {
            let output = one(&format!("{{\"sensitive\": true, \"type\": {kind}, \"value\": {value}}}"));
            assert_eq!(output.value, expected);
            assert_eq!(output.sensitive, Some(true));
        }
        assert_eq!(one("{\"type\": [\"map\", \"string\"], \"value\": {}}").kind, "map");
        assert_eq!(one("{\"type\": \"string\"}").sensitive, None);
    }

    #[test]
    fn the_checksum_covers_the_raw_text_and_outputs_of_extra_files_are_marked() {
        let json = "{\"extra\": {\"type\": \"string\", \"value\": \"\"}, \"own\": {\"type\": \"bool\", \"value\": false}}\n";
        let set = outputs(&Terraform::tofu(), json);
        assert_eq!(set.checksum, hex(&Sha256::digest(json)));
        assert_eq!(set.outputs.iter().map(|it| it.from_extra_file).collect::<Vec<_>>(), [true, false]);
        assert_eq!(outputs(&Terraform::tofu(), "{}").outputs, []);
    }

    #[test]
    fn pulumi_outputs_keep_their_types_and_hidden_secrets_are_sensitive() {
        let set = outputs(
            &Pulumi,
            r#"{"s": "t", "n": 1.50, "l": [1, "a"], "o": {"k": true}, "p": "[secret]",
               "q": {"user": "me", "keys": ["[secret]"]}, "r": "say \"[secret]\""}"#,
        );
        let seen: Vec<_> = set
            .outputs
            .iter()
            .map(|it| (it.name.as_str(), it.kind.as_str(), it.value.as_str(), it.sensitive))
            .collect();
        assert_eq!(
            seen,
            [
                ("l", "tuple", "[1,\"a\"]", None),
                ("n", "number", "1.50", None),
                ("o", "object", "{\"k\":true}", None),
                ("p", "string", "[secret]", Some(true)),
                ("q", "object", "{\"user\":\"me\",\"keys\":[\"[secret]\"]}", Some(true)),
                ("r", "string", "say \"[secret]\"", None),
                ("s", "string", "t", None),
            ]
        );
    }

    #[test]
    fn no_text_means_no_outputs_and_invalid_json_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = || read(&Terraform::tofu(), file.reopen().unwrap(), &BTreeSet::new(), 0);
        assert_eq!(read().unwrap(), None);
        fs::write(file.path(), "Warning: not JSON").unwrap();
        read().unwrap_err();
    }

    proptest! {
        #[test]
        fn compacting_changes_white_space_only(text in "[\"\\\\ a\n\t{}é]{0,30}") {
            let value = serde_json::json!({"k e\"y": [text, 1.5, {"a": null}]});
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(compact(&pretty), value.to_string());
        }
    }
}
