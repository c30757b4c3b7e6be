//! The outputs of a stack.
//!
//! `pulumi stack output` prints a secret as `[secret]`, or like any other value with `--show-secrets`. So a task prints both
//! forms, and the outputs that differ are secret. If the server asks to hide secrets, there is only the first form.

use std::collections::BTreeMap;
use std::io;

use hawser_contract::OutputValue;
use serde_json::value::RawValue;

use crate::engines::outputs::{compact, json_type, text};
use crate::engines::{EngineError, ResultPaths};

/// The outputs without their secrets, in the step folder.
pub(super) const WITHOUT_SECRETS: &str = "output-without-secrets.json";

/// Printed in place of a secret, which may be a part of a value. Inside a string, the quotes would be escaped.
const HIDDEN: &str = "\"[secret]\"";

pub(super) fn parse(raw: &[u8]) -> Result<Vec<OutputValue>, serde_json::Error> {
    let outputs: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(raw)?;
    let value = |(name, value): (String, Box<RawValue>)| {
        let (kind, value) = (json_type(value.get()).to_owned(), text(value.get())?);
        Ok(OutputValue { name, sensitive: None, kind, value, from_extra_file: false })
    };
    outputs.into_iter().map(value).collect()
}

/// Marks the outputs that are secret.
pub(super) fn mark_sensitive(outputs: &mut [OutputValue], paths: &ResultPaths) -> Result<(), EngineError> {
    let without_secrets: BTreeMap<String, Box<RawValue>> = match paths.read_json(WITHOUT_SECRETS) {
        Err(EngineError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            for output in outputs {
                output.sensitive = has_hidden(output).then_some(true);
            }
            return Ok(());
        }
        read => read?,
    };
    for output in outputs {
        let same = without_secrets.get(&output.name).is_some_and(|value| is_value(output, value.get()));
        output.sensitive = Some(!same);
    }
    Ok(())
}

fn is_value(output: &OutputValue, raw: &str) -> bool {
    json_type(raw) == output.kind && text(raw).is_ok_and(|value| value == output.value)
}

fn has_hidden(output: &OutputValue) -> bool {
    match output.kind.as_str() {
        "string" => output.value == HIDDEN.trim_matches('"'),
        _ => compact(&output.value).contains(HIDDEN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn outputs_keep_their_types_and_those_that_differ_without_secrets_are_sensitive() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ResultPaths::new(folder.path(), folder.path()).unwrap();
        let printed = r#"{"s": "t", "n": 1.50, "l": [1, "a"], "o": {"k": true}, "plain": "[secret]", "text": "hush",
            "number": 12, "part": {"user": "me", "keys": ["hush"]}, "new": 1}"#;
        let hidden = r#"{"s": "t", "n": 1.50, "l": [ 1, "a" ], "o": {"k": true}, "plain": "[secret]", "text": "[secret]",
            "number": "[secret]", "part": {"user": "me", "keys": ["[secret]"]}}"#;
        fs::write(folder.path().join(WITHOUT_SECRETS), hidden).unwrap();
        let mut outputs = parse(printed.as_bytes()).unwrap();
        mark_sensitive(&mut outputs, &paths).unwrap();
        let seen: Vec<_> = outputs
            .iter()
            .map(|it| (it.name.as_str(), it.kind.as_str(), it.value.as_str(), it.sensitive))
            .collect();
        assert_eq!(
            seen,
            [
                ("l", "tuple", "[1,\"a\"]", Some(false)),
                ("n", "number", "1.50", Some(false)),
                ("new", "number", "1", Some(true)),
                ("number", "number", "12", Some(true)),
                ("o", "object", "{\"k\":true}", Some(false)),
                ("part", "object", "{\"user\":\"me\",\"keys\":[\"hush\"]}", Some(true)),
                ("plain", "string", "[secret]", Some(false)),
                ("s", "string", "t", Some(false)),
                ("text", "string", "hush", Some(true)),
            ]
        );
        fs::write(folder.path().join(WITHOUT_SECRETS), "not JSON").unwrap();
        mark_sensitive(&mut outputs, &paths).unwrap_err();
    }

    #[test]
    fn without_the_other_form_hidden_values_are_sensitive() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ResultPaths::new(folder.path(), folder.path()).unwrap();
        let printed =
            r#"{"a": "[secret]", "b": {"keys": [ "[secret]" ]}, "c": "say \"[secret]\"", "d": "x"}"#;
        let mut outputs = parse(printed.as_bytes()).unwrap();
        mark_sensitive(&mut outputs, &paths).unwrap();
        let sensitive: Vec<_> = outputs.iter().map(|it| it.sensitive).collect();
        assert_eq!(sensitive, [Some(true), Some(true), None, None]);
    }
}
