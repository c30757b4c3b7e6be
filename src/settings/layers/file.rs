//! A settings file: JSON with comments and trailing commas (read as JSON5, which allows both).

use std::io;
use std::path::Path;

use serde_json::Value;

use super::LayerValue;
use super::strict_json::StrictJson;
use crate::settings::diagnostics::{Diagnostics, Origin};
use crate::settings::values::SettingFault;

/// Reads the values in the file; empty if the file does not exist.
pub(crate) fn read(dir: &Path, name: &str, diagnostics: &mut Diagnostics) -> Vec<LayerValue> {
    let mut values = Vec::new();
    let origin = Origin::File(name.to_owned());
    let parsed = match std::fs::read(dir.join(name)) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return values,
        Err(error) => Err(SettingFault::Unreadable(error.to_string())),
    };
    match parsed {
        Ok(object) => flatten(object, &mut Vec::new(), &origin, &mut values),
        Err(fault) => diagnostics.layer_problem(origin, fault),
    }
    values
}

fn parse(bytes: &[u8]) -> Result<Value, SettingFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| SettingFault::NotUnicode)?;
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(SettingFault::NothingInFile);
    }
    match json5::from_str(text) {
        Ok(StrictJson(object @ Value::Object(_))) => Ok(object),
        Ok(_) => Err(SettingFault::NotObject),
        Err(error) => Err(SettingFault::NotJson(error.to_string())),
    }
}

/// Lists the values by path. An empty list or object is a value, too.
fn flatten(value: Value, path: &mut Vec<String>, origin: &Origin, values: &mut Vec<LayerValue>) {
    let members: Vec<(String, Value)> = match value {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(members) if !members.is_empty() => members.into_iter().collect(),
        value => return values.push(LayerValue { path: path.clone(), value, origin: origin.clone() }),
    };
    for (name, member) in members {
        let depth = path.len();
        // .NET reads `"Runner:Id"` as a path. `hawser::shipping` is a log category and is not split.
        if name.contains("::") {
            path.push(name);
        } else {
            path.extend(name.split(':').map(str::to_owned));
        }
        flatten(member, path, origin, values);
        path.truncate(depth);
    }
}
