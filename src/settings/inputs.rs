//! Everything that settings are read from, as a value: loading looks at nothing else, so a test can say it all.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use super::SettingsError;
use super::diagnostics::{Diagnostics, Origin};
use super::values::Fault;

/// The inputs of [`load`](super::load).
#[derive(Clone, Default)]
pub struct Origins {
    /// Where the settings files are, and what relative paths count from.
    pub working_dir: PathBuf,
    /// The environment, as the process got it.
    pub environment: Vec<(OsString, OsString)>,
    /// `--Runner:Id=…` and the like, without program name and subcommand.
    pub arguments: Vec<String>,
    /// What a leading `~` stands for.
    pub home: Option<PathBuf>,
    /// What `Runner.Instance` falls back to.
    pub host_name: String,
}

impl Origins {
    /// Those of this process, with the arguments that the command line keeps for settings.
    pub fn from_process(arguments: Vec<String>) -> Result<Self, SettingsError> {
        Ok(Self {
            working_dir: std::env::current_dir().map_err(SettingsError::CurrentDirectory)?,
            environment: std::env::vars_os().collect(),
            arguments,
            home: dirs::home_dir(),
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        })
    }

    /// The name in `appsettings.{Environment}.json`.
    pub(super) fn environment_name(&self, findings: &mut Diagnostics) -> String {
        const DEFAULT: &str = "Production";
        for wanted in ["DOTNET_ENVIRONMENT", "ASPNETCORE_ENVIRONMENT"] {
            let Some((variable, value)) = self.variable(wanted) else { continue };
            match value.to_str() {
                Some(name) if !name.contains(['/', '\0']) => return name.to_owned(),
                _ => {
                    let variable = Origin::Variable(variable.to_string_lossy().into_owned());
                    findings.layer_problem(variable, Fault::NotEnvironment);
                }
            }
        }
        DEFAULT.to_owned()
    }

    /// A variable by name in any case; an empty one counts as not set.
    fn variable(&self, wanted: &str) -> Option<(&OsStr, &OsStr)> {
        self.environment
            .iter()
            .find(|(name, value)| name.eq_ignore_ascii_case(wanted) && !value.is_empty())
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl fmt::Debug for Origins {
    /// Without values: the environment and the arguments may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origins")
            .field("working_dir", &self.working_dir)
            .field("home", &self.home)
            .field("host_name", &self.host_name)
            .finish_non_exhaustive()
    }
}
