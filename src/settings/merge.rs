//! The layers on top of each other, by the `config` crate: a later one wins, value by value, and each value
//! remembers its origin.
//!
//! The crate's own sources for files and the environment are not used. They disagree about the case of keys
//! (the environment is lower-cased, files are not), replace lists as a whole where .NET replaces items, and keep no
//! positions and no duplicates. So each layer is brought into one form first (`place`), with
//! lists as tables by index, and only then becomes a source.

use std::fmt;

use config::{Config, ConfigError, Map, Source, Value, ValueKind};

use super::place::{Layer, Placed};

/// The values of all layers as one tree. Older names come first, so that a newer name in any layer wins.
pub(super) fn merge(layers: Vec<Layer>) -> Result<Map<String, Value>, ConfigError> {
    let (older, current): (Vec<_>, Vec<_>) =
        layers.into_iter().map(|layer| (PlacedSource(layer.older), PlacedSource(layer.current))).unzip();
    let mut builder = Config::builder();
    for source in older.into_iter().chain(current) {
        builder = builder.add_source(source);
    }
    builder.build()?.collect()
}

#[derive(Clone)]
struct PlacedSource(Vec<Placed>);

impl fmt::Debug for PlacedSource {
    /// Without the values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlacedSource({} values)", self.0.len())
    }
}

impl Source for PlacedSource {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        let mut root = Map::new();
        for Placed { path, text, origin } in &self.0 {
            let value = Value::new(Some(&origin.as_str().to_owned()), ValueKind::from(text.clone()));
            insert(&mut root, path, value);
        }
        Ok(root)
    }
}

fn insert(table: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            table.insert(last.clone(), value);
        }
        [first, rest @ ..] => {
            let below =
                table.entry(first.clone()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
            if let ValueKind::Table(below) = &mut below.kind {
                insert(below, rest, value);
            }
        }
    }
}
