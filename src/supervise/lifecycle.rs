//! What happens to a step's processes, and when it is over: decisions only, no I/O.
//!
//! ```text
//! Running ──ended──→ Lingering ──time is up──→ Terminating ──time is up──→ Killing
//!    └──────────────── kill ─────────┴────────────── kill ──────┴────────────↑
//! ```
//! In every phase the step is over as soon as the script has ended, no process of it is left, and both pipes are
//! at their end (or something outside of the step keeps them open for too long).

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::contract::requests::CancelKind;
use crate::step::Exit;

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
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The script's own process is gone.
    Ended(Ended),
    /// No process of the step is left.
    Alone,
    /// Both pipes are at their end.
    Closed,
    /// A cancel was asked for.
    Cancel { kind: CancelKind, kill_after: Option<Duration> },
    /// The supervisor itself was asked to end.
    Terminated,
    /// Output could not be written; why.
    OutputLost(String),
    /// Time passes.
    Tick,
}

/// Why the script is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Cancelled,
    Terminated,
    OutputLost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGINT to the script's process group.
    Interrupt(Why),
    /// SIGTERM to everything that is left; the log says what that is.
    EndLeftovers,
    /// SIGKILL to everything. The first time the log says so.
    Kill { first: bool },
    /// The log says that processes cannot be killed.
    SayUnkillable,
    /// The log says that a process outside of the step keeps the pipes open.
    SayHeld,
    /// Write down how the step ended, and leave.
    Finish { ended: Ended, lost: Option<String> },
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
    ended: Option<Ended>,
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
            Event::Cancel { kind: CancelKind::Graceful, kill_after } => {
                actions.extend(self.cancel(Why::Cancelled, now));
                if let (Phase::Running { kill_at }, Some(kill_after)) = (&mut self.phase, kill_after) {
                    let limit = now + kill_after;
                    *kill_at = Some(kill_at.map_or(limit, |earlier| earlier.min(limit)));
                }
            }
            Event::Terminated => actions.extend(self.cancel(Why::Terminated, now)),
            Event::OutputLost(reason) => {
                self.lost.get_or_insert(reason);
                actions.extend(self.interrupt(Why::OutputLost));
            }
            Event::Tick => actions.extend(self.on_tick(now)),
        }
        actions.extend(self.finish(now));
        actions
    }

    fn on_ended(&mut self, ended: Ended, now: Instant) {
        self.ended = Some(ended);
        if let Phase::Running { .. } = self.phase {
            let linger = if self.cancelled { LINGER_CANCELLED } else { LINGER };
            self.phase = Phase::Lingering { until: now + linger };
        }
    }

    fn cancel(&mut self, why: Why, now: Instant) -> Option<Action> {
        self.cancelled = true;
        if let Phase::Lingering { until } = &mut self.phase {
            *until = (*until).min(now + LINGER_CANCELLED);
        }
        self.interrupt(why)
    }

    fn interrupt(&mut self, why: Why) -> Option<Action> {
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
pub(super) fn exit(ended: Ended, lost: Option<String>) -> Exit {
    let finished = Timestamp::now();
    let none = Exit { finished, code: None, signal: None, failure: None };
    match (lost, ended) {
        (None, Ended::Code(code)) => Exit { code: Some(code), ..none },
        (None, Ended::Signal(signal)) => Exit { signal: Some(signal), ..none },
        (Some(reason), ended) => {
            let how = match ended {
                Ended::Code(code) => format!("exit code {code}"),
                Ended::Signal(signal) => format!("signal {signal}"),
            };
            let failure =
                format!("the script's output could not be kept: {reason}; the script ended with {how}");
            Exit { failure: Some(failure), ..none }
        }
    }
}
