//! Measures now and then what unsent logs take of the disk, and lets lines give way where that is too much ([`cap`]).

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant};
use tracing::warn;

use super::cap;
use super::round_robin::StreamId;
use super::step_stream::StepStream;

/// How often the disk is measured when there is a cap.
const CAP_CHECK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct CapWatch {
    /// `JobLogStream.MaxUnsentBytes`
    limit: Option<u64>,
    next_check: Instant,
    warned: bool,
}

impl CapWatch {
    pub(super) fn new(limit: Option<u64>, now: Instant) -> Self {
        Self { limit, next_check: now, warned: false }
    }

    /// Measures the disk when it is time to, and lets lines give way. Returns when to measure again.
    pub(super) fn keep_below(
        &mut self,
        lanes: &mut BTreeMap<StreamId, StepStream>,
        now: Instant,
    ) -> Option<Instant> {
        let limit = self.limit?;
        if lanes.is_empty() {
            return None;
        }
        if now < self.next_check {
            return Some(self.next_check);
        }
        self.next_check = now + CAP_CHECK;
        let mut sizes: BTreeMap<StreamId, u64> =
            lanes.iter().map(|(id, lane)| (*id, lane.unsent_bytes().unwrap_or(0))).collect();
        while let Some((id, bytes)) = cap::gives_way(&sizes, limit) {
            let Some(lane) = lanes.get_mut(&id) else { break };
            match lane.give_way(bytes) {
                Ok(Some(dropped)) => {
                    sizes.entry(id).and_modify(|size| *size = size.saturating_sub(dropped.bytes));
                    if !std::mem::replace(&mut self.warned, true) {
                        let (step, lines) = (lane.step.folder.name(), dropped.lines);
                        warn!(
                            step,
                            limit, lines, "JobLogStream.MaxUnsentBytes reached, dropping oldest lines"
                        );
                    }
                    continue;
                }
                // What it has left is on its way already.
                Ok(None) => {}
                Err(error) => {
                    warn!(step = lane.step.folder.name(), %error, "failed to free disk space of output.log");
                }
            }
            sizes.remove(&id);
        }
        Some(self.next_check)
    }
}
