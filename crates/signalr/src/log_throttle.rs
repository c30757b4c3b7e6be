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

#[derive(Debug, PartialEq, Eq)]
enum Severity {
    New,
    Repeated { failures: u64, elapsed: Duration },
}

impl LogThrottle {
    /// Logs a failure. `message` is constant; `error` varies and decides whether this is a repetition.
    pub fn failed(&mut self, message: &'static str, error: &str, retry_in: Duration, now: Instant) {
        let retry_in = format_args!("{:.1}s", retry_in.as_secs_f64()).to_string();
        match self.note(error, now) {
            Severity::New => warn!(%error, %retry_in, "{message}"),
            Severity::Repeated { failures, elapsed } => {
                debug!(%error, %retry_in, failures, elapsed = ?elapsed, "{message}");
            }
        }
    }

    /// Logs the recovery, if there was a failure.
    pub fn recovered(&mut self, message: &'static str, now: Instant) {
        if let Some(Failures { since, count, .. }) = self.failures.take() {
            info!(failures = count, elapsed = ?now.duration_since(since), "{message}");
        }
    }

    fn note(&mut self, error: &str, now: Instant) -> Severity {
        match &mut self.failures {
            Some(failures) => {
                failures.count += 1;
                if failures.warned == error {
                    Severity::Repeated {
                        failures: failures.count,
                        elapsed: now.duration_since(failures.since),
                    }
                } else {
                    error.clone_into(&mut failures.warned);
                    Severity::New
                }
            }
            None => {
                self.failures = Some(Failures { since: now, count: 1, warned: error.to_owned() });
                Severity::New
            }
        }
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
        let repeated =
            |failures, seconds| Severity::Repeated { failures, elapsed: Duration::from_secs(seconds) };
        assert_eq!(throttle.note("a", at(0)), Severity::New);
        assert_eq!(throttle.note("a", at(5)), repeated(2, 5));
        assert_eq!(throttle.note("b", at(6)), Severity::New);
        assert_eq!(throttle.note("b", at(9)), repeated(4, 9));
        throttle.recovered("up", at(10));
        assert_eq!(throttle.note("b", at(11)), Severity::New);
    }
}
