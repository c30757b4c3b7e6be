//! Finds state in a module directory.
//!
//! A file that may be a state but cannot be read counts as one.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::stored_state::{StoredState, named_local_state};

/// A file in the module directory that contains state with resources.
pub(super) fn find(folder: &Path) -> Option<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Some(folder.to_owned()) };
    for entry in entries {
        let Ok(entry) = entry else { return Some(folder.to_owned()) };
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(kind) = entry.file_type() else { return Some(path) };
        if kind.is_dir() {
            let state = match name.as_str() {
                ".git" => None,
                // Its state file only names the location of the state.
                ".terraform" => local_backend(folder),
                // Pulumi's local backend stores its stacks there.
                ".pulumi" => path.join("stacks").exists().then(|| path.join("stacks")),
                _ => find(&path),
            };
            if state.is_some() {
                return state;
            }
        } else if name.ends_with(".tfstate") && kind.is_file() && has_resources(&path) {
            return Some(path);
        }
    }
    None
}

/// The state file of a local backend, with any name.
fn local_backend(folder: &Path) -> Option<PathBuf> {
    let path = named_local_state(folder, &folder.join(".terraform"))?;
    (path.is_file() && has_resources(&path)).then_some(path)
}

fn has_resources(path: &Path) -> bool {
    let Ok(text) = fs::read(path) else { return true };
    match StoredState::parse(&text) {
        Some(state) => !state.is_empty(),
        None => !text.trim_ascii().is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = r#"{"version": 4, "resources": []}"#;
    const FULL: &str = r#"{"version": 4, "resources": [{"type": "x"}]}"#;

    #[test]
    fn state_is_found_everywhere_and_unreadable_files_count() {
        let local = r#"{"version": 3, "backend": {"type": "local", "config": {"path": "my-state.json"}}}"#;
        let remote = r#"{"version": 3, "backend": {"type": "s3", "config": {"bucket": "b"}}}"#;
        for (files, has_state) in [
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
            assert_eq!(find(root.path()).is_some(), has_state, "{files:?}");
        }
    }
}
