//! Which step may start now: slots, lanes and module directories, without any I/O.
//!
//! * A heavy step (anything that runs an engine or fetches a module) takes one of the slots.
//! * A light step (revision, refresh, variables) takes one of the light lane's and never waits for a slot.
//! * Two steps never work in one module directory at once, and steps of one directory start in the order in
//!   which they arrived.
//! * A step whose directory another process holds goes back to its place in the queue until the next look.

use std::collections::{HashMap, HashSet};

/// Light steps at once. They are short and mostly wait for the network, but each is a process or two.
const LIGHT_SLOTS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Light,
    Heavy,
}

/// What the machine needs to know of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedStep {
    pub(super) name: String,
    pub(super) lane: Lane,
    /// The module directory that the step works in.
    pub(super) module: Option<String>,
}

#[derive(Debug)]
pub(super) enum Event {
    /// A step has arrived.
    Arrived(QueuedStep),
    /// A step that an earlier run of the program started is still going on.
    Adopted(QueuedStep),
    /// A step that was started could not go on because another process holds its directory.
    Busy(String),
    /// Time to look again at directories that other processes hold.
    LookAgain,
    /// A step has ended, or left the queue.
    Ended(String),
    /// Start nothing any more.
    Drain,
}

#[derive(Debug)]
struct WaitingStep {
    ticket: QueuedStep,
    /// Another process held the directory when we last looked.
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    slots: usize,
    queue: Vec<WaitingStep>,
    running: HashMap<String, QueuedStep>,
    draining: bool,
}

