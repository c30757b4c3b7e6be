//! Opens one connection after another, forever, and publishes the status.
//!
//! While there is no connection (the session is dialing, or waits for the next attempt), calls fail at once with
//! [`CallError::Disconnected`], and held invocations are still delivered.

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::backoff::Backoff;
use crate::client::{CallError, ClientDriver, ConnectionStatus, OutgoingCall};
use crate::connection::{self, ConnectionEnd, Context};
use crate::dial::{Dial, DialError};
use crate::inbox::Inbox;
use crate::log_throttle::LogThrottle;
use crate::timing::Timing;

/// Opens connections and keeps the client's state up to date.
pub(crate) struct Session<D> {
    dialer: D,
    timing: Timing,
    max_message_bytes: usize,
    calls: mpsc::Receiver<OutgoingCall>,
    status: watch::Sender<ConnectionStatus>,
    inbox: Inbox,
    stop: CancellationToken,
    backoff: Backoff,
    throttle: LogThrottle,
    generation: u64,
}

impl<D: Dial> Session<D> {
    pub(crate) fn new(
        dialer: D,
        timing: Timing,
        max_message_bytes: usize,
        driver: ClientDriver,
        inbox: Inbox,
        stop: CancellationToken,
    ) -> Self {
        let ClientDriver { outgoing: calls, status } = driver;
        let (backoff, throttle, generation) = (Backoff::new(&timing), LogThrottle::default(), 0);
        Self { dialer, timing, max_message_bytes, calls, status, inbox, stop, backoff, throttle, generation }
    }

    /// Runs until the session is stopped.
    pub(crate) async fn run(mut self) {
        while let Some(problem) = self.connect_once().await {
            let delay = self.backoff.next(problem.pace(), fastrand::f64());
            self.throttle.failed("no connection to the server", &problem.to_string(), delay, Instant::now());
            let stop = self.stop.clone();
            if while_disconnected(&mut self.calls, &mut self.inbox, &stop, sleep(delay)).await.is_none() {
                break;
            }
        }
        self.status.send_replace(ConnectionStatus::Stopped);
    }

    /// Opens one connection and runs it to its end. Returns why it ended, or `None` if the session was stopped.
    async fn connect_once(&mut self) -> Option<D::Error> {
        let stop = self.stop.clone();
        let dialed = while_disconnected(&mut self.calls, &mut self.inbox, &stop, self.dialer.dial()).await?;
        let stream = match dialed {
            Ok(stream) => stream,
            Err(problem) => {
                self.publish_problem(&problem);
                return Some(problem);
            }
        };
        let generation = self.generation + 1;
        let opened = {
            let (status, throttle) = (&self.status, &mut self.throttle);
            move || {
                info!(generation, "connected to the server");
                throttle.recovered("connected again", Instant::now());
                status.send_replace(ConnectionStatus::Connected { generation });
            }
        };
        let context = Context {
            timing: &self.timing,
            max_message_bytes: self.max_message_bytes,
            calls: &mut self.calls,
            inbox: &mut self.inbox,
            stop: &stop,
        };
        let ConnectionEnd { reason, opened_at, accepted, unanswered, close } = tokio::select! {
            ended = connection::run(stream, context, opened) => ended,
            never = self.dialer.maintain() => match never {},
        };
        if let Some(opened_at) = opened_at {
            self.generation = generation;
            if accepted || opened_at.elapsed() >= self.timing.settled_after {
                self.backoff.reset();
            }
        }
        let problem = reason.map(|reason| self.dialer.closed(reason));
        // Publish the status before failing the calls: after `Disconnected` a caller must not see `Connected`.
        match &problem {
            Some(problem) => self.publish_problem(problem),
            None => drop(self.status.send_replace(ConnectionStatus::Stopped)),
        }
        for ticket in unanswered {
            drop(ticket.caller.send(Err(CallError::Disconnected)));
        }
        match problem {
            Some(problem) => {
                while_disconnected(&mut self.calls, &mut self.inbox, &stop, close).await?;
                Some(problem)
            }
            None => {
                // Fails the calls that are still queued.
                self.calls.close();
                while self.calls.try_recv().is_ok() {}
                close.await;
                info!("connection to the server closed");
                None
            }
        }
    }

    fn publish_problem(&self, problem: &D::Error) {
        self.status.send_replace(ConnectionStatus::Connecting { problem: Some(problem.to_string()) });
    }
}

/// Awaits `work` while there is no connection. Returns `None` if the session was stopped first.
async fn while_disconnected<T>(
    calls: &mut mpsc::Receiver<OutgoingCall>,
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
