//! Enums, which are integers on the wire, and engine names, which are strings.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An enum with a fixed number for each variant on the wire.
pub trait WireEnum: Sized + Copy + 'static {
    /// The enum's name in the contract, for messages.
    const NAME: &'static str;
    /// Every variant in the order of its number.
    const ALL: &'static [Self];

    fn number(self) -> u8;
    fn name(self) -> &'static str;

    /// Reads a number, a name in any case, or a number in quotes.
    fn from_wire(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => {
                let number = number.as_u64()?;
                Self::ALL.iter().copied().find(|it| u64::from(it.number()) == number)
            }
            Value::String(text) => Self::ALL
                .iter()
                .copied()
                .find(|it| it.name().eq_ignore_ascii_case(text) || it.number().to_string() == *text),
            _ => None,
        }
    }
}

/// Declares an enum whose variants are written as numbers, and read as numbers or names.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant = $number),+ }

        impl $crate::enums::WireEnum for $name {
            const NAME: &'static str = stringify!($name);
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn number(self) -> u8 {
                self as u8
            }
            fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u8($crate::enums::WireEnum::number(*self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::enums::read(deserializer)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::enums::schema::<$name>()
            }
        }
    };
}
pub(crate) use wire_enum;

pub(crate) fn read<'de, D: Deserializer<'de>, E: WireEnum>(deserializer: D) -> Result<E, D::Error> {
    let value = Value::deserialize(deserializer)?;
    E::from_wire(&value)
        .ok_or_else(|| D::Error::custom(format!("{value} is not a {} (number or name)", E::NAME)))
}

/// Reads only the number, which is the form that is written.
pub(crate) fn read_number<'de, D: Deserializer<'de>, E: WireEnum>(deserializer: D) -> Result<E, D::Error> {
    let number = u8::deserialize(deserializer)?;
    E::from_wire(&number.into()).ok_or_else(|| D::Error::custom(format!("{number} is not a {}", E::NAME)))
}

pub(crate) fn schema<E: WireEnum>() -> schemars::Schema {
    let numbers: Vec<u8> = E::ALL.iter().map(|it| it.number()).collect();
    let names: Vec<String> = E::ALL.iter().map(|it| format!("{} {}", it.number(), it.name())).collect();
    schemars::json_schema!({
        "type": "integer",
        "enum": numbers,
        "description": names.join(", "),
    })
}

wire_enum! {
    /// Where a module's source is stored.
    SourceType { Git = 0, Registry = 1, S3 = 2, Http = 3, Https = 4, Gcs = 5, Mercurial = 6, Unknown = 7 }
}

wire_enum! {
    /// How to interpret `sourceRevision`.
    SourceRevisionType { Default = 0, SemanticVersionRange = 1 }
}

wire_enum! {
    /// The task for which a flag was configured. The server has already filtered the flags by it.
    CommandTask { Init = 0, Plan = 1, Apply = 2, Destroy = 3, Output = 4 }
}

wire_enum! {
    /// The level of a job log entry.
    LogLevel { Verbose = 0, Debug = 1, Information = 2, Warning = 3, Error = 4, Fatal = 5 }
}

/// The name of an engine, which is also the name of its program: lowercase letters, digits, `-` and `_`. It is read in any
/// case, and a missing or blank name means `tofu`. The runner decides whether it supports the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct EngineName(Cow<'static, str>);

impl EngineName {
    pub const TERRAFORM: Self = Self(Cow::Borrowed("terraform"));
    pub const TOFU: Self = Self(Cow::Borrowed("tofu"));
    pub const PULUMI: Self = Self(Cow::Borrowed("pulumi"));
    /// The engines of the contract.
    pub const ALL: [Self; 3] = [Self::TERRAFORM, Self::TOFU, Self::PULUMI];

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for EngineName {
    fn default() -> Self {
        Self::TOFU
    }
}

impl std::str::FromStr for EngineName {
    type Err = InvalidEngineName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.trim().to_ascii_lowercase();
        let is_valid = |name: &str| {
            name.len() <= 64 && name.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_'))
        };
        match name.as_str() {
            "" | "opentofu" => Ok(Self::TOFU),
            // An option, not the name of a program.
            other if other.starts_with('-') || !is_valid(other) => Err(InvalidEngineName(text.to_owned())),
            _ => Ok(Self(Cow::Owned(name))),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid engine name {0:?}: expected a name such as terraform, tofu or pulumi")]
pub struct InvalidEngineName(pub String);

impl std::fmt::Display for EngineName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EngineName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        text.parse().map_err(D::Error::custom)
    }
}

impl schemars::JsonSchema for EngineName {
    fn schema_name() -> Cow<'static, str> {
        "Engine".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "enum": Self::ALL,
            "description": "The program that does the work. Read in any case. If it is missing, the engine is `tofu`.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn enums_are_read_by_number_and_by_name_in_any_case_and_written_as_numbers() {
        for value in [json!(1), json!("Registry"), json!("registry"), json!("1")] {
            assert_eq!(serde_json::from_value::<SourceType>(value).unwrap(), SourceType::Registry);
        }
        assert_eq!(serde_json::to_value(SourceType::Registry).unwrap(), json!(1));
    }

    #[test]
    fn an_unknown_number_is_an_error_that_names_the_enum() {
        let error = serde_json::from_value::<SourceType>(json!(99)).unwrap_err().to_string();
        assert!(error.contains("99") && error.contains("SourceType"), "{error}");
        for invalid in [json!(-1), json!(1.5), json!(null), json!([]), json!("")] {
            serde_json::from_value::<SourceType>(invalid).unwrap_err();
        }
    }

    #[test]
    fn an_engine_is_a_name_and_defaults_to_tofu() {
        let read = |value| serde_json::from_value::<EngineName>(value);
        assert_eq!(read(json!("Terraform")).unwrap(), EngineName::TERRAFORM);
        for tofu in [json!(null), json!(""), json!("OpenTofu")] {
            assert_eq!(read(tofu).unwrap(), EngineName::TOFU);
        }
        assert_eq!(read(json!("ansible")).unwrap().as_str(), "ansible");
        for invalid in ["../tofu", "-v", "a b", "é"] {
            let error = read(json!(invalid)).unwrap_err().to_string();
            assert!(error.contains("pulumi"), "{error}");
        }
    }
}
