//! SignalR's JSON hub protocol over WebSockets, for clients and servers.
//!
//! # Client
//!
//! [`connect`] starts a session that connects, and reconnects after every failure, until it is stopped. Call methods
//! of the hub with the [`HubClient`] that it returns. Methods that the server calls arrive on a channel as
//! [`Invocation`]s. Where the order of a completion among them matters, make the call with
//! [`start_ordered`](HubClient::start_ordered): its [`Completion`] arrives on the same channel.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use hawser_signalr::{ConnectionStatus, HttpDialer, Incoming, Timing, connect};
//! use tokio_util::sync::CancellationToken;
//!
//! // Without a TLS provider, building the HTTP client panics.
//! let _ = rustls::crypto::ring::default_provider().install_default();
//! let dialer = HttpDialer {
//!     client: reqwest::Client::builder().http1_only().build()?,
//!     url: "https://example.com/chat".parse()?,
//!     token: None,
//!     timeout: Duration::from_secs(15),
//! };
//! let stop = CancellationToken::new();
//! let (client, mut incoming, session) = connect(dialer, Timing::default(), 32 * 1024, stop.clone());
//! tokio::spawn(async move {
//!     while let Some(message) = incoming.recv().await {
//!         match message {
//!             Incoming::Invocation(call) => println!("{}({:?})", call.target, call.arguments),
//!             Incoming::Completion(completion) => completion.deliver(),
//!         }
//!     }
//! });
//!
//! client.status().wait_for(|status| matches!(status, ConnectionStatus::Connected { .. })).await?;
//! let result = client.invoke("Join", ("lobby", 1)).await?;
//! println!("Join returned {result}");
//!
//! tokio::signal::ctrl_c().await?;
//! stop.cancel();
//! session.await?;
//! # Ok(())
//! # }
//! ```
//!
//! The application must keep receiving invocations. While 1,024 of them are waiting, the connection stops reading, and
//! completions of calls arrive over the same connection. So never wait for the completion of a call in the task that
//! receives invocations.
//!
//! A call that fails with [`CallError::Disconnected`] may have been processed by the server. The session never repeats
//! a call.
//!
//! # Server
//!
//! [`server`] runs the protocol over a WebSocket that a web server has accepted. To call a method of a client and wait
//! for its result, see [`PendingResults`](server::PendingResults).
//!
//! # Limits
//!
//! The JSON protocol in version 1 over WebSockets. No streams, no MessagePack, no stateful reconnect, no other
//! transports.
//!
//! A client accepts messages of up to 16 MiB. A larger message ends the connection, and the session reconnects. The limit
//! for messages that a client sends is a parameter of [`connect`].
//!
//! # How it works
//!
//! ```text
//! session ── opens one after another ──→ connection ── drives ──→ protocol (pure) ──→ codec (pure)
//!    └── Dial: negotiate and upgrade
//! ```

#![deny(missing_docs)]

mod activity;
mod backoff;
pub mod client;
pub mod codec;
mod connection;
mod dial;
pub mod http;
mod inbox;
mod log_throttle;
pub mod negotiate;
mod protocol;
pub mod server;
mod session;
mod timing;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use backoff::{Backoff, RetryPace};
pub use client::{
    CallError, Completion, ConnectionStatus, HubClient, Incoming, Invocation, PendingCall, Reply,
};
pub use dial::{Dial, DialError, HttpDialError, HttpDialer};
pub use log_throttle::LogThrottle;
pub use negotiate::NegotiateError;
pub use protocol::CloseReason;
pub use timing::Timing;

/// Starts a session that connects and reconnects until `stop` is cancelled.
///
/// `max_message_bytes` limits outgoing messages. It is the largest message that the server accepts
/// (`MaximumReceiveMessageSize` in ASP.NET Core, 32 KiB by default). A larger call fails with [`CallError::TooLarge`].
/// Incoming messages have a fixed limit of 16 MiB.
///
/// Returns the client, the methods that the server calls, and the task of the session, which ends
/// after `stop` is cancelled and the connection is closed.
///
/// Must be called within a Tokio runtime.
pub fn connect<D: Dial + 'static>(
    dialer: D,
    timing: Timing,
    max_message_bytes: usize,
    stop: CancellationToken,
) -> (HubClient, mpsc::Receiver<Incoming>, JoinHandle<()>) {
    let (client, driver) = client::channel();
    let (inbox, incoming) = inbox::inbox();
    let session = session::Session::new(dialer, timing, max_message_bytes, driver, inbox, stop);
    (client, incoming, tokio::spawn(session.run()))
}

/// Compiles the examples in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
