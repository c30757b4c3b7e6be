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

use super::engine_commands::skip_to_object;
use super::{Engine, EngineError, ResultPaths};
use crate::base::confined_dir::read_limited;
use crate::base::digest::hex;
use crate::workspace::PrivateFile;

/// All outputs are held in memory.
const LARGEST: u64 = 256 * 1024 * 1024;

#[derive(Deserialize)]
struct TerraformOutput {
    sensitive: Option<bool>,
    #[serde(rename = "type")]
    kind: Option<Box<RawValue>>,
    value: Option<Box<RawValue>>,
}

/// Reads the outputs that a task printed. `from_extra_files` names the outputs that extra files declare. `None` if the engine
/// printed nothing.
pub fn read(
    engine: &dyn Engine,
    paths: &ResultPaths,
    from_extra_files: &BTreeSet<String>,
    timestamp: i64,
) -> Result<Option<OutputSet>, EngineError> {
    let file = PrivateFile::OUTPUT.name();
    let mut set = paths.read(file, |file| read_printed(engine, file, from_extra_files, timestamp))?;
    if let Some(set) = &mut set {
        engine.mark_sensitive(&mut set.outputs, paths)?;
    }
    Ok(set)
}

/// The same from one file, which may not tell which outputs are sensitive.
pub fn read_printed(
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

/// A type in Terraform's JSON: a name, or an array that starts with one.
fn type_name(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') {
        return serde_json::from_str(raw);
    }
    let items: Vec<serde_json::Value> = serde_json::from_str(raw)?;
    Ok(items.first().and_then(|it| it.as_str()).unwrap_or("dynamic").to_owned())
}

/// The type of a JSON text. All engines use Terraform's names.
pub(super) fn json_type(raw: &str) -> &'static str {
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
pub(super) fn text(raw: &str) -> Result<String, serde_json::Error> {
    if raw.starts_with('"') { serde_json::from_str(raw) } else { Ok(compact(raw)) }
}

/// Removes the whitespace between the tokens of a JSON text.
pub(super) fn compact(json: &str) -> String {
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
    use crate::engines::terraform::Terraform;
    use proptest::prelude::*;
    use std::fs;

    fn outputs(engine: &dyn Engine, json: &str) -> OutputSet {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json).unwrap();
        let extra = BTreeSet::from(["extra".to_owned()]);
        read_printed(engine, file.reopen().unwrap(), &extra, 7).unwrap().unwrap()
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
    fn no_text_means_no_outputs_and_invalid_json_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = || read_printed(&Terraform::tofu(), file.reopen().unwrap(), &BTreeSet::new(), 0);
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
