//! Stops bash while an interrupt is sent.
//!
//! Between two lists of the processes, bash may fork, and its copy may execute an engine that has a handler for interrupts.
//! The lists alone do not show whether the interrupt came before or after that. So the script's own process is stopped
//! until both lists are made, together with its copies in the group (subshells, and those that are about to execute a
//! command). A signal to a stopped process stays pending, and is handled first when the process continues.
//!
//! Only bash is stopped, never a program that it has started: bash does not notice a stop, but an engine may see an
//! interrupted system call. If the copies are unknown (no `/proc`), only the script's own process is stopped.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::interrupt::ProcessInfo;
use super::linux;

/// How long to wait for the processes to stop. A process in an uninterruptible system call does not stop.
const LIMIT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(200);

/// Continues the processes when it is dropped.
#[derive(Debug)]
pub(super) struct StoppedProcesses {
    stopped: Vec<Pid>,
}

impl StoppedProcesses {
    /// Stops bash, then lists all processes of the step.
    pub(super) fn of(script: Pid) -> (Self, Vec<ProcessInfo>) {
        Self::within(script, LIMIT)
    }

    fn within(script: Pid, limit: Duration) -> (Self, Vec<ProcessInfo>) {
        let since = Instant::now();
        let mut hold = Self { stopped: Vec::new() };
        hold.stop(script);
        loop {
            let members = linux::members(script);
            let image = members.iter().find(|it| it.pid == script).and_then(|it| it.image);
            let is_bash =
                |it: &ProcessInfo| it.pid == script || (it.in_group && image.is_some() && it.image == image);
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

    fn in_group(members: Vec<ProcessInfo>) -> Vec<ProcessInfo> {
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
            // Commands that were started before may end, but no new one starts.
            for _ in 0..20 {
                let now = in_group(linux::members(pid));
                let known = |it: &&ProcessInfo| {
                    before.iter().any(|known| known.pid == it.pid && known.start_time == it.start_time)
                };
                assert_eq!(now.iter().find(|it| !known(it)), None, "before: {before:?}");
                thread::sleep(Duration::from_millis(1));
            }
            drop(held);
            // The loops continue: a new command starts.
            let old = |it: &ProcessInfo| {
                before.iter().any(|known| known.pid == it.pid && known.start_time == it.start_time)
            };
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
