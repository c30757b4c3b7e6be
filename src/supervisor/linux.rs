//! Orphans become children of the supervisor, and `/proc` lists all processes below it.

use std::collections::HashMap;
use std::{fs, io};

use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper, test_kill_process_group,
};

/// A running process of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) pid: Pid,
    parent: i32,
    /// Not a zombie.
    alive: bool,
    /// In clock ticks since the boot.
    start_time: u64,
    /// The program's name without arguments, which may contain secrets.
    pub(super) name: String,
}

/// From now on a process whose parent exits becomes our child, regardless of its session.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Changes with each boot of the machine.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// A warning for the step's log.
pub(super) fn limitation() -> Option<&'static str> {
    (!proc_is_ours()).then_some(
        "/proc belongs to another PID namespace (mount it again in this one): processes that leave the process group of the \
         script will not be found or ended",
    )
}

/// Whether the numbers in `/proc` are those of this PID namespace. Otherwise we would signal unrelated processes.
pub(super) fn proc_is_ours() -> bool {
    own_number().is_ok_and(|own| own == getpid().as_raw_pid().to_string())
}

/// The number of this process in `/proc`, which is another one if `/proc` belongs to another PID namespace.
pub(super) fn own_number() -> io::Result<String> {
    Ok(fs::read_link("/proc/self")?.to_string_lossy().into_owned())
}

/// Distinguishes a process from a later one with the same number. Needs a `/proc` that [is ours](proc_is_ours).
pub(super) fn start_time(pid: Pid) -> Option<u64> {
    let line = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    Some(ProcessInfo::read(&String::from_utf8_lossy(&line))?.start_time)
}

/// Whether a process has a handler for a signal. Needs a `/proc` that [is ours](proc_is_ours).
pub(super) fn catches(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal.as_raw() - 1)) != 0)
}

/// Whether all processes of the step are gone. Orphans become our children, so without children there are no others.
pub(super) fn is_alone(group: Pid, childless: bool) -> bool {
    childless || (!proc_is_ours() && test_kill_process_group(group).is_err())
}

/// Sends a signal to every running process of the step, and returns these processes.
pub(super) fn signal_all(group: Pid, signal: Signal) -> Vec<ProcessInfo> {
    if !proc_is_ours() {
        let _ = kill_process_group(group, signal);
    }
    let living = living();
    for process in &living {
        // Fails if the process has ended or belongs to another user. The next sweep finds the rest.
        let _ = kill_process(process.pid, signal);
    }
    living
}

/// The running processes of the step.
pub(super) fn living() -> Vec<ProcessInfo> {
    if !proc_is_ours() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut children: HashMap<i32, Vec<ProcessInfo>> = HashMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let Ok(line) = fs::read(entry.path().join("stat")) else { continue };
        if let Some(process) = ProcessInfo::read(&String::from_utf8_lossy(&line)) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_pid()];
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid.as_raw_pid());
            if process.alive {
                found.push(process);
            }
        }
    }
    found
}

impl ProcessInfo {
    /// Reads a line of `/proc/{pid}/stat`: `pid (name) state parent …`. The name may contain anything, including blanks and
    /// parentheses.
    fn read(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        // The manual (proc_pid_stat) numbers the fields from 1. The state is field 3, the start time field 22.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            parent: fields.get(1)?.parse().ok()?,
            alive: !matches!(*fields.first()?, "Z" | "X"),
            start_time: fields.get(22 - 3).and_then(|ticks| ticks.parse().ok()).unwrap_or(0),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleep() -> (Child, Pid) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_is_read_correctly() {
        let process = ProcessInfo::read("12 (a) R (b) S 7 12 12 0 -1").unwrap();
        assert_eq!((process.pid.as_raw_pid(), process.name.as_str(), process.parent), (12, "a) R (b", 7));
        assert!(process.alive);
        assert!(!ProcessInfo::read("12 (x) Z 7 11").unwrap().alive);
        assert_eq!(ProcessInfo::read("12 (x"), None);
        assert_eq!(ProcessInfo::read(""), None);
    }

    #[test]
    fn the_start_and_the_handlers_of_a_process_are_found() {
        let (mut child, pid) = sleep();
        assert!(start_time(pid) >= start_time(getpid()) && start_time(getpid()) > Some(0));
        // The handlers of Rust's own runtime, for stack overflows.
        assert!(catches(getpid(), Signal::SEGV) && !catches(getpid(), Signal::KILL));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((start_time(pid), catches(pid, Signal::SEGV)), (None, false));
    }

    #[test]
    fn only_processes_below_this_one_are_found() {
        let (mut child, pid) = sleep();
        let found: Vec<Pid> = living().iter().map(|process| process.pid).collect();
        assert!(found.contains(&pid) && !found.contains(&Pid::INIT) && !found.contains(&getpid()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
