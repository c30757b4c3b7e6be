//! Plans and states as `show -json` prints them: how many resources a state has, and which outputs are sensitive.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::engines::{EngineError, ResultFile, read_json};

#[derive(Deserialize)]
struct ShownJson {
    /// Of a state.
    values: Option<ShownValues>,
    /// Of a plan.
    planned_values: Option<ShownValues>,
}

#[derive(Deserialize)]
struct ShownValues {
    #[serde(default)]
    outputs: BTreeMap<String, ShownOutput>,
    root_module: Option<ShownModule>,
}

#[derive(Deserialize)]
struct ShownOutput {
    #[serde(default)]
    sensitive: bool,
    /// Missing if it is only known after the apply.
    value: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ShownModule {
    resources: Option<Vec<ShownResource>>,
    child_modules: Option<Vec<ShownModule>>,
}

#[derive(Deserialize)]
struct ShownResource {
    #[serde(default)]
    mode: String,
}

impl ShownModule {
    fn managed(&self) -> u64 {
        let own =
            self.resources.iter().flatten().filter(|resource| resource.mode == "managed").count() as u64;
        own + self.child_modules.iter().flatten().map(Self::managed).sum::<u64>()
    }
}

/// Counts the managed resources in a state.
pub(super) fn count_resources(file: impl Into<ResultFile>) -> Result<u64, EngineError> {
    let state: ShownJson = read_json("the state as JSON", file)?;
    Ok(state.values.and_then(|values| values.root_module).map_or(0, |root| root.managed()))
}

/// The values of the sensitive outputs in a plan or a state, as far as they are known.
pub(super) fn sensitive_outputs(path: &str) -> Result<Vec<Box<RawValue>>, EngineError> {
    let shown: ShownJson = read_json("the plan or the state as JSON", path)?;
    let values = shown.values.into_iter().chain(shown.planned_values);
    let outputs = values.flat_map(|values| values.outputs.into_values());
    Ok(outputs.filter(|output| output.sensitive).filter_map(|output| output.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn file(value: &Value) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), value.to_string()).unwrap();
        file
    }

    #[test]
    fn managed_resources_of_all_modules_count_and_data_does_not() {
        let managed = || json!({"mode": "managed"});
        let state = json!({"values": {"root_module": {
            "resources": [managed(), managed(), {"mode": "data"}],
            "child_modules": [
                {"resources": [managed()], "child_modules": [{"resources": [managed(), {"mode": "data"}]}]},
                {},
            ],
        }}});
        assert_eq!(count_resources(file(&state).path().to_str().unwrap()).unwrap(), 4);
        for empty in [json!({"format_version": "1.0"}), json!({"values": {"root_module": {}}})] {
            assert_eq!(count_resources(file(&empty).path().to_str().unwrap()).unwrap(), 0);
        }
    }

    #[test]
    fn sensitive_outputs_of_plans_and_states_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |json: &str| {
            std::fs::write(file.path(), json).unwrap();
            let found = sensitive_outputs(file.path().to_str().unwrap()).unwrap();
            found.iter().map(|value| value.get().to_owned()).collect::<Vec<_>>()
        };
        let outputs = r#"{"outputs": {"a": {"sensitive": true, "value": {"k": 1}}, "b": {"sensitive": false, "value": 2},
            "c": {"sensitive": true}, "d": {"value": 3}}, "root_module": {"resources": []}}"#;
        assert_eq!(read(&format!("{{\"values\": {outputs}}}")), ["{\"k\": 1}"]);
        assert_eq!(read(&format!("{{\"planned_values\": {outputs}, \"other\": 1}}")), ["{\"k\": 1}"]);
        assert!(read("{\"format_version\": \"1.0\"}").is_empty());
    }
}
