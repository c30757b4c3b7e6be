//! Patterns of extra files: paths below a module's directory, matched part by part, so that `*` never matches a slash.

use std::path::{Component, Path};
use std::str::FromStr;

use crate::base::wildcard::Wildcard;

/// One entry of `Policy.AllowedExtraFiles`.
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
    /// Matches the path as the workspace reads it, without `.` and repeated slashes. Case-sensitive.
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
