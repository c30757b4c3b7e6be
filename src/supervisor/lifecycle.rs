//! Decides what to do with a step's processes and when the step is over. No I/O.
//!
//! ```text
//! Running ──ended──→ Lingering ──timeout──→ Terminating ──timeout──→ Killing
//!    └──────────────── kill ───────┴──────────── kill ───┴──────────↑
//! ```
//! In every phase the step is over as soon as the script has ended, its processes are gone, and both pipes are closed (or a
//! process outside the step holds them open for too long).

use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;

use crate::step::{CancelledBy, Exit};

/// How long processes that the script leaves behind may take to end by themselves.
const LINGER: Duration = Duration::from_secs(2);
/// The same after a cancel: enough for the processes of a pipeline to end one after another.
const LINGER_CANCELLED: Duration = Duration::from_millis(250);
/// The time between SIGTERM and SIGKILL for processes that the script leaves behind.
const TERMINATION: Duration = Duration::from_secs(1);
/// A process that still exists this long after SIGKILL is logged.
const UNKILLABLE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The script's own process has exited.
    Ended(Exit),
    /// All processes of the step are gone.
    Alone,
    /// Both pipes are closed.
    Closed,
    /// A cancel was requested.
    Cancel {
        kind: CancelKind,
        kill_after: Option<Duration>,
        by: CancelledBy,
    },
    /// The supervisor itself received SIGTERM.
    Terminated,
    /// Output could not be written, for this reason.
    OutputLost(String),
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptReason {
    Cancelled,
    /// The drain of the runner has timed out.
    Drained,
    Terminated,
    OutputLost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Send SIGINT to the script's process group.
    Interrupt(InterruptReason),
    /// Log the remaining processes and send them SIGTERM.
    EndLeftovers,
    /// Send SIGKILL to all processes. The first time is logged.
    Kill { first: bool },
    /// Log that processes cannot be killed.
    LogUnkillable,
    /// Log that a process outside the step holds the pipes open.
    LogHeldOpen,
    /// Write the exit and end.
    Finish { ended: Exit, lost: Option<String> },
}

#[derive(Debug, Clone, Copy, Default)]
enum Phase {
    #[default]
    Running,
    Lingering {
        until: Instant,
    },
    Terminating {
        until: Instant,
    },
    Killing {
        since: Instant,
        logged: bool,
    },
    Finished,
}

#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    phase: Phase,
    /// When a running script is killed.
    kill_at: Option<Instant>,
    ended: Option<Exit>,
    alone_since: Option<Instant>,
    closed: bool,
    /// The interrupt is sent only once, because engines take a second one as "stop immediately".
    interrupted: bool,
    cancelled: bool,
    lost: Option<String>,
}

