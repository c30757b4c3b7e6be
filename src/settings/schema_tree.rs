//! The schema of the settings in the form that the loader needs.

use serde_json::Value;

use super::schema::complete_schema;

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
    pub(super) node: SchemaNode,
    pub(super) required: bool,
    /// From the schema, not expanded.
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
    /// The root: all settings.
    pub(super) fn of_settings() -> Self {
        Self::of(&complete_schema())
    }

    fn of(schema: &Value) -> Self {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let required = schema.get("required").and_then(Value::as_array);
            let keys = properties.iter().map(|(name, property)| Key {
                name: name.clone(),
                node: Self::of(property),
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

    /// The keys of a section; empty for other nodes.
    pub(super) fn keys(&self) -> &[Key] {
        match self {
            Self::Section(keys) => keys,
            Self::List(_) | Self::Map(_) | Self::Leaf(_) => &[],
        }
    }

    /// Finds a key, case-insensitive.
    pub(super) fn key(&self, name: &str) -> Option<&Key> {
        self.keys().iter().find(|key| key.name.eq_ignore_ascii_case(name))
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
    fn the_tree_matches_the_types() {
        let node = SchemaNode::of_settings();
        let runner = &node.key("RUNNER").unwrap().node;
        let id = runner.key("id").unwrap();
        assert!(id.required);
        assert!(matches!(
            &id.node,
            SchemaNode::Leaf(Leaf { kind: ValueKind::Guid, secret: false, nullable: false })
        ));
        assert!(!runner.key("Instance").unwrap().required);
        let secret = runner.key("Credentials").unwrap().node.key("ClientSecret").unwrap();
        assert!(matches!(&secret.node, SchemaNode::Leaf(Leaf { kind: ValueKind::Text, secret: true, .. })));
        let batch = node.key("JobLogStream").unwrap().node.key("BatchSizeLimit").unwrap();
        assert_eq!(batch.default, 50);
        assert!(matches!(
            &batch.node,
            SchemaNode::Leaf(Leaf { kind: ValueKind::Integer { min: 1, max: 100_000 }, .. })
        ));
        let paths = node.key("Engine").unwrap().node.key("AdditionalBinaryPaths").unwrap();
        assert!(matches!(&paths.node, SchemaNode::List(Leaf { kind: ValueKind::Path, .. })));
        let levels = node.key("Logging").unwrap().node.key("LogLevel").unwrap();
        let SchemaNode::Map(Leaf { kind: ValueKind::OneOf(names), .. }) = &levels.node else {
            panic!("{levels:?}")
        };
        assert_eq!(names.len(), 7);
    }

    #[test]
    fn every_number_that_becomes_a_time_or_a_count_has_an_upper_bound() {
        // `MaxUnsentBytes` is only compared, so any size is fine.
        fn unbounded(node: &SchemaNode) -> Vec<&str> {
            let mut found = Vec::new();
            for key in node.keys() {
                if let SchemaNode::Leaf(Leaf { kind: ValueKind::Integer { max: u64::MAX, .. }, .. }) =
                    &key.node
                {
                    found.push(key.name.as_str());
                }
                found.extend(unbounded(&key.node));
            }
            found
        }
        assert_eq!(unbounded(&SchemaNode::of_settings()), ["MaxUnsentBytes"]);
    }
}
