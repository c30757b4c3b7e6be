//! Takes one step from its folder to its outcome: claim, prepare, start the supervisor, wait, conclude.

mod claim;
mod drive;
mod finish;
mod lost;
mod module_lock;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;

use hawser_signalr::HubClient;

use crate::audit::Audit;
use crate::engines::Engines;
use crate::masking::SecretStore;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::shipping::ShipperHandle;
pub(crate) use drive::DriveEnd;

/// Drives steps, one tokio task per step.
#[derive(Debug)]
pub struct Executor {
    pub settings: Arc<Settings>,
    pub engines: Engines,
    pub secret_store: SecretStore,
    pub hub: HubClient,
    pub shipper: ShipperHandle,
    pub http: reqwest::Client,
    /// The program to start as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub audit: Audit,
    pub policy: Arc<Policy>,
}
