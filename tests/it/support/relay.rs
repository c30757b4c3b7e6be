//! A TCP relay that misbehaves on command: it cuts, stalls and refuses connections on their way to a target.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Connections stay open and new ones are accepted, but no byte passes.
    Stall,
    /// New connections are reset.
    Refuse,
}

#[derive(Debug, Clone)]
struct State {
    mode: Mode,
    target: SocketAddr,
    /// Cancelled to cut all connections, and replaced after each cut.
    scissors: CancellationToken,
}

/// Stops when dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    state: watch::Sender<State>,
    _stop: DropGuard,
}

impl Relay {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let first = State { mode: Mode::Forward, target, scissors: stop.child_token() };
        let (state, seen) = watch::channel(first);
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, seen)));
        Self { address, state, _stop: stop.drop_guard() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections; new ones are forwarded as before.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| {
            state.scissors.cancel();
            state.scissors = CancellationToken::new();
        });
    }

    pub(crate) fn stall(&self) {
        self.set(Mode::Stall);
    }

    pub(crate) fn refuse(&self) {
        self.set(Mode::Refuse);
    }

    /// Forwards again, after a stall or a refusal.
    pub(crate) fn resume(&self) {
        self.set(Mode::Forward);
    }

    /// Forwards new connections to another target, as when a server comes back on another port.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.state.send_modify(|state| state.target = target);
    }

    fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }
}

async fn accept(listener: TcpListener, state: watch::Receiver<State>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let State { mode, scissors, .. } = state.borrow().clone();
        if mode == Mode::Refuse {
            reset(&client);
            continue;
        }
        let state = state.clone();
        tokio::spawn(async move {
            // A cut drops both sockets at once, even in the middle of a message.
            scissors.run_until_cancelled(forward(client, state)).await;
        });
    }
}

async fn forward(client: TcpStream, mut state: watch::Receiver<State>) {
    if state.wait_for(|state| state.mode == Mode::Forward).await.is_err() {
        return;
    }
    let target = state.borrow().target;
    let Ok(server) = TcpStream::connect(target).await else {
        return reset(&client);
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(copy(from_client, to_server, state.clone()), copy(from_server, to_client, state));
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // A relay that refuses still serves existing connections.
        if state.wait_for(|state| state.mode != Mode::Stall).await.is_err() {
            return;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = state.changed() => continue,
        };
        match read {
            Ok(length @ 1..) => {
                if to.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
            _ => {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}

fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
