//! Whether a module's directory holds the only copy of a state.
//!
//! In doubt it does: a file that should be a state and cannot be read may be one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file of the module that holds state with resources in it.
pub(super) fn held_by(folder: &Path) -> Option<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Some(folder.to_owned()) };
    for entry in entries {
        let Ok(entry) = entry else { return Some(folder.to_owned()) };
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(kind) = entry.file_type() else { return Some(path) };
        if kind.is_dir() {
            let found = match name.as_str() {
                ".git" => None,
                // The engine's own folder; its state file says where the state is.
                ".terraform" => local_backend(folder),
                // Pulumi's own backend keeps its stacks there.
                ".pulumi" => path.join("stacks").exists().then(|| path.join("stacks")),
                _ => held_by(&path),
            };
            if found.is_some() {
                return found;
            }
        } else if name.ends_with(".tfstate") && kind.is_file() && has_resources(&path) {
            return Some(path);
        }
    }
    None
}

/// The state file that a local backend was told to use, under whatever name.
fn local_backend(folder: &Path) -> Option<PathBuf> {
    let text = fs::read(folder.join(".terraform/terraform.tfstate")).ok()?;
    let initialised: Value = serde_json::from_slice(&text).ok()?;
    let backend = initialised.get("backend")?;
    if backend["type"] != "local" {
        return None;
    }
    let path = folder.join(backend["config"]["path"].as_str()?);
    (path.is_file() && has_resources(&path)).then_some(path)
}

fn has_resources(path: &Path) -> bool {
    let Ok(text) = fs::read(path) else { return true };
    if text.trim_ascii().is_empty() {
        return false;
    }
    match serde_json::from_slice::<Value>(&text) {
        Ok(state) => match state.get("resources").and_then(Value::as_array) {
            Some(resources) => !resources.is_empty(),
            None => true,
        },
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = r#"{"version": 4, "resources": []}"#;
    const FULL: &str = r#"{"version": 4, "resources": [{"type": "x"}]}"#;

    #[test]
    fn state_is_found_wherever_an_engine_keeps_it_and_in_doubt_there_is_some() {
        let local = r#"{"version": 3, "backend": {"type": "local", "config": {"path": "my-state.json"}}}"#;
        let remote = r#"{"version": 3, "backend": {"type": "s3", "config": {"bucket": "b"}}}"#;
        for (files, held) in [
            (&[("main.tf", "x")][..], false),
            (&[("terraform.tfstate", EMPTY), ("terraform.tfstate.backup", FULL)], false),
            (&[("terraform.tfstate", "")], false),
            (&[(".terraform/terraform.tfstate", remote)], false),
            (&[(".git/x.tfstate", FULL)], false),
            (&[("terraform.tfstate", FULL)], true),
            (&[("a/b/errored.tfstate", FULL)], true),
            (&[("terraform.tfstate.d/dev/terraform.tfstate", FULL)], true),
            (&[("terraform.tfstate", "encrypted?")], true),
            (&[("terraform.tfstate", r#"{"version": 3, "modules": []}"#)], true),
            (&[(".terraform/terraform.tfstate", local), ("my-state.json", FULL)], true),
            (&[(".terraform/terraform.tfstate", local), ("my-state.json", EMPTY)], false),
            (&[(".pulumi/stacks/dev.json", "{}")], true),
        ] {
            let root = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = root.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            assert_eq!(held_by(root.path()).is_some(), held, "{files:?}");
        }
    }
}
