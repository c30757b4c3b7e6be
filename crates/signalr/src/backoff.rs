//! How long to wait before the next attempt. Pure: the random number comes from the caller.

use std::time::Duration;

use crate::timing::Timing;

/// How soon an attempt is worth repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It may work again any moment: the server restarts, the network blinks.
    Quick,
    /// Somebody has to change a setting or a record first.
    Slow,
}

#[derive(Debug)]
pub struct Backoff {
    delays: Vec<Duration>,
    refused: Duration,
    jitter: f64,
    failures: usize,
}

impl Backoff {
    pub fn new(timing: &Timing) -> Self {
        Self {
            delays: timing.reconnect_delays.clone(),
            refused: timing.refused_delay,
            jitter: timing.jitter.clamp(0.0, 1.0),
            failures: 0,
        }
    }

    /// The wait after one more failure; `random` lies in 0.0..1.0.
    pub fn next(&mut self, pace: Pace, random: f64) -> Duration {
        let last = self.delays.len().saturating_sub(1);
        let base = self.delays.get(self.failures.min(last)).copied().unwrap_or_default();
        self.failures = self.failures.saturating_add(1);
        let base = match pace {
            Pace::Quick => base,
            Pace::Slow => base.max(self.refused),
        };
        base.mul_f64(1.0 + self.jitter * (2.0 * random - 1.0))
    }

    /// Starts again with the shortest delay.
    pub fn settle(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(backoff: &mut Backoff, pace: Pace, random: f64) -> f64 {
        backoff.next(pace, random).as_secs_f64()
    }

    #[test]
    fn the_delays_are_the_contract_s_and_the_last_one_repeats_for_ever() {
        let mut backoff = Backoff::new(&Timing::default());
        let middle: Vec<f64> = (0..8).map(|_| seconds(&mut backoff, Pace::Quick, 0.5)).collect();
        assert_eq!(middle, [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0]);
        backoff.settle();
        assert_eq!(seconds(&mut backoff, Pace::Quick, 0.5), 1.0);
    }

    #[test]
    fn jitter_spreads_a_fleet_over_the_whole_delay() {
        let timing = Timing::default();
        assert_eq!(seconds(&mut Backoff::new(&timing), Pace::Quick, 0.0), 0.5);
        assert!(seconds(&mut Backoff::new(&timing), Pace::Quick, 0.999) > 1.49);
    }

    #[test]
    fn a_refusal_is_retried_slowly_from_the_first_time_on() {
        let mut backoff = Backoff::new(&Timing::default());
        assert_eq!(seconds(&mut backoff, Pace::Slow, 0.5), 30.0);
        assert_eq!(seconds(&mut backoff, Pace::Quick, 0.5), 2.0);
    }

    #[test]
    fn no_delays_at_all_is_no_reason_to_panic() {
        let timing = Timing { reconnect_delays: Vec::new(), ..Timing::default() };
        assert_eq!(Backoff::new(&timing).next(Pace::Quick, 0.3), Duration::ZERO);
    }
}
