//! From the merged texts to checked values: every key of the shape gets its value, its default or a problem.

use config::{Map, Value as Merged, ValueKind};
use serde_json::{Map as JsonMap, Value as Json};

use super::findings::{Findings, Origin};
use super::shape::{Key, Leaf, Shape};
use super::spelling::in_a_file;
use super::values::{self, Fault, Places};

/// One setting as it is in effect, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub key: String,
    /// A secret is masked.
    pub value: String,
    pub origin: Origin,
}

/// Stands for a secret, whatever its length.
const MASK: &str = "********";
const NOT_SET: &str = "not set";
const MISSING: &str = "not set (required)";
const EMPTY: &str = "[]";
/// A list that restricts means one thing when it is not set, and the opposite when it is empty.
const NOT_RESTRICTED: &str = "not set (everything is allowed)";
const NOTHING_ALLOWED: &str = "[] (nothing is allowed)";
/// What is logged when `Logging.LogLevel` says nothing; [`super::levels`] has it so.
const DEFAULT_LEVEL: &str = "Information";

pub(super) struct Binder<'a> {
    pub(super) places: Places<'a>,
    pub(super) host_name: &'a str,
    pub(super) findings: &'a mut Findings,
    pub(super) effective: Vec<Effective>,
}

impl Binder<'_> {
    /// The JSON of a section, from which the types are read when there was no problem.
    pub(super) fn section(
        &mut self,
        keys: &[Key],
        given: Option<&Map<String, Merged>>,
        above: &[&str],
    ) -> JsonMap<String, Json> {
        let mut object = JsonMap::new();
        for key in keys {
            let path: Vec<&str> = above.iter().copied().chain([key.name.as_str()]).collect();
            let given = given.and_then(|table| table.get(&key.name));
            let value = match &key.shape {
                Shape::Section(keys) => Some(Json::Object(self.section(keys, table(given), &path))),
                Shape::List(leaf) => self.list(key, leaf, given, &path),
                Shape::Map(leaf) => self.map(leaf, table(given), &path),
                Shape::Leaf(leaf) => self.leaf(key, leaf, given, &path),
            };
            if let Some(value) = value {
                object.insert(key.name.clone(), value);
            }
        }
        object
    }

    /// A list that no layer gives an item of has its default, unless one says that it is empty.
    fn list(&mut self, key: &Key, leaf: &Leaf, given: Option<&Merged>, path: &[&str]) -> Option<Json> {
        let mut items: Vec<_> = table(given).into_iter().flatten().collect();
        items.sort_by_key(|(index, _)| index.parse::<u32>().unwrap_or(u32::MAX));
        let set = items.iter().any(|(_, item)| matches!(item.kind, ValueKind::String(_)));
        match given {
            Some(empty @ Merged { kind: ValueKind::String(_), .. }) => {
                let shown = if key.default.is_null() { NOTHING_ALLOWED } else { EMPTY };
                self.effect(path.join("."), shown, origin_of(empty));
                Some(Json::Array(Vec::new()))
            }
            _ if !set && key.default.is_null() => {
                self.effect(path.join("."), NOT_RESTRICTED, Origin::default());
                Some(Json::Null)
            }
            _ if !set => {
                let defaults: Vec<_> = key.default.as_array().into_iter().flatten().collect();
                let shown = defaults.iter().filter_map(|item| item.as_str()).collect::<Vec<_>>().join(", ");
                let shown = if defaults.is_empty() { EMPTY } else { &shown };
                self.effect(path.join("."), shown, Origin::default());
                Some(key.default.clone())
            }
            _ => {
                let items = self.items(leaf, items, path);
                Some(Json::Array(items.into_iter().map(|(_, value)| value).collect()))
            }
        }
    }

    fn map(&mut self, leaf: &Leaf, given: Option<&Map<String, Merged>>, path: &[&str]) -> Option<Json> {
        let mut items: Vec<_> = given.into_iter().flatten().collect();
        items.sort_by_key(|(name, _)| *name);
        let name = path.join(".");
        items.retain(|(_, item)| matches!(item.kind, ValueKind::String(_)));
        if name == "Logging.LogLevel" && items.is_empty() {
            // Nothing at all would read as if nothing were logged.
            self.effect(format!("{name}.Default"), DEFAULT_LEVEL, Origin::default());
            return Some(Json::Object(JsonMap::new()));
        }
        Some(Json::Object(self.items(leaf, items, path).into_iter().collect()))
    }

    /// The items of a list or a map that are set; one that a later layer took back is not there.
    fn items(&mut self, leaf: &Leaf, given: Vec<(&String, &Merged)>, path: &[&str]) -> Vec<(String, Json)> {
        let mut items = Vec::new();
        for (name, item) in given {
            let ValueKind::String(text) = &item.kind else { continue };
            let key = format!("{}.{name}", path.join("."));
            if let Some(value) = self.read(leaf, &key, text, &origin_of(item)) {
                items.push((name.clone(), value));
            }
        }
        items
    }

    fn leaf(&mut self, key: &Key, leaf: &Leaf, given: Option<&Merged>, path: &[&str]) -> Option<Json> {
        let name = path.join(".");
        let origin = given.map(origin_of);
        if let Some(Merged { kind: ValueKind::String(text), .. }) = given
            // As .NET has it, an empty text is no value where none is needed.
            && !(leaf.nullable && text.trim().is_empty())
        {
            return self.read(leaf, &name, text, &origin.unwrap_or_else(Origin::default));
        }
        if name == "Runner.Instance" && !self.host_name.is_empty() {
            self.effect(name, self.host_name, Origin::host_name());
            return Some(Json::from(self.host_name));
        }
        if key.required || name == "Runner.Instance" {
            let how = how_to_set(path, leaf.secret);
            self.findings.problem(&name, None, origin.as_ref(), Fault::Missing { how });
            self.effect(name, MISSING, Origin::nowhere());
            return None;
        }
        let origin = origin.unwrap_or_else(Origin::default);
        match &key.default {
            Json::Null => {
                self.effect(name, NOT_SET, origin);
                Some(Json::Null)
            }
            Json::String(text) => self.read(leaf, &name, text, &origin),
            other => self.read(leaf, &name, &other.to_string(), &origin),
        }
    }

    fn read(&mut self, leaf: &Leaf, key: &str, text: &str, origin: &Origin) -> Option<Json> {
        match values::read(&leaf.kind, text, self.places) {
            Ok(value) => {
                let shown = match &value {
                    _ if leaf.secret => MASK.to_owned(),
                    Json::String(text) => text.clone(),
                    other => other.to_string(),
                };
                self.effect(key.to_owned(), &shown, origin.clone());
                Some(value)
            }
            Err(fault) => {
                let value = (!leaf.secret).then(|| values::shown(&leaf.kind, text));
                self.findings.problem(key, value, Some(origin), fault);
                None
            }
        }
    }

    fn effect(&mut self, key: String, value: &str, origin: Origin) {
        self.effective.push(Effective { key, value: value.to_owned(), origin });
    }
}

fn table(given: Option<&Merged>) -> Option<&Map<String, Merged>> {
    match &given?.kind {
        ValueKind::Table(table) => Some(table),
        _ => None,
    }
}

fn origin_of(value: &Merged) -> Origin {
    value.origin().map_or_else(Origin::default, Origin::from_words)
}

fn how_to_set(path: &[&str], secret: bool) -> String {
    let variable = path.join("__");
    if secret {
        // Anybody on the machine can read a command line.
        format!(
            "Set {variable} in the environment, or put it into an appsettings.json that others cannot read"
        )
    } else {
        let option = path.join(":");
        let file = in_a_file(path, "…");
        format!("Put {file} into appsettings.json, set {variable} in the environment, or pass --{option}=…")
    }
}
