//! The shape of the settings as the loader needs it, taken from the schema of the types.

use serde_json::Value;

use super::schema::complete_schema;

/// What stands at one place of the tree.
#[derive(Debug)]
pub(super) enum SchemaNode {
    /// Named keys, sorted by name.
    Section(Vec<Key>),
    /// Items by index.
    List(Leaf),
    /// Items by a name that the user chooses.
    Map(Leaf),
    Leaf(Leaf),
}

#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) shape: SchemaNode,
    pub(super) required: bool,
    /// As the schema has it, not yet expanded.
    pub(super) default: Value,
}

#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) kind: ValueKind,
    pub(super) secret: bool,
    pub(super) nullable: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum ValueKind {
    Text,
    Guid,
    Url,
    Path,
    Regex,
    Boolean,
    Integer { min: u64, max: u64 },
    OneOf(Vec<String>),
}

impl SchemaNode {
    /// The shape of all settings.
    pub(super) fn of_settings() -> Self {
        Self::of(&complete_schema())
    }

    fn of(schema: &Value) -> Self {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let required = schema.get("required").and_then(Value::as_array);
            let keys = properties.iter().map(|(name, property)| Key {
                name: name.clone(),
                shape: Self::of(property),
                required: required.is_some_and(|names| names.iter().any(|required| required == name)),
                default: property.get("default").cloned().unwrap_or_default(),
            });
            Self::Section(keys.collect())
        } else if let Some(items) = schema.get("items") {
            Self::List(Leaf::of(items))
        } else if let Some(values) = schema.get("additionalProperties") {
            Self::Map(Leaf::of(values))
        } else {
            Self::Leaf(Leaf::of(schema))
        }
    }

    /// The keys of a section; of anything else, none.
    pub(super) fn keys(&self) -> &[Key] {
        match self {
            Self::Section(keys) => keys,
            Self::List(_) | Self::Map(_) | Self::Leaf(_) => &[],
        }
    }

    /// The key with this name, whatever its case.
    pub(super) fn key(&self, name: &str) -> Option<&Key> {
        self.keys().iter().find(|key| key.name.eq_ignore_ascii_case(name))
    }

    /// Whether a value at this path is secret.
    pub(super) fn is_secret(&self, path: &[String]) -> bool {
        match (self, path) {
            (Self::Section(_), [first, rest @ ..]) => {
                self.key(first).is_some_and(|key| key.shape.is_secret(rest))
            }
            (Self::Leaf(leaf), []) | (Self::List(leaf) | Self::Map(leaf), [_]) => leaf.secret,
            _ => false,
        }
    }
}

impl Leaf {
    fn of(schema: &Value) -> Self {
        let kind_of_type = |name: &str| match &schema["type"] {
            Value::String(only) => only == name,
            Value::Array(several) => several.iter().any(|one| one == name),
            _ => false,
        };
        let kind = if let Some(names) = schema.get("enum").and_then(Value::as_array) {
            ValueKind::OneOf(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        } else if kind_of_type("boolean") {
            ValueKind::Boolean
        } else if kind_of_type("integer") {
            ValueKind::Integer {
                min: schema["minimum"].as_u64().unwrap_or(0),
                max: schema["maximum"].as_u64().unwrap_or(u64::MAX),
            }
        } else {
            match schema["format"].as_str() {
                Some("uuid") => ValueKind::Guid,
                Some("uri") => ValueKind::Url,
                Some("path") => ValueKind::Path,
                Some("regex") => ValueKind::Regex,
                _ => ValueKind::Text,
            }
        };
        Self { kind, secret: schema["writeOnly"] == true, nullable: kind_of_type("null") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_knows_what_the_types_say() {
        let shape = SchemaNode::of_settings();
        let runner = &shape.key("RUNNER").unwrap().shape;
        let id = runner.key("id").unwrap();
        assert!(id.required);
        assert!(matches!(
            &id.shape,
            SchemaNode::Leaf(Leaf { kind: ValueKind::Guid, secret: false, nullable: false })
        ));
        assert!(!runner.key("Instance").unwrap().required);
        let secret = runner.key("Credentials").unwrap().shape.key("ClientSecret").unwrap();
        assert!(matches!(&secret.shape, SchemaNode::Leaf(Leaf { kind: ValueKind::Text, secret: true, .. })));
        let batch = shape.key("JobLogStream").unwrap().shape.key("BatchSizeLimit").unwrap();
        assert_eq!(batch.default, 50);
        assert!(matches!(
            &batch.shape,
            SchemaNode::Leaf(Leaf { kind: ValueKind::Integer { min: 1, max: 100_000 }, .. })
        ));
        let paths = shape.key("Engine").unwrap().shape.key("AdditionalBinaryPaths").unwrap();
        assert!(matches!(&paths.shape, SchemaNode::List(Leaf { kind: ValueKind::Path, .. })));
        let levels = shape.key("Logging").unwrap().shape.key("LogLevel").unwrap();
        let SchemaNode::Map(Leaf { kind: ValueKind::OneOf(names), .. }) = &levels.shape else {
            panic!("{levels:?}")
        };
        assert_eq!(names.len(), 7);
    }

    #[test]
    fn every_number_that_becomes_a_time_or_a_count_has_an_upper_bound() {
        // `MaxUnsentBytes` is only ever compared with, so any size is good.
        fn unbounded(shape: &SchemaNode) -> Vec<&str> {
            let mut found = Vec::new();
            for key in shape.keys() {
                if let SchemaNode::Leaf(Leaf { kind: ValueKind::Integer { max: u64::MAX, .. }, .. }) =
                    &key.shape
                {
                    found.push(key.name.as_str());
                }
                found.extend(unbounded(&key.shape));
            }
            found
        }
        assert_eq!(unbounded(&SchemaNode::of_settings()), ["MaxUnsentBytes"]);
    }
}
