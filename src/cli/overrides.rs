//! Settings at the end of a command line, which override files and environment variables.

use super::{Failure, out};
use crate::settings::{self, Loaded, SettingsError, SettingsInputs};

/// For `#[command(flatten)]`. The command's own options come first; everything after the first setting is a setting.
#[derive(Debug, clap::Args)]
pub(super) struct Overrides {
    /// Settings that override files and environment variables: `--Runner:Instance=blue`, `--Runner:Instance blue`
    #[arg(value_name = "--SECTION:KEY=VALUE", trailing_var_arg = true, allow_hyphen_values = true)]
    settings: Vec<String>,
}

impl Overrides {
    /// The first option that cannot be a setting, because it has no section.
    pub(super) fn without_section(&self) -> Option<&str> {
        let names = self.settings.iter().filter(|argument| argument.starts_with('-'));
        names.filter_map(|argument| argument.split('=').next()).find(|name| !name.contains(':'))
    }

    /// Loads the settings of this process. The caller reports the warnings, unless loading fails.
    pub(super) fn load(self) -> Result<Loaded, Failure> {
        self.read(settings::load).map_err(|error| failure(&error))
    }

    /// Calls `load` with the inputs of this process.
    pub(super) fn read<T>(
        self,
        load: impl FnOnce(&SettingsInputs) -> Result<T, SettingsError>,
    ) -> Result<T, SettingsError> {
        SettingsInputs::from_process(self.settings).and_then(|inputs| load(&inputs))
    }
}

/// Also prints the warnings, because a misspelled key is often the reason for a missing one.
pub(super) fn failure(error: &SettingsError) -> Failure {
    match error {
        SettingsError::CurrentDirectory(source) => Failure::temporary(format!("{error}: {source}")),
        SettingsError::Inconsistent(_) => Failure::settings(error.to_string()),
        SettingsError::Invalid { warnings, .. } => {
            for warning in warnings {
                out::aside(format_args!("warning: {warning}"));
            }
            Failure::settings(error.to_string())
                .hint("`hawser schema` describes every setting, and appsettings.example.json shows them all")
        }
    }
}
