//! The settings as a JSON Schema document (`hawser schema`).
//!
//! A settings file is one of several layers, so the published schema has no required keys: an editor must not report a missing
//! secret that comes from the environment. The descriptions state what is required, and the loader checks it across all
//! layers.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::model::Settings;

/// The schema of one settings file.
pub fn settings_schema() -> Value {
    let mut schema = complete_schema();
    move_required_to_descriptions(&mut schema);
    schema["title"] = json!("Settings of the Hawser runner");
    schema
}

/// The schema of all layers together: a required key must be set in one of them.
pub(super) fn complete_schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<Settings>().to_value()
}

fn move_required_to_descriptions(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    let required = object.remove("required");
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        let is_required = required
            .as_ref()
            .and_then(Value::as_array)
            .is_some_and(|names| names.iter().any(|required| required == name));
        let is_section = property.get("properties").is_some();
        if is_required && !is_section {
            let description = property.get("description").and_then(Value::as_str).unwrap_or_default();
            property["description"] = json!(format!("{description}\nRequired, in this layer or another."));
        }
        move_required_to_descriptions(property);
    }
}
