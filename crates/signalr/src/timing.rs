//! The timeouts and delays of a client session.

use std::time::Duration;

/// Timeouts and delays of a client session.
///
/// The defaults match Microsoft's clients wherever those define a value.
#[derive(Debug, Clone)]
pub struct Timing {
    /// A ping is sent after this long without sending anything.
    pub ping_after: Duration,
    /// The connection is closed after this long without receiving anything, or with a write that makes no progress.
    pub server_timeout: Duration,
    /// The time limit for the server's response to the SignalR handshake.
    pub handshake_timeout: Duration,
    /// The time limit for the closing handshake of the WebSocket.
    pub close_timeout: Duration,
    /// Delays between attempts to connect. The last one repeats forever.
    pub reconnect_delays: Vec<Duration>,
    /// The minimum delay after a failure with [`RetryPace::Later`](crate::RetryPace::Later).
    pub refused_delay: Duration,
    /// A connection that lasted this long, or over which the server accepted a call, resets the delays. A shorter one
    /// does not, so that a server that drops every client at once is not flooded with attempts.
    pub settled_after: Duration,
    /// The fraction by which each delay is randomly shortened or extended, from 0.0 to 1.0.
    pub jitter: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ping_after: Duration::from_secs(15),
            server_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(15),
            close_timeout: Duration::from_secs(2),
            reconnect_delays: [1, 2, 5, 10, 20, 30].map(Duration::from_secs).to_vec(),
            refused_delay: Duration::from_secs(30),
            settled_after: Duration::from_secs(10),
            jitter: 0.5,
        }
    }
}
