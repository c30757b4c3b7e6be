//! What happens to a step's processes, and when it is over: decisions only, no I/O.
//!
//! ```text
//! Running ──ended──→ Lingering ──time is up──→ Terminating ──time is up──→ Killing
//!    └──────────────── kill ─────────┴────────────── kill ──────┴────────────↑
//! ```
//! In every phase the step is over as soon as the script has ended, no process of it is left, and both pipes are
//! at their end (or something outside of the step keeps them open for too long).

use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;
use jiff::Timestamp;

use crate::step::{CancelledBy, Exit};

/// What the script leaves behind has this long to end by itself.
const LINGER: Duration = Duration::from_secs(2);
/// The same after a cancel: just enough for a pipeline whose members end one after another.
const LINGER_CANCELLED: Duration = Duration::from_millis(250);
/// Between the request to end (SIGTERM) and the end (SIGKILL) of what was left behind.
const TERMINATION: Duration = Duration::from_secs(1);
/// A process that is still there so long after SIGKILL is worth a line in the log.
const UNKILLABLE: Duration = Duration::from_secs(10);

/// How the script's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptEnd {
    Code(i32),
    Signal(i32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The script's own process is gone.
    Ended(ScriptEnd),
    /// No process of the step is left.
    Alone,
    /// Both pipes are at their end.
    Closed,
    /// A cancel was asked for.
    Cancel { kind: CancelKind, kill_after: Option<Duration>, by: CancelledBy },
    /// The supervisor itself was asked to end.
    Terminated,
    /// Output could not be written; why.
    OutputLost(String),
    /// Time passes.
    Tick,
}

/// Why the script is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptReason {
    Cancelled,
    /// The runner is being stopped, and has no more time to wait.
    Drained,
    Terminated,
    OutputLost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGINT to the script's process group.
    Interrupt(InterruptReason),
    /// SIGTERM to everything that is left; the log says what that is.
    EndLeftovers,
    /// SIGKILL to everything. The first time the log says so.
    Kill { first: bool },
    /// The log says that processes cannot be killed.
    SayUnkillable,
    /// The log says that a process outside of the step keeps the pipes open.
    SayHeld,
    /// Write down how the step ended, and leave.
    Finish { ended: ScriptEnd, lost: Option<String> },
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running { kill_at: Option<Instant> },
    Lingering { until: Instant },
    Terminating { until: Instant },
    Killing { since: Instant, said: bool },
    Finished,
}

/// The state of one step.
#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: Phase,
    ended: Option<ScriptEnd>,
    alone_since: Option<Instant>,
    closed: bool,
    /// The interrupt is sent once: engines take a second one as "stop at any price".
    interrupted: bool,
    cancelled: bool,
    lost: Option<String>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Running { kill_at: None },
            ended: None,
            alone_since: None,
            closed: false,
            interrupted: false,
            cancelled: false,
            lost: None,
        }
    }

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
                let why = match by {
                    CancelledBy::Server => InterruptReason::Cancelled,
                    CancelledBy::Drain => InterruptReason::Drained,
                };
                actions.extend(self.cancel(why, now));
                // One that is too far away to be reckoned with is as good as none.
                let limit = kill_after.and_then(|kill_after| now.checked_add(kill_after));
                if let (Phase::Running { kill_at }, Some(limit)) = (&mut self.phase, limit) {
                    *kill_at = Some(kill_at.map_or(limit, |earlier| earlier.min(limit)));
                }
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

    fn on_ended(&mut self, ended: ScriptEnd, now: Instant) {
        self.ended = Some(ended);
        if let Phase::Running { .. } = self.phase {
            let linger = if self.cancelled { LINGER_CANCELLED } else { LINGER };
            self.phase = Phase::Lingering { until: now + linger };
        }
    }

    fn cancel(&mut self, why: InterruptReason, now: Instant) -> Option<Action> {
        self.cancelled = true;
        if let Phase::Lingering { until } = &mut self.phase {
            *until = (*until).min(now + LINGER_CANCELLED);
        }
        self.interrupt(why)
    }

    fn interrupt(&mut self, why: InterruptReason) -> Option<Action> {
        let due = matches!(self.phase, Phase::Running { .. }) && !self.interrupted;
        self.interrupted |= due;
        due.then_some(Action::Interrupt(why))
    }

    fn kill(&mut self, now: Instant) -> Option<Action> {
        if matches!(self.phase, Phase::Killing { .. } | Phase::Finished) {
            return None;
        }
        self.phase = Phase::Killing { since: now, said: false };
        Some(Action::Kill { first: true })
    }

    fn on_tick(&mut self, now: Instant) -> Option<Action> {
        if self.alone_since.is_some() {
            return None;
        }
        match &mut self.phase {
            Phase::Running { kill_at: Some(at) } if now >= *at => self.kill(now),
            Phase::Lingering { until } if now >= *until => {
                self.phase = Phase::Terminating { until: now + TERMINATION };
                Some(Action::EndLeftovers)
            }
            Phase::Terminating { until } if now >= *until => {
                self.phase = Phase::Killing { since: now, said: false };
                Some(Action::Kill { first: false })
            }
            Phase::Killing { since, said } => {
                if !*said && now.duration_since(*since) >= UNKILLABLE {
                    *said = true;
                    return Some(Action::SayUnkillable);
                }
                // Again and again: what is forked while the others are killed must go too.
                Some(Action::Kill { first: false })
            }
            _ => None,
        }
    }

    fn finish(&mut self, now: Instant) -> Vec<Action> {
        let (Some(ended), Some(alone)) = (self.ended, self.alone_since) else { return Vec::new() };
        if matches!(self.phase, Phase::Finished) {
            return Vec::new();
        }
        let held = !self.closed && now.duration_since(alone) >= LINGER;
        if !self.closed && !held {
            return Vec::new();
        }
        self.phase = Phase::Finished;
        let finish = Action::Finish { ended, lost: self.lost.take() };
        if held { vec![Action::SayHeld, finish] } else { vec![finish] }
    }
}

