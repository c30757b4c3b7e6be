//! Backend settings: `Policy.AllowedBackendSettings`.
//!
//! A setting is judged as the engine gets it: `name=value`, cut at the first equals sign, or the name of a file. Some are code
//! (`shared_config_files` of the S3 backend names a file that names a program), some say where a state is read and written,
//! and `${NAME}` in a value is a variable of the host.

use std::str::FromStr;

use crate::base::wildcard::Wildcard;
use crate::engines::flags::value_of;
use crate::engines::terraform;
use hawser_contract::requests::Init;
use hawser_contract::{Engine, PulumiFlag};

/// One entry of `Policy.AllowedBackendSettings`.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendPattern {
    text: String,
    name: Wildcard,
    /// None for any value.
    value: Option<Wildcard>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("names no backend setting; write it like bucket, or like bucket=my-state-* for some values only")]
pub struct BackendPatternError;

impl FromStr for BackendPattern {
    type Err = BackendPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(Wildcard::new(value))),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(BackendPatternError);
        }
        Ok(Self { text: text.to_owned(), name: Wildcard::new(name), value })
    }
}

impl BackendPattern {
    /// `setting` is what [`terraform::backend_settings`] makes. Capitals count. A value is compared as it was sent, with its
    /// variables not yet looked up.
    pub fn matches(&self, setting: &str) -> bool {
        match setting.split_once('=') {
            Some((name, value)) => {
                self.name.matches(name) && self.value.as_ref().is_none_or(|pattern| pattern.matches(value))
            }
            // A file may hold any setting, and a star could lead to one that the server has written.
            None => self.text == setting && !setting.contains(['*', '$']),
        }
    }
}

/// What an Init would tell its engine about the backend. For Pulumi that is where it logs in.
pub(super) fn given(init: &Init) -> Vec<String> {
    if init.engine == Engine::Pulumi {
        let url = value_of(&init.backend_configuration.pulumi_flags.known, PulumiFlag::CloudUrl);
        return url.into_iter().map(|url| format!("CloudUrl={url}")).collect();
    }
    terraform::backend_settings(&init.backend_configuration)
}

/// A setting as it is told of: values may be secret.
pub(super) fn shown(setting: &str) -> String {
    match setting.split_once('=') {
        Some((name, _)) => format!("the backend setting {name:?}"),
        None => format!("the file {setting:?} of backend settings"),
    }
}
