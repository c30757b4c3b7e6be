//! `hawser clean`: lists the leftovers of old jobs, and removes them with `--yes`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::overrides::{self, Overrides};
use super::{Failure, out};
use crate::clean::{CleanError, CleanOptions, Report, clean};
use crate::settings;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Remove the leftovers instead of only listing them
    #[arg(long)]
    yes: bool,
    /// Minimum age of damaged steps, caches, and modules since their last use (90m, 12h, 30d, 8w)
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = age)]
    older_than: Duration,
    /// Also remove old cached repositories
    #[arg(long)]
    caches: bool,
    /// Also remove old module directories, except those that contain state
    #[arg(long)]
    modules: bool,
    /// Also remove old module directories that contain state; their resources keep existing without any record of them
    #[arg(long, requires = "modules")]
    with_state: bool,
    /// Also remove this rescued state; can be repeated
    #[arg(long, value_name = "PATH")]
    rescued: Vec<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let Args { yes, older_than, caches, modules, with_state, rescued, overrides } = args;
    // An unknown setting causes only a warning, but a misspelled option must not remove more than intended.
    if let Some(option) = overrides.without_section() {
        let message = format!("{option} is not an option of `hawser clean`, or comes after a setting");
        return Err(Failure::usage(message).hint("`hawser clean --help` lists the options"));
    }
    let loaded = overrides.read(settings::load_working_directory);
    let (directories, warnings) = loaded.map_err(|error| overrides::failure(&error))?;
    for warning in &warnings {
        out::aside(format_args!("warning: {warning}"));
    }
    let options = CleanOptions { older_than, caches, modules, with_state, rescued, remove: yes };
    let report = clean(&directories, &options, SystemTime::now()).map_err(failure)?;
    print(&report, yes)
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn failure(error: CleanError) -> Failure {
    let message = error.to_string();
    match error {
        CleanError::NoWorkingDirectory { .. } => Failure::settings(message),
        CleanError::NotRescued { .. } => Failure::usage(message),
        CleanError::List { .. } => Failure::failed(message),
    }
}

fn print(report: &Report, removed: bool) -> Result<(), Failure> {
    let verb = if removed { "removed" } else { "would remove" };
    for item in &report.leftovers {
        out::line(format_args!(
            "{verb} {:>10}  {}  ({})",
            size_text(item.bytes),
            item.path.display(),
            item.what
        ));
    }
    for kept in &report.kept {
        out::line(format_args!("kept {}: {}", kept.path.display(), kept.reason));
    }
    let (count, bytes) = (report.leftovers.len(), size_text(report.bytes()));
    let items = if count == 1 { "item" } else { "items" };
    match (count, removed) {
        (0, _) => out::line("nothing to remove"),
        (_, true) => out::line(format_args!("removed {count} {items}, {bytes}")),
        (_, false) => {
            out::line(format_args!("{count} {items}, {bytes}. Nothing was removed; pass --yes to remove."));
        }
    }
    if report.failed.is_empty() { Ok(()) } else { Err(Failure::failed(report.failed.join("\n"))) }
}

fn size_text(bytes: u64) -> String {
    let mut size = bytes;
    let mut tenths = 0;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024 {
            return if unit == "B" { format!("{size} {unit}") } else { format!("{size}.{tenths} {unit}") };
        }
        tenths = size % 1024 * 10 / 1024;
        size /= 1024;
    }
    format!("{size}.{tenths} TiB")
}

fn age(text: &str) -> Result<Duration, String> {
    let invalid = || "expected a whole number and a unit, such as 90m, 12h, 30d, or 8w".to_owned();
    let (number, seconds) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 60 * 60),
        Some((at, 'd')) => (&text[..at], 24 * 60 * 60),
        Some((at, 'w')) => (&text[..at], 7 * 24 * 60 * 60),
        _ => return Err(invalid()),
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let number: u64 = number.parse().map_err(|_| invalid())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_need_a_number_and_a_unit() {
        assert_eq!(age("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(age("2w"), Ok(Duration::from_secs(14 * 86_400)));
        assert_eq!(age("0s"), Ok(Duration::ZERO));
        for text in [
            "",
            "d",
            "30",
            "-1d",
            "+1d",
            "1.5h",
            "30 d",
            "1y",
            "99999999999999999999d",
            "9999999999999999999w",
            "1é",
        ] {
            assert!(age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_readable() {
        let sizes: Vec<_> = [0, 1023, 1024, 1536, 5 << 30, 3 << 40].into_iter().map(size_text).collect();
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "3.0 TiB"]);
    }
}
