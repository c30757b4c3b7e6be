//! `hawser schema`. The files in `schema/` are its output; tests check that they are up to date.

use hawser_contract::schema::hub_schema;

use super::{Failure, out};
use crate::settings::settings_schema;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Which schema to print
    #[arg(value_enum, default_value_t = Which::Settings)]
    which: Which,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Which {
    /// Settings files
    Settings,
    /// Messages between server and runner
    Hub,
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments by value")]
pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let schema = match args.which {
        Which::Settings => settings_schema(),
        Which::Hub => hub_schema(),
    };
    out::document(&format!("{schema:#}\n"))
}
