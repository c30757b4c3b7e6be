//! From a path as somebody spelled it to the setting that it means.
//!
//! Names are matched segment by segment, in any case, against the shape of the settings. The spelling of map
//! keys (log categories) is the user's; the first layer that names one decides how it is written.

use std::collections::HashMap;

use serde_json::Value;

use super::diagnostics::{Diagnostics, Origin, Warning};
use super::layers::LayerValue;
use super::schema_tree::{Key, Leaf, SchemaNode, ValueKind};
use super::values::Fault;

/// The section with the local veto.
pub(super) const POLICY: &str = "Policy";

/// Keys of earlier versions, and what they are called now.
const OLDER_NAMES: [(&str, &str); 3] = [
    ("Logging.BatchSizeLimit", "JobLogStream.BatchSizeLimit"),
    ("Logging.PeriodSeconds", "JobLogStream.PeriodSeconds"),
    ("Logging.EarlyEmitFirstEvent", "JobLogStream.EagerlyEmitFirstEvent"),
];

/// Sections that an ASP.NET program has and we do not: existing files hold them, and rightly so.
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

/// Blocks within `Logging` that belong to one of .NET's log providers.
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
pub(super) struct Placed {
    pub(super) path: Vec<String>,
    /// None takes back what earlier layers said. A list has a text only when it is empty.
    pub(super) text: Option<String>,
    pub(super) origin: Origin,
    pub(super) older_name: bool,
}

/// Places layer after layer.
pub(super) struct Placer<'a> {
    pub(super) shape: &'a SchemaNode,
    pub(super) map_keys: HashMap<Vec<String>, String>,
    pub(super) placed: Vec<Placed>,
}

/// Where a path leads.
enum ResolvedKey<'a> {
    /// A value, or an item of a list or a map.
    Value(Vec<String>, &'a Leaf),
    /// A section, a list or a map.
    Inner(Vec<String>, &'a SchemaNode),
    NotIndex(Vec<String>),
    /// The first so many segments are known, and the next is not.
    Unknown(Vec<String>, &'a SchemaNode),
}

impl<'a> Placer<'a> {
    pub(super) fn place(&mut self, layer: Vec<LayerValue>, findings: &mut Diagnostics) {
        let mut texts = HashMap::new();
        for LayerValue { mut path, value, origin } in layer {
            if is_foreign(&path) {
                continue;
            }
            let older = newer_name(&path);
            if let Some((older, newer)) = older {
                findings.warn(Warning::OlderName { older, newer, origin: origin.clone() });
                path = newer.split('.').map(str::to_owned).collect();
            }
            let (path, text) = match self.find(&path) {
                ResolvedKey::Unknown(known, shape) => {
                    self.unknown(&known, shape, &path, origin, findings);
                    continue;
                }
                ResolvedKey::NotIndex(list) => (path, Err(Fault::NotIndex { how: item_example(&list, "0") })),
                ResolvedKey::Inner(path, shape) => match inner_text(&path, shape, &value) {
                    Some(text) => (path, text),
                    None => continue,
                },
                ResolvedKey::Value(path, leaf) => {
                    let text = value_text(&path, leaf, value);
                    (path, text)
                }
            };
            let key = path.join(".");
            match text {
                Ok(text) => {
                    let older_name = older.is_some();
                    let before = texts.insert((path.clone(), older_name), text.clone());
                    if before.is_some_and(|before| before != text) {
                        findings.warn(Warning::GivenTwice { key, origin: origin.clone() });
                    }
                    self.placed.push(Placed { path, text, origin, older_name });
                }
                Err(fault) => findings.problem(&key, None, Some(&origin), fault),
            }
        }
    }

    fn unknown(
        &self,
        known: &[String],
        shape: &SchemaNode,
        path: &[String],
        origin: Origin,
        findings: &mut Diagnostics,
    ) {
        let wrong = &path[known.len()];
        // Sections have no items, so this is a list where one belongs.
        if let SchemaNode::Section(keys) = shape
            && !known.is_empty()
            && wrong.parse::<u32>().is_ok()
        {
            return findings.problem(&known.join("."), None, Some(&origin), is_section(keys));
        }
        let sibling = shape.keys().iter().find(|key| is_one_slip(&key.name, wrong));
        let sibling = sibling.map(|key| [known, std::slice::from_ref(&key.name)].concat().join("."));
        // A rule that has no effect would allow everything, and a warning is easily missed.
        // Deeper down the same word may well be another program's, unless it stands below a `Policy`.
        let is_policy =
            |segment: &String| segment.to_lowercase().starts_with("polic") || is_one_slip(POLICY, segment);
        let rule = (known.len()..path.len())
            .filter(|depth| *depth == known.len() || path[..*depth].iter().any(is_policy))
            .find_map(|depth| Some((depth, self.rule_named_in(&path[depth])?)));
        if let Some((depth, rule)) = rule {
            // With a colon, as every layer reads it.
            let fault = Fault::NotRule { nearest: Some(format!("{POLICY}:{rule}")) };
            return findings.problem(&path[..=depth].join("."), None, Some(&origin), fault);
        }
        let key = path[..=known.len()].join(".");
        if known.first().or(sibling.as_ref()).is_some_and(|section| section == POLICY) {
            return findings.problem(&key, None, Some(&origin), Fault::NotRule { nearest: sibling });
        }
        // As the documentation writes keys, which no layer reads.
        let is_dotted = wrong.split_once('.').is_some_and(|(section, _)| shape.key(section).is_some());
        let nearest = sibling.or_else(|| is_dotted.then(|| wrong.replace('.', ":")));
        findings.warn(Warning::Unknown { key, origin, nearest });
    }

    /// The rule of `Policy` with this name, or with that of a part of it: `PlanOnly`, `Policy.PlanOnly`.
    fn rule_named_in(&self, segment: &str) -> Option<&'a str> {
        let rules = &self.shape.key(POLICY)?.shape;
        segment.split(['.', ':', '_']).find_map(|part| rules.key(part)).map(|rule| rule.name.as_str())
    }

    fn find(&mut self, path: &[String]) -> ResolvedKey<'a> {
        let mut shape = self.shape;
        let mut known = Vec::with_capacity(path.len());
        for (depth, segment) in path.iter().enumerate() {
            match shape {
                SchemaNode::Section(_) => match shape.key(segment) {
                    Some(key) => {
                        known.push(key.name.clone());
                        shape = &key.shape;
                    }
                    None => return ResolvedKey::Unknown(known, shape),
                },
                SchemaNode::List(leaf) => {
                    if depth + 1 < path.len() {
                        known.push(segment.clone());
                        return ResolvedKey::Unknown(known, shape);
                    }
                    let Ok(index) = segment.parse::<u32>() else { return ResolvedKey::NotIndex(known) };
                    known.push(index.to_string());
                    return ResolvedKey::Value(known, leaf);
                }
                SchemaNode::Map(leaf) => {
                    known.push(self.map_key(&known, &path[depth..]));
                    return ResolvedKey::Value(known, leaf);
                }
                SchemaNode::Leaf(_) => return ResolvedKey::Unknown(known, shape),
            }
        }
        match shape {
            SchemaNode::Leaf(leaf) => ResolvedKey::Value(known, leaf),
            _ => ResolvedKey::Inner(known, shape),
        }
    }

    /// One spelling for all layers. `Hawser__Shipping` and `hawser::shipping` are the same key, since neither a variable
    /// nor an option can hold the separators of a category.
    fn map_key(&mut self, map: &[String], rest: &[String]) -> String {
        let parts: Vec<&str> =
            rest.iter().flat_map(|segment| segment.split("::")).filter(|part| !part.is_empty()).collect();
        let spelling = if let [whole] = rest { whole.clone() } else { parts.join(".") };
        let mut identity = map.to_vec();
        identity.push(parts.join(".").to_lowercase());
        self.map_keys.entry(identity).or_insert(spelling).clone()
    }
}

