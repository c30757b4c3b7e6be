//! What is wrong with the settings, and what only looks so.

use std::fmt;

use super::bind::Effective;
use super::values::Fault;

/// Where a value came from, in words: `appsettings.json`, `environment variable Runner__Id`, `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    pub(super) fn file(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(super) fn environment(variable: &str) -> Self {
        Self(format!("environment variable {variable}"))
    }

    pub(super) fn command_line(option: &str) -> Self {
        Self(format!("command line, --{option}"))
    }

    pub(super) fn is_command_line(&self) -> bool {
        self.0.starts_with("command line")
    }

    pub(super) fn is_file(&self) -> bool {
        self.0.starts_with("appsettings.")
    }

    pub(super) fn default() -> Self {
        Self("default".to_owned())
    }

    pub(super) fn nowhere() -> Self {
        Self("nowhere".to_owned())
    }

    pub(super) fn host_name() -> Self {
        Self("host name".to_owned())
    }

    pub(super) fn from_words(words: &str) -> Self {
        Self(words.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One thing that keeps the runner from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, as in `Runner.Id`; none when the trouble is a whole layer.
    pub key: Option<String>,
    /// What it was set to, unless that may be secret.
    pub value: Option<String>,
    /// Where that came from; none when it is set nowhere.
    pub origin: Option<Origin>,
    /// What is wrong with it. Its display says what to do, too.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, origin, fault } = self;
        if let Some(key) = key {
            write!(f, "{key}")?;
        }
        if let Some(value) = value {
            write!(f, " = {value:?}")?;
        }
        match (key, origin) {
            (Some(_), Some(origin)) => write!(f, " ({origin}): ")?,
            (Some(_), None) => write!(f, ": ")?,
            (None, Some(origin)) => write!(f, "{origin}: ")?,
            (None, None) => {}
        }
        write!(f, "{fault}")
    }
}

/// One thing that the runner can live with and the user should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// A key that means nothing. Its value is never shown: it may be a secret under a wrong name.
    Unknown { key: String, origin: Origin, nearest: Option<String> },
    /// A key that would be a setting with the separators of its layer.
    OtherSeparators { key: String, origin: Origin, how: String },
    /// A key of an earlier version.
    OlderName { older: String, newer: String, origin: Origin },
    /// One layer sets a key twice, in different spellings, to different values.
    GivenTwice {
        key: String,
        /// Where it stands for the last time in that layer.
        origin: Origin,
        /// The value in effect, masked if it is secret, and where that stands; none when it cannot be used.
        counts: Option<(String, Origin)>,
    },
    /// The file with references to secrets is not read by this version.
    ExternalNotRead { file: String },
    /// A file with a secret in it can be read by other users of the machine.
    SecretReadable { key: String, file: String, mode: u32 },
    /// A secret stands on the command line, which everybody on the machine can read.
    SecretOnCommandLine { key: String },
    /// Pre-approval is on, and nothing is approved.
    NothingPreapproved,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key, origin, nearest } => {
                write!(f, "{key} ({origin}) is not a setting and has no effect")?;
                match nearest {
                    Some(nearest) => write!(f, "; did you mean {nearest}?"),
                    None => Ok(()),
                }
            }
            Self::OtherSeparators { key, origin, how } => {
                write!(f, "{key} ({origin}) has no effect as it is written; write {how}")
            }
            Self::OlderName { older, newer, origin } => {
                write!(f, "{older} ({origin}) is the older name of {newer}, which wins where both are set")
            }
            Self::GivenTwice { key, origin, counts } => {
                write!(f, "{key} is set more than once in the same layer ({origin})")?;
                match counts {
                    Some((value, from)) if from == origin => write!(f, "; the last one counts, {value:?}"),
                    Some((value, from)) => write!(f, "; none of these counts, but {value:?} ({from})"),
                    None => Ok(()),
                }
            }
            Self::ExternalNotRead { file } => {
                write!(
                    f,
                    "{file} is there, but this version does not read external settings: set what it refers to \
                     in another layer"
                )
            }
            Self::SecretOnCommandLine { key } => write!(
                f,
                "{key} stands on the command line, which everybody on this machine can read: set it in the environment, or \
                 in a file that others cannot read"
            ),
            Self::SecretReadable { key, file, mode } => {
                write!(
                    f,
                    "{key} stands in {file}, which others on this machine can read (mode {mode:o}): chmod 600 it, or \
                     set the secret in another layer"
                )
            }
            Self::NothingPreapproved => {
                write!(
                    f,
                    "hooks must be pre-approved (HooksPreapproval.Enabled, Policy.Hooks), and \
                     HooksPreapproval.PreapprovedHooksDirectory is not set or not there: every hook will be refused"
                )
            }
        }
    }
}

/// One or the other.
pub(super) enum Finding {
    Problem(Problem),
    Warning(Warning),
}

impl Finding {
    pub(super) fn tell(self, findings: &mut Findings) {
        match self {
            Self::Problem(problem) => findings.problems.push(problem),
            Self::Warning(warning) => findings.warn(warning),
        }
    }
}

/// What came up while reading, in order.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl Findings {
    pub(super) fn problem(
        &mut self,
        key: &str,
        value: Option<String>,
        origin: Option<&Origin>,
        fault: Fault,
    ) {
        self.problems.push(Problem { key: Some(key.to_owned()), value, origin: origin.cloned(), fault });
    }

    /// Trouble with a layer as a whole.
    pub(super) fn layer_problem(&mut self, origin: Origin, fault: Fault) {
        self.problems.push(Problem { key: None, value: None, origin: Some(origin), fault });
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Which value counts is known when all layers are.
    pub(super) fn complete_twice(&mut self, effective: &[Effective]) {
        for warning in &mut self.warnings {
            if let Warning::GivenTwice { key, counts, .. } = warning {
                let found = effective.iter().find(|one| one.key == *key);
                *counts = found.map(|one| (one.value.clone(), one.origin.clone()));
            }
        }
    }

    /// Drops what only follows from another problem: a key that is missing because what was said about it, or
    /// about its section, could not be used, or because the file that it may stand in could not be read.
    pub(super) fn drop_echoes(&mut self, all_files_read: bool) {
        let is_missing = |problem: &Problem| matches!(problem.fault, Fault::Missing { .. });
        let blamed: Vec<String> = self
            .problems
            .iter()
            .filter(|problem| !is_missing(problem))
            .filter_map(|problem| problem.key.as_ref().map(|key| format!("{}.", key.to_lowercase())))
            .collect();
        self.problems.retain(|problem| {
            let key = format!("{}.", problem.key.as_deref().unwrap_or_default().to_lowercase());
            !is_missing(problem) || all_files_read && !blamed.iter().any(|blamed| key.starts_with(blamed))
        });
    }
}
