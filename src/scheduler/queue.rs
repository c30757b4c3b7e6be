//! Which step may start now: slots, lanes and module directories, without any I/O.
//!
//! * A heavy step (anything that runs an engine or fetches a module) takes one of the slots.
//! * A light step (revision, refresh, variables) takes a slot of the light lane.
//! * Two steps never work in one module directory at once, and steps of one directory start in the order in
//!   which they arrived.
//! * A step whose directory another process holds returns to the head of the queue and is retried periodically.

use std::collections::{HashMap, HashSet};

use hawser_contract::Task;

use super::Load;
use crate::step::{Step, StepWork};

/// How many light steps run at once. They are short and mostly wait for the network.
const LIGHT_SLOTS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Light,
    Heavy,
}

/// The part of a step that decides when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedStep {
    pub(super) name: String,
    pub(super) lane: Lane,
    /// The module that the step works in.
    pub(super) module: Option<String>,
}

impl QueuedStep {
    pub(super) fn of(step: &Step) -> Self {
        let (lane, module) = match &step.work {
            StepWork::Refresh(_) => (Lane::Light, None),
            StepWork::Task(request) => match request.task.task() {
                Task::GetDefinitiveRevision => (Lane::Light, None),
                Task::Variables => (Lane::Light, step.work.module()),
                _ => (Lane::Heavy, step.work.module()),
            },
        };
        Self { name: step.name(), lane, module }
    }
}

#[derive(Debug)]
pub(super) enum Event {
    /// A new step.
    Arrived(QueuedStep),
    /// A step that an earlier process started.
    Adopted(QueuedStep),
    /// A step could not start because another process holds its directory, or because the runner drains.
    Busy(String),
    /// Retry the steps whose directory was held by another process.
    RetryBusy,
    /// A running step has ended, or a waiting one was cancelled.
    Ended(String),
    /// Start no more steps.
    Drain,
}

#[derive(Debug)]
struct WaitingStep {
    step: QueuedStep,
    /// Another process held the directory at the last try.
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    slots: usize,
    waiting: Vec<WaitingStep>,
    running: HashMap<String, QueuedStep>,
    draining: bool,
}

