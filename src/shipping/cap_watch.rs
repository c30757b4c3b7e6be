//! Regularly measures the disk space of unsent logs, and drops lines if it is above the limit ([`cap`]).

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant};
use tracing::warn;

use super::cap;
use super::round_robin::StreamId;
use super::step_stream::StepStream;

/// How often to measure if there is a limit.
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

    /// Measures if it is time to, and drops lines above the limit. Returns when to measure again.
    pub(super) fn keep_below(
        &mut self,
        streams: &mut BTreeMap<StreamId, StepStream>,
        now: Instant,
    ) -> Option<Instant> {
        let limit = self.limit?;
        if streams.is_empty() {
            return None;
        }
        if now < self.next_check {
            return Some(self.next_check);
        }
        self.next_check = now + CAP_CHECK;
        let mut sizes: BTreeMap<StreamId, u64> =
            streams.iter().map(|(id, stream)| (*id, stream.unsent_bytes().unwrap_or(0))).collect();
        while let Some((id, bytes)) = cap::step_to_trim(&sizes, limit) {
            let Some(stream) = streams.get_mut(&id) else { break };
            match stream.drop_oldest(bytes) {
                Ok(Some(dropped)) => {
                    sizes.entry(id).and_modify(|size| *size = size.saturating_sub(dropped.bytes));
                    if !std::mem::replace(&mut self.warned, true) {
                        let (step, lines) = (stream.step.folder.name(), dropped.lines);
                        warn!(
                            step,
                            limit, lines, "JobLogStream.MaxUnsentBytes reached, dropping oldest lines"
                        );
                    }
                    continue;
                }
                // Its remaining lines are already being sent.
                Ok(None) => {}
                Err(error) => {
                    warn!(step = stream.step.folder.name(), %error, "failed to drop unsent lines from output.log");
                }
            }
            sizes.remove(&id);
        }
        Some(self.next_check)
    }
}
