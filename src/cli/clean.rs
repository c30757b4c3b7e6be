//! `hawser clean`: shows, and with `--yes` removes, what old jobs have left.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::overrides::{self, Overrides};
use super::{Failure, out};
use crate::clean::{CleanError, CleanOptions, Report, clean};
use crate::settings;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Remove; without this, what would be removed is only shown
    #[arg(long)]
    yes: bool,
    /// What was not used for so long is old: damaged steps, caches and modules (90m, 12h, 30d, 8w)
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = age)]
    older_than: Duration,
    /// Copies of repositories that are old, too
    #[arg(long)]
    caches: bool,
    /// Directories of modules that are old, too; one that holds state stays
    #[arg(long)]
    modules: bool,
    /// Directories of modules that hold state as well: the resources in it stay, and nothing knows of them any more
    #[arg(long, requires = "modules")]
    with_state: bool,
    /// A rescued state that is not needed any more; may be given several times
    #[arg(long, value_name = "PATH")]
    rescued: Vec<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let Args { yes, older_than, caches, modules, with_state, rescued, overrides } = args;
    // As a setting that nobody knows it would only be warned about, and more be removed than was meant.
    if let Some(option) = overrides.not_of_a_section() {
        return Err(Failure::usage(format!(
            "{option} is no option of `hawser clean`, or stands after a setting; `hawser clean --help` lists them"
        )));
    }
    let read = overrides.read(settings::load_working_directory);
    let (directories, warnings) = read.map_err(|error| overrides::failure(&error))?;
    for warning in &warnings {
        out::aside(format_args!("warning: {warning}"));
    }
    let order = CleanOptions { older_than, caches, modules, with_state, rescued, remove: yes };
    let report = clean(&directories, &order, SystemTime::now()).map_err(failure)?;
    tell(&report, yes)
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
fn failure(error: CleanError) -> Failure {
    let message = error.to_string();
    match error {
        CleanError::NoWorkingDirectory { .. } => Failure::settings(message),
        CleanError::NotRescued { .. } => Failure::usage(message),
        CleanError::Look { .. } => Failure::failed(message),
    }
}

fn tell(report: &Report, removed: bool) -> Result<(), Failure> {
    let verb = if removed { "removed" } else { "would remove" };
    for found in &report.found {
        out::line(format_args!(
            "{verb} {:>10}  {}  ({})",
            shown(found.bytes),
            found.path.display(),
            found.what
        ));
    }
    for kept in &report.kept {
        out::line(format_args!("kept {}: {}", kept.path.display(), kept.reason));
    }
    let (count, bytes) = (report.found.len(), shown(report.bytes()));
    match (count, removed) {
        (0, _) => out::line("nothing to remove"),
        (_, true) => out::line(format_args!("removed {count}, {bytes}")),
        (_, false) => {
            out::line(format_args!("{count}, {bytes}; nothing was removed: say --yes to remove"));
        }
    }
    if report.failed.is_empty() { Ok(()) } else { Err(Failure::failed(report.failed.join("\n"))) }
}

/// A size for people.
fn shown(bytes: u64) -> String {
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

/// A number and a unit.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "an age is a whole number and a unit: 90m, 12h, 30d or 8w".to_owned();
    let (number, seconds) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 60 * 60),
        Some((at, 'd')) => (&text[..at], 24 * 60 * 60),
        Some((at, 'w')) => (&text[..at], 7 * 24 * 60 * 60),
        _ => return Err(wrong()),
    };
    if !number.bytes().all(|it| it.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units_and_nonsense_is_refused() {
        assert_eq!(age("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(age("2w"), Ok(Duration::from_secs(14 * 86_400)));
        assert_eq!(age("0s"), Ok(Duration::ZERO));
        for wrong in [
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
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_for_people() {
        let shown: Vec<_> = [0, 1023, 1024, 1536, 5 << 30, 3 << 40].into_iter().map(shown).collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "3.0 TiB"]);
    }
}
