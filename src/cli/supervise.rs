//! `hawser supervise FOLDER`: what the runner starts for each script. Hidden, because only the runner can.

use std::path::PathBuf;

use super::Failure;
use crate::step::StepFolder;
use crate::supervisor::{SuperviseError, run};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The step folder whose script is to be run; its locked `lock` file must be stdin
    folder: PathBuf,
}

pub(super) fn execute(args: Args) -> Result<(), Failure> {
    crate::base::files::keep_private();
    run(&StepFolder::at(args.folder)).map_err(|error| match error {
        SuperviseError::NotOurs { .. } => Failure::usage(error.to_string()),
        SuperviseError::Io { .. } | SuperviseError::Folder(_) => Failure::failed(error.to_string()),
    })
}
