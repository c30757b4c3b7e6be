//! A hub at `http://127.0.0.1:5000/echo`. Its method `Echo` returns its arguments and calls `Echoed` on the client:
//! `cargo run -p hawser-signalr --features axum --example server`

use std::error::Error;

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::routing::{get, post};
use axum::{Json, Router};
use hawser_signalr::server::{ClientMessage, ServerOptions, split};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let transports = json!([{"transport": "WebSockets", "transferFormats": ["Text"]}]);
    let negotiated = json!({"connectionId": "example", "availableTransports": transports});
    let upgrade = |upgrade: WebSocketUpgrade| async {
        upgrade.on_upgrade(async |socket| eprintln!("connection ended: {:?}", serve(socket).await))
    };
    let hub =
        Router::new().route("/echo/negotiate", post(async || Json(negotiated))).route("/echo", get(upgrade));
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:5000").await?, hub).await?)
}

async fn serve(socket: WebSocket) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (mut reader, mut writer) = split(socket, &ServerOptions::default());
    let request = reader.handshake().await?;
    writer.answer_handshake(request.check()).await?;
    loop {
        match writer.keep_alive_while(reader.next()).await?? {
            ClientMessage::Invocation { invocation_id: Some(id), target, arguments } if target == "Echo" => {
                let arguments: Vec<Value> = serde_json::from_str(arguments.get())?;
                writer.complete(id, Ok(json!(arguments))).await?;
                writer.invoke("Echoed", arguments).await?;
            }
            ClientMessage::Invocation { invocation_id: Some(id), .. } => {
                writer.complete(id, Err("unknown method".to_owned())).await?;
            }
            ClientMessage::Close { .. } => return Ok(()),
            _ => {}
        }
    }
}
