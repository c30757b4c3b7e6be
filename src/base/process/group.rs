//! The process group of a program, from its start until its last process is gone.

use std::pin::Pin;
use std::time::Duration;

use futures::future::Fuse;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

use crate::base::retry;

/// How long to wait for killed processes to disappear. The kernel needs milliseconds. Only a zombie that is never reaped
/// (in a container whose process 1 does not reap) stays longer, and that is harmless.
const VANISH: Duration = Duration::from_secs(2);

/// Kills the group when dropped, so that an abandoned run leaves no processes behind.
#[derive(Debug)]
pub(super) struct Group {
    leader: Option<Pid>,
}

impl Group {
    pub(super) fn led_by(child: &Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Self { leader }
    }

    /// Interrupts the group, kills the rest of it after the grace period, and waits until it is gone. Output is still read
    /// meanwhile, so that a full pipe does not block the program.
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
                    // A fused future stays pending once it has completed.
                    _ = reading.as_mut() => {}
                }
            }
        };
        let _ = timeout(grace, leader_ends).await;
        self.signal(Signal::KILL);
        let _ = child.wait().await;
        let deadline = Instant::now() + VANISH;
        while self.is_there() && Instant::now() < deadline {
            sleep(retry::KILLED_GROUP).await;
        }
    }

    /// Leaves the group alone: the program ended by itself, and may have left a daemon running on purpose.
    pub(super) fn leave(mut self) {
        self.leader = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // Fails if the group is already gone.
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
