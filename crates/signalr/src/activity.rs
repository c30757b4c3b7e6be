//! Counts the bytes that come in, so that a large message on a slow network is not taken for silence.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose incoming bytes are counted.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    bytes: Arc<AtomicU64>,
}

/// The reading of a [`Metered`] stream.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: Arc<AtomicU64>,
    seen: u64,
}

pub(crate) fn metered<S>(inner: S) -> (Metered<S>, Meter) {
    let bytes = Arc::new(AtomicU64::new(0));
    (Metered { inner, bytes: Arc::clone(&bytes) }, Meter { bytes, seen: 0 })
}

impl Meter {
    /// Whether anything came in since the last time.
    pub(crate) fn moved(&mut self) -> bool {
        let now = self.bytes.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, now) != now
    }

    /// Leaves a control frame out of account: what stands between may ping us though the server is gone.
    pub(crate) fn discount(&mut self, payload: usize) {
        const FRAME_HEADER: u64 = 2;
        self.seen = self.seen.saturating_add(FRAME_HEADER + payload as u64);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.bytes.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
