//! All retry and back-off policy: how long each loop waits before it tries again.
//!
//! The delays between connections to the server are the exception: `hawser_signalr::Timing` has them.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// A lock file that another process is about to release.
pub(crate) const LOCK: Duration = Duration::from_millis(20);
/// The socket of a supervisor, after it could not accept a connection.
pub(crate) const GATE: Duration = Duration::from_millis(20);
/// A process group that was killed and has not disappeared yet.
pub(crate) const KILLED_GROUP: Duration = Duration::from_millis(5);
/// A repository of the source cache that another process is using.
pub(crate) const SOURCE_CACHE: Duration = Duration::from_millis(50);
/// The after hook of a script that is running.
pub(crate) const AFTER_HOOK: Duration = Duration::from_millis(50);
/// The plugin cache while another init is using it.
pub(crate) const PLUGIN_CACHE: Duration = Duration::from_millis(100);
/// A module directory that another step is using.
pub(crate) const MODULE_DIRECTORY: Duration = Duration::from_millis(500);
/// The event stream of a job, after it broke off.
pub(crate) const JOB_EVENTS: Duration = Duration::from_millis(500);
/// A claim that the server refused, which may be a passing fault.
pub(crate) const CLAIM: [Duration; 3] =
    [Duration::from_millis(400), Duration::from_millis(600), Duration::from_millis(1000)];
/// Output records, after a write failed.
pub(crate) const OUTPUT: Duration = Duration::from_secs(1);
/// A file of a running step that could not be read.
pub(crate) const STEP_FILE: Duration = Duration::from_secs(2);
/// Step folders that could not be read when the runner started.
pub(crate) const RECOVERY: Duration = Duration::from_secs(5);
/// The answer to a push, after it could not be written.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Delays that grow from one attempt to the next.
#[derive(Debug)]
pub(crate) struct Delays(ExponentialBackoff);

impl Delays {
    /// Calls that the server refused. The jitter adds up to 100 %, so a delay is at most 30 s.
    fn call() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(15), ExponentialBuilder::with_jitter)
    }

    /// An outcome that could not be written.
    pub(crate) fn outcome() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(30), ExponentialBuilder::with_jitter)
    }

    /// A supervisor that is still running.
    pub(crate) fn supervisor() -> Self {
        Self::new(Duration::from_millis(4), Duration::from_millis(100), |delays| delays.with_factor(1.5))
    }

    /// An exit that could not be written.
    pub(crate) fn exit() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5), |delays| delays)
    }

    fn new(first: Duration, longest: Duration, adjust: fn(ExponentialBuilder) -> ExponentialBuilder) -> Self {
        let delays =
            ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).without_max_times();
        Self(adjust(delays).build())
    }

    fn next(&mut self) -> Duration {
        // The delays never run out, so the default does not matter.
        self.0.next().unwrap_or(Duration::from_secs(1))
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

/// Retries of calls to the server: waits longer after each failure, and knows which failures are worth logging.
#[derive(Debug)]
pub(crate) struct Retry {
    delays: Delays,
    until: Option<Instant>,
    problem: Option<String>,
    failures: u32,
}

impl Retry {
    pub(crate) fn new() -> Self {
        Self { delays: Delays::call(), until: None, problem: None, failures: 0 }
    }

    /// Records a failure. Returns whether it differs from the last one, because only then is it worth logging.
    pub(crate) fn failed(&mut self, problem: &str, now: Instant) -> bool {
        // Failures of calls that were in flight together count once.
        if self.not_before(now).is_none() {
            self.failures = self.failures.saturating_add(1);
        }
        self.until = Some(now + self.delays.next());
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

    /// Resets the failure count and the delay, so that the next attempt is immediate.
    pub(crate) fn start_over(&mut self) {
        *self = Self { problem: self.problem.take(), ..Self::new() };
    }

    /// The number of failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// The time of the next attempt, if that is in the future.
    pub(crate) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// The last failure, unless an attempt succeeded after it.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_error_is_new_once_and_delays_grow_to_at_most_half_a_minute() {
        let mut retry = Retry::new();
        let now = Instant::now();
        assert_eq!(retry.not_before(now), None);
        let news: Vec<_> = ["a", "a", "b", "b", "a"].iter().map(|error| retry.failed(error, now)).collect();
        assert_eq!(news, [true, false, true, false, true]);
        for _ in 0..100 {
            retry.failed("a", now);
            assert!(retry.not_before(now).unwrap() - now <= Duration::from_secs(30));
        }
        assert!(retry.not_before(now).unwrap() - now >= Duration::from_secs(15));
        retry.start_over();
        assert_eq!((retry.problem(), retry.not_before(now), retry.failures()), (Some("a"), None, 0));
        assert!(!retry.failed("a", now));
        assert_eq!(retry.failures(), 1);
        retry.succeeded();
        assert_eq!(retry.failures(), 0);
        assert_eq!((retry.problem(), retry.not_before(now)), (None, None));
        assert!(retry.failed("a", now));
        assert!(retry.not_before(now).unwrap() - now <= Duration::from_secs(1));
    }
}
