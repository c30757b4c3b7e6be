//! Names and paths: modules, extra files, environment variables, and backend settings. `*` matches any text, except a slash
//! in the patterns of modules and files, which are matched part by part. All of them are case-sensitive.

use std::path::{Component, Path};
use std::str::FromStr;

use crate::base::wildcard::Wildcard;

/// One entry of `Policy.AllowedModules`: `stack/namespace/module`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModulePattern([Wildcard; 3]);

impl FromStr for ModulePattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.trim().split('/').collect();
        match parts.as_slice() {
            [stack, namespace, module] if !parts.contains(&"") => {
                Ok(Self([stack, namespace, module].map(|part| Wildcard::new(part))))
            }
            _ => Err("is not stack/namespace/module; write it with two slashes, such as prod/*/*"),
        }
    }
}

impl ModulePattern {
    pub fn matches(&self, names: [&str; 3]) -> bool {
        self.0.iter().zip(names).all(|(pattern, name)| !name.contains('/') && pattern.matches(name))
    }
}

/// One entry of `Policy.AllowedExtraFiles`: a path below a module's directory.
#[derive(Debug, Clone, PartialEq)]
pub struct FilePattern(Vec<Wildcard>);

impl FromStr for FilePattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match parts(text.trim()) {
            Some(parts) => Ok(Self(parts.into_iter().map(Wildcard::new).collect())),
            None => Err(
                "is not a path below a module's directory; write it like backend.tf or conf/*.yaml, without ..",
            ),
        }
    }
}

impl FilePattern {
    /// Matches the path as the workspace reads it, without `.` and repeated slashes.
    pub fn matches(&self, name: &str) -> bool {
        parts(name).is_some_and(|parts| {
            parts.len() == self.0.len()
                && self.0.iter().zip(parts).all(|(pattern, part)| pattern.matches(part))
        })
    }
}

/// None for a path that leaves the directory or does not name a file.
fn parts(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty() && !path.ends_with('/')).then_some(parts)
}

/// One entry of `Policy.AllowedVariables`.
#[derive(Debug, Clone, PartialEq)]
pub struct VariablePattern(Wildcard);

impl FromStr for VariablePattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            name if name.is_empty() || name.contains('=') => {
                Err("is not the name of an environment variable; write a name such as TF_VAR_*, without =")
            }
            name => Ok(Self(Wildcard::new(name))),
        }
    }
}

impl VariablePattern {
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

/// One entry of `Policy.AllowedBackendSettings`.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendPattern {
    text: String,
    name: Wildcard,
    /// None matches any value.
    value: Option<Wildcard>,
}

impl FromStr for BackendPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(Wildcard::new(value))),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(
                "is not a backend setting; write it like bucket, or bucket=my-state-* to restrict its value",
            );
        }
        Ok(Self { text: text.to_owned(), name: Wildcard::new(name), value })
    }
}

impl BackendPattern {
    /// `setting` is in the form of `Engine::backend_change`. Values are compared as they were
    /// sent, before variables are expanded.
    pub fn matches(&self, setting: &str) -> bool {
        match setting.split_once('=') {
            Some((name, value)) => {
                self.name.matches(name) && self.value.as_ref().is_none_or(|pattern| pattern.matches(value))
            }
            // A file can contain any setting, and a wildcard could match a file that the server wrote.
            None => self.text == setting && !setting.contains(['*', '$']),
        }
    }
}
