//! Signals to this process.

use std::io;

use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that this process waits for instead of ending.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(SignalKind, Signal)>);

impl Signals {
    /// Listens from now on. Must be called on a runtime.
    pub(crate) fn listen(kinds: &[SignalKind]) -> io::Result<Self> {
        kinds.iter().map(|kind| Ok((*kind, signal(*kind)?))).collect::<io::Result<_>>().map(Self)
    }

    pub(crate) async fn next(&mut self) -> SignalKind {
        let received = self.0.iter_mut().map(|(kind, signal)| {
            Box::pin(async {
                signal.recv().await;
                *kind
            })
        });
        select_all(received).await.0
    }
}
