//! From a path as somebody spelled it to the setting that it means.
//!
//! Names are matched segment by segment, in any case, against the shape of the settings. The spelling of map
//! keys (log categories) is the user's; the first layer that names one decides how it is written.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::findings::{Finding, Findings, Origin, Problem, Warning};
use super::given::{Content, Given};
use super::shape::{Key, Kind, Leaf, Shape};
use super::spelling::{self, Names, POLICY};
use super::values::Fault;

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

/// A setting and what one layer says about it; no text takes back what earlier layers said.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) path: Vec<String>,
    pub(super) text: Option<String>,
    pub(super) origin: Origin,
}

/// One layer, sorted into what wins as usual and what came under an older name and so loses to any newer one.
#[derive(Default)]
pub(super) struct Layer {
    pub(super) current: Vec<Placed>,
    pub(super) older: Vec<Placed>,
}

/// Places layer after layer.
pub(super) struct Placer<'a> {
    shape: &'a Shape,
    map_keys: HashMap<Vec<String>, String>,
}

/// Where a path leads.
enum Place<'a> {
    At {
        path: Vec<String>,
        shape: &'a Shape,
    },
    /// An item of a list or a map.
    Item(Vec<String>),
    NotIndex(Vec<String>),
    /// The first so many segments are known, and the next is not.
    Unknown {
        known: Vec<String>,
        shape: &'a Shape,
    },
}

impl<'a> Placer<'a> {
    pub(super) fn new(shape: &'a Shape) -> Self {
        Self { shape, map_keys: HashMap::new() }
    }

    pub(super) fn place(&mut self, given: Vec<Given>, findings: &mut Findings) -> Layer {
        let mut layer = Layer::default();
        let mut said = HashMap::new();
        let mut twice = BTreeMap::new();
        let mut told = HashSet::new();
        for Given { path, content, origin } in given {
            if is_foreign(&path) {
                continue;
            }
            if let Some((older, newer)) = newer_name(&path) {
                if let Some(text) = text_of(content) {
                    findings.warn(Warning::OlderName {
                        older: older.to_owned(),
                        newer: newer.to_owned(),
                        origin: origin.clone(),
                    });
                    let path = newer.split('.').map(str::to_owned).collect();
                    layer.older.push(Placed { path, text: Some(text), origin });
                }
                continue;
            }
            match self.find(&path) {
                Place::At { path, shape: Shape::Leaf(Leaf { kind: Kind::Text, .. }) }
                    if matches!(content, Content::Rounded(_)) =>
                {
                    findings.problem(&path.join("."), None, Some(&origin), Fault::NotQuoted);
                }
                // Of settings that restrict, only a list has a way to say "not set".
                Place::Item(path) | Place::At { path, shape: Shape::Leaf(_) | Shape::Section(_) }
                    if content == Content::Null && restricts(&path) =>
                {
                    findings.problem(&path.join("."), None, Some(&origin), Fault::Empty);
                }
                Place::Item(path) | Place::At { path, shape: Shape::Leaf(_) } => {
                    let text = match content {
                        Content::Text(text) | Content::Rounded(text) => Some(text),
                        Content::Null => None,
                        Content::EmptyList | Content::EmptyObject => {
                            findings.problem(&path.join("."), None, Some(&origin), Fault::IsValue);
                            continue;
                        }
                    };
                    if said.insert(path.clone(), text.clone()).is_some_and(|before| before != text) {
                        twice.insert(path.join("."), origin.clone());
                    }
                    layer.current.push(Placed { path, text, origin });
                }
                // An empty list is something to say: it takes the place of the default, and of earlier items.
                Place::At { path, shape: Shape::List(_) } if content == Content::EmptyList => {
                    layer.current.push(Placed { path, text: Some(String::new()), origin });
                }
                Place::At { path, shape } => {
                    if let Some(fault) = not_a_value(&path, shape, &content) {
                        findings.problem(&path.join("."), None, Some(&origin), fault);
                    }
                }
                Place::NotIndex(list) => {
                    let fault = Fault::NotIndex { how: item_example(&list, "0") };
                    findings.problem(&path.join("."), None, Some(&origin), fault);
                }
                Place::Unknown { known, shape } => {
                    let (finding, key) = self.unknown(&known, shape, &path, &content, origin);
                    // One word for all that stands below it.
                    if told.insert(key) {
                        finding.tell(findings);
                    }
                }
            }
        }
        for (key, origin) in twice {
            findings.warn(Warning::GivenTwice { key, origin, counts: None });
        }
        layer
    }

