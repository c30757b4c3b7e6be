//! Keeps a lasting problem from filling the log.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

/// A lasting problem is logged as a warning this often.
const REMINDER: Duration = Duration::from_secs(60);

/// Logs a lasting problem as a warning once, and then once a minute with a count. Repetitions in between are logged at debug
/// level.
#[derive(Debug, Default)]
pub struct LogThrottle {
    failures: Option<Failures>,
}

#[derive(Debug)]
struct Failures {
    since: Instant,
    count: u64,
    /// The text of the last warning, and when it was logged.
    warned: String,
    warned_at: Instant,
}

/// How to log a failure.
#[derive(Debug, PartialEq)]
enum Notice {
    /// The problem is new, or differs from the last one.
    New,
    /// The problem lasts, and the last warning was a while ago.
    Reminder,
    Repetition,
}

impl LogThrottle {
    /// Logs a failure. `message` is constant; `error` varies and decides whether this is a repetition.
    pub fn failed(&mut self, message: &'static str, error: &str, retry_in: Duration, now: Instant) {
        let retry_in = format_args!("{:.1}s", retry_in.as_secs_f64()).to_string();
        let (notice, failures, elapsed) = self.count(error, now);
        match notice {
            Notice::New => warn!(%error, %retry_in, "{message}"),
            Notice::Reminder => warn!(%error, %retry_in, failures, ?elapsed, "{message}"),
            Notice::Repetition => debug!(%error, %retry_in, failures, ?elapsed, "{message}"),
        }
    }

    /// Logs the recovery, if there was a failure.
    pub fn recovered(&mut self, message: &'static str, now: Instant) {
        if let Some(Failures { since, count, .. }) = self.failures.take() {
            info!(failures = count, elapsed = ?now.duration_since(since), "{message}");
        }
    }

    /// Counts a failure. Returns how to log it, the number of failures and the time since the first.
    fn count(&mut self, error: &str, now: Instant) -> (Notice, u64, Duration) {
        let new = || Failures { since: now, count: 0, warned: String::new(), warned_at: now };
        let failures = self.failures.get_or_insert_with(new);
        failures.count += 1;
        let notice = if failures.warned != error {
            Notice::New
        } else if now.duration_since(failures.warned_at) >= REMINDER {
            Notice::Reminder
        } else {
            Notice::Repetition
        };
        if notice != Notice::Repetition {
            error.clone_into(&mut failures.warned);
            failures.warned_at = now;
        }
        (notice, failures.count, now.duration_since(failures.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_problem_is_a_warning_once_a_minute_and_counted() {
        let mut throttle = LogThrottle::default();
        let start = Instant::now();
        let mut count = |error, second| {
            let (notice, failures, elapsed) = throttle.count(error, start + Duration::from_secs(second));
            (notice, failures, elapsed.as_secs())
        };
        assert_eq!(count("a", 0), (Notice::New, 1, 0));
        assert_eq!(count("a", 5), (Notice::Repetition, 2, 5));
        assert_eq!(count("b", 6), (Notice::New, 3, 6));
        assert_eq!(count("b", 65), (Notice::Repetition, 4, 65));
        assert_eq!(count("b", 66), (Notice::Reminder, 5, 66));
        assert_eq!(count("b", 125), (Notice::Repetition, 6, 125));
        assert_eq!(count("b", 126), (Notice::Reminder, 7, 126));
        throttle.recovered("up", start + Duration::from_secs(130));
        let again = throttle.count("b", start + Duration::from_secs(131));
        assert_eq!(again, (Notice::New, 1, Duration::ZERO));
    }
}
