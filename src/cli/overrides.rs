//! The tail of a command line: settings that win over files and environment.

use super::{Failure, out};
use crate::settings::{self, Loaded, Origins, SettingsError};

/// For `#[command(flatten)]`. Options of the command itself come first; from the first setting on, everything is
/// a setting.
#[derive(Debug, clap::Args)]
pub(super) struct Overrides {
    /// Settings that win over files and environment: `--Runner:Instance=blue`, `--Runner:Instance blue`
    #[arg(value_name = "--SECTION:KEY=VALUE", trailing_var_arg = true, allow_hyphen_values = true)]
    settings: Vec<String>,
}

impl Overrides {
    /// The name of an option that can be no setting, because it has no section.
    pub(super) fn not_of_a_section(&self) -> Option<&str> {
        let names = self.settings.iter().filter(|argument| argument.starts_with('-'));
        names.filter_map(|argument| argument.split('=').next()).find(|name| !name.contains(':'))
    }

    /// The settings of this process. Warnings are the caller's to tell; with problems they are told here.
    pub(super) fn load(self) -> Result<Loaded, Failure> {
        self.read(settings::load).map_err(|error| failure(&error))
    }

    /// What `how` makes of the settings of this process.
    pub(super) fn read<T>(
        self,
        how: impl FnOnce(&Origins) -> Result<T, SettingsError>,
    ) -> Result<T, SettingsError> {
        Origins::from_process(self.settings).and_then(|origins| how(&origins))
    }
}

/// Tells the warnings, since a misspelt key is often the reason for a missing one.
pub(super) fn failure(error: &SettingsError) -> Failure {
    match error {
        SettingsError::CurrentDirectory(source) => Failure::temporary(format!("{error}: {source}")),
        SettingsError::Invalid { warnings, .. } => {
            for warning in warnings {
                out::aside(format_args!("warning: {warning}"));
            }
            Failure::settings(error.to_string())
                .hint("`hawser schema` describes every setting; appsettings.example.json shows them all")
        }
    }
}