    /// What is said about a key that is no setting, and about which key.
    fn unknown(
        &self,
        known: &[String],
        shape: &Shape,
        path: &[String],
        content: &Content,
        origin: Origin,
    ) -> (Finding, String) {
        // Sections have no items, so this is a list where one belongs.
        if let Shape::Section(keys) = shape
            && !known.is_empty()
            && path[known.len()].parse::<u32>().is_ok()
        {
            let (key, fault) = (known.join("."), is_section(keys));
            let problem = Problem { key: Some(key.clone()), value: None, origin: Some(origin), fault };
            return (Finding::Problem(problem), key);
        }
        let parts = spelling::parts(path);
        if parts != path
            && let Some(meant) = spelling::meant(self.shape, &parts, Names::Right)
            && meant.path[0] != POLICY
        {
            let (key, how) = (path.join("."), meant.written(&origin, content));
            return (Finding::Warning(Warning::OtherSeparators { key: key.clone(), origin, how }), key);
        }
        // A rule that has no effect would let everything pass, and a warning is easily missed.
        if let Some((depth, rule)) = spelling::as_rule(self.shape, path, known.len()) {
            let key = path[..=depth].join(".");
            let fault = match rule {
                Some(rule) => Fault::MisplacedRule { how: rule.written(&origin, content) },
                None => Fault::UnknownRule,
            };
            let problem = Problem { key: Some(key.clone()), value: None, origin: Some(origin), fault };
            return (Finding::Problem(problem), key);
        }
        let key = path[..=known.len()].join(".");
        let nearest = self.nearest(known, shape, path);
        (Finding::Warning(Warning::Unknown { key: key.clone(), origin, nearest }), key)
    }

    fn find(&mut self, path: &[String]) -> Place<'a> {
        let mut shape = self.shape;
        let mut known = Vec::with_capacity(path.len());
        for (depth, segment) in path.iter().enumerate() {
            match shape {
                Shape::Section(_) => match shape.key(segment) {
                    Some(key) => {
                        known.push(key.name.clone());
                        shape = &key.shape;
                    }
                    None => return Place::Unknown { known, shape },
                },
                Shape::List(_) => {
                    if depth + 1 < path.len() {
                        known.push(segment.clone());
                        return Place::Unknown { known, shape };
                    }
                    let Ok(index) = segment.parse::<u32>() else { return Place::NotIndex(known) };
                    known.push(index.to_string());
                    return Place::Item(known);
                }
                Shape::Map(_) => {
                    known.push(self.map_key(&known, &path[depth..]));
                    return Place::Item(known);
                }
                Shape::Leaf(_) => return Place::Unknown { known, shape },
            }
        }
        Place::At { path: known, shape }
    }

    /// One spelling for all layers. `Hawser__Hub` and `hawser::hub` are the same key, since neither a variable
    /// nor an option can hold the separators of a category.
    fn map_key(&mut self, map: &[String], rest: &[String]) -> String {
        let parts: Vec<&str> =
            rest.iter().flat_map(|segment| segment.split("::")).filter(|part| !part.is_empty()).collect();
        let spelling = if let [whole] = rest { whole.clone() } else { parts.join(".") };
        let mut identity = map.to_vec();
        identity.push(parts.join(".").to_lowercase());
        self.map_keys.entry(identity).or_insert(spelling).clone()
    }

    /// What was probably meant: a sibling with nearly this name, else a setting elsewhere whose last name is the same.
    fn nearest(&self, known: &[String], shape: &Shape, path: &[String]) -> Option<String> {
        if !matches!(shape, Shape::Section(_)) {
            return Some(known.join("."));
        }
        let wrong = path.get(known.len())?;
        if let Some(Key { name, .. }) = spelling::nearest(shape, wrong) {
            return Some(known.iter().chain([name]).map(String::as_str).collect::<Vec<_>>().join("."));
        }
        let last = path.last()?;
        self.shape
            .leaf_names()
            .into_iter()
            .find(|name| name.rsplit('.').next().is_some_and(|name| name.eq_ignore_ascii_case(last)))
    }
}

/// How many slips lie between two names, whatever their case.
pub(super) fn distance(one: &str, other: &str) -> usize {
    // No name of ours is near, and the work grows with the product of the lengths.
    if one.len().max(other.len()) > 100 {
        return usize::MAX;
    }
    strsim::damerau_levenshtein(&one.to_lowercase(), &other.to_lowercase())
}

fn text_of(content: Content) -> Option<String> {
    match content {
        Content::Text(text) | Content::Rounded(text) => Some(text),
        Content::Null | Content::EmptyList | Content::EmptyObject => None,
    }
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

/// A value, or the wrong brackets, where only values below make sense. Nothing at all is fine there.
fn not_a_value(path: &[String], shape: &Shape, content: &Content) -> Option<Fault> {
    match content {
        Content::Null => return None,
        Content::EmptyObject if !matches!(shape, Shape::List(_)) => return None,
        Content::Text(text) if text.trim().is_empty() && !restricts(path) => return None,
        Content::EmptyObject | Content::EmptyList | Content::Text(_) | Content::Rounded(_) => {}
    }
    match shape {
        Shape::Section(keys) => Some(is_section(keys)),
        Shape::List(_) => {
            Some(Fault::IsList { how: format!("write [ … ] in a file, {}", item_example(path, "0")) })
        }
        Shape::Map(_) => Some(Fault::IsMap { how: item_example(path, "Default") }),
        Shape::Leaf(_) => None,
    }
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
