//! Waits for a step's supervisor and reads its exit, retrying while the machine is short of resources.

use std::fs::File;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::base::retry;
use crate::step::{Exit, FolderError, StepFolder};
use crate::supervisor;

/// Waits for the end of the step's supervisor, no matter which process started it. A cancel reaches the supervisor
/// through the folder. A temporary error (such as too many open files) says nothing about the script.
pub(crate) async fn script_ended(folder: &StepFolder) -> Result<File, FolderError> {
    loop {
        match supervisor::wait(folder, &CancellationToken::new()).await {
            Ok(Some(lock)) => return Ok(lock),
            // Returned only for a cancelled token, and this one is never cancelled.
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
    warn!(step = folder.name(), %error, "failed to read step folder, retrying");
    tokio::time::sleep(retry::STEP_FILE).await;
}
