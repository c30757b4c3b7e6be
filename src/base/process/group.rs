//! The process group of a program, from its start until nothing of it runs.

use std::pin::Pin;
use std::time::Duration;

use futures::future::Fuse;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

/// How long killed processes get to vanish. The kernel needs milliseconds; only a dead process that nobody
/// collects (a container whose first process does not) stays longer, and that one does nothing any more.
const VANISH: Duration = Duration::from_secs(2);

/// Kills the group when dropped, so that a run that is given up half way leaves nothing behind.
#[derive(Debug)]
pub(super) struct Group {
    leader: Option<Pid>,
}

impl Group {
    pub(super) fn led_by(child: &Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Self { leader }
    }

    /// Interrupts the group, kills what is left of it after the grace, and waits until it is gone. What the
    /// program still says is read meanwhile, so that it is not held up by a full pipe.
    pub(super) async fn end<F: Future>(
        &self,
        child: &mut Child,
        mut reading: Pin<&mut Fuse<F>>,
        grace: Duration,
    ) {
        self.signal(Signal::INT);
        let leader_ends = async {
            loop {
                tokio::select! {
                    _ = child.wait() => break,
                    // Once it is through, this branch stays silent for good.
                    _ = reading.as_mut() => {}
                }
            }
        };
        let _ = timeout(grace, leader_ends).await;
        self.signal(Signal::KILL);
        let _ = child.wait().await;
        let deadline = Instant::now() + VANISH;
        while self.is_there() && Instant::now() < deadline {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The program has ended by itself: what it left running on purpose is none of our business.
    pub(super) fn leave(mut self) {
        self.leader = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // It fails when the group is gone already, which is what is wanted.
            let _ = kill_process_group(leader, signal);
        }
    }

    fn is_there(&self) -> bool {
        self.leader.is_some_and(|leader| test_kill_process_group(leader).is_ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
