//! Linux: orphans become children of the supervisor, and `/proc` shows all that is below it.

use std::collections::HashMap;
use std::{fs, io};

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use super::Process;

/// From now on a process whose parent ends becomes our child, whatever session it is in.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Differs from one boot of the machine to the next.
pub(super) fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Whether no process of the step is left. Every orphan is ours, so without a child there is no grandchild.
pub(super) fn is_alone(_group: Pid, childless: bool) -> bool {
    childless
}

/// Sends a signal to every living process of the step, and says which those were.
pub(super) fn signal_all(_group: Pid, signal: Signal) -> Vec<Process> {
    let living = living();
    for process in &living {
        // It may have ended by itself, or belong to another user; whoever stays is found again.
        let _ = kill_process(process.pid, signal);
    }
    living
}

/// The living processes of the step.
pub(super) fn living_of(_group: Pid) -> Vec<Process> {
    living()
}

fn living() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let Ok(line) = fs::read(entry.path().join("stat")) else { continue };
        if let Some(stat) = Stat::read(&String::from_utf8_lossy(&line)) {
            children.entry(stat.parent).or_default().push(stat);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_pid()];
    while let Some(parent) = parents.pop() {
        for stat in children.remove(&parent).unwrap_or_default() {
            parents.push(stat.pid);
            if let (true, Some(pid)) = (stat.alive, Pid::from_raw(stat.pid)) {
                found.push(Process { pid, name: stat.name });
            }
        }
    }
    found
}

/// What is needed of `/proc/{pid}/stat`: `pid (name) state parent …`. The name may hold anything, blanks and
/// parentheses included.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    name: String,
    alive: bool,
    parent: i32,
}

impl Stat {
    fn read(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            alive: !matches!(state, "Z" | "X"),
            parent: fields.next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_confuse_the_reader() {
        let stat = Stat::read("12 (a) R (b) S 7 12 12 0 -1").unwrap();
        assert_eq!(stat, Stat { pid: 12, name: "a) R (b".to_owned(), alive: true, parent: 7 });
        assert!(!Stat::read("12 (x) Z 7 12").unwrap().alive);
        assert_eq!(Stat::read("12 (x"), None);
        assert_eq!(Stat::read(""), None);
    }

    #[test]
    fn a_process_below_this_one_is_found_and_a_stranger_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pids: Vec<i32> = living().iter().map(|process| process.pid.as_raw_pid()).collect();
        assert!(pids.contains(&i32::try_from(child.id()).unwrap()));
        assert!(!pids.contains(&1));
        assert!(!pids.contains(&getpid().as_raw_pid()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
