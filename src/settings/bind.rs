//! Converts the merged texts to checked values: every key of the schema gets its value, its default, or a problem.

use serde_json::{Map as JsonMap, Value as Json};

use super::diagnostics::{Diagnostics, Origin};
use super::resolve::Merged;
use super::schema_tree::{Key, Leaf, SchemaNode};
use super::values::{self, PathRoots, SettingFault};

/// The effective value of one setting, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub key: String,
    /// Masked if it is secret.
    pub value: String,
    pub origin: Origin,
}

/// Replaces a secret of any length.
const MASK: &str = "********";

pub(super) struct Binder<'a> {
    pub(super) roots: PathRoots<'a>,
    pub(super) host_name: &'a str,
    pub(super) merged: Merged,
    pub(super) diagnostics: &'a mut Diagnostics,
    pub(super) effective: Vec<Effective>,
}

impl Binder<'_> {
    /// The JSON of a section, to deserialize if there was no problem.
    pub(super) fn section(&mut self, keys: &[Key], above: &[String]) -> JsonMap<String, Json> {
        let mut object = JsonMap::new();
        for key in keys {
            let path = [above, std::slice::from_ref(&key.name)].concat();
            let value = match &key.node {
                SchemaNode::Section(keys) => Some(Json::Object(self.section(keys, &path))),
                SchemaNode::List(leaf) => Some(self.list(key, leaf, &path)),
                SchemaNode::Map(leaf) => Some(self.map(leaf, &path)),
                SchemaNode::Leaf(leaf) => self.leaf(key, leaf, &path),
            };
            if let Some(value) = value {
                object.insert(key.name.clone(), value);
            }
        }
        object
    }

    /// A list without items has its default, unless a layer sets it to an empty list.
    fn list(&mut self, key: &Key, leaf: &Leaf, path: &[String]) -> Json {
        let mut items = self.items(path);
        if !items.is_empty() {
            items.sort_by_key(|(index, ..)| index.parse::<u32>().ok());
            return self.read_items(leaf, path, items).map(|(_, value)| value).collect();
        }
        let restricts = key.default.is_null();
        if let Some(empty) = self.merged.get(path) {
            let origin = empty.origin.clone();
            // A restricting list that is not set allows everything; an empty one allows nothing.
            self.effect(path.join("."), if restricts { "[] (nothing is allowed)" } else { "[]" }, origin);
            return Json::Array(Vec::new());
        }
        let defaults: Vec<&str> =
            key.default.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        let text = match defaults.join(", ") {
            _ if restricts => "not set (everything is allowed)".to_owned(),
            none if none.is_empty() => "[]".to_owned(),
            some => some,
        };
        self.effect(path.join("."), &text, Origin::Default);
        key.default.clone()
    }

    fn map(&mut self, leaf: &Leaf, path: &[String]) -> Json {
        let items = self.items(path);
        let name = path.join(".");
        if name == "Logging.LogLevel" && items.is_empty() {
            // Without a row it would look as if logging were off. [`crate::observe::log_filter`] has the default.
            self.effect(format!("{name}.Default"), "Information", Origin::Default);
        }
        Json::Object(self.read_items(leaf, path, items).collect())
    }

    /// The items of a list or a map by index or name, without those that a later layer reset.
    fn items(&self, path: &[String]) -> Vec<(String, String, Origin)> {
        let items = self.merged.iter().filter_map(|(item, value)| {
            let (name, _) = item.split_last().filter(|(_, above)| *above == path)?;
            Some((name.clone(), value.text.clone()?, value.origin.clone()))
        });
        items.collect()
    }

    fn read_items(
        &mut self,
        leaf: &Leaf,
        path: &[String],
        items: Vec<(String, String, Origin)>,
    ) -> impl Iterator<Item = (String, Json)> {
        items.into_iter().filter_map(move |(name, text, origin)| {
            let value = self.read(leaf, &format!("{}.{name}", path.join(".")), &text, &origin)?;
            Some((name, value))
        })
    }

    fn leaf(&mut self, key: &Key, leaf: &Leaf, path: &[String]) -> Option<Json> {
        let name = path.join(".");
        let (text, origin) = match self.merged.get(path) {
            Some(resolved) => (resolved.text.clone(), Some(resolved.origin.clone())),
            None => (None, None),
        };
        // As in .NET, an empty text means "not set" for an optional value.
        let text = text.filter(|text| !leaf.nullable || !text.trim().is_empty());
        if let (Some(text), Some(origin)) = (text, &origin) {
            return self.read(leaf, &name, &text, origin);
        }
        if name == "Runner.Instance" && !self.host_name.is_empty() {
            self.effect(name, self.host_name, Origin::HostName);
            return Some(Json::from(self.host_name));
        }
        if key.required || name == "Runner.Instance" {
            let how = how_to_set(path, leaf.secret);
            self.diagnostics.problem_with_value(&name, None, origin.as_ref(), SettingFault::Missing { how });
            self.effect(name, "not set (required)", Origin::NotSet);
            return None;
        }
        let origin = origin.unwrap_or(Origin::Default);
        match &key.default {
            Json::Null => {
                self.effect(name, "not set", origin);
                Some(Json::Null)
            }
            Json::String(text) => self.read(leaf, &name, text, &origin),
            other => self.read(leaf, &name, &other.to_string(), &origin),
        }
    }

    fn read(&mut self, leaf: &Leaf, key: &str, text: &str, origin: &Origin) -> Option<Json> {
        match values::read(&leaf.kind, text, self.roots) {
            Ok(value) => {
                let text = match &value {
                    _ if leaf.secret => MASK.to_owned(),
                    Json::String(text) => text.clone(),
                    other => other.to_string(),
                };
                self.effect(key.to_owned(), &text, origin.clone());
                Some(value)
            }
            Err(fault) => {
                let value = (!leaf.secret).then(|| values::for_message(&leaf.kind, text));
                self.diagnostics.problem_with_value(key, value, Some(origin), fault);
                None
            }
        }
    }

    fn effect(&mut self, key: String, value: &str, origin: Origin) {
        self.effective.push(Effective { key, value: value.to_owned(), origin });
    }
}

fn how_to_set(path: &[String], secret: bool) -> String {
    let variable = path.join("__");
    if secret {
        // Every user of the machine can read a command line.
        return format!(
            "Set {variable} in the environment, or add it to an appsettings.json that only you can read"
        );
    }
    let file = path.iter().rev().fold("…".to_owned(), |inner, name| format!("{{ \"{name}\": {inner} }}"));
    let option = path.join(":");
    format!("Add {file} to appsettings.json, set {variable} in the environment, or pass --{option}=…")
}
