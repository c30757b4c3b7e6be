//! Orphans become children of the supervisor, and `/proc` lists all processes below it.

use std::collections::HashMap;
use std::{fs, io};

use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper, test_kill_process_group,
};

use super::Process;
use super::interrupt::{Effect, Image, Member};
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
pub(super) fn signal_all(group: Pid, signal: Signal) -> Vec<Process> {
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
pub(super) fn living() -> Vec<Process> {
    members(getpid()).into_iter().map(|Member { pid, name, .. }| Process { pid, name }).collect()
}

/// The same with all that is known about them.
pub(super) fn members(group: Pid) -> Vec<Member> {
    if !proc_is_ours() {
        return Vec::new();
    }
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
                found.push(Member {
                    pid,
                    interrupt_waits: stat.name == SHELL && interrupt_waits(pid),
                    worked: stat.worked,
                    parent: stat.parent,
                    in_group: stat.group == group.as_raw_pid(),
                    born: stat.born,
                    image: stat.image,
                    stopped: stat.stopped,
                    effect: stat.effect,
                    name: stat.name,
                });
            }
        }
    }
    found
}

/// Whether an interrupt is sent to it and not yet taken. `stat` tells only of signals to a single thread.
fn interrupt_waits(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    waiting.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).is_some_and(has_interrupt)
}

fn has_interrupt(signals: u64) -> bool {
    signals & (1 << (Signal::INT.as_raw() - 1)) != 0
}

/// What is needed of `/proc/{pid}/stat`: `pid (name) state parent group …`. The name may hold anything, blanks and
/// parentheses included.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    name: String,
    alive: bool,
    stopped: bool,
    parent: i32,
    group: i32,
    born: u64,
    /// Not told of a process that is not ours to look into.
    image: Option<Image>,
    effect: Effect,
    worked: u64,
}

impl Stat {
    fn read(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        // The manual (proc_pid_stat) counts from one, and the state is its third.
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
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            alive: !matches!(state, "Z" | "X"),
            stopped: state == "T",
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            born: number(22),
            image: Some((number(26), number(28))).filter(|image| *image != (0, 0)),
            effect,
            worked: number(14) + number(15),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_confuse_the_reader() {
        let stat = Stat::read("12 (a) R (b) S 7 12 12 0 -1").unwrap();
        assert_eq!((stat.pid, stat.name.as_str(), stat.parent, stat.group), (12, "a) R (b", 7, 12));
        assert!(stat.alive);
        assert!(!Stat::read("12 (x) Z 7 12").unwrap().alive);
        assert_eq!(Stat::read("12 (x"), None);
        assert_eq!(Stat::read(""), None);
    }

    #[test]
    fn it_is_seen_what_an_interrupt_does_and_when_a_process_becomes_another_program() {
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
            let until = |done: &dyn Fn(&Member) -> bool| loop {
                let found = members(pid).into_iter().find(|it| it.pid == pid).unwrap();
                assert!(found.in_group && found.born > 0);
                if done(&found) {
                    return found;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            };
            let bash = until(&|it| it.name == "bash" && it.effect == effect);
            child.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let sleep = until(&|it| it.name == "sleep");
            assert_eq!(bash.born, sleep.born);
            assert_ne!(bash.image, sleep.image);
            // A handler does not outlive the program that it belongs to, the wish to hear nothing does.
            let expected = if effect == Effect::Nothing { Effect::Nothing } else { Effect::Ends };
            assert_eq!(sleep.effect, expected);
            child.kill().unwrap();
            child.wait().unwrap();
        }
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
