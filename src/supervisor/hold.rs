//! Holds bash still while an interrupt is sent.
//!
//! Between two lists of the processes bash may fork, and its copy may become an engine that is ready for an interrupt: from
//! the lists alone nobody can tell whether the interrupt came before that or after. So the script's own process is
//! stopped, and its copies in the group (subshells, and those that are about to become a command), until the
//! lists are made. A signal waits for a stopped process and is taken as soon as it goes on, before anything else.
//!
//! Only bash is stopped, never a program that it has started: a stop is not noticed by bash, but to an engine it may
//! look like an interrupted call. Where it is not known who is a copy (no `/proc`), it is the script's own process alone.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::interrupt::Member;
use super::linux;

/// A process in the depths of the kernel cannot be stopped. The interrupt does not wait for it any longer than that.
const LIMIT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(200);

/// They go on when this is dropped.
#[derive(Debug)]
pub(super) struct StoppedProcesses {
    stopped: Vec<Pid>,
}

impl StoppedProcesses {
    /// Stops them, and lists all processes of the step as they are then.
    pub(super) fn of(script: Pid) -> (Self, Vec<Member>) {
        Self::within(script, LIMIT)
    }

    fn within(script: Pid, limit: Duration) -> (Self, Vec<Member>) {
        let since = Instant::now();
        let mut hold = Self { stopped: Vec::new() };
        hold.stop(script);
        loop {
            let members = linux::members(script);
            let image = members.iter().find(|it| it.pid == script).and_then(|it| it.image);
            let is_bash =
                |it: &Member| it.pid == script || (it.in_group && image.is_some() && it.image == image);
            let mut all_still = true;
            for moving in members.iter().filter(|it| is_bash(it) && !it.stopped) {
                all_still = false;
                hold.stop(moving.pid);
            }
            if all_still || since.elapsed() >= limit {
                return (hold, members);
            }
            thread::sleep(PAUSE);
        }
    }

    fn stop(&mut self, pid: Pid) {
        if !self.stopped.contains(&pid) && kill_process(pid, Signal::STOP).is_ok() {
            self.stopped.push(pid);
        }
    }
}

impl Drop for StoppedProcesses {
    fn drop(&mut self) {
        for pid in &self.stopped {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use super::*;

    /// A script that starts one command after another, in subshells and without.
    fn busy() -> (Child, Pid) {
        let script = "(while :; do /bin/true; done) & while :; do /bin/true; (:); done";
        let child = Command::new("bash").args(["-c", script]).process_group(0).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    fn in_group(members: Vec<Member>) -> Vec<Member> {
        let mut members: Vec<_> = members.into_iter().filter(|it| it.in_group).collect();
        members.sort_by_key(|it| it.pid.as_raw_pid());
        members
    }

    #[test]
    fn a_stopped_script_starts_nothing_and_continues_afterwards() {
        let (mut child, pid) = busy();
        for _ in 0..20 {
            let (held, members) = StoppedProcesses::within(pid, Duration::MAX);
            let before = in_group(members);
            // Commands that were started before may end, but there is none that was not there.
            for _ in 0..20 {
                let now = in_group(linux::members(pid));
                let known =
                    |it: &&Member| before.iter().any(|known| known.pid == it.pid && known.born == it.born);
                assert_eq!(now.iter().find(|it| !known(it)), None, "before: {before:?}");
                thread::sleep(Duration::from_millis(1));
            }
            drop(held);
            // Both loops go on: of each there comes a command that was not there.
            let old = |it: &Member| before.iter().any(|known| known.pid == it.pid && known.born == it.born);
            while !in_group(linux::members(pid)).iter().any(|it| !old(it)) {
                thread::yield_now();
            }
        }
        rustix::process::kill_process_group(pid, Signal::KILL).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn stopping_an_ended_script_does_nothing() {
        let mut child = Command::new("true").process_group(0).spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        let (held, members) = StoppedProcesses::of(pid);
        assert!(held.stopped.is_empty() && in_group(members).is_empty());
    }
}
