//! The project file of a Pulumi program, `Pulumi.yaml`.

use std::fs;
use std::path::Path;

/// The text of a project file. Mappings with one member on each line are understood, as Pulumi itself writes them, and `{…}` on
/// one line. A complete YAML parser could be made to use up all memory by a file in a repository.
#[derive(Debug)]
pub(super) struct Project(String);

impl Project {
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let names = ["Pulumi.yaml", "Pulumi.yml"];
        names.iter().find_map(|name| fs::read_to_string(directory.join(name)).ok()).map(Self)
    }

    /// The text at a path of members.
    pub(super) fn value(&self, path: &[&str]) -> Option<String> {
        (1..=path.len()).rev().find_map(|lines| {
            let (above, inline) = path.split_at(lines);
            inline.iter().try_fold(self.line_value(above)?, |text, name| inline_member(&text, name))
        })
    }

    /// What the project declares about a configuration key, such as its `type`. The key may be preceded by the project's name.
    pub(super) fn declared(&self, key: &str, member: &str) -> Option<String> {
        let own = self.value(&["name"]).and_then(|name| key.strip_prefix(&name)?.strip_prefix(':'));
        let bare = own.unwrap_or(key);
        let full = self.value(&["name"]).map(|name| format!("{name}:{bare}"));
        let mut keys = [Some(key), Some(bare), full.as_deref()].into_iter().flatten();
        keys.find_map(|key| self.value(&["config", key, member]))
    }

    /// The text behind the last member of a path on a line.
    fn line_value(&self, path: &[&str]) -> Option<String> {
        // The indentation of each member on the way to a line, with whether the path leads there.
        let mut above: Vec<(usize, bool)> = Vec::new();
        for line in self.0.lines() {
            let text = line.trim_start();
            let Some((name, value)) = member(text).filter(|_| !text.starts_with('#')) else { continue };
            let indent = line.len() - text.len();
            above.retain(|(other, _)| *other < indent);
            let is_on_path = above.iter().all(|(_, it)| *it) && path.get(above.len()) == Some(&name);
            if is_on_path && above.len() + 1 == path.len() {
                let value = unquoted(value.split(" #").next().unwrap_or_default());
                return (!value.is_empty()).then(|| value.to_owned());
            }
            above.push((indent, is_on_path));
        }
        None
    }
}

/// The name and the value of `name: value`. A colon within a name is not followed by a space.
fn member(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(": ").or_else(|| Some((text.trim_end().strip_suffix(':')?, "")))?;
    Some((unquoted(name), value))
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

/// The text of a member of `{a: b, c: {d: e}}`.
fn inline_member(text: &str, name: &str) -> Option<String> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut depth = 0_usize;
    let mut members = inside.split(|character| {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    let (_, value) = members.find_map(|text| member(text).filter(|(other, _)| *other == name))?;
    Some(unquoted(value).to_owned())
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
        let text = "name: p\nconfig:\n  pin:\n    type: string\n    secret: true\n  p:tags: {type: object}\n  \"aws:region\": {default: x}\n";
        for text in [
            text,
            "name: p\nconfig: {pin: {type: string, secret: true}, 'p:tags': {items: {type: x}, type: object}}",
        ] {
            let project = Project(text.to_owned());
            let declared = |key, member| project.declared(key, member);
            assert_eq!(declared("pin", "secret").as_deref(), Some("true"));
            assert_eq!(declared("p:pin", "type").as_deref(), Some("string"));
            assert_eq!(declared("tags", "type").as_deref(), Some("object"));
            assert_eq!((declared("tags", "secret"), declared("aws:region", "type")), (None, None));
        }
        let short = Project("runtime: nodejs\nname: x\n".to_owned());
        assert_eq!(short.value(&["runtime"]).as_deref(), Some("nodejs"));
    }
}
