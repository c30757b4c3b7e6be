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
    let page = project("docs/settings.md");
    let missing: Vec<_> = found.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "not in docs/settings.md: {missing:?}");
}

#[test]
fn the_commands_of_the_readme_are_those_that_ci_runs() {
    let (readme, ci) = (project("README.md"), project(".ci/run"));
    assert!(readme.contains("cargo run --release -- local --yes"));
    assert!(ci.contains("cargo run --locked --release -- local --yes"));
    assert!(readme.contains("\ncargo test\n") && ci.contains("\ncargo test --locked\n"));
}

const EXAMPLES: [&str; 3] = [
    "examples/compose/compose.yaml",
    "examples/kubernetes/statefulset.yaml",
    "examples/systemd/hawser.service",
];

#[test]
fn the_variables_of_the_image_and_the_examples_are_settings() {
    let schema: Value = serde_json::from_str(&project("schema/appsettings.schema.json")).unwrap();
    let mut settings = BTreeSet::new();
    keys(&schema, &schema, "", &mut settings);
    for file in EXAMPLES.into_iter().chain(["Dockerfile", "README.md"]) {
        let text = project(file);
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let found: BTreeSet<String> =
            words.filter(|word| word.contains("__")).map(|word| word.replace("__", ".")).collect();
        assert!(found.len() >= 2, "{file}: {found:?}");
        for name in found {
            // The number at the end is that of an item of a list.
            let key = name.trim_end_matches(|it: char| it.is_ascii_digit()).trim_end_matches('.');
            assert!(settings.contains(key), "{file} has {name}, which is no setting");
        }
    }
}

#[test]
fn the_examples_give_a_drain_the_time_that_it_takes() {
    /// Interrupted steps get 30 seconds, and 10 are for shipping (`runner.rs`).
    const AFTER_THE_LIMIT: u64 = 30 + 10;
    for (file, (grace, unit)) in EXAMPLES.into_iter().zip([
        ("stop_grace_period", 1),
        ("terminationGracePeriodSeconds", 1),
        ("TimeoutStopSec", 60),
    ]) {
        let text = project(file);
        let number = |key: &str| -> u64 {
            let digits = |line: &str| line.chars().filter(char::is_ascii_digit).collect::<String>();
            let found = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            let found: Vec<&str> = found.filter_map(|line| Some(line.split_once(key)?.1)).collect();
            assert_eq!(found.len(), 1, "{key} in {file}");
            digits(found[0]).parse().unwrap()
        };
        let (limit, grace) = (number("Runner__DrainTimeoutSeconds"), number(grace) * unit);
        assert!(limit + AFTER_THE_LIMIT < grace, "{file}: {limit} s and {AFTER_THE_LIMIT} s of {grace} s");
    }
}

#[test]
fn the_image_is_built_from_all_that_the_sources_include() {
    fn included(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                included(&path, found);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split("include_str!(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
                found.extend(names.map(|name| folder.join(name).canonicalize().unwrap()));
            }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let mut needed = vec![root.join("Cargo.toml"), root.join("Cargo.lock"), root.join("LICENSE")];
    included(&root.join("src"), &mut needed);
    included(&root.join("crates"), &mut needed);
    assert!(needed.len() > 6, "{needed:?}");
    let rules = project(".dockerignore");
    let let_in: Vec<_> = rules.lines().filter_map(|line| Some(root.join(line.strip_prefix('!')?))).collect();
    for file in needed.iter().chain(&let_in) {
        assert!(file.exists(), "{}", file.display());
        assert!(let_in.iter().any(|it| file.starts_with(it)), ".dockerignore keeps {} out", file.display());
    }
}
