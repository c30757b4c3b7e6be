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

/// Values up to this width are in a column. Longer lists continue on the next line.
const WIDEST: usize = 48;

/// Key, value, and source in columns. A value that is too long moves only its own source to the right.
fn table(effective: &[Effective]) -> String {
    let rows: Vec<(&str, Vec<String>, String)> = effective
        .iter()
        // A line break in a value must not look like another setting.
        .map(|setting| (setting.key.as_str(), lines(&escaped(&setting.value)), setting.origin.to_string()))
        .collect();
    let key_width = rows.iter().map(|(key, ..)| width(key)).max().unwrap_or(0);
    let values = rows.iter().flat_map(|(_, value, _)| value);
    let value_width = values.map(|line| width(line)).filter(|width| *width <= WIDEST).max().unwrap_or(0);
    let mut table = String::new();
    for (key, value, origin) in rows {
        for (at, line) in value.iter().enumerate() {
            let (key, origin) = if at == 0 { (key, origin.as_str()) } else { ("", "") };
            let row = format!("{key:key_width$}  {line:value_width$}  {origin}");
            table.push_str(row.trim_end());
            table.push('\n');
        }
    }
    table
}

/// Breaks a long list between its items.
fn lines(value: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for item in value.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.is_empty() || width(line) + width(item.trim_end()) <= WIDEST => {
                line.push_str(item);
            }
            _ => lines.push(item.to_owned()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn escaped(value: &str) -> String {
    value.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Origin;

    #[test]
    fn a_long_list_continues_below_its_first_items() {
        let setting =
            |key: &str, value: String| Effective { key: key.to_owned(), value, origin: Origin::Default };
        let items: Vec<String> = (10..30).map(|number| format!("item-{number}")).collect();
        let table = table(&[setting("A.List", items.join(", ")), setting("A.Path", "/x".repeat(40))]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with("A.List  item-10, item-11,") && lines[0].ends_with("default"),
            "{table}"
        );
        assert!(lines[1].starts_with("        item-15, "), "{table}");
        assert!(lines.iter().all(|line| line.len() < 100), "{table}");
        assert_eq!(lines.len(), 5, "{table}");
    }
}
