//! The way of pushes to whoever takes them. None is dropped, and none holds up the reader.
//!
//! Pushes go into a channel with room for many. When it is full, what was read already is held here, the connection
//! reads no further until there is room again (TCP then slows the server down) and its pings go on. What is held
//! outlives the connection.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tracing::warn;

use crate::client::Pushed;

/// Pushes that may wait to be taken. A server sends a few per job, so a full channel means that something is stuck.
const ROOM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Inbox {
    taker: mpsc::Sender<Pushed>,
    held: VecDeque<Pushed>,
}

pub(crate) fn inbox() -> (Inbox, mpsc::Receiver<Pushed>) {
    let (taker, pushes) = mpsc::channel(ROOM);
    (Inbox { taker, held: VecDeque::new() }, pushes)
}

impl Inbox {
    pub(crate) fn put(&mut self, push: Pushed) {
        self.held.push_back(push);
        let before = self.held.len();
        self.pass_on();
        if before == 1 && !self.held.is_empty() {
            warn!("{ROOM} pushed messages wait to be taken: reading on when there is room");
        }
    }

    /// Something is held: nothing more should be read.
    pub(crate) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits until there is room for something held, and passes it on. Never ends when nothing is held.
    pub(crate) async fn make_room(&mut self) {
        if self.held.is_empty() {
            return std::future::pending().await;
        }
        match self.taker.reserve().await {
            Ok(permit) => {
                if let Some(push) = self.held.pop_front() {
                    permit.send(push);
                }
            }
            // Nobody takes pushes any more: the runner is leaving. Dropping one tells a waiting server so.
            Err(_) => self.held.clear(),
        }
        self.pass_on();
    }

    fn pass_on(&mut self) {
        while let Some(push) = self.held.pop_front() {
            match self.taker.try_send(push) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(push)) => return self.held.push_front(push),
                Err(mpsc::error::TrySendError::Closed(push)) => {
                    warn!(method = push.target, "a pushed message finds nobody to take it");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(number: usize) -> Pushed {
        let received = std::time::Instant::now();
        Pushed { target: number.to_string(), arguments: Vec::new(), received, reply: None }
    }

    #[tokio::test]
    async fn a_full_inbox_holds_what_comes_and_passes_it_on_in_order() {
        let (mut inbox, mut pushes) = inbox();
        let all = ROOM + 3;
        for number in 0..all {
            assert_eq!(inbox.is_full(), number > ROOM);
            inbox.put(push(number));
        }
        for number in 0..all {
            if inbox.is_full() && number > 0 {
                inbox.make_room().await;
            }
            assert_eq!(pushes.recv().await.unwrap().target, number.to_string());
        }
        assert!(!inbox.is_full());
    }

    #[tokio::test]
    async fn an_inbox_that_nobody_reads_any_more_is_not_full() {
        let (mut inbox, pushes) = inbox();
        drop(pushes);
        inbox.put(push(0));
        assert!(!inbox.is_full());
    }
}
