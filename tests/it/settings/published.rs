//! Checks the published schema and example against the types.

use std::path::PathBuf;

use hawser::settings::{self, Effective};
use serde_json::{Value, json};

use super::World;

#[test]
fn the_published_schema_matches_the_types() {
    assert_eq!(
        include_str!("../../../schema/appsettings.schema.json"),
        format!("{:#}\n", settings::settings_schema()),
        "schema/appsettings.schema.json is outdated; run: cargo run -- schema > schema/appsettings.schema.json"
    );
}

#[test]
fn every_setting_has_a_description_and_every_optional_one_a_default() {
    fn check(schema: &Value, path: &str) {
        for (name, property) in schema["properties"].as_object().unwrap() {
            let path = format!("{path}.{name}");
            let description = property["description"].as_str().unwrap_or_else(|| panic!("{path} has none"));
            if property.get("properties").is_some() {
                check(property, &path);
            } else if path != ".Runner.Instance" {
                let required = description.contains("Required");
                assert_ne!(required, property.get("default").is_some(), "{path}");
            }
        }
    }
    check(&settings::settings_schema(), "");
}

/// The example without its comments.
fn example() -> Value {
    json5::from_str(include_str!("../../../appsettings.example.json")).unwrap()
}

#[test]
fn the_example_is_valid_by_its_schema() {
    let example = example();
    let schema = example["$schema"].as_str().unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(schema);
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(&example).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let mut wrong = example.clone();
    wrong["JobLogStream"]["BatchSizeLimit"] = json!(0);
    assert!(!validator.is_valid(&wrong));
}

#[test]
fn the_example_is_complete_and_shows_the_defaults() {
    fn check(schema: &Value, example: &Value, path: &str) {
        for (name, property) in schema["properties"].as_object().unwrap() {
            let path = format!("{path}.{name}");
            let shown = example.get(name).unwrap_or_else(|| panic!("{path} is not in the example"));
            if property.get("properties").is_some() {
                check(property, shown, &path);
            } else if let Some(default) = property.get("default").filter(|default| !default.is_object()) {
                assert_eq!(shown, default, "{path}");
            }
        }
    }
    check(&settings::settings_schema(), &example(), "");
}

#[test]
fn the_defaults_in_the_docs_match_hawser_settings() {
    let docs = include_str!("../../../docs/settings.md");
    let mut checked = 0;
    for Effective { key, value, .. } in World::complete().loaded().effective {
        let row = docs.lines().find_map(|line| line.strip_prefix(&format!("| `{key}` | ")));
        // The docs describe lists and maps with default items in words.
        if row.is_none() && (key.starts_with("JobLogStream.RedactNames") || key.starts_with("Logging.")) {
            continue;
        }
        let row = row.unwrap_or_else(|| panic!("{key} is not in docs/settings.md"));
        let default = row.split(" | ").next().unwrap().trim_matches('`').replace('~', "/home/me");
        let in_words = default == "required" || default.ends_with('…') || key == "Runner.Instance";
        let is_effective = default == value || default == "not set" && value.starts_with("not set");
        assert!(in_words || is_effective, "{key}: {default:?} in docs/settings.md, {value:?} in effect");
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn the_example_loads_without_warnings() {
    let world = World::empty().file("appsettings.json", include_str!("../../../appsettings.example.json"));
    assert_eq!(world.warnings(), Vec::<String>::new());
}