/// What `exit.json` says.
pub(super) fn exit(ended: ScriptEnd, lost: Option<String>) -> Exit {
    let finished = Timestamp::now();
    let none = Exit { finished, code: None, signal: None, failure: None };
    match (lost, ended) {
        (None, ScriptEnd::Code(code)) => Exit { code: Some(code), ..none },
        (None, ScriptEnd::Signal(signal)) => Exit { signal: Some(signal), ..none },
        (Some(reason), ended) => {
            let how = match ended {
                ScriptEnd::Code(code) => format!("exit code {code}"),
                ScriptEnd::Signal(signal) => format!("signal {signal}"),
            };
            let failure =
                format!("the script's output could not be kept: {reason}; the script ended with {how}");
            Exit { failure: Some(failure), ..none }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: ScriptEnd = ScriptEnd::Code(0);

    /// A lifecycle and its clock, in milliseconds since the start.
    struct Run {
        lifecycle: Lifecycle,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { lifecycle: Lifecycle::new(), start: Instant::now() }
        }

        fn at(&mut self, millis: u64, event: Event) -> Vec<Action> {
            self.lifecycle.on(event, self.start + Duration::from_millis(millis))
        }
    }

    fn cancel(kind: CancelKind) -> Event {
        Event::Cancel { kind, kill_after: None, by: CancelledBy::Server }
    }

    fn finish(ended: ScriptEnd) -> Action {
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
                assert_eq!(run.at(60_000, event), [], "it finishes once and nothing comes after");
            }
        }
    }

    #[test]
    fn a_script_that_closes_its_output_and_goes_on_is_left_alone() {
        let mut run = Run::new();
        run.at(0, Event::Closed);
        assert_eq!(run.at(3_600_000, Event::Tick), []);
        assert_eq!(run.at(3_600_001, Event::Ended(DONE)), []);
        assert_eq!(run.at(3_600_001, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn leftovers_get_time_then_a_request_then_no_choice() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        assert_eq!(run.at(1_900, Event::Tick), []);
        assert_eq!(run.at(2_000, Event::Tick), [Action::EndLeftovers]);
        assert_eq!(run.at(2_900, Event::Tick), []);
        assert_eq!(run.at(3_000, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(3_100, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(13_000, Event::Tick), [Action::SayUnkillable]);
        assert_eq!(run.at(13_100, Event::Tick), [Action::Kill { first: false }]);
        run.at(13_200, Event::Closed);
        assert_eq!(run.at(13_200, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn leftovers_that_end_in_time_are_not_disturbed() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        run.at(1_000, Event::Closed);
        assert_eq!(run.at(1_900, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn output_held_open_by_a_stranger_ends_the_step_after_a_while() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        assert_eq!(run.at(10, Event::Alone), []);
        assert_eq!(run.at(2_005, Event::Tick), [], "there is nobody to end");
        assert_eq!(run.at(2_010, Event::Tick), [Action::SayHeld, finish(DONE)]);
    }

    #[test]
    fn a_graceful_cancel_interrupts_once_and_then_waits_for_ever() {
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
    fn a_limit_beyond_all_time_is_none() {
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
        assert_eq!(run.at(4, Event::Ended(ScriptEnd::Signal(9))), []);
        assert_eq!(run.at(5, Event::Tick), [Action::Kill { first: false }], "the others must go too");
        run.at(6, Event::Closed);
        assert_eq!(run.at(7, Event::Alone), [finish(ScriptEnd::Signal(9))]);
    }

    #[test]
    fn after_a_cancel_leftovers_are_ended_without_the_long_wait() {
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
        assert_eq!(run.at(1, cancel(CancelKind::Graceful)), [], "one interrupt, whatever the reasons");
        run.at(2, Event::Ended(ScriptEnd::Code(1)));
        run.at(3, Event::Closed);
        let actions = run.at(4, Event::Alone);
        assert_eq!(
            actions,
            [Action::Finish { ended: ScriptEnd::Code(1), lost: Some("disk full".to_owned()) }]
        );

        let exit = exit(ScriptEnd::Code(1), Some("disk full".to_owned()));
        assert_eq!((exit.code, exit.signal), (None, None));
        let failure = exit.failure.unwrap();
        assert!(failure.contains("disk full") && failure.contains("exit code 1"), "{failure}");
    }
}
