//! Takes one step from its folder to its outcome: claim, prepare, start the supervisor, wait, conclude.

mod claim;
mod drive;
mod finish;
mod lost;
mod module_lock;
mod wait;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use hawser_contract::requests::CancelKind;
use hawser_signalr::HubClient;

use crate::audit::Audit;
use crate::base::blocking::blocking;
use crate::engines::Engines;
use crate::masking::SecretStore;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::shipping::ShipperHandle;
use crate::step::{CancelledBy, StepFolder, StepStore};
use crate::supervisor;
pub(crate) use claim::StepSignals;
pub(crate) use drive::DriveEnd;

/// Drives steps, one tokio task per step.
#[derive(Debug)]
pub struct Executor {
    pub settings: Arc<Settings>,
    pub engines: Engines,
    pub secret_store: SecretStore,
    pub hub: HubClient,
    pub store: Arc<StepStore>,
    pub shipper: ShipperHandle,
    pub http: reqwest::Client,
    /// The program to start as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub audit: Audit,
    pub policy: Arc<Policy>,
}

impl Executor {
    /// Cancels steps: signals their supervisors, which needs no disk, and records the cancel in their folders, for steps
    /// that are not running and for the next start.
    pub(crate) async fn record_cancel(
        &self,
        folders: Vec<StepFolder>,
        kind: CancelKind,
        by: CancelledBy,
    ) -> Result<(), String> {
        folders.iter().for_each(|it| supervisor::cancel_started(it, kind, by));
        on_disk(move || {
            folders.iter().for_each(|it| supervisor::cancel(it, kind, by));
            let recorded = folders.iter().try_for_each(|it| it.record_cancel(kind, by));
            // A supervisor that was starting either finds the record, or is signaled now.
            folders.iter().for_each(|it| supervisor::cancel(it, kind, by));
            recorded
        })
        .await
    }
}

/// Reads or writes files on a blocking thread: the disk may be slow.
pub(crate) async fn on_disk<T: Send + 'static, E: Display + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    blocking(work).await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
