//! Reading payloads as generously as the .NET client does.
//!
//! [`recase`] gives every member name that the contract knows its camelCase spelling, so that serde's exact
//! matching becomes case-insensitive. The known names come from the generated schema and cannot drift from the
//! types. Maps with user data for keys are passed over: an environment variable keeps its case.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Members whose own members are named by users.
const USER_KEYED: [&str; 3] = ["resolvedEnvVars", "resolvedParameters", "tags"];

static KNOWN_NAMES: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let mut names = HashMap::new();
    collect_names(&crate::schema::hub_schema(), &mut names);
    names
});

fn collect_names(schema: &Value, names: &mut HashMap<String, String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                for name in properties.keys() {
                    names.insert(name.to_ascii_lowercase(), name.clone());
                }
            }
            members.values().for_each(|value| collect_names(value, names));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

/// Gives every known member name its spelling in the contract. Of two members that differ only in case
/// one counts, and it is the same one whenever the payload is read.
pub fn recase(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(name, value)| {
                    let name = KNOWN_NAMES.get(&name.to_ascii_lowercase()).cloned().unwrap_or(name);
                    let value = if USER_KEYED.contains(&name.as_str()) { value } else { recase(value) };
                    (name, value)
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(recase).collect()),
        other => other,
    }
}

/// A member that cannot be read. The text does not contain its value, which may be a secret.
#[derive(Debug, thiserror::Error)]
#[error("at {path}: {reason}")]
pub struct MemberError {
    path: String,
    reason: String,
}

/// Reads one part of a payload that [`recase`] has been through.
pub(crate) fn part<T: DeserializeOwned>(value: &Value) -> Result<T, MemberError> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| MemberError { path: error.path().to_string(), reason: without_value(error.inner()) })
}

/// Reads one member of an object; a member that is missing or null has its default.
pub(crate) fn member<T: DeserializeOwned + Default>(object: &Value, name: &str) -> Result<T, MemberError> {
    let read: Result<Option<T>, _> = part(object.get(name).unwrap_or(&Value::Null));
    read.map(Option::unwrap_or_default).map_err(|MemberError { path, reason }| {
        let path = match path.as_str() {
            "." => name.to_owned(),
            below if below.starts_with('[') => format!("{name}{below}"),
            below => format!("{name}.{below}"),
        };
        MemberError { path, reason }
    })
}

/// The members of a value that is written as an object.
pub(crate) fn members(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// What is wrong with a value, without the value: it may be a secret.
fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("expected {expected}"),
        None => text,
    }
}

/// A member that may be missing or null and then has its default.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A map of texts; entries that are null are dropped.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<String, Option<String>>")]
pub(crate) struct StringMap(pub(crate) BTreeMap<String, String>);

impl From<BTreeMap<String, Option<String>>> for StringMap {
    fn from(map: BTreeMap<String, Option<String>>) -> Self {
        Self(map.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn member_names_are_matched_in_any_case_and_user_keys_keep_theirs() {
        let read = recase(json!({
            "JobId": 1,
            "METADATA": {"StackName": "s"},
            "resolvedenvvars": {"JobId": "kept", "Path": "kept"},
            "SomethingNew": {"MODULENAME": "m"},
            "ExtraFiles": [{"FileName": "a"}],
        }));
        assert_eq!(
            read,
            json!({
                "jobId": 1,
                "metadata": {"stackName": "s"},
                "resolvedEnvVars": {"JobId": "kept", "Path": "kept"},
                "SomethingNew": {"moduleName": "m"},
                "extraFiles": [{"fileName": "a"}],
            })
        );
    }
}
