//! Bash that an interrupt has sent round in circles: decisions only, no I/O.
//!
//! Before bash waits for a command it replaces its handler of interrupts, and notes the one before it when the
//! call is back. An interrupt that arrives in that call finds the new handler and no note: the handler means to restore
//! the old one, sends the interrupt to bash again, finds itself, and so on for ever, with a core to itself (seen with bash 5.2:
//! `strace -e inject=rt_sigaction:signal=SIGINT:when=20 bash SCRIPT`). Nothing but a kill ends that.
//!
//! Such a bash has no living child (the command that it was to wait for got the interrupt too, or ends some time), works
//! without a pause, and an interrupt waits for it most of the time. One that is well takes an interrupt at once.

use std::collections::HashMap;

use rustix::process::Pid;

use super::interrupt::Member;

/// The name of the program that is looked at.
pub(super) const SHELL: &str = "bash";
/// So many times an interrupt is seen waiting, each time after more work, before it is believed. It is not seen every time.
const SEEN: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// How often it was seen, and how long it had worked at the last look.
    watched: HashMap<(Pid, u64), (u32, u64)>,
}

impl Stuck {
    /// Who is found to be stuck, by a new list.
    pub(super) fn find(&mut self, now: &[Member]) -> Vec<Member> {
        let childless = |it: &&Member| !now.iter().any(|other| other.parent == it.pid.as_raw_pid());
        let before = std::mem::take(&mut self.watched);
        let mut found = Vec::new();
        for shell in now.iter().filter(|it| it.name == SHELL && !it.stopped).filter(childless) {
            let (seen, worked) = before.get(&shell.id()).copied().unwrap_or((0, 0));
            if shell.worked == worked {
                continue;
            }
            let now_seen = seen + u32::from(shell.interrupt_waits);
            self.watched.insert(shell.id(), (now_seen, shell.worked));
            // Once: the kill may take its time on a busy machine.
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

    fn shell(worked: u64, interrupt_waits: bool) -> Member {
        Member { name: SHELL.to_owned(), worked, interrupt_waits, ..Member::nobody(pid(10)) }
    }

    /// The look at which it is found to be stuck, counted from 1.
    fn found(looks: impl IntoIterator<Item = Vec<Member>>) -> Option<usize> {
        let mut stuck = Stuck::default();
        looks.into_iter().position(|now| !stuck.find(&now).is_empty()).map(|at| at + 1)
    }

    #[test]
    fn a_busy_shell_with_a_pending_interrupt_is_stuck() {
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, true)])), Some(3));
        // Half of the time the interrupt has just been taken.
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, look % 2 == 0)])), Some(6));
    }

    #[test]
    fn an_idle_busy_waiting_or_stopped_shell_is_not_stuck() {
        assert_eq!(found((1..10).map(|_| vec![shell(50, true)])), None, "it is asleep");
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, false)])), None, "it computes");
        let child = || Member { parent: 10, ..Member::nobody(pid(11)) };
        assert_eq!(found((1..10).map(|look| vec![shell(look * 50, true), child()])), None, "a command runs");
        let stopped = |look| Member { stopped: true, ..shell(look, true) };
        assert_eq!(found((1..10).map(|look| vec![stopped(look * 50)])), None, "it is stopped");
        let engine = |look| Member { name: "terraform".to_owned(), ..shell(look, true) };
        assert_eq!(found((1..10).map(|look| vec![engine(look * 50)])), None, "it is no shell");
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
