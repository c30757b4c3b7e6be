//! What one layer gives: a flat list of paths and texts, as .NET keeps its configuration.
//!
//! Files, environment and command line differ only in how they spell this list. A list item is a path whose last
//! segment is its index, so that a later layer replaces one item and leaves the others.

use std::ffi::OsString;

use super::findings::{Findings, Origin};
use super::place::distance;
use super::shape::Shape;
use super::spelling::{Names, is_rule_variable, meant, parts};
use super::values::Fault;

/// One value and where it stands.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) path: Vec<String>,
    pub(super) content: Content,
    pub(super) origin: Origin,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// Takes back what earlier layers said.
    Null,
    Text(String),
    /// A number that was rounded when it was read.
    Rounded(String),
    /// `[]`.
    EmptyList,
    /// `{}`.
    EmptyObject,
}

/// The variables that are meant for us, sorted by name so that the outcome does not depend on the order.
///
/// The environment is full of other programs' variables: only those count whose first segment is one of our
/// sections, or nearly so and followed by one of its keys (which is most likely a slip, and gets its warning), and those
/// that would be a setting with other separators, or a rule of `Policy` in another place.
pub(super) fn from_environment(
    environment: &[(OsString, OsString)],
    shape: &Shape,
    findings: &mut Findings,
) -> Vec<Given> {
    let mut variables: Vec<_> = environment
        .iter()
        .filter_map(|(name, value)| name.to_str().map(|name| (name, value)))
        .filter(|(name, _)| is_ours(name, shape))
        .collect();
    variables.sort_unstable();
    let mut given = Vec::new();
    for (name, value) in variables {
        let origin = Origin::environment(name);
        let path = segments(name);
        match value.to_str() {
            Some(text) => given.push(Given { path, content: Content::Text(text.to_owned()), origin }),
            None => findings.problem(&path.join("."), None, Some(&origin), Fault::NotUnicode),
        }
    }
    given
}

fn is_ours(name: &str, shape: &Shape) -> bool {
    let is_key = |section: &Shape, key: &str| section.key(key).is_some();
    let in_section = match &segments(name)[..] {
        [first, second, ..] => shape.keys().iter().any(|section| {
            section.name.eq_ignore_ascii_case(first)
                || is_key(&section.shape, second) && distance(&section.name, first) <= 2
        }),
        _ => false,
    };
    let with_dots = || name.contains('.') && meant(shape, &parts(&[name]), Names::Right).is_some();
    in_section || with_dots() || is_rule_variable(shape, name)
}

/// `--Section:Key=value` and `--Section:Key value`.
pub(super) fn from_command_line(arguments: &[String], findings: &mut Findings) -> Vec<Given> {
    let mut given = Vec::new();
    let mut rest = arguments.iter().enumerate().peekable();
    while let Some((index, argument)) = rest.next() {
        let option = match argument.strip_prefix("--") {
            Some("") => continue,
            Some(option) => option,
            // Not repeated in the message: it may be the tail of a secret with a space in it.
            None => {
                findings.layer_problem(
                    Origin::from_words("command line"),
                    Fault::StrayArgument { position: index + 1 },
                );
                continue;
            }
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => {
                let value = rest.next_if(|(_, next)| !next.starts_with("--"));
                (option, value.map(|(_, value)| value.clone()))
            }
        };
        // Existing deployments pass this on to a web server that we do not have.
        if name.eq_ignore_ascii_case("urls") {
            continue;
        }
        let (origin, path) = (Origin::command_line(name), segments(name));
        match value {
            Some(value) => given.push(Given { path, content: Content::Text(value), origin }),
            None => findings.problem(
                &path.join("."),
                None,
                Some(&origin),
                Fault::NoValue { option: name.to_owned() },
            ),
        }
    }
    given
}

/// A key in the spelling of the environment or the command line.
fn segments(name: &str) -> Vec<String> {
    name.split("__").flat_map(|part| part.split(':')).map(str::to_owned).collect()
}
