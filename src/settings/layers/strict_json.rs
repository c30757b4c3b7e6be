//! Reads JSON, and rejects duplicate keys in an object and numbers that JSON does not have. A plain `Value` keeps the last of
//! two keys, so a second `Policy` object would silently replace the first.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Protects the stack of the parser.
const MAX_DEPTH: usize = 64;

pub(crate) struct StrictJson(pub(crate) Value);

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Nested { left: MAX_DEPTH }.deserialize(deserializer).map(Self)
    }
}

/// A value with at most this many levels below it.
#[derive(Clone, Copy)]
struct Nested {
    left: usize,
}

impl Nested {
    fn below<E: Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1);
        left.map(|left| Self { left })
            .ok_or_else(|| E::custom(format!("nested more than {MAX_DEPTH} levels deep")))
    }
}

impl<'de> DeserializeSeed<'de> for Nested {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Nested {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom(format!("{value} is not a JSON number")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let below = self.below()?;
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let below = self.below()?;
        while let Some(key) = members.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("{key:?} is set more than once in the same object")));
            }
            let value = members.next_value_seed(below)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, json5::Error> {
        json5::from_str::<StrictJson>(text).map(|StrictJson(value)| value)
    }

    #[test]
    fn a_second_policy_object_is_an_error() {
        let error = read(r#"{"Policy": {"PlanOnly": true}, "Policy": {"Hooks": "None"}}"#).unwrap_err();
        assert!(error.to_string().contains("\"Policy\" is set more than once"), "{error}");
    }

    #[test]
    fn all_json_values_are_read_and_nan_is_rejected() {
        let value = serde_json::json!({"a": [1, -2, 2.5, "x", true, null, {}, []]});
        assert_eq!(read("{a: [1, -2, 2.5, 'x', true, null, {}, [],],}").unwrap(), value);
        assert!(read("{a: NaN}").is_err());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let error = read(&"[".repeat(100_000)).unwrap_err();
        assert!(error.to_string().contains("64 levels"), "{error}");
    }
}
