//! Waits for conditions. The limits only turn a hang into a failure; no test depends on how long something takes.

use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(10);

/// The result of checking a condition: whether it is met, or a value if it is met.
pub(crate) trait Sight {
    type Found;
    fn found(self) -> Option<Self::Found>;
}

impl Sight for bool {
    type Found = ();
    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Sight for Option<T> {
    type Found = T;
    fn found(self) -> Self {
        self
    }
}

/// Polls until the condition is met.
pub(crate) async fn eventually<S: Sight>(what: &str, mut look: impl FnMut() -> S) -> S::Found {
    let start = Instant::now();
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "timed out after {LIMIT:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Like `eventually`, outside of a runtime.
#[track_caller]
pub(crate) fn eventually_blocking<S: Sight>(what: &str, look: impl FnMut() -> S) -> S::Found {
    eventually_or(look, || panic!("timed out after {LIMIT:?}: {what}"))
}

/// Like `eventually`, but the caller handles a timeout.
#[track_caller]
pub(crate) fn eventually_or<S: Sight>(
    mut look: impl FnMut() -> S,
    fail: impl FnOnce() -> S::Found,
) -> S::Found {
    let start = Instant::now();
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        if start.elapsed() >= LIMIT {
            return fail();
        }
        thread::sleep(PAUSE);
    }
}

/// Awaits a future that must complete.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("timed out after {LIMIT:?}: {what}"))
}
