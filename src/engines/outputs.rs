//! The outputs of a module, read from the engine's own JSON.
//!
//! Values are kept as the text that they were: a number with twenty digits is not squeezed through a float.

use std::collections::{BTreeMap, BTreeSet};

use hawser_contract::{OutputSet, OutputValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::{Engine, EngineError, ResultFile, read_json};
use crate::base::confined_dir::read_limited;
use crate::base::digest::hex;

const WHAT: &str = "the outputs as JSON";
/// Outputs are kept in memory as a whole; nobody has this much on purpose.
const LARGEST: u64 = 256 * 1024 * 1024;

#[derive(Deserialize)]
struct TerraformOutput {
    sensitive: Option<bool>,
    #[serde(rename = "type")]
    kind: Option<Box<RawValue>>,
    value: Option<Box<RawValue>>,
}

/// What Pulumi prints in place of a secret, be it the whole value or a part of it. Inside of another string the quotes
/// would be escaped.
const HIDDEN: &str = "\"[secret]\"";

/// Reads what the engine has printed. `from_extra_files` names the outputs that extra files declare; without a
/// word from the engine there is nothing to tell.
pub fn read(
    engine: &dyn Engine,
    file: impl Into<ResultFile>,
    from_extra_files: &BTreeSet<String>,
    timestamp: i64,
) -> Result<Option<OutputSet>, EngineError> {
    let (path, file) = file.into().open(WHAT)?;
    let raw = match read_limited(file, LARGEST) {
        Ok(raw) => raw,
        Err(source) => return Err(EngineError::Read { what: WHAT, path, source }),
    };
    if raw.trim_ascii().is_empty() {
        return Ok(None);
    }
    let mut outputs =
        engine.parse_outputs(&raw).map_err(|source| EngineError::Json { what: WHAT, path, source })?;
    for output in &mut outputs {
        output.from_extra_file = from_extra_files.contains(&output.name);
    }
    Ok(Some(OutputSet { timestamp, checksum: hex(&Sha256::digest(&raw)), outputs }))
}

/// Reads the names of the outputs that extra files declare, which were noted when the task was prepared.
pub fn read_names(file: impl Into<ResultFile>) -> Result<BTreeSet<String>, EngineError> {
    read_json("the names of the outputs of extra files", file)
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
            // With --show-secrets a secret looks like any other value: then nobody can tell.
            Ok(OutputValue { name, sensitive: hidden.then_some(true), kind, value, from_extra_file: false })
        })
        .collect()
}

/// The type as Terraform writes it: a word, or an array that begins with one.
fn type_name(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') {
        return serde_json::from_str(raw);
    }
    let items: Vec<serde_json::Value> = serde_json::from_str(raw)?;
    Ok(items.first().and_then(|it| it.as_str()).unwrap_or("dynamic").to_owned())
}

/// The type of a JSON text, in Terraform's words, so that a reader of outputs need not know the engine.
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

/// Strings as they are, everything else as compact JSON.
fn text(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') { serde_json::from_str(raw) } else { Ok(compact(raw)) }
}

/// Takes the white space out of a JSON text and changes nothing else.
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
        read(engine, file.path().to_str().unwrap(), &extra, 7).unwrap().unwrap()
    }

    fn one(json: &str) -> OutputValue {
        outputs(&Terraform::hashicorp(), &format!("{{\"x\": {json}}}")).outputs.remove(0)
    }

    #[test]
    fn every_type_keeps_its_value_to_the_letter() {
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
    fn the_checksum_is_that_of_the_raw_text_and_extra_files_are_marked() {
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
    fn silence_is_no_outputs_and_rubbish_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(read(&Terraform::tofu(), path, &BTreeSet::new(), 0).unwrap(), None);
        fs::write(path, "Warning: not JSON").unwrap();
        read(&Terraform::tofu(), path, &BTreeSet::new(), 0).unwrap_err();
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
