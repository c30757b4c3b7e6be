//! Detects processes that missed an interrupt. Decisions only, no I/O.
//!
//! An interrupt is sent to the script's process group once. There are two windows in which a command of bash misses it:
//! - Bash has received the signal but starts one more command, because it checks for signals only between commands.
//! - A forked copy of bash receives the signal just before it executes the command. The new program knows nothing about it.
//!
//! In both cases bash waits for that command, however long it takes, before it acts on the interrupt itself.
//!
//! So the processes are listed right before and right after the signal, while bash is stopped (`hold`) and cannot start
//! anything, and then every half second until the script has noticed the interrupt. Starting from the script's own
//! process, a descendant is *unaware* if
//! - it did not exist at the time of the signal, or was not in the process group;
//! - it has executed another program since (its memory is at another address; arguments and names can be changed at any
//!   time and prove nothing);
//! - an interrupt terminates it, and it is still alive.
//!
//! A process that is unaware in two lists in a row is interrupted, and its children are checked too. A process that is aware
//! is not interrupted, and neither are its descendants: an engine that is shutting down treats a second interrupt as
//! "stop immediately", and the helpers that it starts for its shutdown must not be interrupted. A process gets at most one
//! interrupt per program that it executes, unless interrupts terminate it and it is still alive.
//!
//! Commands that the script starts after it has noticed the interrupt are its clean-up (an EXIT trap of a hook) and are never
//! interrupted. The script writes the step's `noticed` file *before* it starts them, and the supervisor checks that file
//! *after* it has listed the processes, so a list that is used contains no process of the clean-up. A hook with its own
//! trap handles interrupts itself: its file exists from the start. A trap that a hook reads from another file is not
//! detected. If such a trap starts a command that takes longer than a second, that command gets an extra interrupt.

use std::collections::{HashMap, HashSet};

use rustix::process::Pid;

/// What an interrupt does to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Ends,
    /// It has a handler for it.
    Caught,
    /// It ignores or blocks it.
    Nothing,
}

/// A process of the step at the time of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    /// Whether it is in the script's process group, and so receives signals to the group.
    pub(super) in_group: bool,
    /// Distinguishes a process from an earlier one with the same PID.
    pub(super) start_time: u64,
    /// The addresses of its memory, if they can be read. A fork keeps them, and an exec changes them.
    pub(super) image: Option<Image>,
    /// Not a zombie.
    pub(super) alive: bool,
    /// Stopped by SIGSTOP until it gets a SIGCONT.
    pub(super) stopped: bool,
    pub(super) effect: Effect,
    /// The CPU time that it has used, in clock ticks.
    pub(super) cpu_ticks: u64,
    /// An interrupt is pending. Only read for shells, see `stuck`.
    pub(super) interrupt_waits: bool,
    /// The program's name without arguments, which may contain secrets.
    pub(super) name: String,
}

impl ProcessInfo {
    pub(super) fn id(&self) -> (Pid, u64) {
        (self.pid, self.start_time)
    }

    /// A process in the group with default values.
    #[cfg(test)]
    pub(super) fn any(pid: Pid) -> Self {
        Self {
            pid,
            parent: 0,
            in_group: true,
            start_time: 7,
            image: None,
            alive: true,
            stopped: false,
            effect: Effect::Caught,
            cpu_ticks: 0,
            interrupt_waits: false,
            name: String::new(),
        }
    }
}

pub(super) type Image = (u64, u64);

/// Tracks which processes have received the interrupt.
#[derive(Debug)]
pub(super) struct Interrupts {
    script: Pid,
    supervisor: Pid,
    /// The processes that received it, with the program that each was executing.
    notified: HashMap<(Pid, u64), Option<Image>>,
    /// The processes that were unaware in the previous list.
    suspects: HashSet<(Pid, u64, Option<Image>)>,
}

impl Interrupts {
    /// From the lists right before and right after the signal to the group.
    pub(super) fn new(script: Pid, supervisor: Pid, before: &[ProcessInfo], after: &[ProcessInfo]) -> Self {
        let was_there = |it: &ProcessInfo| {
            before.iter().any(|earlier| earlier.id() == it.id() && earlier.image == it.image)
        };
        // A process that was started, or executed another program, between the two lists may or may not have received the
        // signal. Because bash is stopped, it was started by another program. It counts as notified, which is the
        // safe assumption, unless the signal would have terminated it.
        let notified = after
            .iter()
            .filter(|it| it.in_group && (was_there(it) || it.effect != Effect::Ends))
            .map(|it| (it.id(), it.image))
            .collect();
        Self { script, supervisor, notified, suspects: HashSet::new() }
    }

