use super::Failure;

#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn execute(_args: Args) -> Result<(), Failure> {
    Err(Failure::failed("not built yet"))
}
