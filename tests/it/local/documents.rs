//! What the documents say is what there is.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

fn project(file: &str) -> String {
    fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// `Section.Key` of every setting, from the schema.
fn keys(schema: &Value, of: &Value, before: &str, found: &mut BTreeSet<String>) {
    let of = match of.get("$ref").and_then(Value::as_str) {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => of,
    };
    match of.get("properties").and_then(Value::as_object) {
        None => _ = found.insert(before.to_owned()),
        Some(members) => {
            for (name, member) in members {
                let name = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
                keys(schema, member, &name, found);
            }
        }
    }
}

#[test]
fn the_readme_names_every_setting() {
    let schema: Value = serde_json::from_str(&project("schema/appsettings.schema.json")).unwrap();
    let mut found = BTreeSet::new();
    keys(&schema, &schema, "", &mut found);
    found.retain(|key| !key.starts_with('$'));
    assert!(found.len() >= 15, "{found:?}");
    let readme = project("README.md");
    let missing: Vec<_> = found.iter().filter(|key| !readme.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "not in README.md: {missing:?}");
}

#[test]
fn the_commands_of_the_readme_are_those_that_ci_runs() {
    let (readme, ci) = (project("README.md"), project(".ci/run"));
    assert!(readme.contains("cargo run --release -- local --yes"));
    assert!(ci.contains("cargo run --locked --release -- local --yes"));
    assert!(readme.contains("\ncargo test\n") && ci.contains("\ncargo test --locked\n"));
}
