//! Waiting for a step's supervisor, and reading what it wrote, on a machine that may be short of something for the moment.

use std::fs::File;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::step::{Exit, FolderError, StepFolder};
use crate::supervisor;

/// Before a folder that could not be looked at is looked at again.
const PAUSE: Duration = Duration::from_secs(2);

/// Waits for the end of the step's supervisor, whoever started it. A cancel reaches that through the folder, so
/// waiting for its end is right in any case; and a machine that has run out of something for the moment (open files,
/// say) says nothing about the script.
pub(crate) async fn script_ended(folder: &StepFolder) -> Result<File, FolderError> {
    loop {
        match supervisor::wait(folder, &CancellationToken::new()).await {
            Ok(Some(lock)) => return Ok(lock),
            // Only a cancelled token makes it give up, and nobody cancels this one.
            Ok(None) => {}
            Err(error) if !error.is_damage() => pause(folder, &error).await,
            Err(error) => return Err(error),
        }
    }
}

pub(crate) async fn read_exit(folder: &StepFolder) -> Result<Option<Exit>, FolderError> {
    loop {
        match folder.exit() {
            Err(error) if !error.is_damage() => pause(folder, &error).await,
            read => return read,
        }
    }
}

async fn pause(folder: &StepFolder, error: &FolderError) {
    warn!(step = folder.name(), "{error}; looking again");
    tokio::time::sleep(PAUSE).await;
}
