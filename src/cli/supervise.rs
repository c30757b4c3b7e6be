//! `hawser supervise FOLDER`: the supervisor of one step. Hidden, because only the runner can start it.

use std::path::PathBuf;

use super::Failure;
use crate::step::StepFolder;
use crate::supervisor::{SuperviseError, run};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Step folder; stdin must be its locked `lock` file
    folder: PathBuf,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    run(&StepFolder::at(args.folder)).map_err(|error| match error {
        SuperviseError::NotOurs { .. } => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    })
}
