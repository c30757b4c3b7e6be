//! The layers: each one is a flat list of paths and values, as in .NET.
//!
//! Files, environment, and command line differ only in their syntax. The path of a list item ends with its index, so a later
//! layer can replace one item and leave the others.

pub(crate) mod file;

use std::ffi::OsString;

use serde_json::Value;

use super::diagnostics::{Diagnostics, Origin};
use super::resolve::{POLICY, is_one_typo_from};
use super::schema_tree::SchemaNode;
use super::values::SettingFault;

/// One value with its path.
pub(super) struct LayerValue {
    pub(super) path: Vec<String>,
    /// A scalar, an empty list, or an empty object.
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// Reads the variables below our sections, and those below a misspelled `Policy`, which would silently allow everything. All
/// others belong to other programs. Sorted by name, so the result does not depend on their order.
pub(super) fn from_environment(
    environment: &[(OsString, OsString)],
    node: &SchemaNode,
    diagnostics: &mut Diagnostics,
) -> Vec<LayerValue> {
    let mut variables: Vec<_> = environment
        .iter()
        .filter_map(|(name, value)| name.to_str().map(|name| (name, segments(name), value)))
        .filter(|(_, path, _)| {
            path.len() > 1 && (node.key(&path[0]).is_some() || is_one_typo_from(POLICY, &path[0]))
        })
        .collect();
    variables.sort_unstable();
    let mut values = Vec::new();
    for (name, path, value) in variables {
        let origin = Origin::Variable(name.to_owned());
        match value.to_str() {
            Some(text) => values.push(LayerValue { path, value: Value::from(text), origin }),
            None => diagnostics.problem(&path.join("."), &origin, SettingFault::NotUnicode),
        }
    }
    values
}

/// Reads `--Section:Key=value` and `--Section:Key value`.
pub(super) fn from_command_line(arguments: &[String], diagnostics: &mut Diagnostics) -> Vec<LayerValue> {
    let mut values = Vec::new();
    let mut rest = arguments.iter().enumerate().peekable();
    while let Some((index, argument)) = rest.next() {
        let option = match argument.strip_prefix("--") {
            Some("") => continue,
            Some(option) => option,
            // The message does not contain the argument: it may be the end of a secret with a space.
            None => {
                diagnostics
                    .layer_problem(Origin::CommandLine, SettingFault::StrayArgument { position: index + 1 });
                continue;
            }
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => {
                (option, rest.next_if(|(_, next)| !next.starts_with("--")).map(|(_, value)| value.as_str()))
            }
        };
        // Existing deployments pass this option for a web server that this program does not have.
        if name.eq_ignore_ascii_case("urls") {
            continue;
        }
        let (origin, path) = (Origin::Option(name.to_owned()), segments(name));
        match value {
            Some(value) => values.push(LayerValue { path, value: Value::from(value), origin }),
            None => {
                let fault = SettingFault::NoValue { option: name.to_owned() };
                diagnostics.problem(&path.join("."), &origin, fault);
            }
        }
    }
    values
}

/// Splits a key of the environment or the command line.
fn segments(name: &str) -> Vec<String> {
    name.split("__").flat_map(|part| part.split(':')).map(str::to_owned).collect()
}
