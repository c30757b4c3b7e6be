//! `hawser settings`: prints the effective settings and the source of each.

use super::overrides::{self, Overrides};
use super::{Failure, out};
use crate::settings::{self, Effective, SettingsError};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let loaded = match args.overrides.read(settings::load) {
        Ok(loaded) => loaded,
        Err(error) => {
            // The settings that are known help to find the ones that are missing.
            if let SettingsError::Invalid { effective, .. } = &error {
                out::document(&table(effective))?;
            }
            return Err(overrides::failure(&error));
        }
    };
    for warning in &loaded.warnings {
        out::aside(format_args!("warning: {warning}"));
    }
    out::document(&table(&loaded.effective))
}

/// Key, value, and source in columns. A value that is too long moves only its own source to the right.
fn table(effective: &[Effective]) -> String {
    const WIDEST: usize = 48;
    let rows: Vec<(&str, String, String)> = effective
        .iter()
        // A line break in a value must not look like another setting.
        .map(|setting| (setting.key.as_str(), escaped(&setting.value), setting.origin.to_string()))
        .collect();
    let width = |text: &str| text.chars().count();
    let key_width = rows.iter().map(|(key, ..)| width(key)).max().unwrap_or(0);
    let value_width =
        rows.iter().map(|(_, value, _)| width(value)).filter(|width| *width <= WIDEST).max().unwrap_or(0);
    rows.iter()
        .map(|(key, value, origin)| format!("{key:key_width$}  {value:value_width$}  {origin}\n"))
        .collect()
}

fn escaped(value: &str) -> String {
    value.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