impl Lifecycle {
    pub(super) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ended(ended) => self.on_ended(ended, now),
            Event::Alone => self.alone_since = self.alone_since.or(Some(now)),
            Event::Closed => self.closed = true,
            Event::Cancel { kind: CancelKind::Kill, .. } => {
                self.cancelled = true;
                actions.extend(self.kill(now));
            }
            Event::Cancel { kind: CancelKind::Graceful, kill_after, by } => {
                let reason = match by {
                    CancelledBy::Server => InterruptReason::Cancelled,
                    CancelledBy::Drain => InterruptReason::Drained,
                };
                actions.extend(self.cancel(reason, now));
                // A limit that overflows is ignored.
                let limit = kill_after.and_then(|kill_after| now.checked_add(kill_after));
                self.kill_at = self.kill_at.into_iter().chain(limit).min();
            }
            Event::Terminated => actions.extend(self.cancel(InterruptReason::Terminated, now)),
            Event::OutputLost(reason) => {
                self.lost.get_or_insert(reason);
                actions.extend(self.interrupt(InterruptReason::OutputLost));
            }
            Event::Tick => actions.extend(self.on_tick(now)),
        }
        actions.extend(self.finish(now));
        actions
    }

    fn on_ended(&mut self, ended: Exit, now: Instant) {
        self.ended = Some(ended);
        if let Phase::Running = self.phase {
            let linger = if self.cancelled { LINGER_CANCELLED } else { LINGER };
            self.phase = Phase::Lingering { until: now + linger };
        }
    }

    fn cancel(&mut self, reason: InterruptReason, now: Instant) -> Option<Action> {
        self.cancelled = true;
        if let Phase::Lingering { until } = &mut self.phase {
            *until = (*until).min(now + LINGER_CANCELLED);
        }
        self.interrupt(reason)
    }

    fn interrupt(&mut self, reason: InterruptReason) -> Option<Action> {
        let due = matches!(self.phase, Phase::Running) && !self.interrupted;
        self.interrupted |= due;
        due.then_some(Action::Interrupt(reason))
    }

    fn kill(&mut self, now: Instant) -> Option<Action> {
        if matches!(self.phase, Phase::Killing { .. } | Phase::Finished) {
            return None;
        }
        self.phase = Phase::Killing { since: now, logged: false };
        Some(Action::Kill { first: true })
    }

    fn on_tick(&mut self, now: Instant) -> Option<Action> {
        if self.alone_since.is_some() {
            return None;
        }
        match &mut self.phase {
            Phase::Running if self.kill_at.is_some_and(|at| now >= at) => self.kill(now),
            Phase::Lingering { until } if now >= *until => {
                self.phase = Phase::Terminating { until: now + TERMINATION };
                Some(Action::EndLeftovers)
            }
            Phase::Terminating { until } if now >= *until => {
                self.phase = Phase::Killing { since: now, logged: false };
                Some(Action::Kill { first: false })
            }
            Phase::Killing { since, logged } => {
                if !*logged && now.duration_since(*since) >= UNKILLABLE {
                    *logged = true;
                    return Some(Action::LogUnkillable);
                }
                // Repeated, to catch processes that are forked during the kill.
                Some(Action::Kill { first: false })
            }
            _ => None,
        }
    }

    fn finish(&mut self, now: Instant) -> Vec<Action> {
        let (Some(ended), Some(alone)) = (&self.ended, self.alone_since) else { return Vec::new() };
        if matches!(self.phase, Phase::Finished) {
            return Vec::new();
        }
        let held_open = !self.closed && now.duration_since(alone) >= LINGER;
        if !self.closed && !held_open {
            return Vec::new();
        }
        self.phase = Phase::Finished;
        let finish = Action::Finish { ended: ended.clone(), lost: self.lost.take() };
        if held_open { vec![Action::LogHeldOpen, finish] } else { vec![finish] }
    }
}

