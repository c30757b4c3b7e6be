//! What a test can do to a running hub.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep};

use super::{Rubbish, Rule};
use crate::connection::Outgoing;
use crate::{EmbeddedHub, HubError};

/// How long a port may remain in use after its listener was closed.
const PORT_RELEASE: Duration = Duration::from_secs(10);

impl EmbeddedHub {
    pub fn misbehave(&self, rule: Rule) {
        self.shared.faults().0.push(rule);
    }

    /// Removes all rules.
    pub fn behave(&self) {
        self.shared.faults().0.clear();
    }

    /// Invalidates all tokens, as the restart of a server does.
    pub fn forget_tokens(&self) {
        self.shared.tokens.forget();
    }

    /// Cuts all connections without a Close message. New connections are accepted.
    pub fn drop_connections(&self) {
        self.shared.core().registry.all().for_each(|handle| handle.cut.cancel());
    }

    pub fn send_rubbish(&self, instance: &str, rubbish: Rubbish) -> Result<(), HubError> {
        self.send(instance, Outgoing::Raw(rubbish.frame()))
    }

    /// Cuts all connections and refuses new ones until [`go_online`](Self::go_online). Jobs keep their state.
    pub async fn go_offline(&self) -> Result<(), HubError> {
        let mut listening = self.listening.lock().await;
        if let Some(online) = listening.online.take() {
            self.end(online).await;
            let failed = |source| HubError::Listen { address: self.address, source };
            listening.reserved_port = Some(bind_again(self.address).await.map_err(failed)?);
        }
        Ok(())
    }

    /// Listens again on the same port.
    pub async fn go_online(&self) -> Result<(), HubError> {
        let mut listening = self.listening.lock().await;
        if let Some(socket) = listening.reserved_port.take() {
            let failed = |source| HubError::Listen { address: self.address, source };
            let listener = socket.listen(1024).map_err(failed)?;
            listening.online = Some(crate::serve(&self.shared, listener, self.stop.child_token()));
        }
        Ok(())
    }
}

/// Binds the port of a listener that was just closed. A child process that is being started holds a copy of the
/// listener until its `exec`.
async fn bind_again(address: SocketAddr) -> io::Result<TcpSocket> {
    let start = Instant::now();
    loop {
        match crate::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < PORT_RELEASE => {
                sleep(Duration::from_millis(5)).await;
            }
            bound => return bound,
        }
    }
}
