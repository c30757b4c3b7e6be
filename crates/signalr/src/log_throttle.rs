//! Keeps a problem that lasts from filling the log: it is a warning once, then only the debug log counts it.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

#[derive(Debug, Default)]
pub struct Repeats {
    trouble: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    failures: u64,
    /// What was last said as a warning.
    told: String,
}

/// How a failure is to be told.
#[derive(Debug, PartialEq, Eq)]
enum Telling {
    /// Not told before.
    New,
    /// The same as before, so many failures since so long.
    Again { failures: u64, since: Duration },
}

impl Repeats {
    pub fn failed(&mut self, what: &str, problem: &str, retry_in: Duration, now: Instant) {
        let seconds = retry_in.as_secs_f64();
        match self.note(problem, now) {
            Telling::New => warn!("{what}: {problem} (next attempt in {seconds:.1} s)"),
            Telling::Again { failures, since } => debug!(
                "{what}, {failures} failures in {} s: {problem} (next attempt in {seconds:.1} s)",
                since.as_secs()
            ),
        }
    }

    /// Says that it works again, if it did not.
    pub fn recovered(&mut self, what: &str, now: Instant) {
        if let Some(Trouble { since, failures, .. }) = self.trouble.take() {
            info!("{what} after {failures} failures in {} s", now.duration_since(since).as_secs());
        }
    }

    fn note(&mut self, problem: &str, now: Instant) -> Telling {
        match &mut self.trouble {
            Some(trouble) => {
                trouble.failures += 1;
                if trouble.told == problem {
                    Telling::Again { failures: trouble.failures, since: now.duration_since(trouble.since) }
                } else {
                    problem.clone_into(&mut trouble.told);
                    Telling::New
                }
            }
            None => {
                self.trouble = Some(Trouble { since: now, failures: 1, told: problem.to_owned() });
                Telling::New
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_problem_is_a_warning_once_and_counted_after_that() {
        let mut repeats = Repeats::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repeats.note("a", at(0)), Telling::New);
        assert_eq!(repeats.note("a", at(5)), Telling::Again { failures: 2, since: Duration::from_secs(5) });
        assert_eq!(repeats.note("b", at(6)), Telling::New);
        assert_eq!(repeats.note("b", at(9)), Telling::Again { failures: 4, since: Duration::from_secs(9) });
        repeats.recovered("up", at(10));
        assert_eq!(repeats.note("b", at(11)), Telling::New);
    }
}