impl Queue {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, queue: Vec::new(), running: HashMap::new(), draining: false }
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Some step waits for a directory that another process holds.
    pub(super) fn wants_to_look_again(&self) -> bool {
        self.queue.iter().any(|waiting| waiting.busy)
    }

    /// Takes an event and returns the names of the steps to start now, in order.
    pub(super) fn on(&mut self, event: Event) -> Vec<String> {
        match event {
            Event::Arrived(ticket) => self.queue.push(WaitingStep { ticket, busy: false }),
            Event::Adopted(ticket) => {
                self.running.insert(ticket.name.clone(), ticket);
            }
            Event::Busy(name) => {
                if let Some(ticket) = self.running.remove(&name) {
                    self.queue.insert(0, WaitingStep { ticket, busy: true });
                }
            }
            Event::LookAgain => self.queue.iter_mut().for_each(|waiting| waiting.busy = false),
            Event::Ended(name) => {
                self.running.remove(&name);
                self.queue.retain(|waiting| waiting.ticket.name != name);
            }
            Event::Drain => self.draining = true,
        }
        self.start_what_can()
    }

    fn start_what_can(&mut self) -> Vec<String> {
        if self.draining {
            return Vec::new();
        }
        let mut taken: HashSet<String> = self.running.values().filter_map(|it| it.module.clone()).collect();
        let mut free = HashMap::from([
            (Lane::Light, LIGHT_SLOTS.saturating_sub(self.used(Lane::Light))),
            (Lane::Heavy, self.slots.saturating_sub(self.used(Lane::Heavy))),
        ]);
        let mut started = Vec::new();
        self.queue.retain(|waiting| {
            let ticket = &waiting.ticket;
            let first_in_module = ticket.module.as_ref().is_none_or(|module| taken.insert(module.clone()));
            let slot = free.entry(ticket.lane).or_default();
            if waiting.busy || !first_in_module || *slot == 0 {
                return true;
            }
            *slot -= 1;
            started.push(ticket.clone());
            false
        });
        let names = started.iter().map(|ticket| ticket.name.clone()).collect();
        self.running.extend(started.into_iter().map(|ticket| (ticket.name.clone(), ticket)));
        names
    }

    fn used(&self, lane: Lane) -> usize {
        self.running.values().filter(|ticket| ticket.lane == lane).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heavy(name: &str, module: &str) -> QueuedStep {
        QueuedStep { name: name.to_owned(), lane: Lane::Heavy, module: Some(module.to_owned()) }
    }

    fn light(name: &str) -> QueuedStep {
        QueuedStep { name: name.to_owned(), lane: Lane::Light, module: None }
    }

    #[test]
    fn a_step_waits_for_a_slot_and_a_light_one_does_not() {
        let mut machine = Queue::new(1);
        assert_eq!(machine.on(Event::Arrived(heavy("apply", "a"))), ["apply"]);
        assert!(machine.on(Event::Arrived(heavy("plan", "b"))).is_empty());
        assert_eq!(machine.on(Event::Arrived(light("revision"))), ["revision"]);
        assert_eq!(machine.on(Event::Ended("apply".into())), ["plan"]);
    }

    #[test]
    fn steps_of_one_module_start_one_after_the_other_in_order() {
        let mut machine = Queue::new(4);
        assert_eq!(machine.on(Event::Arrived(heavy("1", "a"))), ["1"]);
        assert!(machine.on(Event::Arrived(heavy("2", "a"))).is_empty());
        let variables = QueuedStep { name: "3".into(), lane: Lane::Light, module: Some("a".into()) };
        assert!(machine.on(Event::Arrived(variables)).is_empty());
        assert_eq!(machine.on(Event::Ended("1".into())), ["2"]);
        assert_eq!(machine.on(Event::Ended("2".into())), ["3"]);
    }

    #[test]
    fn a_directory_held_by_another_process_is_looked_at_again_and_does_not_hold_up_the_rest() {
        let mut machine = Queue::new(1);
        assert_eq!(machine.on(Event::Arrived(heavy("1", "a"))), ["1"]);
        assert!(machine.on(Event::Arrived(heavy("2", "b"))).is_empty());
        assert_eq!(machine.on(Event::Busy("1".into())), ["2"]);
        assert!(machine.wants_to_look_again());
        assert!(machine.on(Event::LookAgain).is_empty());
        assert_eq!(machine.on(Event::Ended("2".into())), ["1"]);
    }

    #[test]
    fn an_adopted_step_keeps_its_module_and_counts_against_the_slots() {
        let mut machine = Queue::new(1);
        machine.on(Event::Adopted(heavy("old", "a")));
        assert!(machine.on(Event::Arrived(heavy("new", "a"))).is_empty());
        assert!(machine.on(Event::Arrived(heavy("other", "b"))).is_empty());
        assert_eq!(machine.on(Event::Ended("old".into())), ["new"]);
    }

    #[test]
    fn nothing_starts_while_draining() {
        let mut machine = Queue::new(2);
        machine.on(Event::Drain);
        assert!(machine.on(Event::Arrived(light("revision"))).is_empty());
        assert_eq!((machine.running(), machine.waiting()), (0, 1));
    }

    proptest! {
        #[test]
        fn never_two_steps_in_a_module_never_more_than_the_slots_and_everything_ends(
            steps in prop::collection::vec((0u8..4, any::<bool>()), 1..40), slots in 1usize..4,
        ) {
            let mut machine = Queue::new(slots);
            let mut started: Vec<String> = Vec::new();
            let mut at_work: Vec<String> = Vec::new();
            for (index, (module, is_heavy)) in steps.iter().enumerate() {
                let lane = if *is_heavy { Lane::Heavy } else { Lane::Light };
                let ticket = QueuedStep { name: index.to_string(), lane, module: Some(module.to_string()) };
                at_work.extend(machine.on(Event::Arrived(ticket)));
                check(&machine, slots)?;
                if index % 3 == 0 && let Some(done) = at_work.pop() {
                    started.push(done.clone());
                    at_work.extend(machine.on(Event::Ended(done)));
                    check(&machine, slots)?;
                }
            }
            while let Some(done) = at_work.pop() {
                started.push(done.clone());
                at_work.extend(machine.on(Event::Ended(done)));
                check(&machine, slots)?;
            }
            started.sort();
            started.dedup();
            prop_assert_eq!(started.len(), steps.len());
        }
    }

    fn check(machine: &Queue, slots: usize) -> Result<(), TestCaseError> {
        let modules: Vec<_> = machine.running.values().filter_map(|it| it.module.clone()).collect();
        let distinct: HashSet<_> = modules.iter().collect();
        prop_assert_eq!(distinct.len(), modules.len());
        prop_assert!(machine.used(Lane::Heavy) <= slots);
        Ok(())
    }
}
