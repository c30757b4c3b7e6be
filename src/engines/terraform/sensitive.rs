//! The outputs that a plan or a state calls sensitive, from `show -json`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::engines::{EngineError, read_json};

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
}

#[derive(Deserialize)]
struct ShownOutput {
    #[serde(default)]
    sensitive: bool,
    /// Not there when it is only known after the apply.
    value: Option<Box<RawValue>>,
}

/// The values of the sensitive outputs in a plan or a state, as far as they are known.
pub fn outputs(path: &str) -> Result<Vec<Box<RawValue>>, EngineError> {
    let shown: ShownJson = read_json("the plan or the state as JSON", path)?;
    let values = shown.values.into_iter().chain(shown.planned_values);
    let outputs = values.flat_map(|values| values.outputs.into_values());
    Ok(outputs.filter(|output| output.sensitive).filter_map(|output| output.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sensitive_outputs_of_plans_and_states_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |json: &str| {
            std::fs::write(file.path(), json).unwrap();
            let found = outputs(file.path().to_str().unwrap()).unwrap();
            found.iter().map(|value| value.get().to_owned()).collect::<Vec<_>>()
        };
        let outputs = r#"{"outputs": {"a": {"sensitive": true, "value": {"k": 1}}, "b": {"sensitive": false, "value": 2},
            "c": {"sensitive": true}, "d": {"value": 3}}, "root_module": {"resources": []}}"#;
        assert_eq!(read(&format!("{{\"values\": {outputs}}}")), ["{\"k\": 1}"]);
        assert_eq!(read(&format!("{{\"planned_values\": {outputs}, \"other\": 1}}")), ["{\"k\": 1}"]);
        assert!(read("{\"format_version\": \"1.0\"}").is_empty());
    }
}
