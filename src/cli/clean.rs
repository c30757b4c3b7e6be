//! `hawser clean`: lists the leftovers of old jobs, and removes them with `--yes`.

use std::time::SystemTime;

use super::overrides::{self, Overrides};
use super::{Failure, out};
use crate::clean::{CleanError, CleanOptions, Report, clean};
use crate::settings;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    options: CleanOptions,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let Args { options, overrides } = args;
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
    let report = clean(&directories, &options, SystemTime::now()).map_err(failure)?;
    print(&report, options.remove)
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
    let count = report.leftovers.len();
    let bytes = size_text(report.leftovers.iter().map(|item| item.bytes).sum());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let sizes: Vec<_> = [0, 1023, 1024, 1536, 5 << 30, 3 << 40].into_iter().map(size_text).collect();
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "3.0 TiB"]);
    }
}
