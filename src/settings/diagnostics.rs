//! What is wrong with the settings, and what only looks so.

use std::fmt;

use thiserror::Error;

use super::values::Fault;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// Required, and not set.
    Nowhere,
    HostName,
    File(String),
    /// A variable of the environment.
    Variable(String),
    /// The command line as a whole.
    CommandLine,
    /// An option on the command line.
    Option(String),
}

impl Origin {
    pub(super) fn is_command_line(&self) -> bool {
        matches!(self, Self::CommandLine | Self::Option(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Nowhere => f.write_str("nowhere"),
            Self::HostName => f.write_str("host name"),
            Self::File(name) => f.write_str(name),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Option(name) => write!(f, "command line, --{name}"),
        }
    }
}

/// One thing that keeps the runner from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The setting, as in `Runner.Id`; none when the trouble is a whole layer.
    pub key: Option<String>,
    /// What it was set to, unless that may be secret.
    pub value: Option<String>,
    /// Where that came from; none when it is set nowhere.
    pub origin: Option<Origin>,
    /// What is wrong with it. Its display says what to do, too.
    pub fault: Fault,
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

/// One thing that the runner can live with and the user should know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Warning {
    /// A key that means nothing. Its value is never shown: it may be a secret under a wrong name.
    #[error("{key} ({origin}) is not a setting and has no effect{}", did_you_mean(nearest.as_deref()))]
    Unknown { key: String, origin: Origin, nearest: Option<String> },
    /// A key of an earlier version.
    #[error("{older} ({origin}) is the older name of {newer}, which wins where both are set")]
    OlderName { older: &'static str, newer: &'static str, origin: Origin },
    /// One layer sets a key twice, in different spellings, to different values.
    #[error("{key} is set more than once in the same layer; the last one counts ({origin})")]
    GivenTwice { key: String, origin: Origin },
    /// The file with references to secrets is not read by this version.
    #[error(
        "{file} is there, but this version does not read external settings: set what it refers to in another layer"
    )]
    ExternalNotRead { file: String },
    /// A file with a secret in it can be read by other users of the machine.
    #[error(
        "{key} stands in {file}, which others on this machine can read (mode {mode:o}): chmod 600 it, or set the secret \
         in another layer"
    )]
    SecretReadable { key: String, file: String, mode: u32 },
    /// A secret stands on the command line, which everybody on the machine can read.
    #[error(
        "{key} stands on the command line, which everybody on this machine can read: set it in the environment, or in \
         a file that others cannot read"
    )]
    SecretOnCommandLine { key: String },
    /// Pre-approval is on, and nothing is approved.
    #[error(
        "hooks must be pre-approved (HooksPreapproval.Enabled, Policy.Hooks), and \
         HooksPreapproval.PreapprovedHooksDirectory is not set or not there: every hook will be refused"
    )]
    NothingPreapproved,
}

pub(super) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

/// What came up while reading, in order.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    pub(super) problems: Vec<SettingsProblem>,
    pub(super) warnings: Vec<Warning>,
}

impl Diagnostics {
    pub(super) fn problem(
        &mut self,
        key: &str,
        value: Option<String>,
        origin: Option<&Origin>,
        fault: Fault,
    ) {
        let problem = SettingsProblem { key: Some(key.to_owned()), value, origin: origin.cloned(), fault };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Trouble with a layer as a whole.
    pub(super) fn layer_problem(&mut self, origin: Origin, fault: Fault) {
        self.problems.push(SettingsProblem { key: None, value: None, origin: Some(origin), fault });
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Drops missing keys that only follow from another problem: with the key, with its section, or with a layer that
    /// could not be read.
    pub(super) fn drop_echoes(&mut self) {
        let is_missing = |problem: &SettingsProblem| matches!(problem.fault, Fault::Missing { .. });
        // A problem with a whole layer has no key, and every key starts with that.
        let prefix_of = |problem: &SettingsProblem| {
            problem.key.as_ref().map_or_else(String::new, |key| format!("{}.", key.to_lowercase()))
        };
        let blamed: Vec<String> =
            self.problems.iter().filter(|problem| !is_missing(problem)).map(prefix_of).collect();
        self.problems.retain(|problem| {
            !is_missing(problem) || !blamed.iter().any(|blamed| prefix_of(problem).starts_with(blamed))
        });
    }
}
