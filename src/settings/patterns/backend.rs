//! Backend settings: `Policy.AllowedBackendSettings`.

use std::str::FromStr;

use crate::base::wildcard::Wildcard;

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
    /// `setting` is in the form that `terraform::backend_settings` returns. Case-sensitive. Values are compared as they were
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
