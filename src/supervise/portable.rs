//! Systems without a reaper of orphans: the step is the script's process group.
//!
//! A process that has left the group and lost its parent is not found; nothing on these systems connects it with
//! the step any more.

use std::io;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::Process;
use super::again::{Effect, Member};

/// There is no such thing here.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "compiled on Linux for its tests only"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as on Linux")]
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Not known here: a reboot looks like the death of the supervisor, which is treated the same way.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "compiled on Linux for its tests only"))]
pub(super) fn boot_id() -> Option<String> {
    None
}

/// Nothing that is not known of these systems.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "compiled on Linux for its tests only"))]
pub(super) fn limitation() -> Option<&'static str> {
    None
}

/// Whether no process of the step is left.
pub(super) fn is_alone(group: Pid, childless: bool) -> bool {
    childless && test_kill_process_group(group).is_err()
}

/// Sends a signal to every living process of the step, and says which those were.
pub(super) fn signal_all(group: Pid, signal: Signal) -> Vec<Process> {
    let living = living_of(group);
    let _ = kill_process_group(group, signal);
    living
}

/// The living processes of the step; none when there is no `ps`.
pub(super) fn living_of(group: Pid) -> Vec<Process> {
    members(group).into_iter().map(|Member { pid, name, .. }| Process { pid, name }).collect()
}

/// The same with all that is known about them, which is not much.
pub(super) fn members(group: Pid) -> Vec<Member> {
    let listed = Command::new("ps")
        .args(["-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat=", "-o", "comm="])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(listed) = listed else { return Vec::new() };
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(|line| member(line, group.as_raw_pid()))
        .collect()
}

/// Reads a line of `ps`, if it is about a living member of the group.
fn member(line: &str, group: i32) -> Option<Member> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(field)
    };
    let pid: i32 = field()?.parse().ok()?;
    let parent: i32 = field()?.parse().ok()?;
    let in_group = field()?.parse() == Ok(group);
    let state = field()?;
    let (alive, stopped) = (!state.starts_with('Z'), state.starts_with('T'));
    let name = rest.trim().rsplit('/').next()?.to_owned();
    (in_group && alive).then_some(Member {
        pid: Pid::from_raw(pid)?,
        parent,
        in_group,
        born: 0,
        image: None,
        stopped,
        effect: Effect::Unknown,
        worked: 0,
        interrupt_waits: false,
        name,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn lines_of_ps_are_read() {
        let found = member("  12   3   7 Ss   /usr/bin/my app", 7).unwrap();
        assert_eq!((found.pid.as_raw_pid(), found.parent, found.name.as_str()), (12, 3, "my app"));
        assert_eq!(member("12 3 8 S sh", 7), None);
        assert_eq!(member("12 3 7 Z sh", 7), None);
        assert_eq!(member("", 7), None);
    }

    #[test]
    fn a_group_is_found_ended_and_gone() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 60 & sleep 61"]).process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        assert!(!is_alone(group, true));
        if Command::new("ps").output().is_ok() {
            assert!(living_of(group).iter().any(|process| process.pid == group));
        }
        signal_all(group, Signal::KILL);
        child.wait().unwrap();
        // Where process 1 takes no notice of its children, the orphan stays in the group as a zombie.
        while !is_alone(group, true) && !living_of(group).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
