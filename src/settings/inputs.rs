//! Everything that settings are read from, as a value. Loading uses nothing else, so a test controls all of it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use super::SettingsError;
use super::diagnostics::{Diagnostics, Origin};
use super::values::SettingFault;

/// The inputs of [`load`](super::load).
#[derive(Clone, Default)]
pub struct SettingsInputs {
    /// Contains the settings files; relative paths are resolved against it.
    pub working_dir: PathBuf,
    pub environment: Vec<(OsString, OsString)>,
    /// Arguments such as `--Runner:Id=…`, without program name and subcommand.
    pub arguments: Vec<String>,
    /// Replaces a leading `~`.
    pub home: Option<PathBuf>,
    /// The default of `Runner.Instance`.
    pub host_name: String,
}

impl SettingsInputs {
    /// The inputs of this process. `arguments` are the settings from its command line.
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
    pub(super) fn environment_name(&self, diagnostics: &mut Diagnostics) -> String {
        const DEFAULT: &str = "Production";
        for name in ["DOTNET_ENVIRONMENT", "ASPNETCORE_ENVIRONMENT"] {
            let Some((variable, value)) = self.variable(name) else { continue };
            match value.to_str() {
                Some(name) if !name.contains(['/', '\0']) => return name.to_owned(),
                _ => {
                    let variable = Origin::Variable(variable.to_string_lossy().into_owned());
                    diagnostics.layer_problem(variable, SettingFault::NotEnvironment);
                }
            }
        }
        DEFAULT.to_owned()
    }

    /// Finds a variable, case-insensitive; an empty one counts as not set.
    fn variable(&self, wanted: &str) -> Option<(&OsStr, &OsStr)> {
        self.environment
            .iter()
            .find(|(name, value)| name.eq_ignore_ascii_case(wanted) && !value.is_empty())
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl fmt::Debug for SettingsInputs {
    /// Omits the environment and the arguments, which may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsInputs")
            .field("working_dir", &self.working_dir)
            .field("home", &self.home)
            .field("host_name", &self.host_name)
            .finish_non_exhaustive()
    }
}