/// The content of `exit.json`. `lost` is why some of the output could not be written.
pub(super) fn exit(ended: Exit, lost: Option<String>) -> Exit {
    match lost {
        None => ended,
        Some(reason) => Exit::Failure(format!(
            "failed to write the script's output: {reason}; the script ended with {ended}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Exit = Exit::Code(0);

    /// A lifecycle and its clock, in milliseconds since the start.
    struct Run {
        lifecycle: Lifecycle,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { lifecycle: Lifecycle::default(), start: Instant::now() }
        }

        fn at(&mut self, millis: u64, event: Event) -> Vec<Action> {
            self.lifecycle.on(event, self.start + Duration::from_millis(millis))
        }
    }

    fn cancel(kind: CancelKind) -> Event {
        Event::Cancel { kind, kill_after: None, by: CancelledBy::Server }
    }

    fn finish(ended: Exit) -> Action {
        Action::Finish { ended, lost: None }
    }

    #[test]
    fn a_step_is_over_when_the_script_its_processes_and_its_output_have_ended_in_any_order() {
        let events = [Event::Ended(DONE), Event::Alone, Event::Closed];
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            let mut run = Run::new();
            assert_eq!(run.at(0, events[order[0]].clone()), []);
            assert_eq!(run.at(1, events[order[1]].clone()), []);
            assert_eq!(run.at(2, events[order[2]].clone()), [finish(DONE)]);
            for event in [Event::Tick, Event::Alone, cancel(CancelKind::Kill), Event::Terminated] {
                assert_eq!(run.at(60_000, event), [], "it finishes once, and nothing follows");
            }
        }
    }

    #[test]
    fn a_script_that_closes_its_output_and_keeps_running_is_left_alone() {
        let mut run = Run::new();
        run.at(0, Event::Closed);
        assert_eq!(run.at(3_600_000, Event::Tick), []);
        assert_eq!(run.at(3_600_001, Event::Ended(DONE)), []);
        assert_eq!(run.at(3_600_001, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn leftovers_get_time_then_sigterm_then_sigkill() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        assert_eq!(run.at(1_900, Event::Tick), []);
        assert_eq!(run.at(2_000, Event::Tick), [Action::EndLeftovers]);
        assert_eq!(run.at(2_900, Event::Tick), []);
        assert_eq!(run.at(3_000, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(3_100, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(13_000, Event::Tick), [Action::LogUnkillable]);
        assert_eq!(run.at(13_100, Event::Tick), [Action::Kill { first: false }]);
        run.at(13_200, Event::Closed);
        assert_eq!(run.at(13_200, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn leftovers_that_end_in_time_get_no_signal() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        run.at(1_000, Event::Closed);
        assert_eq!(run.at(1_900, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn the_step_ends_although_an_unrelated_process_holds_the_output_open() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        assert_eq!(run.at(10, Event::Alone), []);
        assert_eq!(run.at(2_005, Event::Tick), [], "there is no process to end");
        assert_eq!(run.at(2_010, Event::Tick), [Action::LogHeldOpen, finish(DONE)]);
    }

    #[test]
    fn a_graceful_cancel_interrupts_once_and_then_waits_forever() {
        let mut run = Run::new();
        assert_eq!(run.at(0, cancel(CancelKind::Graceful)), [Action::Interrupt(InterruptReason::Cancelled)]);
        assert_eq!(run.at(1, cancel(CancelKind::Graceful)), []);
        assert_eq!(run.at(2, Event::Terminated), []);
        assert_eq!(run.at(86_400_000, Event::Tick), []);
    }

    #[test]
    fn a_graceful_cancel_with_a_limit_kills_at_the_limit() {
        let limited = Event::Cancel {
            kind: CancelKind::Graceful,
            kill_after: Some(Duration::from_secs(30)),
            by: CancelledBy::Server,
        };
        let mut run = Run::new();
        assert_eq!(run.at(0, limited.clone()), [Action::Interrupt(InterruptReason::Cancelled)]);
        assert_eq!(run.at(10_000, limited), [], "a later limit does not move an earlier one");
        assert_eq!(run.at(29_999, Event::Tick), []);
        assert_eq!(run.at(30_000, Event::Tick), [Action::Kill { first: true }]);
    }

    #[test]
    fn a_limit_that_overflows_is_no_limit() {
        let mut run = Run::new();
        let cancel = Event::Cancel {
            kind: CancelKind::Graceful,
            kill_after: Some(Duration::MAX),
            by: CancelledBy::Server,
        };
        assert_eq!(run.at(0, cancel), [Action::Interrupt(InterruptReason::Cancelled)]);
        assert_eq!(run.at(86_400_000, Event::Tick), []);
    }

    #[test]
    fn a_kill_overtakes_everything() {
        let mut run = Run::new();
        run.at(0, cancel(CancelKind::Graceful));
        assert_eq!(run.at(1, cancel(CancelKind::Kill)), [Action::Kill { first: true }]);
        assert_eq!(run.at(2, cancel(CancelKind::Kill)), []);
        assert_eq!(run.at(3, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(4, Event::Ended(Exit::Signal(9))), []);
        assert_eq!(
            run.at(5, Event::Tick),
            [Action::Kill { first: false }],
            "the other processes are killed too"
        );
        run.at(6, Event::Closed);
        assert_eq!(run.at(7, Event::Alone), [finish(Exit::Signal(9))]);
    }

    #[test]
    fn after_a_cancel_leftovers_are_ended_sooner() {
        let mut before = Run::new();
        before.at(0, cancel(CancelKind::Graceful));
        before.at(100, Event::Ended(DONE));
        assert_eq!(before.at(400, Event::Tick), [Action::EndLeftovers]);

        let mut during = Run::new();
        during.at(0, Event::Ended(DONE));
        assert_eq!(during.at(100, cancel(CancelKind::Graceful)), [], "the script itself is gone");
        assert_eq!(during.at(400, Event::Tick), [Action::EndLeftovers]);
        assert_eq!(during.at(500, cancel(CancelKind::Kill)), [Action::Kill { first: true }]);
    }

    #[test]
    fn lost_output_interrupts_and_becomes_the_failure() {
        let mut run = Run::new();
        let lost = || Event::OutputLost("disk full".to_owned());
        assert_eq!(run.at(0, lost()), [Action::Interrupt(InterruptReason::OutputLost)]);
        assert_eq!(run.at(1, cancel(CancelKind::Graceful)), [], "one interrupt, even for two reasons");
        run.at(2, Event::Ended(Exit::Code(1)));
        run.at(3, Event::Closed);
        let actions = run.at(4, Event::Alone);
        assert_eq!(actions, [Action::Finish { ended: Exit::Code(1), lost: Some("disk full".to_owned()) }]);

        let Exit::Failure(failure) = exit(Exit::Code(1), Some("disk full".to_owned())) else { panic!() };
        assert!(failure.contains("disk full") && failure.contains("exit code 1"), "{failure}");
    }
}
