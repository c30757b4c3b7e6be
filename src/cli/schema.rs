//! `hawser schema`: the documents below `schema/` are its output, and tests keep them in step.

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
    /// The settings files
    Settings,
    /// The messages between server and runner
    Hub,
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments in the same way")]
pub(super) fn execute(args: Args) -> Result<(), Failure> {
    let schema = match args.which {
        Which::Settings => settings_schema(),
        Which::Hub => hub_schema(),
    };
    out::document(&format!("{schema:#}\n"))
}
