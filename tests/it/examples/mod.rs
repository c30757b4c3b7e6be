//! The examples work: the commands of their READMEs run (`pasted.rs`), and their files agree with the settings, the image,
//! and each other (`manifests.rs`).

mod manifests;
mod pasted;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use crate::documents::{project, root, setting_names};
use crate::support::world::HAWSER;

const FOLDERS: [&str; 5] = ["compose", "hello", "kubernetes", "pulumi", "systemd"];

#[test]
fn every_example_has_a_readme_of_at_most_40_lines() {
    let mut found: Vec<String> = fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, FOLDERS, "an example without a test");
    for folder in FOLDERS {
        let lines = project(&format!("examples/{folder}/README.md")).lines().count();
        assert!(lines <= 40, "the README of {folder} has {lines} lines");
    }
}

#[test]
fn the_variables_of_the_image_and_the_examples_are_settings() {
    let settings = setting_names();
    let files = ["compose/compose.yaml", "kubernetes/statefulset.yaml", "systemd/hawser.service"];
    let files = files.map(|file| format!("examples/{file}"));
    for file in files.into_iter().chain(["Dockerfile".to_owned(), "README.md".to_owned()]) {
        let text = project(&file);
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let found: Vec<String> =
            words.filter(|word| word.contains("__")).map(|word| word.replace("__", ".")).collect();
        assert!(found.len() >= 2, "{file}: {found:?}");
        for name in found {
            // The number at the end is the index in a list.
            let key = name.trim_end_matches(|it: char| it.is_ascii_digit()).trim_end_matches('.');
            assert!(settings.contains(key), "{file} has {name}, which is not a setting");
        }
    }
}

/// All documents of a YAML file. The parser refuses duplicate keys.
fn yaml(file: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&project(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn compose_service() -> Yaml {
    let [file] = yaml("examples/compose/compose.yaml").try_into().unwrap();
    file["services"]["runner"].clone()
}

/// The manifest of this kind.
fn manifest(kind: &str) -> Yaml {
    let mut found = yaml("examples/kubernetes/statefulset.yaml");
    found.retain(|manifest| manifest["kind"].as_str() == Some(kind));
    let [found] = found.try_into().unwrap_or_else(|found| panic!("{kind}: {found:?}"));
    found
}

#[track_caller]
fn text(value: &Yaml) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value:?} is not a string"))
}

#[track_caller]
fn items(value: &Yaml) -> &[Yaml] {
    value.as_vec().unwrap_or_else(|| panic!("{value:?} is not a list"))
}

/// A map from strings to strings.
#[track_caller]
fn strings(value: &Yaml) -> Variables {
    let map = value.as_hash().unwrap_or_else(|| panic!("{value:?} is not a map"));
    map.iter().map(|(key, value)| (text(key).to_owned(), text(value).to_owned())).collect()
}

type Variables = BTreeMap<String, String>;

/// The systemd unit as pairs of `Section.Key` and value.
struct Unit(Vec<(String, String)>);

impl Unit {
    fn read() -> Self {
        let (mut section, mut entries) = (None, Vec::new());
        for line in project("examples/systemd/hawser.service").lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = Some(name.to_owned());
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?} is not KEY=VALUE"));
            let is_name = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric());
            assert!(is_name, "{key:?} is not a name");
            let key = format!("{}.{key}", section.as_deref().expect("a section"));
            entries.push((key, value.to_owned()));
        }
        Self(entries)
    }

    fn all(&self, key: &str) -> Vec<&str> {
        self.0.iter().filter(|entry| entry.0 == key).map(|entry| entry.1.as_str()).collect()
    }

    #[track_caller]
    fn one(&self, key: &str) -> &str {
        let [value] = self.all(key).try_into().unwrap_or_else(|found| panic!("{key}: {found:?}"));
        value
    }

    /// The environment that systemd sets, with the state directories below this one.
    fn environment(&self, state: &str) -> Variables {
        self.all("Service.Environment")
            .into_iter()
            .map(|entry| variable(&entry.replace("%S", state)))
            .collect()
    }
}

/// Splits `NAME=VALUE`. Quotes around the value are removed.
#[track_caller]
fn variable(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or_else(|| panic!("{text:?} is not NAME=VALUE"));
    let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    (name.to_owned(), quoted.unwrap_or(value).to_owned())
}

/// The arguments of an instruction in the last stage of the Dockerfile.
fn dockerfile(instruction: &str) -> String {
    let text = project("Dockerfile").replace("\\\n", " ");
    let stage = text.rsplit("\nFROM ").next().unwrap();
    let found = stage.lines().filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
    let [found] =
        found.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{instruction} is not unique"));
    found.to_owned()
}

fn image_environment() -> Variables {
    dockerfile("ENV").split_whitespace().map(variable).collect()
}

/// Runs `hawser settings` with these variables only. Fails if the settings are incomplete, or cause a warning.
#[track_caller]
fn effective_settings(directory: &std::path::Path, variables: &Variables) -> String {
    let mut program = Command::new(HAWSER);
    let output = program.arg("settings").current_dir(directory).env_clear().envs(variables).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && err.is_empty(), "{variables:#?}\n{err}");
    out
}
