//! Decides what to do with a step's processes, what the script may start, and when the step is over. No I/O.
//!
//! ```text
//! Running ──ended──→ Lingering ──timeout──→ Terminating ──timeout──→ Killing
//!    └──────────────── kill ───────┴──────────── kill ───┴──────────↑
//! ```
//! In every phase the step is over as soon as the script has ended, its processes are gone, and both pipes are closed (or a
//! process outside the step holds them open for too long).
//!
//! A cancel, a SIGTERM and lost output *stop* the script: from then on every question is refused, except those that only
//! record a success. What runs at that moment gets one signal: an engine an interrupt, a hook a SIGTERM. Between them bash
//! runs nothing, and its next question ends it.

use std::time::{Duration, Instant};

use hawser_contract::requests::CancelKind;

use super::question::Question;
use crate::step::{Exit, ScriptPhase};

/// How long processes that the script leaves behind may take to end by themselves.
const LINGER: Duration = Duration::from_secs(2);
/// The same after a cancel: enough for the processes of a pipeline to end one after another.
const LINGER_STOPPED: Duration = Duration::from_millis(250);
/// The time between SIGTERM and SIGKILL, for a hook and for processes that the script leaves behind.
const TERMINATION: Duration = Duration::from_secs(10);
/// How often a kill is repeated, to catch processes that are forked during it.
const KILL_AGAIN: Duration = Duration::from_millis(100);
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
    Cancel(CancelKind),
    /// The supervisor itself received SIGTERM.
    Terminated,
    /// Output could not be written, for this reason.
    OutputLost(String),
    /// A deadline has passed.
    Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    Cancelled,
    Terminated,
    OutputLost,
}

/// What the script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// Lines of ours.
    #[default]
    Between,
    Hook,
    /// The process that asked for it, which is an engine command now.
    Engine,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Signal what runs at this stage, and log the reason.
    Stop(Stage, StopReason),
    /// Log the remaining processes and send them SIGTERM.
    EndLeftovers,
    /// Send SIGKILL to all processes. The first time is logged.
    Kill { first: bool },
    /// Log that processes cannot be killed.
    LogUnkillable,
    /// Log that a process outside the step holds the pipes open.
    LogHeldOpen,
    /// Write the exit and end.
    Finish { ended: Exit, lost: Option<String>, cancelled: Option<CancelKind> },
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
        again: Instant,
        logged: bool,
    },
    Finished,
}

#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: Phase,
    stage: Stage,
    /// How long the script may take after a cancel.
    cancel_grace: Duration,
    /// When a running script is killed.
    kill_at: Option<Instant>,
    ended: Option<Exit>,
    alone_since: Option<Instant>,
    closed: bool,
    /// Set once. What runs is signaled only once, because engines take a second interrupt as "stop immediately".
    stopped: bool,
    cancelled: Option<CancelKind>,
    lost: Option<String>,
}

impl Lifecycle {
    pub(super) fn new(cancel_grace: Duration) -> Self {
        Self {
            phase: Phase::default(),
            stage: Stage::default(),
            cancel_grace,
            kill_at: None,
            ended: None,
            alone_since: None,
            closed: false,
            stopped: false,
            cancelled: None,
            lost: None,
        }
    }

    /// Whether the answer to a question is yes.
    pub(super) fn allows(&self, question: &Question) -> bool {
        let starts_nothing =
            matches!(question, Question::Phase { phase: ScriptPhase::Succeeded | ScriptPhase::Done, .. });
        !self.stopped || starts_nothing
    }

    /// The answer is yes.
    pub(super) fn granted(&mut self, question: &Question) {
        self.stage = match question {
            Question::Engine { .. } => Stage::Engine,
            Question::Phase { phase: ScriptPhase::Before | ScriptPhase::After, .. } => Stage::Hook,
            Question::Phase { .. } | Question::Next => Stage::Between,
        };
    }

