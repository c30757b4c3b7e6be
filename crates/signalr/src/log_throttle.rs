//! Keeps a lasting problem from filling the log.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Logs a lasting problem as a warning once. Repetitions are logged at debug level with a count.
#[derive(Debug, Default)]
pub struct LogThrottle {
    failures: Option<Failures>,
}

#[derive(Debug)]
struct Failures {
    since: Instant,
    count: u64,
    /// The text of the last warning.
    warned: String,
}

impl LogThrottle {
    /// Logs a failure. `message` is constant; `error` varies and decides whether this is a repetition.
    pub fn failed(&mut self, message: &'static str, error: &str, retry_in: Duration, now: Instant) {
        let retry_in = format_args!("{:.1}s", retry_in.as_secs_f64()).to_string();
        match self.repeated(error, now) {
            None => warn!(%error, %retry_in, "{message}"),
            Some((failures, elapsed)) => debug!(%error, %retry_in, failures, ?elapsed, "{message}"),
        }
    }

    /// Logs the recovery, if there was a failure.
    pub fn recovered(&mut self, message: &'static str, now: Instant) {
        if let Some(Failures { since, count, .. }) = self.failures.take() {
            info!(failures = count, elapsed = ?now.duration_since(since), "{message}");
        }
    }

    /// Counts a failure. If its error was already logged, returns the number of failures and the time since the first.
    fn repeated(&mut self, error: &str, now: Instant) -> Option<(u64, Duration)> {
        let new = || Failures { since: now, count: 0, warned: String::new() };
        let failures = self.failures.get_or_insert_with(new);
        failures.count += 1;
        if failures.warned == error {
            return Some((failures.count, now.duration_since(failures.since)));
        }
        error.clone_into(&mut failures.warned);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_problem_is_a_warning_once_and_counted_after_that() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(throttle.repeated("a", at(0)), None);
        assert_eq!(throttle.repeated("a", at(5)), Some((2, Duration::from_secs(5))));
        assert_eq!(throttle.repeated("b", at(6)), None);
        assert_eq!(throttle.repeated("b", at(9)), Some((4, Duration::from_secs(9))));
        throttle.recovered("up", at(10));
        assert_eq!(throttle.repeated("b", at(11)), None);
    }
}
