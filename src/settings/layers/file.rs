//! A settings file: JSON with comments and trailing commas (read as JSON5, which allows both).

use std::collections::HashSet;
use std::path::Path;
use std::{fmt, io};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value, json};

use super::LayerValue;
use crate::settings::diagnostics::{Diagnostics, Origin};
use crate::settings::values::SettingFault;

/// Protects the stack of the parser.
const MAX_DEPTH: usize = 64;

/// Reads the values in the file; empty if the file does not exist.
pub(crate) fn read(dir: &Path, name: &str, diagnostics: &mut Diagnostics) -> Vec<LayerValue> {
    let origin = Origin::File(name.to_owned());
    let parsed = match std::fs::read(dir.join(name)) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => Err(SettingFault::Unreadable(error.to_string())),
    };
    match parsed {
        Ok(values) => {
            let with_origin = |(path, value)| LayerValue { path, value, origin: origin.clone() };
            values.into_iter().map(with_origin).collect()
        }
        Err(fault) => {
            diagnostics.layer_problem(origin, fault);
            Vec::new()
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<(Vec<String>, Value)>, SettingFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| SettingFault::NotUnicode)?;
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(SettingFault::NothingInFile);
    }
    match json5::from_str(text) {
        Ok(Document { is_object: true, values }) => Ok(values),
        Ok(_) => Err(SettingFault::NotObject),
        Err(error) => Err(SettingFault::NotJson(error.to_string())),
    }
}

/// The values of a JSON document by path. An empty list or object is a value, too.
struct Document {
    is_object: bool,
    values: Vec<(Vec<String>, Value)>,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut values = Vec::new();
        let is_object = Flatten { path: Vec::new(), values: &mut values }.deserialize(deserializer)?;
        Ok(Self { is_object, values })
    }
}

/// Adds one value and everything in it, and returns whether it is an object.
struct Flatten<'a> {
    path: Vec<String>,
    values: &'a mut Vec<(Vec<String>, Value)>,
}

impl Flatten<'_> {
    fn add<E>(self, value: impl Into<Value>) -> Result<bool, E> {
        let value = value.into();
        let is_object = value.is_object();
        self.values.push((self.path, value));
        Ok(is_object)
    }

    fn member<E: Error>(&mut self, name: &str) -> Result<Flatten<'_>, E> {
        let mut path = self.path.clone();
        // .NET reads `"Runner:Id"` as a path. `hawser::shipping` is a log category and is not split.
        match name.contains("::") {
            true => path.push(name.to_owned()),
            false => path.extend(name.split(':').map(str::to_owned)),
        }
        if path.len() > MAX_DEPTH {
            return Err(E::custom(format!("nested more than {MAX_DEPTH} levels deep")));
        }
        Ok(Flatten { path, values: self.values })
    }
}

impl<'de> DeserializeSeed<'de> for Flatten<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flatten<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        self.add(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
        self.add(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
        self.add(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        let number = Number::from_f64(value);
        self.add(number.ok_or_else(|| E::custom(format!("{value} is not a JSON number")))?)
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        self.add(value)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        self.add(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<bool, A::Error> {
        let mut count = 0;
        while items.next_element_seed(self.member(&count.to_string())?)?.is_some() {
            count += 1;
        }
        if count == 0 { self.add(json!([])) } else { Ok(false) }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<bool, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            members.next_value_seed(self.member(&name)?)?;
            // Otherwise a second `Policy` object could silently replace a part of the first.
            if let Some(again) = names.replace(name) {
                return Err(A::Error::custom(format!("{again:?} is set more than once in the same object")));
            }
        }
        if names.is_empty() { self.add(json!({})) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(Vec<String>, Value)>, String> {
        parse(text.as_bytes()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_second_policy_object_is_an_error() {
        let error = read(r#"{"Policy": {"PlanOnly": true}, "Policy": {"Hooks": "None"}}"#).unwrap_err();
        assert!(error.contains("\"Policy\" is set more than once"), "{error}");
    }

    #[test]
    fn all_json_values_are_read_and_nan_is_rejected() {
        let values = read("{a: [1, -2, 2.5, 'x', true, null, {}, [],], 'b:c': {'d::e': 0}}").unwrap();
        let values: Vec<_> =
            values.iter().map(|(path, value)| format!("{} {value}", path.join("."))).collect();
        let scalars = ["a.0 1", "a.1 -2", "a.2 2.5", "a.3 \"x\"", "a.4 true", "a.5 null"];
        assert_eq!(values[..6], scalars);
        assert_eq!(values[6..], ["a.6 {}", "a.7 []", "b.c.d::e 0"]);
        assert!(read("{a: NaN}").is_err());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let error = read(&"[".repeat(100_000)).unwrap_err();
        assert!(error.contains("64 levels"), "{error}");
    }
}
