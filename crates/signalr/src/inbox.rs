//! Delivers the server's invocations, and the completions of ordered calls, to the application in the order of the wire. None
//! is dropped, and none blocks the connection.
//!
//! They go into a bounded channel. When it is full, messages that were already read are held here, and the
//! connection stops reading until there is room again (TCP then slows the server down). Pings continue. Held messages
//! outlive the connection.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tracing::warn;

use crate::client::Incoming;

/// Messages that may wait for the application.
const CAPACITY: usize = 1024;

#[derive(Debug)]
pub(crate) struct Inbox {
    sender: mpsc::Sender<Incoming>,
    held: VecDeque<Incoming>,
}

pub(crate) fn inbox() -> (Inbox, mpsc::Receiver<Incoming>) {
    let (sender, incoming) = mpsc::channel(CAPACITY);
    (Inbox { sender, held: VecDeque::new() }, incoming)
}

impl Inbox {
    pub(crate) fn put(&mut self, message: Incoming) {
        self.held.push_back(message);
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
                if let Some(message) = self.held.pop_front() {
                    permit.send(message);
                }
            }
            // The application dropped the receiver. Dropping a message fails the call of a waiting server or caller.
            Err(_) => self.held.clear(),
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(message) = self.held.pop_front() {
            match self.sender.try_send(message) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(message)) => return self.held.push_front(message),
                Err(mpsc::error::TrySendError::Closed(Incoming::Invocation(invocation))) => {
                    warn!(method = invocation.target, "invocation dropped, receiver closed");
                }
                Err(mpsc::error::TrySendError::Closed(Incoming::Completion(_))) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Invocation;

    fn invocation(number: usize) -> Incoming {
        Incoming::Invocation(Invocation { target: number.to_string(), arguments: Vec::new(), reply: None })
    }

    #[tokio::test]
    async fn a_full_inbox_holds_messages_and_delivers_them_in_order() {
        let (mut inbox, mut incoming) = inbox();
        let all = CAPACITY + 3;
        for number in 0..all {
            assert_eq!(inbox.is_full(), number > CAPACITY);
            inbox.put(invocation(number));
        }
        for number in 0..all {
            if inbox.is_full() && number > 0 {
                inbox.make_room().await;
            }
            let Incoming::Invocation(next) = incoming.recv().await.unwrap() else {
                panic!("no call was made")
            };
            assert_eq!(next.target, number.to_string());
        }
        assert!(!inbox.is_full());
    }

    #[tokio::test]
    async fn an_inbox_without_a_receiver_is_not_full() {
        let (mut inbox, incoming) = inbox();
        drop(incoming);
        inbox.put(invocation(0));
        assert!(!inbox.is_full());
    }
}
