//! A settings file: JSON with comments and trailing commas (read as JSON5, which allows both).

use std::io;
use std::path::Path;

use serde_json::Value;

use super::LayerValue;
use super::strict_json::StrictJson;
use crate::settings::diagnostics::{Diagnostics, Origin};
use crate::settings::values::Fault;

/// The values in the file; none when there is no such file.
pub(crate) fn read(dir: &Path, name: &str, findings: &mut Diagnostics) -> Vec<LayerValue> {
    let mut given = Vec::new();
    let origin = Origin::File(name.to_owned());
    let parsed = match std::fs::read(dir.join(name)) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return given,
        Err(error) => Err(Fault::Unreadable(error.to_string())),
    };
    match parsed {
        Ok(object) => flatten(object, &mut Vec::new(), &origin, &mut given),
        Err(fault) => findings.layer_problem(origin, fault),
    }
    given
}

fn parse(bytes: &[u8]) -> Result<Value, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::NotUnicode)?;
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(Fault::NothingInFile);
    }
    match json5::from_str(text) {
        Ok(StrictJson(object @ Value::Object(_))) => Ok(object),
        Ok(_) => Err(Fault::NotObject),
        Err(error) => Err(Fault::NotJson(error.to_string())),
    }
}

/// Values by path. An empty list or object is a value, too.
fn flatten(value: Value, path: &mut Vec<String>, origin: &Origin, given: &mut Vec<LayerValue>) {
    let members: Vec<(String, Value)> = match value {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(members) if !members.is_empty() => members.into_iter().collect(),
        value => return given.push(LayerValue { path: path.clone(), value, origin: origin.clone() }),
    };
    for (name, member) in members {
        let depth = path.len();
        // .NET takes `"Runner:Id"` as a path. `hawser::shipping` is a log category and stays whole.
        if name.contains("::") {
            path.push(name);
        } else {
            path.extend(name.split(':').map(str::to_owned));
        }
        flatten(member, path, origin, given);
        path.truncate(depth);
    }
}