impl Queue {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, waiting: Vec::new(), running: HashMap::new(), draining: false }
    }

    pub(super) fn load(&self) -> Load {
        Load { running: self.running.len(), waiting: self.waiting.len() }
    }

    /// Whether a step waits for a directory that another process holds.
    pub(super) fn has_busy_directories(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.busy)
    }

    /// Handles an event and returns the names of the steps to start now, in order.
    pub(super) fn on(&mut self, event: Event) -> Vec<String> {
        match event {
            Event::Arrived(step) => self.waiting.push(WaitingStep { step, busy: false }),
            Event::Adopted(step) => {
                self.running.insert(step.name.clone(), step);
            }
            Event::Busy(name) => {
                if let Some(step) = self.running.remove(&name) {
                    self.waiting.insert(0, WaitingStep { step, busy: true });
                }
            }
            Event::RetryBusy => self.waiting.iter_mut().for_each(|waiting| waiting.busy = false),
            Event::Ended(name) => {
                self.running.remove(&name);
                self.waiting.retain(|waiting| waiting.step.name != name);
            }
            Event::Drain => self.draining = true,
        }
        self.start_ready()
    }

    fn start_ready(&mut self) -> Vec<String> {
        if self.draining {
            return Vec::new();
        }
        let mut used_modules: HashSet<String> =
            self.running.values().filter_map(|it| it.module.clone()).collect();
        let mut free = HashMap::from([
            (Lane::Light, LIGHT_SLOTS.saturating_sub(self.used(Lane::Light))),
            (Lane::Heavy, self.slots.saturating_sub(self.used(Lane::Heavy))),
        ]);
        let mut started = Vec::new();
        self.waiting.retain(|waiting| {
            let step = &waiting.step;
            let first_in_module =
                step.module.as_ref().is_none_or(|module| used_modules.insert(module.clone()));
            let slot = free.entry(step.lane).or_default();
            if waiting.busy || !first_in_module || *slot == 0 {
                return true;
            }
            *slot -= 1;
            started.push(step.clone());
            false
        });
        let names = started.iter().map(|step| step.name.clone()).collect();
        self.running.extend(started.into_iter().map(|step| (step.name.clone(), step)));
        names
    }

    fn used(&self, lane: Lane) -> usize {
        self.running.values().filter(|step| step.lane == lane).count()
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
    fn a_heavy_step_waits_for_a_slot_and_a_light_one_does_not() {
        let mut queue = Queue::new(1);
        assert_eq!(queue.on(Event::Arrived(heavy("apply", "a"))), ["apply"]);
        assert!(queue.on(Event::Arrived(heavy("plan", "b"))).is_empty());
        assert_eq!(queue.on(Event::Arrived(light("revision"))), ["revision"]);
        assert_eq!(queue.on(Event::Ended("apply".into())), ["plan"]);
    }

    #[test]
    fn steps_of_one_module_start_one_after_the_other_in_order() {
        let mut queue = Queue::new(4);
        assert_eq!(queue.on(Event::Arrived(heavy("1", "a"))), ["1"]);
        assert!(queue.on(Event::Arrived(heavy("2", "a"))).is_empty());
        let variables = QueuedStep { name: "3".into(), lane: Lane::Light, module: Some("a".into()) };
        assert!(queue.on(Event::Arrived(variables)).is_empty());
        assert_eq!(queue.on(Event::Ended("1".into())), ["2"]);
        assert_eq!(queue.on(Event::Ended("2".into())), ["3"]);
    }

    #[test]
    fn a_busy_directory_is_retried_and_does_not_block_other_steps() {
        let mut queue = Queue::new(1);
        assert_eq!(queue.on(Event::Arrived(heavy("1", "a"))), ["1"]);
        assert!(queue.on(Event::Arrived(heavy("2", "b"))).is_empty());
        assert_eq!(queue.on(Event::Busy("1".into())), ["2"]);
        assert!(queue.has_busy_directories());
        assert!(queue.on(Event::RetryBusy).is_empty());
        assert_eq!(queue.on(Event::Ended("2".into())), ["1"]);
    }

    #[test]
    fn an_adopted_step_keeps_its_module_and_counts_against_the_slots() {
        let mut queue = Queue::new(1);
        queue.on(Event::Adopted(heavy("old", "a")));
        assert!(queue.on(Event::Arrived(heavy("new", "a"))).is_empty());
        assert!(queue.on(Event::Arrived(heavy("other", "b"))).is_empty());
        assert_eq!(queue.on(Event::Ended("old".into())), ["new"]);
    }

    #[test]
    fn nothing_starts_while_draining() {
        let mut queue = Queue::new(2);
        queue.on(Event::Drain);
        assert!(queue.on(Event::Arrived(light("revision"))).is_empty());
        assert_eq!(queue.load(), Load { running: 0, waiting: 1 });
    }

    proptest! {
        #[test]
        fn modules_are_exclusive_slots_are_respected_and_every_step_runs(
            steps in prop::collection::vec((0u8..4, any::<bool>()), 1..40), slots in 1usize..4,
        ) {
            let mut queue = Queue::new(slots);
            let mut started: Vec<String> = Vec::new();
            let mut active: Vec<String> = Vec::new();
            for (index, (module, is_heavy)) in steps.iter().enumerate() {
                let lane = if *is_heavy { Lane::Heavy } else { Lane::Light };
                let step = QueuedStep { name: index.to_string(), lane, module: Some(module.to_string()) };
                active.extend(queue.on(Event::Arrived(step)));
                check(&queue, slots)?;
                if index % 3 == 0 && let Some(done) = active.pop() {
                    started.push(done.clone());
                    active.extend(queue.on(Event::Ended(done)));
                    check(&queue, slots)?;
                }
            }
            while let Some(done) = active.pop() {
                started.push(done.clone());
                active.extend(queue.on(Event::Ended(done)));
                check(&queue, slots)?;
            }
            started.sort();
            started.dedup();
            prop_assert_eq!(started.len(), steps.len());
        }
    }

    fn check(queue: &Queue, slots: usize) -> Result<(), TestCaseError> {
        let modules: Vec<_> = queue.running.values().filter_map(|it| it.module.clone()).collect();
        let distinct: HashSet<_> = modules.iter().collect();
        prop_assert_eq!(distinct.len(), modules.len());
        prop_assert!(queue.used(Lane::Heavy) <= slots);
        Ok(())
    }
}
