//! Makes one connection after another, for ever, and publishes how it stands.
//!
//! Whatever the session is busy with (getting a token, negotiating, waiting for the next attempt), calls that
//! come meanwhile are answered with "disconnected" at once, and pushes that were held go on to their taker.

use std::convert::Infallible;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::backoff::{Backoff, Pace};
use crate::client::{CallError, LineEnd, LineStatus, Outgoing};
use crate::connection::{self, Context, Ended};
use crate::inbox::Inbox;
use crate::log_throttle::Repeats;
use crate::protocol::Ending;
use crate::timing::Timing;

/// The edge to the network: what a session needs in order to get a connection.
pub trait Dial: Send {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    type Error: DialError;

    /// Gets a stream over which a WebSocket's frames can go.
    fn dial(&mut self) -> impl Future<Output = Result<Self::Stream, Self::Error>> + Send;

    /// What there is to do while a connection is up.
    fn tend(&mut self) -> impl Future<Output = Infallible> + Send;

    /// Puts the end of a connection into words.
    fn explain(&mut self, ending: Ending) -> Self::Error;
}

/// Why there is no connection, in words for the log and with the pace of the next attempts.
pub trait DialError: std::fmt::Display + Send {
    fn pace(&self) -> Pace;
}

pub(crate) struct Session<D> {
    dialer: D,
    timing: Timing,
    max_message_bytes: usize,
    calls: mpsc::Receiver<Outgoing>,
    status: watch::Sender<LineStatus>,
    inbox: Inbox,
    stop: CancellationToken,
    backoff: Backoff,
    repeats: Repeats,
    generation: u64,
}

impl<D: Dial> Session<D> {
    pub(crate) fn new(
        dialer: D,
        timing: Timing,
        max_message_bytes: usize,
        line: LineEnd,
        inbox: Inbox,
        stop: CancellationToken,
    ) -> Self {
        let LineEnd { outgoing: calls, status } = line;
        let backoff = Backoff::new(&timing);
        let repeats = Repeats::default();
        Self {
            dialer,
            timing,
            max_message_bytes,
            calls,
            status,
            inbox,
            stop,
            backoff,
            repeats,
            generation: 0,
        }
    }

    /// Ends only when it is told to stop.
    pub(crate) async fn run(mut self) {
        while let Some(problem) = self.connect_once().await {
            let delay = self.backoff.next(problem.pace(), fastrand::f64());
            self.repeats.failed("no connection to the server", &problem.to_string(), delay, Instant::now());
            let stop = self.stop.clone();
            if meanwhile(&mut self.calls, &mut self.inbox, &stop, sleep(delay)).await.is_none() {
                break;
            }
        }
        self.status.send_replace(LineStatus::Stopped);
    }

    /// One connection from the token to its end. Says why it ended; nothing when the session is to stop.
    async fn connect_once(&mut self) -> Option<D::Error> {
        let stop = self.stop.clone();
        let dialled = meanwhile(&mut self.calls, &mut self.inbox, &stop, self.dialer.dial()).await?;
        let stream = match dialled {
            Ok(stream) => stream,
            Err(problem) => {
                self.publish_down(&problem);
                return Some(problem);
            }
        };
        let generation = self.generation + 1;
        let opened = {
            let (status, repeats) = (&self.status, &mut self.repeats);
            move || {
                info!(generation, "connected to the server");
                repeats.recovered("connected again", Instant::now());
                status.send_replace(LineStatus::Connected { generation });
            }
        };
        let context = Context {
            timing: &self.timing,
            max_message_bytes: self.max_message_bytes,
            calls: &mut self.calls,
            inbox: &mut self.inbox,
            stop: &stop,
        };
        let Ended { ending, opened_at, accepted, unanswered, goodbye } = tokio::select! {
            ended = connection::run(stream, context, opened) => ended,
            never = self.dialer.tend() => match never {},
        };
        if let Some(opened_at) = opened_at {
            self.generation = generation;
            if accepted || opened_at.elapsed() >= self.timing.settled_after {
                self.backoff.settle();
            }
        }
        let problem = ending.map(|ending| self.dialer.explain(ending));
        // First the status and then the answers: who hears "disconnected" must not find the line up.
        match &problem {
            Some(problem) => self.publish_down(problem),
            None => drop(self.status.send_replace(LineStatus::Stopped)),
        }
        for ticket in unanswered {
            drop(ticket.send(Err(CallError::Disconnected)));
        }
        match problem {
            Some(problem) => {
                meanwhile(&mut self.calls, &mut self.inbox, &stop, goodbye).await?;
                Some(problem)
            }
            None => {
                // Calls that still wait in the queue hear at once that they will not be made.
                self.calls.close();
                while self.calls.try_recv().is_ok() {}
                goodbye.await;
                info!("the connection to the server is closed");
                None
            }
        }
    }

    fn publish_down(&self, problem: &D::Error) {
        self.status.send_replace(LineStatus::Connecting { problem: Some(problem.to_string()) });
    }
}

/// Does something while the line is down: nothing when it was told to stop before that was done.
async fn meanwhile<T>(
    calls: &mut mpsc::Receiver<Outgoing>,
    inbox: &mut Inbox,
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            () = stop.cancelled() => return None,
            Some(call) = calls.recv() => drop(call.answer.send(Err(CallError::Disconnected))),
            () = inbox.make_room() => {}
        }
    }
}

#[cfg(test)]
mod tests;
