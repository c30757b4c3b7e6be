//! Delivers the server's invocations to the application. None is dropped, and none blocks the connection.
//!
//! Invocations go into a bounded channel. When it is full, messages that were already read are held here, and the
//! connection stops reading until there is room again (TCP then slows the server down). Pings continue. Held messages
//! outlive the connection.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tracing::warn;

use crate::client::Invocation;

/// Invocations that may wait for the application.
const CAPACITY: usize = 1024;

#[derive(Debug)]
pub(crate) struct Inbox {
    sender: mpsc::Sender<Invocation>,
    held: VecDeque<Invocation>,
}

pub(crate) fn inbox() -> (Inbox, mpsc::Receiver<Invocation>) {
    let (sender, invocations) = mpsc::channel(CAPACITY);
    (Inbox { sender, held: VecDeque::new() }, invocations)
}

impl Inbox {
    pub(crate) fn put(&mut self, invocation: Invocation) {
        self.held.push_back(invocation);
        let before = self.held.len();
        self.deliver();
        if before == 1 && !self.held.is_empty() {
            warn!(messages = CAPACITY, "inbox full, pausing reads");
        }
    }

    /// Whether messages are held. Then nothing more should be read.
    pub(crate) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits until the channel has room for a held message and delivers it. Never returns while nothing is held.
    pub(crate) async fn make_room(&mut self) {
        if self.held.is_empty() {
            return std::future::pending().await;
        }
        match self.sender.reserve().await {
            Ok(permit) => {
                if let Some(invocation) = self.held.pop_front() {
                    permit.send(invocation);
                }
            }
            // The application dropped the receiver. Dropping an invocation sends an error to a waiting server.
            Err(_) => self.held.clear(),
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(invocation) = self.held.pop_front() {
            match self.sender.try_send(invocation) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(invocation)) => {
                    return self.held.push_front(invocation);
                }
                Err(mpsc::error::TrySendError::Closed(invocation)) => {
                    warn!(method = invocation.target, "invocation dropped, receiver closed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(number: usize) -> Invocation {
        let received = std::time::Instant::now();
        Invocation { target: number.to_string(), arguments: Vec::new(), received, reply: None }
    }

    #[tokio::test]
    async fn a_full_inbox_holds_messages_and_delivers_them_in_order() {
        let (mut inbox, mut invocations) = inbox();
        let all = CAPACITY + 3;
        for number in 0..all {
            assert_eq!(inbox.is_full(), number > CAPACITY);
            inbox.put(invocation(number));
        }
        for number in 0..all {
            if inbox.is_full() && number > 0 {
                inbox.make_room().await;
            }
            assert_eq!(invocations.recv().await.unwrap().target, number.to_string());
        }
        assert!(!inbox.is_full());
    }

    #[tokio::test]
    async fn an_inbox_without_a_receiver_is_not_full() {
        let (mut inbox, invocations) = inbox();
        drop(invocations);
        inbox.put(invocation(0));
        assert!(!inbox.is_full());
    }
}
