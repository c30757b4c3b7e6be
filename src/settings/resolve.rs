//! Resolves the paths in the layers to settings, and merges the layers: a later one wins, value by value.
//!
//! Names are matched segment by segment, case-insensitive, against the schema. Users choose the keys of maps (log categories);
//! the first layer that contains one determines its spelling.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::diagnostics::{Diagnostics, Origin, Warning};
use super::layers::LayerValue;
use super::schema_tree::{Key, Leaf, SchemaNode, ValueKind};
use super::values::SettingFault;

pub(super) const POLICY: &str = "Policy";

/// Old and current names of keys.
const OLDER_NAMES: [(&str, &str); 3] = [
    ("Logging.BatchSizeLimit", "JobLogStream.BatchSizeLimit"),
    ("Logging.PeriodSeconds", "JobLogStream.PeriodSeconds"),
    ("Logging.EarlyEmitFirstEvent", "JobLogStream.EagerlyEmitFirstEvent"),
];

/// Sections of ASP.NET that existing files contain and this program ignores.
const FOREIGN_SECTIONS: [&str; 8] = [
    "AllowedHosts",
    "ConnectionStrings",
    "DetailedErrors",
    "HostOptions",
    "Kestrel",
    "OpenTelemetry",
    "Serilog",
    "Urls",
];

/// Keys of `Logging` that configure a log provider of .NET.
const LOG_PROVIDERS: [&str; 9] = [
    "ApplicationInsights",
    "AzureAppServicesBlob",
    "AzureAppServicesFile",
    "Console",
    "Debug",
    "EventLog",
    "EventSource",
    "IncludeScopes",
    "TraceSource",
];

/// A setting and its value in one layer.
#[derive(Clone)]
pub(super) struct ResolvedValue {
    /// None resets the value of earlier layers. A list has a text only if it is empty.
    pub(super) text: Option<String>,
    pub(super) origin: Origin,
}

/// Values by path. A list has one entry per item, or one entry for itself if it is empty.
pub(super) type Merged = BTreeMap<Vec<String>, ResolvedValue>;

/// Resolves one layer after another.
pub(super) struct Resolver<'a> {
    node: &'a SchemaNode,
    /// Contains the settings files.
    working_dir: &'a Path,
    map_keys: HashMap<Vec<String>, String>,
    /// Values under old names, which count only if no layer uses the current name.
    older: Merged,
    current: Merged,
}