/// One letter too many, too few or another, or two in the wrong order, in any case.
pub(super) fn is_one_slip(name: &str, wrong: &str) -> bool {
    // The work grows with the product of the lengths.
    name.len().abs_diff(wrong.len()) < 5
        && strsim::damerau_levenshtein(&name.to_lowercase(), &wrong.to_lowercase()) == 1
}

/// Settings that narrow something down, and allow everything when they are not set: there, something that says
/// nothing must not count as "not set".
fn restricts(path: &[String]) -> bool {
    match path {
        [section, ..] if section == POLICY => true,
        [section, key, ..] => section == "Engine" && key == "EnvironmentAllowList",
        _ => false,
    }
}

/// The text of a value, or of an item of a list or a map; none takes back what earlier layers said.
fn value_text(path: &[String], leaf: &Leaf, value: Value) -> Result<Option<String>, Fault> {
    match value {
        Value::Array(_) | Value::Object(_) => Err(Fault::IsValue),
        Value::Null if restricts(path) => Err(Fault::Empty),
        Value::Null => Ok(None),
        Value::Number(number) if number.is_f64() && leaf.kind == ValueKind::Text => Err(Fault::NotQuoted),
        Value::String(text) => Ok(Some(text)),
        Value::Number(_) | Value::Bool(_) => Ok(Some(value.to_string())),
    }
}

/// The same for a section, a list or a map, where only values below make sense; none for what is the same as leaving it out.
fn inner_text(path: &[String], shape: &SchemaNode, value: &Value) -> Option<Result<Option<String>, Fault>> {
    let fault = match (shape, value) {
        // An empty list replaces the default, and the items of earlier layers.
        (SchemaNode::List(_), Value::Array(_)) => return Some(Ok(Some(String::new()))),
        // Of settings that restrict, only a list has a way to say "not set".
        (SchemaNode::Section(_), Value::Null) if restricts(path) => Fault::Empty,
        (_, Value::Null) | (SchemaNode::Section(_) | SchemaNode::Map(_), Value::Object(_)) => return None,
        (_, Value::String(text)) if text.trim().is_empty() && !restricts(path) => return None,
        (SchemaNode::Section(keys), _) => is_section(keys),
        (SchemaNode::List(_), _) => {
            Fault::IsList { how: format!("write [ … ] in a file, {}", item_example(path, "0")) }
        }
        (SchemaNode::Map(_) | SchemaNode::Leaf(_), _) => Fault::IsMap { how: item_example(path, "Default") },
    };
    Some(Err(fault))
}

fn is_section(keys: &[Key]) -> Fault {
    Fault::IsSection { keys: keys.iter().map(|key| key.name.clone()).collect() }
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
