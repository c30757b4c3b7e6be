//! Patterns of environment variables.

use std::str::FromStr;

use crate::base::wildcard::Wildcard;

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
    /// Case-sensitive.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}
