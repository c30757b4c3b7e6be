//! What happens after the server, or the disk, said no: wait longer each time, and say so once.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The jitter adds up to as much again, so that a delay is never longer than 30 s.
const LAST_DELAY: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Retry {
    delays: ExponentialBackoff,
    until: Option<Instant>,
    problem: Option<String>,
    failures: u32,
}

impl Retry {
    pub(crate) fn new() -> Self {
        Self { delays: delays(), until: None, problem: None, failures: 0 }
    }

    /// Notes a failure, and says whether it is another than the last: only then is it worth a line in the log.
    pub(crate) fn failed(&mut self, problem: &str, now: Instant) -> bool {
        // Those of one burst, which were under way together, are one.
        if self.not_before(now).is_none() {
            self.failures = self.failures.saturating_add(1);
        }
        self.until = Some(now + self.delays.next().unwrap_or(LAST_DELAY));
        let new = self.problem.as_deref() != Some(problem);
        if new {
            self.problem = Some(problem.to_owned());
        }
        new
    }

    pub(crate) fn succeeded(&mut self) {
        if self.problem.take().is_some() {
            *self = Self::new();
        }
    }

    /// Forgets how often it went wrong, so that it is tried at once.
    pub(crate) fn start_over(&mut self) {
        *self = Self { problem: self.problem.take(), ..Self::new() };
    }

    /// How often in a row it went wrong.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// The time before which nothing should be tried.
    pub(crate) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// What went wrong last, while it has not gone well since.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

fn delays() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(FIRST_DELAY)
        .with_max_delay(LAST_DELAY)
        .with_jitter()
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_repeated_error_is_new_once_and_delays_grow_to_at_most_half_a_minute() {
        let mut retry = Retry::new();
        let now = Instant::now();
        assert_eq!(retry.not_before(now), None);
        let news: Vec<_> = ["a", "a", "b", "b", "a"].iter().map(|error| retry.failed(error, now)).collect();
        assert_eq!(news, [true, false, true, false, true]);
        for _ in 0..100 {
            retry.failed("a", now);
            assert!(retry.not_before(now).unwrap() - now <= Duration::from_secs(30));
        }
        assert!(retry.not_before(now).unwrap() - now >= LAST_DELAY);
        retry.start_over();
        assert_eq!((retry.problem(), retry.not_before(now), retry.failures()), (Some("a"), None, 0));
        assert!(!retry.failed("a", now));
        assert_eq!(retry.failures(), 1);
        retry.succeeded();
        assert_eq!(retry.failures(), 0);
        assert_eq!((retry.problem(), retry.not_before(now)), (None, None));
        assert!(retry.failed("a", now));
        assert!(retry.not_before(now).unwrap() - now <= 2 * FIRST_DELAY);
    }
}
