//! Reading payloads as generously as the .NET client does.
//!
//! [`recase`] gives every member name that the contract knows its camelCase spelling, so that serde's exact
//! matching becomes case-insensitive. The known names come from the generated schema and cannot drift from the
//! types. Maps with user data for keys are passed over: an environment variable keeps its case.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

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

/// Reads one part of a payload that [`recase`] has been through; the error names the member.
pub fn part<T: DeserializeOwned>(value: &Value) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    serde_path_to_error::deserialize(value)
}

/// What is wrong with a value, without the value: it may be a secret.
pub fn without_value(error: &serde_json::Error) -> String {
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

/// A string map that may be null; entries that are null are dropped.
pub fn string_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<std::collections::BTreeMap<String, String>, D::Error> {
    let map = Option::<std::collections::BTreeMap<String, Option<String>>>::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
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
