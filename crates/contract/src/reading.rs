//! Reading payloads as leniently as the .NET client does.
//!
//! [`normalize`] gives every member name that the contract knows its camelCase spelling, so that serde's exact matching
//! becomes case-insensitive. The known names come from the generated schema, so they always match the types. The keys of
//! maps with user data, such as environment variables, keep their case. Members that are null are removed, so they have
//! the same defaults as missing ones.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
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

/// Gives every known member name its spelling in the contract, and removes nulls. If two names differ only in case, one
/// of them is ignored, always the same one.
pub fn normalize(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let named = members.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
                let name = KNOWN_NAMES.get(&name.to_ascii_lowercase()).cloned().unwrap_or(name);
                let value =
                    if USER_KEYED.contains(&name.as_str()) { without_nulls(value) } else { normalize(value) };
                (name, value)
            });
            Value::Object(named.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(normalize).collect()),
        other => other,
    }
}

fn without_nulls(mut map: Value) -> Value {
    if let Value::Object(members) = &mut map {
        members.retain(|_, value| !value.is_null());
    }
    map
}

/// A member that cannot be read. The text does not contain its value, which may be a secret.
#[derive(Debug, thiserror::Error)]
#[error("at {path}: {reason}")]
pub struct MemberError {
    path: String,
    reason: String,
}

/// Reads one part of a [normalized](normalize) payload.
pub(crate) fn part<T: DeserializeOwned>(value: &Value) -> Result<T, MemberError> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| MemberError { path: error.path().to_string(), reason: without_value(error.inner()) })
}

/// Reads one member of a normalized object. A missing member has its default.
pub(crate) fn member<T: DeserializeOwned + Default>(object: &Value, name: &str) -> Result<T, MemberError> {
    let Some(value) = object.get(name) else { return Ok(T::default()) };
    part(value).map_err(|MemberError { path, reason }| {
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

/// The reason why a value is invalid, without the value, which may be a secret.
fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("expected {expected}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn member_names_are_matched_in_any_case_and_user_keys_keep_theirs() {
        let read = normalize(json!({
            "JobId": 1,
            "METADATA": {"StackName": "s"},
            "resolvedenvvars": {"JobId": "kept", "Path": "kept", "Dropped": null},
            "Engine": null,
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
