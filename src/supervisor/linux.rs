//! Orphans become children of the supervisor, and `/proc` lists all processes below it.

use std::collections::HashMap;
use std::{fs, io};

use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper, test_kill_process_group,
};

use super::interrupt::{Effect, ProcessInfo};
use super::stuck::SHELL;

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
fn proc_is_ours() -> bool {
    let own = getpid().as_raw_pid().to_string();
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str())
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
    members(getpid())
}

/// The running processes of the step, relative to the process group of its script.
pub(super) fn members(group: Pid) -> Vec<ProcessInfo> {
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
        if let Some(member) = ProcessInfo::read(&String::from_utf8_lossy(&line), group) {
            children.entry(member.parent).or_default().push(member);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_pid()];
    while let Some(parent) = parents.pop() {
        for mut member in children.remove(&parent).unwrap_or_default() {
            parents.push(member.pid.as_raw_pid());
            if member.alive {
                member.interrupt_waits = member.name == SHELL && interrupt_waits(member.pid);
                found.push(member);
            }
        }
    }
    found
}

/// Whether the process has a pending interrupt. `stat` only shows the pending signals of a single thread.
fn interrupt_waits(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    waiting.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).is_some_and(has_interrupt)
}

fn has_interrupt(signals: u64) -> bool {
    signals & (1 << (Signal::INT.as_raw() - 1)) != 0
}

impl ProcessInfo {
    /// Reads a line of `/proc/{pid}/stat`: `pid (name) state parent group …`. The name may contain anything, including blanks
    /// and parentheses.
    fn read(line: &str, group: Pid) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        // The manual (proc_pid_stat) numbers the fields from 1. The state is field 3.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let state = *fields.first()?;
        let number =
            |field: usize| -> u64 { fields.get(field - 3).and_then(|it| it.parse().ok()).unwrap_or(0) };
        let (blocked, ignored, caught) =
            (has_interrupt(number(32)), has_interrupt(number(33)), has_interrupt(number(34)));
        let effect = match (blocked || ignored, caught) {
            (true, _) => Effect::Nothing,
            (false, true) => Effect::Caught,
            (false, false) => Effect::Ends,
        };
        Some(Self {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            parent: fields.get(1)?.parse().ok()?,
            in_group: fields.get(2)?.parse() == Ok(group.as_raw_pid()),
            start_time: number(22),
            image: Some((number(26), number(28))).filter(|image| *image != (0, 0)),
            alive: !matches!(state, "Z" | "X"),
            stopped: state == "T",
            effect,
            cpu_ticks: number(14) + number(15),
            interrupt_waits: false,
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_is_read_correctly() {
        let pid = Pid::from_raw(12).unwrap();
        let read = |line| ProcessInfo::read(line, pid);
        let member = read("12 (a) R (b) S 7 12 12 0 -1").unwrap();
        assert_eq!((member.pid, member.name.as_str(), member.parent), (pid, "a) R (b", 7));
        assert!(member.alive && member.in_group);
        assert!(!read("12 (x) Z 7 11").unwrap().alive);
        assert!(!read("12 (x) Z 7 11").unwrap().in_group);
        assert_eq!(read("12 (x"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn the_effect_of_an_interrupt_and_an_exec_are_detected() {
        let wait_for = "read line; exec sleep 60";
        for (script, effect) in [
            (format!("trap : INT; {wait_for}"), Effect::Caught),
            (format!("trap '' INT; {wait_for}"), Effect::Nothing),
            (wait_for.to_owned(), Effect::Ends),
        ] {
            let mut child = std::process::Command::new("bash")
                .args(["-c", &script])
                .process_group(0)
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let pid = Pid::from_child(&child);
            let until = |done: &dyn Fn(&ProcessInfo) -> bool| loop {
                let found = members(pid).into_iter().find(|it| it.pid == pid).unwrap();
                assert!(found.in_group && found.start_time > 0);
                if done(&found) {
                    return found;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            };
            let bash = until(&|it| it.name == "bash" && it.effect == effect);
            child.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let sleep = until(&|it| it.name == "sleep");
            assert_eq!(bash.start_time, sleep.start_time);
            assert_ne!(bash.image, sleep.image);
            // An exec resets handlers, but an ignored signal stays ignored.
            let expected = if effect == Effect::Nothing { Effect::Nothing } else { Effect::Ends };
            assert_eq!(sleep.effect, expected);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn only_processes_below_this_one_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pids: Vec<i32> = living().iter().map(|process| process.pid.as_raw_pid()).collect();
        assert!(pids.contains(&i32::try_from(child.id()).unwrap()));
        assert!(!pids.contains(&1));
        assert!(!pids.contains(&getpid().as_raw_pid()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
