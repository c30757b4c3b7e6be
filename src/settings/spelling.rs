//! How a key is written in each layer, and what one that is written in another way was meant to be.

use super::findings::Origin;
use super::given::Content;
use super::place::distance;
use super::shape::{Key, Shape};

/// The section with the local veto.
pub(super) const POLICY: &str = "Policy";

/// Whether a name has to be right to the letter, whatever its case, or may have a slip in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    Right,
    Near,
}

/// A setting, an item of one, or a section that somebody meant.
pub(super) struct Meant<'a> {
    pub(super) path: Vec<String>,
    shape: &'a Shape,
    item: Option<String>,
}

/// A path split at the separators of all layers and of the documents: `Runner.Id`, `Runner:Id` and `Runner__Id` are the
/// same then.
pub(super) fn parts<S: AsRef<str>>(path: &[S]) -> Vec<String> {
    path.iter()
        .flat_map(|segment| segment.as_ref().split(['.', ':']))
        .flat_map(|part| part.split("__"))
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What the parts of a path lead to.
pub(super) fn meant<'a>(shape: &'a Shape, parts: &[String], names: Names) -> Option<Meant<'a>> {
    let mut meant = Meant { path: Vec::new(), shape, item: None };
    for (depth, part) in parts.iter().enumerate() {
        match meant.shape {
            Shape::Section(_) => {
                let near = || if names == Names::Near { nearest(meant.shape, part) } else { None };
                let key = meant.shape.key(part).or_else(near)?;
                meant.path.push(key.name.clone());
                meant.shape = &key.shape;
            }
            Shape::List(_) => {
                let is_item = depth + 1 == parts.len() && part.parse::<u32>().is_ok();
                return is_item.then(|| Meant { item: Some(part.clone()), ..meant });
            }
            Shape::Map(_) => return Some(Meant { item: Some(parts[depth..].join(".")), ..meant }),
            Shape::Leaf(_) => return None,
        }
    }
    (!meant.path.is_empty()).then_some(meant)
}

/// The key of a section with nearly this name.
pub(super) fn nearest<'a>(section: &'a Shape, wrong: &str) -> Option<&'a Key> {
    let near = |key: &&Key| is_near(&key.name, wrong);
    section.keys().iter().filter(near).min_by_key(|key| (distance(&key.name, wrong), &key.name))
}

fn is_near(name: &str, wrong: &str) -> bool {
    distance(name, wrong) <= (wrong.chars().count() / 3).max(1)
}

fn is_policy(part: &str) -> bool {
    is_near(POLICY, part) || part.eq_ignore_ascii_case("Policies")
}

/// Whether a key that is no setting was meant to be a rule of `Policy`: how many of its segments after the first say
/// so, and the rule, if there is one. `known` segments are names of ours, and the next is not.
///
/// A rule under a wrong name lets everything pass, so this errs on the side of seeing one.
pub(super) fn as_rule<'a>(
    shape: &'a Shape,
    path: &[String],
    known: usize,
) -> Option<(usize, Option<Meant<'a>>)> {
    if path[0].eq_ignore_ascii_case(POLICY) {
        return Some((known, meant(shape, &parts(path), Names::Near)));
    }
    for (depth, segment) in path.iter().enumerate().skip(known) {
        let within = parts(&[segment]);
        if let Some(at) = within.iter().position(|part| is_policy(part)) {
            let below = parts(&path[depth + 1..]);
            let rule: Vec<_> =
                [POLICY.to_owned()].into_iter().chain(within[at + 1..].to_vec()).chain(below).collect();
            return Some((depth, meant(shape, &rule, Names::Near)));
        }
    }
    let rules = &shape.key(POLICY)?.shape;
    // `Runner.PlanOnly`, or `PlanOnly` on its own.
    let rule = path.get(known).and_then(|name| rules.key(name));
    let rule = rule.or_else(|| run_together(rules, &path.join(".")))?;
    let path = [POLICY.to_owned(), rule.name.clone()];
    Some((known, meant(shape, &path, Names::Right)))
}

/// Whether a variable of the environment, which is full of other programs' ones, was meant to be a rule.
pub(super) fn is_rule_variable(shape: &Shape, name: &str) -> bool {
    let parts = parts(&[name]);
    let Some(rules) = shape.key(POLICY) else { return false };
    let in_policy = parts.iter().enumerate().any(|(at, part)| {
        let below = &parts[at + 1..];
        let rule = || below.first().is_some_and(|name| nearest(&rules.shape, name).is_some());
        // Deeper down the word may be another program's: `Cache__Policy__Ttl`.
        let is_section = at == 0 && part.eq_ignore_ascii_case(POLICY);
        !below.is_empty() && (is_section || is_policy(part) && rule())
    });
    in_policy || run_together(&rules.shape, name).is_some()
}

/// The rule of a key such as `POLICY_PLAN_ONLY` or `policy-allowed-engines-0`.
fn run_together<'a>(rules: &'a Shape, name: &str) -> Option<&'a Key> {
    let letters: String = name.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_lowercase();
    let rule = letters.strip_prefix("policy")?;
    rules.key(rule)
}

impl Meant<'_> {
    /// How it is written in the layer that this origin is of. Of values only switches are shown: another may be secret.
    pub(super) fn written(&self, origin: &Origin, content: &Content) -> String {
        let value = match content {
            Content::Text(text) if ["true", "false"].contains(&text.trim().to_lowercase().as_str()) => {
                text.trim().to_lowercase()
            }
            _ => "…".to_owned(),
        };
        if origin.is_file() {
            let value = match self.shape {
                Shape::Section(_) => "{ … }".to_owned(),
                Shape::List(_) => "[ … ]".to_owned(),
                Shape::Map(_) => format!("{{ \"{}\": … }}", self.item.as_deref().unwrap_or("Default")),
                Shape::Leaf(_) => value,
            };
            return in_a_file(&self.path, &value);
        }
        let item = match self.shape {
            Shape::Section(_) => Some("…"),
            Shape::List(_) => Some(self.item.as_deref().unwrap_or("0")),
            Shape::Map(_) => Some(self.item.as_deref().unwrap_or("Default")),
            Shape::Leaf(_) => None,
        };
        let path: Vec<&str> = self.path.iter().map(String::as_str).chain(item).collect();
        let is_secret = matches!(self.shape, Shape::Leaf(leaf) | Shape::List(leaf) if leaf.secret);
        match origin.is_command_line() {
            true if is_secret => format!("{}={value} in the environment", path.join("__")),
            true => format!("--{}={value}", path.join(":")),
            false => format!("{}={value}", path.join("__")),
        }
    }
}

/// `"Section": { "Key": value }`.
pub(super) fn in_a_file<S: AsRef<str>>(path: &[S], value: &str) -> String {
    let (last, sections) = match path.split_last() {
        Some((last, sections)) => (last.as_ref(), sections),
        None => ("", &[][..]),
    };
    sections
        .iter()
        .rev()
        .fold(format!("\"{last}\": {value}"), |inner, name| format!("\"{}\": {{ {inner} }}", name.as_ref()))
}