/// The result for one path.
enum ResolvedKey<'a> {
    /// A value, or an item of a list or a map.
    Value(Vec<String>, &'a Leaf),
    /// A section, a list, or a map.
    Inner(Vec<String>, &'a SchemaNode),
    NotIndex(Vec<String>),
    /// The known segments, and the node whose key is unknown.
    Unknown(Vec<String>, &'a SchemaNode),
}

impl<'a> Resolver<'a> {
    pub(super) fn new(node: &'a SchemaNode, working_dir: &'a Path) -> Self {
        let (older, current) = (Merged::new(), Merged::new());
        Self { node, working_dir, map_keys: HashMap::new(), older, current }
    }

    /// The values of all layers.
    pub(super) fn merged(self) -> Merged {
        let mut merged = self.older;
        merged.extend(self.current);
        merged
    }

    pub(super) fn resolve(&mut self, layer: Vec<LayerValue>, diagnostics: &mut Diagnostics) {
        let mut texts = HashMap::new();
        for LayerValue { mut path, value, origin } in layer {
            if is_foreign(&path) {
                continue;
            }
            let older = newer_name(&path);
            if let Some((older, newer)) = older {
                diagnostics.warn(Warning::OlderName { older, newer, origin: origin.clone() });
                path = newer.split('.').map(str::to_owned).collect();
            }
            let (path, text) = match self.lookup(&path) {
                ResolvedKey::Unknown(known, node) => {
                    self.unknown(&known, node, &path, origin, diagnostics);
                    continue;
                }
                ResolvedKey::NotIndex(list) => {
                    (path, Err(SettingFault::NotIndex { how: item_example(&list, "0") }))
                }
                ResolvedKey::Inner(path, node) => match inner_text(&path, node, &value) {
                    Some(text) => (path, text),
                    None => continue,
                },
                ResolvedKey::Value(path, leaf) => {
                    if leaf.secret {
                        self.warn_about_exposed_secret(&path, &origin, diagnostics);
                    }
                    let text = value_text(&path, leaf, value);
                    (path, text)
                }
            };
            let key = path.join(".");
            match text {
                Ok(text) => {
                    let before = texts.insert((path.clone(), older.is_some()), text.clone());
                    if before.is_some_and(|before| before != text) {
                        diagnostics.warn(Warning::SetTwice { key, origin: origin.clone() });
                    }
                    let merged = if older.is_some() { &mut self.older } else { &mut self.current };
                    // An empty list replaces the items of earlier layers, and an item replaces an empty list.
                    merged.retain(|known, _| !known.starts_with(&path) && !path.starts_with(known));
                    merged.insert(path, ResolvedValue { text, origin });
                }
                Err(fault) => diagnostics.problem(&key, &origin, fault),
            }
        }
    }

    /// Warns if other users can read the secret: in a file, or on the command line.
    fn warn_about_exposed_secret(&self, path: &[String], origin: &Origin, diagnostics: &mut Diagnostics) {
        let key = path.join(".");
        match origin {
            Origin::Option(_) => diagnostics.warn(Warning::SecretOnCommandLine { key }),
            Origin::File(file) => {
                let Ok(metadata) = self.working_dir.join(file).metadata() else { return };
                let mode = metadata.permissions().mode() & 0o7777;
                if mode & 0o044 != 0 {
                    diagnostics.warn(Warning::SecretReadable { key, file: file.clone(), mode });
                }
            }
            _ => {}
        }
    }

    fn unknown(
        &self,
        known: &[String],
        node: &SchemaNode,
        path: &[String],
        origin: Origin,
        diagnostics: &mut Diagnostics,
    ) {
        let wrong = &path[known.len()];
        // The path has an index, so the value is a list instead of a section.
        if let SchemaNode::Section(keys) = node
            && !known.is_empty()
            && wrong.parse::<u32>().is_ok()
        {
            return diagnostics.problem(&known.join("."), &origin, is_section(keys));
        }
        let sibling = node.keys().iter().find(|key| is_one_typo_from(&key.name, wrong));
        let sibling = sibling.map(|key| [known, std::slice::from_ref(&key.name)].concat().join("."));
        // A misplaced rule would have no effect and allow everything, and a warning is easily missed. Further down, the same
        // word may belong to another program, unless it is below a `Policy`.
        let is_policy = |segment: &String| {
            segment.to_lowercase().starts_with("polic") || is_one_typo_from(POLICY, segment)
        };
        let rule = (known.len()..path.len())
            .filter(|depth| *depth == known.len() || path[..*depth].iter().any(is_policy))
            .find_map(|depth| Some((depth, self.rule_named_in(&path[depth])?)));
        if let Some((depth, rule)) = rule {
            // A segment that contains a separator itself needs the colon, which every layer accepts.
            let separator = if path[depth].contains(['.', '_', ':']) { ':' } else { '.' };
            let fault = SettingFault::NotRule { nearest: Some(format!("{POLICY}{separator}{rule}")) };
            return diagnostics.problem(&path[..=depth].join("."), &origin, fault);
        }
        let key = path[..=known.len()].join(".");
        if known.first().or(sibling.as_ref()).is_some_and(|section| section == POLICY) {
            return diagnostics.problem(&key, &origin, SettingFault::NotRule { nearest: sibling });
        }
        // The documentation writes keys with dots, which no layer accepts.
        let is_dotted = wrong.split_once('.').is_some_and(|(section, _)| node.key(section).is_some());
        let nearest = sibling.or_else(|| is_dotted.then(|| wrong.replace('.', ":")));
        diagnostics.warn(Warning::Unknown { key, origin, nearest });
    }

    /// The rule of `Policy` that the segment names: `PlanOnly`, `Policy.PlanOnly`.
    fn rule_named_in(&self, segment: &str) -> Option<&'a str> {
        let rules = &self.node.key(POLICY)?.node;
        segment.split(['.', ':', '_']).find_map(|part| rules.key(part)).map(|rule| rule.name.as_str())
    }

    fn lookup(&mut self, path: &[String]) -> ResolvedKey<'a> {
        let mut node = self.node;
        let mut known = Vec::with_capacity(path.len());
        for (depth, segment) in path.iter().enumerate() {
            match node {
                SchemaNode::Section(_) => match node.key(segment) {
                    Some(key) => {
                        known.push(key.name.clone());
                        node = &key.node;
                    }
                    None => return ResolvedKey::Unknown(known, node),
                },
                SchemaNode::List(leaf) => {
                    if depth + 1 < path.len() {
                        known.push(segment.clone());
                        return ResolvedKey::Unknown(known, node);
                    }
                    let Ok(index) = segment.parse::<u32>() else { return ResolvedKey::NotIndex(known) };
                    known.push(index.to_string());
                    return ResolvedKey::Value(known, leaf);
                }
                SchemaNode::Map(leaf) => {
                    known.push(self.map_key(&known, &path[depth..]));
                    return ResolvedKey::Value(known, leaf);
                }
                SchemaNode::Leaf(_) => return ResolvedKey::Unknown(known, node),
            }
        }
        match node {
            SchemaNode::Leaf(leaf) => ResolvedKey::Value(known, leaf),
            _ => ResolvedKey::Inner(known, node),
        }
    }

    /// Returns one spelling for all layers. `Hawser__Shipping` and `hawser::shipping` are the same key, because variables and
    /// options cannot contain the separators of a category.
    fn map_key(&mut self, map: &[String], rest: &[String]) -> String {
        let parts: Vec<&str> =
            rest.iter().flat_map(|segment| segment.split("::")).filter(|part| !part.is_empty()).collect();
        let spelling = if let [whole] = rest { whole.clone() } else { parts.join(".") };
        let mut identity = map.to_vec();
        identity.push(parts.join(".").to_lowercase());
        self.map_keys.entry(identity).or_insert(spelling).clone()
    }
}

