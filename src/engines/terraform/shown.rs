//! Plans and states as `show -json` prints them: how many resources a state has, and which outputs are sensitive.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct ShownJson {
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

impl ShownJson {
    /// The number of managed resources in a state.
    pub(super) fn resources(&self) -> u64 {
        let root = self.values.as_ref().and_then(|values| values.root_module.as_ref());
        root.map_or(0, ShownModule::managed)
    }

    /// The values of the sensitive outputs in a plan or a state, if they are known.
    pub(super) fn sensitive_outputs(self) -> Vec<Box<RawValue>> {
        let values = self.values.into_iter().chain(self.planned_values);
        let outputs = values.flat_map(|values| values.outputs.into_values());
        outputs.filter(|output| output.sensitive).filter_map(|output| output.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn resources(value: &Value) -> u64 {
        serde_json::from_str::<ShownJson>(&value.to_string()).unwrap().resources()
    }

    #[test]
    fn managed_resources_of_all_modules_are_counted() {
        let managed = || json!({"mode": "managed"});
        let state = json!({"values": {"root_module": {
            "resources": [managed(), managed(), {"mode": "data"}],
            "child_modules": [
                {"resources": [managed()], "child_modules": [{"resources": [managed(), {"mode": "data"}]}]},
                {},
            ],
        }}});
        assert_eq!(resources(&state), 4);
        for empty in [json!({"format_version": "1.0"}), json!({"values": {"root_module": {}}})] {
            assert_eq!(resources(&empty), 0);
        }
    }

    #[test]
    fn sensitive_outputs_of_plans_and_states_are_found() {
        let read = |json: &str| {
            let found = serde_json::from_str::<ShownJson>(json).unwrap().sensitive_outputs();
            found.iter().map(|value| value.get().to_owned()).collect::<Vec<_>>()
        };
        let outputs = r#"{"outputs": {"a": {"sensitive": true, "value": {"k": 1}}, "b": {"sensitive": false, "value": 2},
            "c": {"sensitive": true}, "d": {"value": 3}}, "root_module": {"resources": []}}"#;
        assert_eq!(read(&format!("{{\"values\": {outputs}}}")), ["{\"k\": 1}"]);
        assert_eq!(read(&format!("{{\"planned_values\": {outputs}, \"other\": 1}}")), ["{\"k\": 1}"]);
        assert!(read("{\"format_version\": \"1.0\"}").is_empty());
    }
}
