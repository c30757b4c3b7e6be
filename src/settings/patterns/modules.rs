//! Patterns of modules: `stack/namespace/module`, matched part by part, so that `*` never matches a slash.

use std::str::FromStr;

use crate::base::wildcard::Wildcard;

/// One entry of `Policy.AllowedModules`.
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
    /// Case-sensitive.
    pub fn matches(&self, names: [&str; 3]) -> bool {
        self.0.iter().zip(names).all(|(pattern, name)| !name.contains('/') && pattern.matches(name))
    }
}