/// Whether one inserted, missing, wrong, or swapped letter separates the names, ignoring case.
pub(super) fn is_one_typo_from(name: &str, wrong: &str) -> bool {
    // The cost of the comparison grows with the product of the lengths.
    name.len().abs_diff(wrong.len()) < 5
        && strsim::damerau_levenshtein(&name.to_lowercase(), &wrong.to_lowercase()) == 1
}

/// Whether a setting restricts something, and allows everything if it is not set. An empty value there is an error.
fn restricts(path: &[String]) -> bool {
    match path {
        [section, ..] if section == POLICY => true,
        [section, key, ..] => section == "Engine" && key == "EnvironmentAllowList",
        _ => false,
    }
}

/// The text of a value, or of an item of a list or a map; None resets the value of earlier layers.
fn value_text(path: &[String], leaf: &Leaf, value: Value) -> Result<Option<String>, SettingFault> {
    match value {
        Value::Array(_) | Value::Object(_) => Err(SettingFault::IsValue),
        Value::Null if restricts(path) => Err(SettingFault::Empty),
        Value::Null => Ok(None),
        Value::Number(number) if number.is_f64() && leaf.kind == ValueKind::Text => {
            Err(SettingFault::NotQuoted)
        }
        Value::String(text) => Ok(Some(text)),
        Value::Number(_) | Value::Bool(_) => Ok(Some(value.to_string())),
    }
}

/// The same for a section, a list, or a map, which have no value of their own; None if it is equivalent to leaving it out.
fn inner_text(
    path: &[String],
    node: &SchemaNode,
    value: &Value,
) -> Option<Result<Option<String>, SettingFault>> {
    let fault = match (node, value) {
        // An empty list replaces the default and the items of earlier layers.
        (SchemaNode::List(_), Value::Array(_)) => return Some(Ok(Some(String::new()))),
        // Among restricting settings, only a list can be reset.
        (SchemaNode::Section(_), Value::Null) if restricts(path) => SettingFault::Empty,
        (_, Value::Null) | (SchemaNode::Section(_) | SchemaNode::Map(_), Value::Object(_)) => return None,
        (_, Value::String(text)) if text.trim().is_empty() && !restricts(path) => return None,
        (SchemaNode::Section(keys), _) => is_section(keys),
        (SchemaNode::List(_), _) => {
            SettingFault::IsList { how: format!("write [ … ] in a file, {}", item_example(path, "0")) }
        }
        (SchemaNode::Map(_) | SchemaNode::Leaf(_), _) => {
            SettingFault::IsMap { how: item_example(path, "Default") }
        }
    };
    Some(Err(fault))
}

fn is_section(keys: &[Key]) -> SettingFault {
    SettingFault::IsSection { keys: keys.iter().map(|key| key.name.clone()).collect() }
}

fn item_example(path: &[String], item: &str) -> String {
    format!("set {}__{item} in the environment, or --{}:{item}=…", path.join("__"), path.join(":"))
}

fn newer_name(path: &[String]) -> Option<(&'static str, &'static str)> {
    let key = path.join(".");
    OLDER_NAMES.into_iter().find(|(older, _)| older.eq_ignore_ascii_case(&key))
}

fn is_foreign(path: &[String]) -> bool {
    let is_in = |names: &[&str], name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    match path {
        [first, ..] if first.starts_with('$') || is_in(&FOREIGN_SECTIONS, first) => true,
        [first, second, ..] => first.eq_ignore_ascii_case("Logging") && is_in(&LOG_PROVIDERS, second),
        _ => false,
    }
}
