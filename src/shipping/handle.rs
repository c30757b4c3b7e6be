//! What the rest of the runner sees of the shipper: a handle that only sends messages, and its state.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::step_stream::ShippedStep;
use crate::step::StepFolder;

/// What the shipper is told.
#[derive(Debug)]
pub(super) enum ShipperCommand {
    Add { step: ShippedStep, done: oneshot::Sender<()> },
    Concluded { name: String },
    Drain,
}

/// Where shipping stands; its text is the human status line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShippingStatus {
    /// Steps that are not yet completely shipped.
    pub steps: usize,
    /// Those of them that have ended and whose lines or result are refused again and again, or wait behind such a one. Counted from
    /// [`ShipperHandle::drain`] on.
    pub stuck: usize,
    /// Calls that the server has not answered.
    pub unanswered: usize,
    /// Bytes of logs in memory. Everything else that waits is on the disk.
    pub buffered_bytes: usize,
    pub connected: bool,
    /// What the server or the disk says no to at present, with the step's name.
    pub problem: Option<String>,
    /// The shipper has been stopped and sends no more.
    pub stopped: bool,
}

impl fmt::Display for ShippingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.steps {
            0 => write!(f, "nothing to ship")?,
            1 => write!(f, "1 step to ship")?,
            steps => write!(f, "{steps} steps to ship")?,
        }
        if self.stopped {
            write!(f, ", stopped")?;
        } else if self.steps > 0 && !self.connected {
            write!(f, ", waiting for the server")?;
        } else if self.unanswered > 0 {
            write!(f, ", {} calls unanswered", self.unanswered)?;
        }
        if let Some(problem) = &self.problem {
            write!(f, "; {problem}")?;
        }
        Ok(())
    }
}

/// Handle to the shipper; cheap to clone.
#[derive(Debug, Clone)]
pub struct ShipperHandle {
    pub(super) commands: mpsc::Sender<ShipperCommand>,
    pub(super) status: Arc<watch::Sender<ShippingStatus>>,
}

/// The promise that a step will be shipped. It may be dropped; the step is shipped all the same.
#[derive(Debug)]
pub struct Shipped(
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "only tests wait for it"))]
    oneshot::Receiver<()>,
);

#[cfg(feature = "testing")]
impl Shipped {
    /// True when the result is acknowledged and the folder removed; false when the shipper was stopped before,
    /// or has set the step aside.
    pub async fn wait(self) -> bool {
        self.0.await.is_ok()
    }
}

impl ShipperHandle {
    /// Begins to ship a step, from where an earlier shipper has left off. Steps of one job are to be added in
    /// their order. Adding a step again changes nothing.
    pub async fn add(&self, step: ShippedStep) -> Shipped {
        let (done, promise) = oneshot::channel();
        self.status.send_modify(|status| status.steps += 1);
        if self.commands.send(ShipperCommand::Add { step, done }).await.is_err() {
            self.status.send_modify(|status| status.steps -= 1);
        }
        Shipped(promise)
    }

    /// Says that `outcome.json` has been written. It would be found anyway, a moment later.
    pub async fn concluded(&self, folder: &StepFolder) {
        // A shipper that has stopped leaves the rest to the next start.
        let _ = self.commands.send(ShipperCommand::Concluded { name: folder.name() }).await;
    }

    /// Says that the runner only waits for what is left to ship. What was refused before is tried at once, and from then
    /// on it is counted what seems to be refused for ever.
    pub async fn drain(&self) {
        // One that has stopped ships nothing more.
        let _ = self.commands.send(ShipperCommand::Drain).await;
    }

    pub fn status(&self) -> watch::Receiver<ShippingStatus> {
        self.status.subscribe()
    }

    /// Waits until nothing is left to ship. False when the shipper was stopped before that.
    #[cfg(feature = "testing")]
    pub async fn drained(&self) -> bool {
        let mut status = self.status.subscribe();
        let end = status.wait_for(|status| status.steps == 0 || status.stopped).await;
        end.is_ok_and(|status| status.steps == 0)
    }

    /// Waits until the shipper has ended, after its token was cancelled.
    pub async fn stopped(&self) {
        let mut status = self.status.subscribe();
        // It cannot fail: this handle holds the sender.
        let _ = status.wait_for(|status| status.stopped).await;
    }
}
