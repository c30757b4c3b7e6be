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
use std::time::Duration;

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
    /// Records a cancel in step folders, from where it reaches their supervisors, even if this process dies.
    pub(crate) async fn record_cancel(
        &self,
        folders: Vec<StepFolder>,
        kind: CancelKind,
        by: CancelledBy,
    ) -> Result<(), String> {
        let grace = Duration::from_secs(self.settings.runner.cancel_grace_seconds);
        on_disk(move || folders.iter().try_for_each(|it| it.record_cancel(kind, Some(grace), by))).await
    }
}

/// Reads or writes files on a blocking thread: the disk may be slow.
pub(crate) async fn on_disk<T: Send + 'static, E: Display + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    blocking(work).await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
