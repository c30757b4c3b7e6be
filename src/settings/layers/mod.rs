//! What one layer gives: a flat list of paths and values, as .NET keeps its configuration.
//!
//! Files, environment and command line differ only in how they spell this list. A list item is a path whose last
//! segment is its index, so that a later layer replaces one item and leaves the others.

pub(crate) mod file;
pub(crate) mod strict_json;
use std::ffi::OsString;

use serde_json::Value;

use super::diagnostics::{Diagnostics, Origin};
use super::resolve::{POLICY, is_one_slip};
use super::schema_tree::SchemaNode;
use super::values::Fault;

/// One value and where it stands.
pub(super) struct LayerValue {
    pub(super) path: Vec<String>,
    /// A scalar, an empty list or an empty object.
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The variables below one of our sections, sorted by name so that the result does not depend on the order, and those below a
/// misspelled `Policy`: such a rule would silently allow everything. All others belong to other programs.
pub(super) fn from_environment(
    environment: &[(OsString, OsString)],
    shape: &SchemaNode,
    findings: &mut Diagnostics,
) -> Vec<LayerValue> {
    let mut variables: Vec<_> = environment
        .iter()
        .filter_map(|(name, value)| name.to_str().map(|name| (name, segments(name), value)))
        .filter(|(_, path, _)| {
            path.len() > 1 && (shape.key(&path[0]).is_some() || is_one_slip(POLICY, &path[0]))
        })
        .collect();
    variables.sort_unstable();
    let mut given = Vec::new();
    for (name, path, value) in variables {
        let origin = Origin::Variable(name.to_owned());
        match value.to_str() {
            Some(text) => given.push(LayerValue { path, value: Value::from(text), origin }),
            None => findings.problem(&path.join("."), None, Some(&origin), Fault::NotUnicode),
        }
    }
    given
}

/// `--Section:Key=value` and `--Section:Key value`.
pub(super) fn from_command_line(arguments: &[String], findings: &mut Diagnostics) -> Vec<LayerValue> {
    let mut given = Vec::new();
    let mut rest = arguments.iter().enumerate().peekable();
    while let Some((index, argument)) = rest.next() {
        let option = match argument.strip_prefix("--") {
            Some("") => continue,
            Some(option) => option,
            // Not repeated in the message: it may be the tail of a secret with a space in it.
            None => {
                findings.layer_problem(Origin::CommandLine, Fault::StrayArgument { position: index + 1 });
                continue;
            }
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => {
                (option, rest.next_if(|(_, next)| !next.starts_with("--")).map(|(_, value)| value.as_str()))
            }
        };
        // Existing deployments pass this on to a web server that we do not have.
        if name.eq_ignore_ascii_case("urls") {
            continue;
        }
        let (origin, path) = (Origin::Option(name.to_owned()), segments(name));
        match value {
            Some(value) => given.push(LayerValue { path, value: Value::from(value), origin }),
            None => {
                let fault = Fault::NoValue { option: name.to_owned() };
                findings.problem(&path.join("."), None, Some(&origin), fault);
            }
        }
    }
    given
}

/// A key in the spelling of the environment or the command line.
fn segments(name: &str) -> Vec<String> {
    name.split("__").flat_map(|part| part.split(':')).map(str::to_owned).collect()
}
