//! A small HTTP proxy that supports CONNECT and requires credentials.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The header for `user:pass`.
pub(crate) const USER_PASS_IN_BASE64: &str = "dXNlcjpwYXNz";

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    asked_for: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Connects clients that log in as `user` with `pass` to `target`, regardless of the host they request.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked_for = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked_for);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, target, Arc::clone(&seen)));
            }
        });
        Self { address, asked_for }
    }

    /// The hosts that clients with valid credentials requested.
    pub(crate) fn asked_for(&self) -> Vec<String> {
        self.asked_for.lock().unwrap().clone()
    }
}

async fn serve(mut client: TcpStream, target: SocketAddr, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(host) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        let _ = client.write_all(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n").await;
        return;
    };
    let wanted = format!("proxy-authorization: basic {}", USER_PASS_IN_BASE64.to_lowercase());
    if !head.to_lowercase().contains(&wanted) {
        let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        let _ = client.write_all(answer).await;
        return;
    }
    if host.starts_with("forbidden.") {
        let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
        return;
    }
    seen.lock().unwrap().push(host.to_owned());
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
