//! Counts received bytes, so that a large message on a slow network is not mistaken for silence.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that counts the bytes read from it.
#[derive(Debug)]
pub(crate) struct ActivityStream<S> {
    inner: S,
    bytes: Arc<AtomicU64>,
}

/// The counter of an [`ActivityStream`].
#[derive(Debug)]
pub(crate) struct Activity {
    bytes: Arc<AtomicU64>,
    seen: u64,
}

pub(crate) fn watch_activity<S>(inner: S) -> (ActivityStream<S>, Activity) {
    let bytes = Arc::new(AtomicU64::new(0));
    (ActivityStream { inner, bytes: Arc::clone(&bytes) }, Activity { bytes, seen: 0 })
}

impl Activity {
    /// Whether bytes were received since the previous call.
    pub(crate) fn changed(&mut self) -> bool {
        let now = self.bytes.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, now) != now
    }

    /// Ignores a control frame: a proxy may ping the client even though the server behind it is gone.
    pub(crate) fn discount(&mut self, payload: usize) {
        const FRAME_HEADER: u64 = 2;
        self.seen = self.seen.saturating_add(FRAME_HEADER + payload as u64);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
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
