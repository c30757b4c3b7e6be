//! All waiting times of a session.

use std::time::Duration;

/// How patient a session is. The defaults are those of Microsoft's clients where these have one; tests shrink them.
#[derive(Debug, Clone)]
pub struct Timing {
    /// A ping goes out when nothing was sent for so long.
    pub ping_after: Duration,
    /// The server is given up when nothing came from it, or nothing could be sent to it, for so long.
    pub server_timeout: Duration,
    /// How long the server may take to answer the SignalR handshake.
    pub handshake_timeout: Duration,
    /// How long the server may take to answer our goodbye.
    pub close_timeout: Duration,
    /// Waits between attempts to connect; the last one repeats for ever.
    pub reconnect_delays: Vec<Duration>,
    /// The least wait after a refusal that only an operator can put right.
    pub refused_delay: Duration,
    /// A connection that lasted so long, or over which the server accepted a call, starts the delays anew. One that
    /// is lost sooner does not, so that a server which drops everybody on sight is not stormed.
    pub settled_after: Duration,
    /// The share of a delay by which it is made shorter or longer at random, 0.0 to 1.0.
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
