//! Calls a method of a hub and prints what the server calls:
//! `cargo run -p hawser-signalr --example client -- URL METHOD [ARGUMENTS AS A JSON LIST]`

use std::error::Error;
use std::time::Duration;

use hawser_signalr::{ConnectionStatus, HttpDialer, Incoming, Timing, connect};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("missing URL of a hub")?.parse()?;
    let method = arguments.next().ok_or("missing name of a method")?;
    let list = arguments.next().unwrap_or_else(|| "[]".to_owned());

    // The TLS implementation of the HTTP client.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http1_only().build()?;
    let dialer = HttpDialer { client, url, token: None, timeout: Duration::from_secs(15) };
    let stop = CancellationToken::new();
    let (hub, mut incoming, session) = connect(dialer, Timing::default(), 32 * 1024, stop.clone());

    // In another task, because a full inbox would delay the completion of the call.
    tokio::spawn(async move {
        while let Some(message) = incoming.recv().await {
            match message {
                Incoming::Invocation(call) => println!("{}({:?})", call.target, call.arguments),
                Incoming::Completion(completion) => completion.deliver(),
            }
        }
    });
    hub.status().wait_for(|status| matches!(status, ConnectionStatus::Connected { .. })).await?;
    println!("{method} returned {}", hub.start(&method, list).await?.answer().await?);
    tokio::signal::ctrl_c().await?;
    stop.cancel();
    Ok(session.await?)
}
