//! Blocking work, such as file I/O, runs on a thread of the blocking pool and never on a runtime thread.

use tokio::task::{JoinError, spawn_blocking};

/// Starts `work` on the blocking pool right away, whether or not the returned future is polled. A panic in `work` does
/// not spread: the caller gets it as an error and decides what it means.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, JoinError>> + Send + Unpin {
    spawn_blocking(work)
}
