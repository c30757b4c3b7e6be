//! Drain: start no more steps, finish the running ones, ship everything.

use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use tracing::{info, warn};

use crate::executor::Executor;
use crate::scheduler::{Load, Scheduler};
use crate::shipping::{ShipperHandle, ShippingStatus};

/// How long interrupted steps get to end at the drain limit, before they are killed.
const INTERRUPT_GRACE: Duration = Duration::from_secs(30);

/// How long shipping may take beyond the drain limit.
const SHIPPING_GRACE: Duration = Duration::from_secs(10);

pub(super) async fn drain(executor: &Executor, scheduler: &Scheduler) {
    let shipper = &executor.shipper;
    let Load { running, waiting } = *scheduler.load().borrow();
    info!(running, waiting, "draining, a second signal exits at once");
    scheduler.drain().await;
    let limit = executor.settings.runner.drain_timeout_seconds.map(Duration::from_secs);
    let since = Instant::now();
    finish_running(scheduler, limit).await;
    shipper.drain().await;
    let shipping = everything_shipped(shipper, scheduler);
    // With a limit, an absent server does not hold up the drain: unsent data is on disk.
    let shipped = match limit {
        None => shipping.await,
        Some(limit) => {
            let left = limit.saturating_sub(since.elapsed()) + SHIPPING_GRACE;
            tokio::time::timeout(left, shipping).await.unwrap_or(false)
        }
    };
    let waiting = scheduler.load().borrow().waiting;
    if shipped && waiting == 0 {
        info!("drained");
    } else if shipped {
        info!(waiting, "drained, waiting steps stay for the next start");
    } else {
        let ShippingStatus { steps, connected, problem, .. } = shipper.status().borrow().clone();
        warn!(waiting, unsent = steps, connected, error = problem, "drained, the next start ships the rest");
    }
}

/// Waits for running steps; at the limit they are interrupted, and later killed.
async fn finish_running(scheduler: &Scheduler, limit: Option<Duration>) {
    let Some(limit) = limit else { return scheduler.idle().await };
    if tokio::time::timeout(limit, scheduler.idle()).await.is_ok() {
        return;
    }
    warn!(?limit, "Runner.DrainTimeoutSeconds exceeded, interrupting running steps");
    // Errors are logged.
    let _ = scheduler.cancel(None, CancelKind::Graceful).await;
    if tokio::time::timeout(INTERRUPT_GRACE, scheduler.idle()).await.is_ok() {
        return;
    }
    warn!(grace = ?INTERRUPT_GRACE, "interrupted steps still running, killing them");
    let _ = scheduler.cancel(None, CancelKind::Kill).await;
    scheduler.idle().await;
}

/// Waits until only unstarted steps are left to ship; they stay for the next start. False if the rest cannot be shipped.
async fn everything_shipped(shipper: &ShipperHandle, scheduler: &Scheduler) -> bool {
    let (mut shipping, mut load) = (shipper.status(), scheduler.load());
    loop {
        let waiting = load.borrow_and_update().waiting;
        {
            let shipping = shipping.borrow_and_update();
            if shipping.steps <= waiting {
                return true;
            }
            if shipping.steps <= waiting + shipping.stuck {
                return false;
            }
        }
        tokio::select! {
            changed = shipping.changed() => if changed.is_err() { return false },
            changed = load.changed() => if changed.is_err() { return false },
            // It has panicked.
            () = shipper.stopped() => return false,
        }
    }
}
