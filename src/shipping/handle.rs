//! The handle through which the rest of the runner uses the shipper, and its status.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::step_stream::ShippedStep;
use crate::step::StepFolder;

/// A command from the handle to the shipper.
#[derive(Debug)]
pub(super) enum ShipperCommand {
    Add(ShippedStep),
    Concluded(StepFolder),
    Drain,
}

/// The status of shipping, for logs and tests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShippingStatus {
    /// Steps that are not yet completely shipped.
    pub steps: usize,
    /// Ended steps whose lines or result are refused repeatedly, and the steps behind them. Counted after
    /// [`ShipperHandle::drain`].
    pub stuck: usize,
    /// Bytes of logs in memory. All other unsent logs are on disk.
    pub buffered_bytes: usize,
    pub connected: bool,
    /// The current error of the server or the disk, with the step's name.
    pub problem: Option<String>,
}

/// Handle to the shipper; cheap to clone.
#[derive(Debug, Clone)]
pub struct ShipperHandle {
    pub(super) commands: mpsc::Sender<ShipperCommand>,
    pub(super) status: Arc<watch::Sender<ShippingStatus>>,
}

impl ShipperHandle {
    /// Starts to ship a step, continuing where an earlier process left off. Steps of one job must be added in order.
    /// Adding a step again has no effect.
    pub async fn add(&self, step: ShippedStep) {
        self.status.send_modify(|status| status.steps += 1);
        if self.commands.send(ShipperCommand::Add(step)).await.is_err() {
            self.status.send_modify(|status| status.steps -= 1);
        }
    }

    /// Notifies the shipper that `outcome.json` exists. Polling would find it a moment later.
    pub async fn concluded(&self, folder: &StepFolder) {
        // If the shipper has stopped, the next start ships the rest.
        let _ = self.commands.send(ShipperCommand::Concluded(folder.clone())).await;
    }

    /// Starts the drain: refused calls are retried at once, and stuck steps are counted from now on.
    pub async fn drain(&self) {
        // Fails only if the shipper has stopped.
        let _ = self.commands.send(ShipperCommand::Drain).await;
    }

    pub fn status(&self) -> watch::Receiver<ShippingStatus> {
        self.status.subscribe()
    }

    /// Waits until nothing is left to ship. False if the shipper stops first.
    #[cfg(feature = "testing")]
    pub async fn drained(&self) -> bool {
        let mut status = self.status.subscribe();
        tokio::select! {
            biased;
            drained = status.wait_for(|status| status.steps == 0) => drained.is_ok(),
            () = self.stopped() => false,
        }
    }

    /// Waits until the shipper has ended, even by a panic.
    pub async fn stopped(&self) {
        self.commands.closed().await;
    }
}
