//! The project file of a Pulumi program, `Pulumi.yaml`.

use std::fs;
use std::path::Path;

/// The text of a project file. Only mappings with one member on each line are understood, as Pulumi itself writes them.
#[derive(Debug)]
pub(super) struct Project(String);

impl Project {
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let names = ["Pulumi.yaml", "Pulumi.yml"];
        names.iter().find_map(|name| fs::read_to_string(directory.join(name)).ok()).map(Self)
    }

    /// The text at a path of members.
    pub(super) fn value(&self, path: &[&str]) -> Option<String> {
        // The indentation of each member on the way to a line, with whether the path leads there.
        let mut above: Vec<(usize, bool)> = Vec::new();
        for line in self.0.lines() {
            let text = line.trim_start();
            let Some((name, value)) = text.split_once(':').filter(|_| !text.starts_with('#')) else {
                continue;
            };
            let indent = line.len() - text.len();
            above.retain(|(other, _)| *other < indent);
            let is_on_path = above.iter().all(|(_, it)| *it) && path.get(above.len()) == Some(&name.trim());
            if is_on_path && above.len() + 1 == path.len() {
                let value = value.split(" #").next().unwrap_or_default().trim();
                let value = value.trim_matches(['"', '\'']);
                return (!value.is_empty()).then(|| value.to_owned());
            }
            above.push((indent, is_on_path));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_at_their_path_only() {
        let text = "# name: no\nname: \"my-project\" # yes\nruntime:\n  name: python\n  options:\n    toolchain: pip\n    virtualenv: venv\n\
            config:\n  virtualenv: other\ndescription:\n";
        let project = Project(text.to_owned());
        let value = |path: &[&str]| project.value(path);
        assert_eq!(value(&["name"]).as_deref(), Some("my-project"));
        assert_eq!(value(&["runtime"]), None);
        assert_eq!(value(&["runtime", "name"]).as_deref(), Some("python"));
        assert_eq!(value(&["runtime", "options", "virtualenv"]).as_deref(), Some("venv"));
        assert_eq!(value(&["config", "virtualenv"]).as_deref(), Some("other"));
        assert_eq!((value(&["virtualenv"]), value(&["description"]), value(&["none"])), (None, None, None));
        let short = Project("runtime: nodejs\nname: x\n".to_owned());
        assert_eq!(short.value(&["runtime"]).as_deref(), Some("nodejs"));
    }
}
