//! Plans and states as `show -json` prints them: how many resources a state has, and which outputs and attributes are sensitive.
//!
//! A state may be large, so of each resource only its mode and its sensitive values are kept.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// In bytes. A job with too many secrets would have all of its lines masked.
const MOST_ATTRIBUTES: usize = 128 * 1024;

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
#[serde(from = "FullResource")]
struct ShownResource {
    is_managed: bool,
    sensitive: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct FullResource {
    #[serde(default)]
    mode: String,
    values: Option<Box<RawValue>>,
    /// Has the structure of `values`, with true for what is sensitive. Everything else is false or missing.
    #[serde(default)]
    sensitive_values: Value,
}

impl From<FullResource> for ShownResource {
    fn from(full: FullResource) -> Self {
        let mut sensitive = Vec::new();
        if let Some(values) = &full.values {
            add_sensitive(values, &full.sensitive_values, &mut sensitive);
        }
        Self { is_managed: full.mode == "managed", sensitive }
    }
}

/// Adds the parts of a value that `marks` marks. The depth of `marks` is limited by its parser.
fn add_sensitive(value: &RawValue, marks: &Value, found: &mut Vec<Box<RawValue>>) {
    match marks {
        Value::Bool(true) => found.push(value.to_owned()),
        Value::Object(marks) if !marks.is_empty() => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
            for (name, marks) in marks {
                if let Some(value) = members.get(name) {
                    add_sensitive(value, marks, found);
                }
            }
        }
        Value::Array(marks) if !marks.is_empty() => {
            let items: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
            items.iter().zip(marks).for_each(|(item, marks)| add_sensitive(item, marks, found));
        }
        _ => {}
    }
}

impl ShownModule {
    fn managed(&self) -> u64 {
        let own = self.resources.iter().flatten().filter(|resource| resource.is_managed).count() as u64;
        own + self.child_modules.iter().flatten().map(Self::managed).sum::<u64>()
    }

    fn add_sensitive_to(self, found: &mut Vec<Box<RawValue>>) {
        found.extend(self.resources.into_iter().flatten().flat_map(|resource| resource.sensitive));
        self.child_modules.into_iter().flatten().for_each(|module| module.add_sensitive_to(found));
    }
}

impl ShownJson {
    /// The number of managed resources in a state.
    pub(super) fn resources(&self) -> u64 {
        let root = self.values.as_ref().and_then(|values| values.root_module.as_ref());
        root.map_or(0, ShownModule::managed)
    }

    /// The values of the sensitive outputs and attributes in a plan or a state, if they are known. Of the attributes, the
    /// shortest up to [`MOST_ATTRIBUTES`].
    pub(super) fn sensitive_values(self) -> Vec<Box<RawValue>> {
        let (mut found, mut attributes) = (Vec::new(), Vec::new());
        for values in self.values.into_iter().chain(self.planned_values) {
            let outputs = values.outputs.into_values().filter(|output| output.sensitive);
            found.extend(outputs.filter_map(|output| output.value));
            values.root_module.into_iter().for_each(|module| module.add_sensitive_to(&mut attributes));
        }
        attributes.sort_by(|a, b| (a.get().len(), a.get()).cmp(&(b.get().len(), b.get())));
        attributes.dedup_by(|a, b| a.get() == b.get());
        let mut total = 0;
        found.extend(attributes.into_iter().take_while(|value| {
            total += value.get().len();
            total <= MOST_ATTRIBUTES
        }));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn sensitive_attributes_are_found_at_any_depth() {
        let resource = |name: &str| {
            json!({"mode": "managed", "values": {"a": format!("{name}-a"), "b": {"c": [1, {"d": format!("{name}-d")}]},
                "open": "x"}, "sensitive_values": {"a": true, "b": {"c": [false, {"d": true}]}, "gone": true, "open": [true]}})
        };
        let state = json!({"values": {"root_module": {
            "resources": [resource("one"), {"mode": "data", "values": {"e": [1, 2]}, "sensitive_values": {"e": true}}],
            "child_modules": [{"resources": [resource("two"), {"mode": "managed", "values": null}]}],
        }}});
        let found = serde_json::from_str::<ShownJson>(&state.to_string()).unwrap().sensitive_values();
        let found: Vec<_> = found.iter().map(|value| value.get()).collect();
        assert_eq!(found, ["[1,2]", "\"one-a\"", "\"one-d\"", "\"two-a\"", "\"two-d\""]);
    }

    #[test]
    fn the_shortest_of_too_many_attributes_are_found() {
        let long = "x".repeat(MOST_ATTRIBUTES);
        let values = json!({"a": &long, "b": "short", "c": "short", "d": "longer", "e": &long});
        let marks = json!({"a": true, "b": true, "c": true, "d": true, "e": true});
        let state = json!({"values": {"root_module": {"resources": [{"values": values, "sensitive_values": marks}]}}});
        let found = serde_json::from_str::<ShownJson>(&state.to_string()).unwrap().sensitive_values();
        assert_eq!(found.iter().map(|value| value.get()).collect::<Vec<_>>(), ["\"short\"", "\"longer\""]);
    }

    #[test]
    fn sensitive_outputs_of_plans_and_states_are_found() {
        let read = |json: &str| {
            let found = serde_json::from_str::<ShownJson>(json).unwrap().sensitive_values();
            found.iter().map(|value| value.get().to_owned()).collect::<Vec<_>>()
        };
        let outputs = r#"{"outputs": {"a": {"sensitive": true, "value": {"k": 1}}, "b": {"sensitive": false, "value": 2},
            "c": {"sensitive": true}, "d": {"value": 3}}, "root_module": {"resources": []}}"#;
        assert_eq!(read(&format!("{{\"values\": {outputs}}}")), ["{\"k\": 1}"]);
        assert_eq!(read(&format!("{{\"planned_values\": {outputs}, \"other\": 1}}")), ["{\"k\": 1}"]);
        assert!(read("{\"format_version\": \"1.0\"}").is_empty());
    }
}
