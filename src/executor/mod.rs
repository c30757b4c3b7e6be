//! Takes one step from its folder to its outcome: claim, prepare, start the supervisor, wait, conclude.

pub(crate) mod claim;
pub(crate) mod drive;
mod finish;
mod lost;
mod module_lock;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hawser_signalr::HubClient;

use crate::audit::Audit;
use crate::masking::SecretStore;
use crate::settings::Settings;
use crate::shipping::ShipperHandle;

/// How often a directory that another process holds is looked at again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What every step is executed with.
#[derive(Debug, Clone)]
pub struct ExecutorContext {
    pub settings: Arc<Settings>,
    pub secret_store: SecretStore,
    pub line: HubClient,
    pub shipper: ShipperHandle,
    pub http: reqwest::Client,
    /// The program that is started as `… supervise FOLDER`.
    pub supervisor: PathBuf,
    pub audit: Audit,
}