    pub(super) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ended(ended) => self.on_ended(ended, now),
            Event::Alone => self.alone_since = self.alone_since.or(Some(now)),
            Event::Closed => self.closed = true,
            Event::Cancel(kind) => {
                self.cancelled = self.cancelled.max(Some(kind));
                match kind {
                    CancelKind::Kill => {
                        self.stopped = true;
                        actions.extend(self.kill(now));
                    }
                    CancelKind::Graceful => {
                        actions.extend(self.stop_within_grace(StopReason::Cancelled, now));
                    }
                }
            }
            Event::Terminated => actions.extend(self.stop_within_grace(StopReason::Terminated, now)),
            Event::OutputLost(reason) => {
                self.lost.get_or_insert(reason);
                actions.extend(self.stop(StopReason::OutputLost, now));
            }
            Event::Tick => actions.extend(self.on_tick(now)),
        }
        actions.extend(self.finish(now));
        actions
    }

    /// When the next [`Event::Tick`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if let Some(alone) = self.alone_since {
            return self.ended.is_some().then(|| alone + LINGER);
        }
        match self.phase {
            Phase::Running => self.kill_at,
            Phase::Lingering { until } | Phase::Terminating { until } => Some(until),
            Phase::Killing { again, .. } => Some(again),
            Phase::Finished => None,
        }
    }

    fn on_ended(&mut self, ended: Exit, now: Instant) {
        self.ended = Some(ended);
        if let Phase::Running = self.phase {
            let linger = if self.stopped { LINGER_STOPPED } else { LINGER };
            self.phase = Phase::Lingering { until: now + linger };
        }
    }

    fn stop_within_grace(&mut self, reason: StopReason, now: Instant) -> Option<Action> {
        self.kill_after(self.cancel_grace, now);
        self.stop(reason, now)
    }

    fn stop(&mut self, reason: StopReason, now: Instant) -> Option<Action> {
        if std::mem::replace(&mut self.stopped, true) {
            return None;
        }
        match &mut self.phase {
            Phase::Running => {
                if self.stage == Stage::Hook {
                    self.kill_after(TERMINATION, now);
                }
                Some(Action::Stop(self.stage, reason))
            }
            Phase::Lingering { until } => {
                *until = (*until).min(now + LINGER_STOPPED);
                None
            }
            _ => None,
        }
    }

    /// Only moves the limit forward. One that overflows is ignored.
    fn kill_after(&mut self, limit: Duration, now: Instant) {
        self.kill_at = self.kill_at.into_iter().chain(now.checked_add(limit)).min();
    }

    fn kill(&mut self, now: Instant) -> Option<Action> {
        if matches!(self.phase, Phase::Killing { .. } | Phase::Finished) {
            return None;
        }
        self.phase = Phase::Killing { since: now, again: now + KILL_AGAIN, logged: false };
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
                self.phase = Phase::Killing { since: now, again: now + KILL_AGAIN, logged: false };
                Some(Action::Kill { first: false })
            }
            Phase::Killing { since, again, logged } if now >= *again => {
                *again = now + KILL_AGAIN;
                if !*logged && now.duration_since(*since) >= UNKILLABLE {
                    *logged = true;
                    return Some(Action::LogUnkillable);
                }
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
        let (ended, lost) = (ended.clone(), self.lost.take());
        let finish = Action::Finish { ended, lost, cancelled: self.cancelled };
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
    const CANCEL: Event = Event::Cancel(CancelKind::Graceful);
    const KILL: Event = Event::Cancel(CancelKind::Kill);
    const GRACE: u64 = 600_000;

    /// A lifecycle and its clock, in milliseconds since the start.
    struct Run {
        lifecycle: Lifecycle,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { lifecycle: Lifecycle::new(Duration::from_millis(GRACE)), start: Instant::now() }
        }

        fn with(question: &Question) -> Self {
            let mut run = Self::new();
            assert!(run.lifecycle.allows(question));
            run.lifecycle.granted(question);
            run
        }

        fn at(&mut self, millis: u64, event: Event) -> Vec<Action> {
            self.lifecycle.on(event, self.start + Duration::from_millis(millis))
        }

        fn deadline(&self) -> Option<u128> {
            self.lifecycle.deadline().map(|it| it.duration_since(self.start).as_millis())
        }
    }

    fn phase(phase: ScriptPhase) -> Question {
        Question::Phase { phase, place: Vec::new() }
    }

    fn engine() -> Question {
        Question::Engine { name: String::new(), wrapper: None }
    }

    fn finish(ended: Exit) -> Action {
        Action::Finish { ended, lost: None, cancelled: None }
    }

    #[test]
    fn a_step_is_over_when_the_script_its_processes_and_its_output_have_ended_in_any_order() {
        let events = [Event::Ended(DONE), Event::Alone, Event::Closed];
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            let mut run = Run::new();
            assert_eq!(run.at(0, events[order[0]].clone()), []);
            assert_eq!(run.at(1, events[order[1]].clone()), []);
            assert_eq!(run.at(2, events[order[2]].clone()), [finish(DONE)]);
            for event in [Event::Tick, Event::Alone, KILL, Event::Terminated] {
                assert_eq!(run.at(60_000, event), [], "it finishes once, and nothing follows");
            }
        }
    }

    #[test]
    fn a_script_that_closes_its_output_and_keeps_running_is_left_alone() {
        let mut run = Run::new();
        run.at(0, Event::Closed);
        assert_eq!((run.at(3_600_000, Event::Tick), run.deadline()), (vec![], None));
        assert_eq!(run.at(3_600_001, Event::Ended(DONE)), []);
        assert_eq!(run.at(3_600_001, Event::Alone), [finish(DONE)]);
    }

    #[test]
    fn leftovers_get_time_then_sigterm_then_sigkill() {
        let mut run = Run::new();
        run.at(0, Event::Ended(DONE));
        assert_eq!((run.at(1_900, Event::Tick), run.deadline()), (vec![], Some(2_000)));
        assert_eq!(run.at(2_000, Event::Tick), [Action::EndLeftovers]);
        assert_eq!((run.at(11_900, Event::Tick), run.deadline()), (vec![], Some(12_000)));
        assert_eq!(run.at(12_000, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!((run.at(12_050, Event::Tick), run.deadline()), (vec![], Some(12_100)));
        assert_eq!(run.at(12_100, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(22_000, Event::Tick), [Action::LogUnkillable]);
        assert_eq!(run.at(22_100, Event::Tick), [Action::Kill { first: false }]);
        run.at(22_200, Event::Closed);
        assert_eq!(run.at(22_200, Event::Alone), [finish(DONE)]);
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
        assert_eq!((run.at(10, Event::Alone), run.deadline()), (vec![], Some(2_010)));
        assert_eq!(run.at(2_005, Event::Tick), [], "there is no process to end");
        assert_eq!(run.at(2_010, Event::Tick), [Action::LogHeldOpen, finish(DONE)]);
    }

    #[test]
    fn what_runs_is_signaled_once_and_killed_after_its_time() {
        let hook = || phase(ScriptPhase::Before);
        let cases = [
            (Run::new(), Stage::Between, GRACE),
            (Run::with(&engine()), Stage::Engine, GRACE),
            (Run::with(&hook()), Stage::Hook, 10_000),
            (Run::with(&phase(ScriptPhase::After)), Stage::Hook, 10_000),
            (Run::with(&phase(ScriptPhase::Engine)), Stage::Between, GRACE),
        ];
        for (mut run, stage, limit) in cases {
            assert_eq!(run.at(0, CANCEL), [Action::Stop(stage, StopReason::Cancelled)]);
            for (millis, event) in
                [(1, CANCEL), (2, Event::Terminated), (3, Event::OutputLost(String::new()))]
            {
                assert_eq!(run.at(millis, event), [], "one signal, whatever else is a reason");
            }
            assert_eq!((run.at(limit - 1, Event::Tick), run.deadline()), (vec![], Some(limit.into())));
            assert_eq!(run.at(limit, Event::Tick), [Action::Kill { first: true }]);
        }
    }

    #[test]
    fn a_limit_that_overflows_is_no_limit() {
        let mut run = Run { lifecycle: Lifecycle::new(Duration::MAX), ..Run::with(&engine()) };
        assert_eq!(run.at(0, CANCEL), [Action::Stop(Stage::Between, StopReason::Cancelled)]);
        assert_eq!((run.at(86_400_000, Event::Tick), run.deadline()), (vec![], None));
    }

    #[test]
    fn a_stopped_script_may_start_nothing_and_record_a_success() {
        for stop in [CANCEL, KILL, Event::Terminated, Event::OutputLost(String::new())] {
            let mut run = Run::new();
            run.at(0, stop);
            let allowed = ScriptPhase::ALL.into_iter().filter(|it| run.lifecycle.allows(&phase(*it)));
            assert_eq!(allowed.collect::<Vec<_>>(), [ScriptPhase::Succeeded, ScriptPhase::Done]);
            assert!(!run.lifecycle.allows(&engine()) && !run.lifecycle.allows(&Question::Next));
        }
    }

    #[test]
    fn a_kill_overtakes_everything() {
        let mut run = Run::with(&engine());
        run.at(0, CANCEL);
        assert_eq!(run.at(1, KILL), [Action::Kill { first: true }]);
        assert_eq!(run.at(2, KILL), []);
        assert_eq!(run.at(2, CANCEL), []);
        assert_eq!(run.at(101, Event::Tick), [Action::Kill { first: false }]);
        assert_eq!(run.at(104, Event::Ended(Exit::Signal(9))), []);
        assert_eq!(
            run.at(201, Event::Tick),
            [Action::Kill { first: false }],
            "the other processes are killed too"
        );
        run.at(206, Event::Closed);
        let (ended, cancelled) = (Exit::Signal(9), Some(CancelKind::Kill));
        assert_eq!(run.at(207, Event::Alone), [Action::Finish { ended, lost: None, cancelled }]);
    }

    #[test]
    fn after_a_cancel_leftovers_are_ended_sooner() {
        let mut before = Run::new();
        before.at(0, CANCEL);
        before.at(100, Event::Ended(DONE));
        assert_eq!(before.at(400, Event::Tick), [Action::EndLeftovers]);

        let mut during = Run::new();
        during.at(0, Event::Ended(DONE));
        assert_eq!(during.at(100, CANCEL), [], "the script itself is gone");
        assert_eq!(during.at(400, Event::Tick), [Action::EndLeftovers]);
        assert_eq!(during.at(500, KILL), [Action::Kill { first: true }]);
    }

    #[test]
    fn lost_output_stops_the_script_and_becomes_the_failure() {
        let mut run = Run::with(&engine());
        let lost = || Event::OutputLost("disk full".to_owned());
        assert_eq!(run.at(0, lost()), [Action::Stop(Stage::Engine, StopReason::OutputLost)]);
        run.at(2, Event::Ended(Exit::Code(1)));
        run.at(3, Event::Closed);
        let actions = run.at(4, Event::Alone);
        let lost = Some("disk full".to_owned());
        assert_eq!(actions, [Action::Finish { ended: Exit::Code(1), lost, cancelled: None }]);

        let Exit::Failure(failure) = exit(Exit::Code(1), Some("disk full".to_owned())) else { panic!() };
        assert!(failure.contains("disk full") && failure.contains("exit code 1"), "{failure}");
    }
}
