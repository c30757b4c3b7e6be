//! Detects a bash that loops forever on an interrupt. Decisions only, no I/O.
//!
//! Before bash waits for a command, it installs another interrupt handler, and saves the previous handler when the
//! system call returns. If an interrupt arrives during the call, the new handler runs before the previous one is saved. It
//! tries to restore the previous handler, restores itself, sends the interrupt to bash again, and loops, using a full core
//! (seen with bash 5.2: `strace -e inject=rt_sigaction:signal=SIGINT:when=20 bash SCRIPT`). Only a kill ends the loop.
//!
//! A stuck bash has no living child (the command that it was about to wait for got the interrupt too, or ends on its own),
//! uses CPU time without a pause, and has a pending interrupt most of the time. A healthy bash handles an interrupt at
//! once.

use std::collections::HashMap;

use rustix::process::Pid;

use super::interrupt::ProcessInfo;

/// The name of the program to check.
pub(super) const SHELL: &str = "bash";
/// A shell is stuck after this many observations of a pending interrupt, with CPU time used between them. Not every
/// observation of a stuck shell shows the interrupt.
const SEEN: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// For each shell: how often a pending interrupt was observed, and its CPU time at the last observation.
    watched: HashMap<(Pid, u64), (u32, u64)>,
}

impl Stuck {
    /// Returns the shells that a new list shows to be stuck, each of them once.
    pub(super) fn find(&mut self, now: &[ProcessInfo]) -> Vec<ProcessInfo> {
        let childless = |it: &&ProcessInfo| !now.iter().any(|other| other.parent == it.pid.as_raw_pid());
        let before = std::mem::take(&mut self.watched);
        let mut found = Vec::new();
        for shell in now.iter().filter(|it| it.name == SHELL && !it.stopped).filter(childless) {
            let (seen, cpu_ticks) = before.get(&shell.id()).copied().unwrap_or((0, 0));
            if shell.cpu_ticks == cpu_ticks {
                continue;
            }
            let now_seen = seen + u32::from(shell.interrupt_waits);
            self.watched.insert(shell.id(), (now_seen, shell.cpu_ticks));
            // Only once: on a busy machine the kill may take a while.
            if seen < SEEN && now_seen == SEEN {
                found.push(shell.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(pid: i32) -> Pid {
        Pid::from_raw(pid).unwrap()
    }

    fn shell(cpu_ticks: u64, interrupt_waits: bool) -> ProcessInfo {
        ProcessInfo { name: SHELL.to_owned(), cpu_ticks, interrupt_waits, ..ProcessInfo::any(pid(10)) }
    }

    /// The number of the observation, from 1, that finds the shell stuck.
    fn found(looks: impl IntoIterator<Item = Vec<ProcessInfo>>) -> Option<usize> {
        let mut stuck = Stuck::default();
        looks.into_iter().position(|now| !stuck.find(&now).is_empty()).map(|at| at + 1)
    }

    #[test]
    fn a_busy_shell_with_a_pending_interrupt_is_stuck() {
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, true)])), Some(3));
        // In every other observation, the interrupt was just handled.
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, look % 2 == 0)])), Some(6));
    }

    #[test]
    fn an_idle_busy_waiting_or_stopped_shell_is_not_stuck() {
        assert_eq!(found((1..10).map(|_| vec![shell(50, true)])), None, "it is asleep");
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, false)])), None, "it computes");
        let child = || ProcessInfo { parent: 10, ..ProcessInfo::any(pid(11)) };
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, true), child()])), None, "a command runs");
        let stopped = |look| ProcessInfo { stopped: true, ..shell(look, true) };
        assert_eq!(found((1..10).map(|look| vec![stopped(look * 50)])), None, "it is stopped");
        let engine = |look| ProcessInfo { name: "terraform".to_owned(), ..shell(look, true) };
        assert_eq!(found((1..10).map(|look| vec![engine(look * 50)])), None, "it is not a shell");
    }

    #[test]
    fn it_is_found_once() {
        let mut stuck = Stuck::default();
        let found = (1..10).filter(|look| !stuck.find(&[shell(look * 50, true)]).is_empty()).count();
        assert_eq!(found, 1);
    }

    #[test]
    fn a_shell_is_stuck_only_after_consecutive_observations() {
        let looks = [shell(50, true), shell(100, true), shell(100, true), shell(150, true), shell(200, true)];
        assert_eq!(found(looks.into_iter().map(|it| vec![it])), None);
    }
}
