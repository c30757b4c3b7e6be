//! The delay before the next attempt. Pure: the caller supplies the random number.

use std::time::Duration;

use crate::timing::Timing;

/// When a failed attempt is worth repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPace {
    /// The problem may be gone at any moment: the server restarts, the network is interrupted.
    Soon,
    /// Someone has to change the configuration first, on the client or on the server.
    Later,
}

/// Computes growing delays between attempts, with jitter.
///
/// ```
/// use hawser_signalr::{Backoff, RetryPace, Timing};
///
/// let mut backoff = Backoff::new(&Timing { jitter: 0.0, ..Timing::default() });
/// assert_eq!(backoff.next(RetryPace::Soon, 0.5).as_secs(), 1);
/// assert_eq!(backoff.next(RetryPace::Soon, 0.5).as_secs(), 2);
/// backoff.reset();
/// assert_eq!(backoff.next(RetryPace::Later, 0.5).as_secs(), 30);
/// ```
#[derive(Debug)]
pub struct Backoff {
    delays: Vec<Duration>,
    refused: Duration,
    jitter: f64,
    failures: usize,
}

impl Backoff {
    /// Takes the delays from `timing`.
    pub fn new(timing: &Timing) -> Self {
        Self {
            delays: timing.reconnect_delays.clone(),
            refused: timing.refused_delay,
            jitter: timing.jitter.clamp(0.0, 1.0),
            failures: 0,
        }
    }

    /// Returns the delay after one more failure. `random` is a number in `0.0..1.0`, for example from a random
    /// number generator.
    pub fn next(&mut self, pace: RetryPace, random: f64) -> Duration {
        let last = self.delays.len().saturating_sub(1);
        let base = self.delays.get(self.failures.min(last)).copied().unwrap_or_default();
        self.failures = self.failures.saturating_add(1);
        let base = match pace {
            RetryPace::Soon => base,
            RetryPace::Later => base.max(self.refused),
        };
        base.mul_f64(1.0 + self.jitter * (2.0 * random - 1.0))
    }

    /// Starts over with the shortest delay.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(backoff: &mut Backoff, pace: RetryPace, random: f64) -> f64 {
        backoff.next(pace, random).as_secs_f64()
    }

    #[test]
    fn delays_grow_and_the_last_one_repeats() {
        let mut backoff = Backoff::new(&Timing::default());
        let middle: Vec<f64> = (0..8).map(|_| seconds(&mut backoff, RetryPace::Soon, 0.5)).collect();
        assert_eq!(middle, [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0]);
        backoff.reset();
        assert_eq!(seconds(&mut backoff, RetryPace::Soon, 0.5), 1.0);
    }

    #[test]
    fn jitter_spreads_clients_over_the_whole_delay() {
        let timing = Timing::default();
        assert_eq!(seconds(&mut Backoff::new(&timing), RetryPace::Soon, 0.0), 0.5);
        assert!(seconds(&mut Backoff::new(&timing), RetryPace::Soon, 0.999) > 1.49);
    }

    #[test]
    fn a_refusal_is_retried_later_from_the_first_attempt_on() {
        let mut backoff = Backoff::new(&Timing::default());
        assert_eq!(seconds(&mut backoff, RetryPace::Later, 0.5), 30.0);
        assert_eq!(seconds(&mut backoff, RetryPace::Soon, 0.5), 2.0);
    }

    #[test]
    fn an_empty_list_of_delays_does_not_panic() {
        let timing = Timing { reconnect_delays: Vec::new(), ..Timing::default() };
        assert_eq!(Backoff::new(&timing).next(RetryPace::Soon, 0.3), Duration::ZERO);
    }
}