    /// Returns the processes to interrupt now, given a new list.
    pub(super) fn missed(&mut self, now: &[ProcessInfo]) -> Vec<ProcessInfo> {
        let mut children: HashMap<i32, Vec<&ProcessInfo>> = HashMap::new();
        for member in now.iter().filter(|member| member.pid != self.script) {
            children.entry(member.parent).or_default().push(member);
        }
        let mut unaware = Vec::new();
        // An orphan is now a child of the supervisor. The script may still be waiting for its output.
        let mut parents = vec![self.script, self.supervisor];
        while let Some(parent) = parents.pop() {
            for member in children.remove(&parent.as_raw_pid()).unwrap_or_default() {
                if self.is_unaware(member) {
                    unaware.push(member.clone());
                    parents.push(member.pid);
                }
            }
        }
        let before = std::mem::take(&mut self.suspects);
        let key = |it: &ProcessInfo| (it.pid, it.start_time, it.image);
        self.suspects = unaware.iter().map(key).collect();
        unaware.retain(|it| before.contains(&key(it)));
        self.notified.extend(unaware.iter().map(|it| (it.id(), it.image)));
        unaware
    }

    fn is_unaware(&self, member: &ProcessInfo) -> bool {
        match member.effect {
            Effect::Nothing => false,
            Effect::Ends => true,
            Effect::Caught => self.notified.get(&member.id()) != Some(&member.image),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERVISOR: i32 = 1;
    const SCRIPT: i32 = 10;
    const BASH: u64 = 100;

    fn pid(pid: i32) -> Pid {
        Pid::from_raw(pid).unwrap()
    }

    fn member(number: i32, parent: i32, image: u64, effect: Effect) -> ProcessInfo {
        let name = format!("p{number}");
        let image = Some((image, 0));
        ProcessInfo { parent, image, effect, name, ..ProcessInfo::any(pid(number)) }
    }

    fn script() -> ProcessInfo {
        member(SCRIPT, SUPERVISOR, BASH, Effect::Caught)
    }

    fn again(before: &[ProcessInfo], after: &[ProcessInfo]) -> Interrupts {
        Interrupts::new(pid(SCRIPT), pid(SUPERVISOR), before, after)
    }

    /// The PIDs that are interrupted when the same list is made three times in a row.
    fn interrupted(again: &mut Interrupts, now: &[ProcessInfo]) -> Vec<Vec<i32>> {
        (0..3).map(|_| again.missed(now).iter().map(|it| it.pid.as_raw_pid()).collect()).collect()
    }

    #[test]
    fn an_engine_that_is_shutting_down_gets_no_second_interrupt() {
        let list = [script(), member(11, SCRIPT, 200, Effect::Caught)];
        let now = [list[0].clone(), list[1].clone(), member(12, 11, 300, Effect::Ends)];
        assert_eq!(interrupted(&mut again(&list, &list), &now), [[0; 0]; 3]);
    }

    #[test]
    fn a_command_started_after_the_signal_gets_one_interrupt() {
        let list = [script()];
        let now = [script(), member(11, SCRIPT, 200, Effect::Caught), member(12, 11, 300, Effect::Caught)];
        assert_eq!(interrupted(&mut again(&list, &list), &now), [vec![], vec![11, 12], vec![]]);
    }

    #[test]
    fn a_bash_copy_that_became_a_program_after_the_signal_gets_one_interrupt() {
        let list = [script(), member(11, SCRIPT, BASH, Effect::Caught)];
        let now = [script(), member(11, SCRIPT, 200, Effect::Caught)];
        assert_eq!(interrupted(&mut again(&list, &list), &now), [vec![], vec![11], vec![]]);
        // It was started between the two lists.
        assert_eq!(interrupted(&mut again(&list[..1], &list), &now), [vec![], vec![11], vec![]]);
    }

    #[test]
    fn a_process_that_changed_during_the_signal_counts_as_interrupted_unless_it_should_have_ended() {
        let before = [script(), member(11, SCRIPT, BASH, Effect::Caught)];
        for (effect, expected) in [(Effect::Caught, vec![]), (Effect::Ends, vec![11])] {
            let after = [script(), member(11, SCRIPT, 200, effect)];
            let now = [script(), member(11, SCRIPT, 200, Effect::Caught)];
            assert_eq!(interrupted(&mut again(&before, &after), &now)[1], expected, "{effect:?}");
        }
    }

    #[test]
    fn a_process_that_survived_a_fatal_interrupt_has_missed_it() {
        let list = [script(), member(11, SCRIPT, BASH, Effect::Ends), member(12, 11, 200, Effect::Ends)];
        assert_eq!(interrupted(&mut again(&list, &list), &list), [vec![], vec![11, 12], vec![11, 12]]);
    }

    #[test]
    fn processes_that_ignore_interrupts_or_end_soon_are_skipped_and_orphans_are_not() {
        let list = [script()];
        let mut of_its_own = member(14, SCRIPT, 200, Effect::Caught);
        of_its_own.in_group = false;
        let before = [script(), of_its_own.clone()];
        let now = [
            script(),
            member(11, SCRIPT, 200, Effect::Nothing),
            member(12, 11, 300, Effect::Ends),
            member(13, SUPERVISOR, 200, Effect::Caught),
            of_its_own,
        ];
        let mut found = interrupted(&mut again(&before, &before), &now).remove(1);
        found.sort_unstable();
        assert_eq!(found, [13, 14]);

        let mut again = again(&list, &list);
        for number in 20..30 {
            assert_eq!(again.missed(&[script(), member(number, SCRIPT, 200, Effect::Ends)]), []);
        }
    }
}
