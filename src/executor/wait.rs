//! Waits for a step's supervisor and reads its exit, retrying while the machine is short of resources.

use std::fs::File;
use std::future::ready;

use tracing::warn;

use crate::base::retry;
use crate::step::{Exit, FolderError, StepFolder};
use crate::supervisor;

/// Waits for the end of the step's supervisor, no matter which process started it.
pub(super) async fn script_ended(folder: &StepFolder) -> Result<File, FolderError> {
    retrying(folder, || supervisor::wait(folder)).await
}

pub(super) async fn read_exit(folder: &StepFolder) -> Result<Option<Exit>, FolderError> {
    retrying(folder, || ready(folder.exit())).await
}

/// A temporary error (such as too many open files) does not mean that anything is wrong with the step.
async fn retrying<T, Attempt: Future<Output = Result<T, FolderError>>>(
    folder: &StepFolder,
    attempt: impl Fn() -> Attempt,
) -> Result<T, FolderError> {
    loop {
        match attempt().await {
            Err(error) if error.is_temporary() => {
                warn!(step = folder.name(), %error, "failed to read step folder, retrying");
                tokio::time::sleep(retry::STEP_FILE).await;
            }
            done => return done,
        }
    }
}
