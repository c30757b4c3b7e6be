//! Who has missed the interrupt: decisions only, no I/O.
//!
//! An interrupt goes to the script's process group at one moment. Bash has two gaps in which a command does not learn of it:
//! bash has the signal but starts one more command before it looks (it looks between commands), or the copy of bash that
//! is about to become the command takes the signal for bash, and then becomes a program that never heard of it. In
//! both cases bash waits for that command, however long it takes, before it acts on the interrupt itself.
//!
//! So the processes are listed right before and right after the signal, while bash is held still (`hold`) and starts
//! nothing, and again every half a second for as long as the script has not noticed the interrupt. From the script's own
//! process downwards, one is *unaware*
//! - that was not there at the signal, or was not in the group;
//! - that has become another program since (its memory lies elsewhere; arguments and names can be changed at will and
//!   say nothing);
//! - that an interrupt would have ended, and that is alive.
//!
//! Whoever is found unaware twice in a row is interrupted, and what it has started is looked at too. Whoever is aware is
//! left in peace with everything below it: an engine that shuts down takes a second interrupt as "stop at any price", and
//! the helpers that it starts for its shutdown are not meant. Nobody is interrupted twice as the same program, unless it
//! is still there although interrupts end it.
//!
//! What the script starts once it has noticed is its own way of cleaning up (an EXIT trap of a hook) and is never
//! interrupted. It says so in the step's `noticed` file *before* it does anything, and that file is looked at *after*
//! the list was made, so nothing of the clean-up can be in a list that counts. A hook with a trap of its own answers for
//! itself: the file is there from its start. Only a trap that a hook takes from another file is not seen; a command
//! that such a trap starts and that takes longer than a second gets one interrupt too many.

use std::collections::{HashMap, HashSet};

use rustix::process::Pid;

/// What an interrupt does to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Ends,
    /// It has a handler for it.
    Caught,
    /// Ignored or blocked: it wants to hear nothing.
    Nothing,
}

/// A living process of the step, as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    /// Whether it is in the script's process group, and so gets what is sent there.
    pub(super) in_group: bool,
    /// When it was started; tells a process from an earlier one with its number.
    pub(super) born: u64,
    /// Where its memory lies, if this process may look: the same from fork to fork, another after each exec.
    pub(super) image: Option<Image>,
    /// Not a zombie.
    pub(super) alive: bool,
    /// Stopped by SIGSTOP: it does nothing until it is told to go on.
    pub(super) stopped: bool,
    pub(super) effect: Effect,
    /// The time that it has worked, in ticks of the system's clock.
    pub(super) worked: u64,
    /// An interrupt waits for it. Only asked of shells, see `stuck`.
    pub(super) interrupt_waits: bool,
    /// The program's name only: arguments may hold secrets.
    pub(super) name: String,
}

impl Member {
    pub(super) fn id(&self) -> (Pid, u64) {
        (self.pid, self.born)
    }

    /// One of the group of whom nothing else is known.
    #[cfg(test)]
    pub(super) fn nobody(pid: Pid) -> Self {
        Self {
            pid,
            parent: 0,
            in_group: true,
            born: 7,
            image: None,
            alive: true,
            stopped: false,
            effect: Effect::Caught,
            worked: 0,
            interrupt_waits: false,
            name: String::new(),
        }
    }
}

pub(super) type Image = (u64, u64);

/// What is known about who got an interrupt.
#[derive(Debug)]
pub(super) struct Interrupts {
    script: Pid,
    supervisor: Pid,
    /// As which program each of them got it.
    told: HashMap<(Pid, u64), Option<Image>>,
    /// Who was found unaware the last time.
    suspects: HashSet<(Pid, u64, Option<Image>)>,
}

impl Interrupts {
    /// From the lists right before and right after the signal to the group.
    pub(super) fn new(script: Pid, supervisor: Pid, before: &[Member], after: &[Member]) -> Self {
        let was_there =
            |it: &Member| before.iter().any(|earlier| earlier.id() == it.id() && earlier.image == it.image);
        // Whoever was started, or became another program, between the two lists may have got it or not. As bash is
        // held this is none of its commands, but one that another program has started. It is taken as told, which is
        // the safe side, unless it would have ended by it.
        let told = after
            .iter()
            .filter(|it| it.in_group && (was_there(it) || it.effect != Effect::Ends))
            .map(|it| (it.id(), it.image))
            .collect();
        Self { script, supervisor, told, suspects: HashSet::new() }
    }

    /// Who is to be interrupted now, by a new list.
    pub(super) fn missed(&mut self, now: &[Member]) -> Vec<Member> {
        let mut children: HashMap<i32, Vec<&Member>> = HashMap::new();
        for member in now.iter().filter(|member| member.pid != self.script) {
            children.entry(member.parent).or_default().push(member);
        }
        let mut unaware = Vec::new();
        // An orphan has become a child of the supervisor. The script may still wait for what it says.
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
        let key = |it: &Member| (it.pid, it.born, it.image);
        self.suspects = unaware.iter().map(key).collect();
        unaware.retain(|it| before.contains(&key(it)));
        self.told.extend(unaware.iter().map(|it| (it.id(), it.image)));
        unaware
    }

    fn is_unaware(&self, member: &Member) -> bool {
        match member.effect {
            Effect::Nothing => false,
            Effect::Ends => true,
            Effect::Caught => self.told.get(&member.id()) != Some(&member.image),
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

    fn member(number: i32, parent: i32, image: u64, effect: Effect) -> Member {
        let name = format!("p{number}");
        let image = Some((image, 0));
        Member { parent, image, effect, name, ..Member::nobody(pid(number)) }
    }

    fn script() -> Member {
        member(SCRIPT, SUPERVISOR, BASH, Effect::Caught)
    }

    fn again(before: &[Member], after: &[Member]) -> Interrupts {
        Interrupts::new(pid(SCRIPT), pid(SUPERVISOR), before, after)
    }

    /// The numbers of those that are interrupted when the same list is made three times.
    fn interrupted(again: &mut Interrupts, now: &[Member]) -> Vec<Vec<i32>> {
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
