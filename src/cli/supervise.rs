//! `hawser supervise FOLDER`: the supervisor of one step. Hidden, because only the runner can start it.

use std::path::PathBuf;
use std::time::Duration;

use super::Failure;
use crate::step::StepFolder;
use crate::supervisor::{SuperviseError, run};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Step folder; stdin must be its locked `lock` file
    folder: PathBuf,
    /// Seconds between a graceful cancel and the kill
    #[arg(default_value_t = 600)]
    cancel_grace: u64,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    run(&StepFolder::at(args.folder), Duration::from_secs(args.cancel_grace)).map_err(|error| match error {
        SuperviseError::NotOurs { .. } => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    })
}
