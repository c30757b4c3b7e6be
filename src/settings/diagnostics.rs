//! Problems and warnings found while loading the settings.

use std::fmt;

use thiserror::Error;

use super::values::SettingFault;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// Required, and not set.
    NotSet,
    HostName,
    File(String),
    /// An environment variable.
    Variable(String),
    /// The command line as a whole.
    CommandLine,
    /// An option on the command line.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::NotSet => f.write_str("-"),
            Self::HostName => f.write_str("host name"),
            Self::File(name) => f.write_str(name),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Option(name) => write!(f, "command line, --{name}"),
        }
    }
}

/// A problem that prevents the runner from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The setting, such as `Runner.Id`; None for a problem with a whole layer.
    pub key: Option<String>,
    /// Its value, unless it may be secret.
    pub value: Option<String>,
    /// None if it is not set.
    pub origin: Option<Origin>,
    pub fault: SettingFault,
}

impl fmt::Display for SettingsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, origin, fault } = self;
        let value = value.as_ref().map(|value| format!(" = {value:?}")).unwrap_or_default();
        match (key, origin) {
            (Some(key), Some(origin)) => write!(f, "{key}{value} ({origin}): {fault}"),
            (Some(key), None) => write!(f, "{key}{value}: {fault}"),
            (None, Some(origin)) => write!(f, "{origin}: {fault}"),
            (None, None) => write!(f, "{fault}"),
        }
    }
}

/// A problem that does not prevent the runner from starting.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Warning {
    /// The value is never shown: it may be a secret under a wrong name.
    #[error("{key} ({origin}) is not a setting and has no effect{}", did_you_mean(nearest.as_deref()))]
    Unknown { key: String, origin: Origin, nearest: Option<String> },
    #[error("{older} ({origin}) is the old name of {newer}, which wins if both are set")]
    OlderName { older: &'static str, newer: &'static str, origin: Origin },
    /// One layer sets a key to different values, in different spellings.
    #[error("{key} is set more than once in the same layer; the last value wins ({origin})")]
    SetTwice { key: String, origin: Origin },
    #[error(
        "{file} is ignored: this version does not read external settings; set its values in another layer"
    )]
    ExternalNotRead { file: String },
    #[error(
        "{key} is in {file}, which other users of this machine can read (mode {mode:o}); run chmod 600, or set the secret \
         in another layer"
    )]
    SecretReadable { key: String, file: String, mode: u32 },
    #[error(
        "{key} is on the command line, which every user of this machine can read; set it in the environment, or in a file \
         that only you can read"
    )]
    SecretOnCommandLine { key: String },
    #[error(
        "hooks must be pre-approved (HooksPreapproval.Enabled, Policy.Hooks), but \
         HooksPreapproval.PreapprovedHooksDirectory is not set or does not exist; every hook will be refused"
    )]
    NothingPreapproved,
}

impl Warning {
    /// Whether it concerns one of these sections, a layer as a whole, or the command line, which the user has just typed.
    pub(super) fn concerns(&self, sections: &[&str]) -> bool {
        let is_one = |key: &str| {
            let section = key.split(['.', ':']).next().unwrap_or_default();
            sections.iter().any(|needed| needed.eq_ignore_ascii_case(section))
        };
        match self {
            Self::Unknown { origin: Origin::CommandLine | Origin::Option(_), .. }
            | Self::ExternalNotRead { .. }
            | Self::SecretOnCommandLine { .. } => true,
            Self::Unknown { key, nearest, .. } => is_one(nearest.as_deref().unwrap_or(key)),
            Self::OlderName { newer, .. } => is_one(newer),
            Self::SetTwice { key, .. } | Self::SecretReadable { key, .. } => is_one(key),
            Self::NothingPreapproved => is_one("HooksPreapproval"),
        }
    }
}

pub(super) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

/// Problems and warnings, in the order they were found.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    pub(super) problems: Vec<SettingsProblem>,
    pub(super) warnings: Vec<Warning>,
}

impl Diagnostics {
    pub(super) fn problem(&mut self, key: &str, origin: &Origin, fault: SettingFault) {
        self.problem_with_value(key, None, Some(origin), fault);
    }

    pub(super) fn problem_with_value(
        &mut self,
        key: &str,
        value: Option<String>,
        origin: Option<&Origin>,
        fault: SettingFault,
    ) {
        let problem = SettingsProblem { key: Some(key.to_owned()), value, origin: origin.cloned(), fault };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Adds a problem with a whole layer.
    pub(super) fn layer_problem(&mut self, origin: Origin, fault: SettingFault) {
        self.problems.push(SettingsProblem { key: None, value: None, origin: Some(origin), fault });
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Drops missing keys that another problem explains: with the key, with its section, or with an unreadable layer.
    pub(super) fn drop_consequences(&mut self) {
        let is_missing = |problem: &SettingsProblem| matches!(problem.fault, SettingFault::Missing { .. });
        // A problem with a whole layer has no key, so its prefix is empty and matches every key.
        let prefix_of = |problem: &SettingsProblem| {
            problem.key.as_ref().map_or_else(String::new, |key| format!("{}.", key.to_lowercase()))
        };
        let explained: Vec<String> =
            self.problems.iter().filter(|problem| !is_missing(problem)).map(prefix_of).collect();
        self.problems.retain(|problem| {
            !is_missing(problem)
                || !explained.iter().any(|explained| prefix_of(problem).starts_with(explained))
        });
    }
}
