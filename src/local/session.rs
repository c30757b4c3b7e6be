//! The loop of `hawser local`: hub events, answers and signals go into the controller, what it decides is done, and
//! what there is to see is shown.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use hawser_dev_server::{EmbeddedHub, Events, JobSpec, Recorded};
use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::controller::{Action, Controller, Finished, Input};
use super::view::{self, Event, Screen, Title, View};

/// How many events are taken in before what they look like is printed.
const AT_ONCE: usize = 500;

/// What is to be done.
#[derive(Debug)]
pub struct LocalJob {
    pub title: Title,
    pub spec: JobSpec,
    /// Do not ask before anything is changed.
    pub yes: bool,
    /// What the user should know first.
    pub notes: Vec<String>,
}

/// Takes one job through the hub and shows it. `runner_gone` resolves, with the reason, should the runner end.
pub async fn run(
    hub: &EmbeddedHub,
    errand: LocalJob,
    runner_gone: impl Future<Output = String>,
) -> io::Result<Finished> {
    let mut interrupts = Interrupts::listen()?;
    let mut runner_gone = pin!(runner_gone);
    let mut refresh = tokio::time::interval(view::REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut events = hub.take_events();
    let mut session = Session::begin(hub, errand);
    loop {
        tokio::select! {
            () = interrupts.next() => session.feed(Timestamp::now(), Input::Interrupt),
            answer = session.question.answer() => session.feed(Timestamp::now(), Input::Answer(answer)),
            reason = &mut runner_gone => session.feed(Timestamp::now(), Input::RunnerGone(reason)),
            recorded = events.next() => session.take_in(recorded, &mut events),
            _ = refresh.tick() => {}
        }
        session.draw();
        if let Some(finished) = session.finished {
            return Ok(finished);
        }
    }
}

struct Session<'a> {
    hub: &'a EmbeddedHub,
    job: Uuid,
    began: Timestamp,
    conductor: Controller,
    view: View,
    screen: Screen,
    /// Lines that are not printed yet.
    lines: Vec<String>,
    question: Question,
    finished: Option<Finished>,
}

impl<'a> Session<'a> {
    fn begin(hub: &'a EmbeddedHub, errand: LocalJob) -> Self {
        let screen = Screen::open();
        let view = View::new(screen.live, errand.title);
        let mut session = Self {
            hub,
            began: Timestamp::now(),
            conductor: Controller::new(errand.yes),
            lines: view.opening(),
            view,
            screen,
            question: Question::NotAsked,
            finished: None,
            job: hub.submit(errand.spec),
        };
        for note in errand.notes {
            session.feed(session.began, Input::Seen(Event::Note(note)));
        }
        session
    }

    /// Takes in an event and those that wait behind it, so that a flood is printed in large pieces.
    fn take_in(&mut self, first: Recorded, events: &mut Events) {
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(Recorded { at, event, .. }) = next {
            if let Some(input) = Input::from_hub(self.job, event) {
                self.feed(at, input);
            }
            taken += 1;
            if taken == AT_ONCE || self.finished.is_some() {
                return;
            }
            next = events.try_next();
        }
    }

    fn feed(&mut self, at: Timestamp, input: Input) {
        for action in self.conductor.on(input) {
            match action {
                Action::Show(event) => {
                    let now = since(self.began, at);
                    self.lines.extend(self.view.on(&event, now));
                }
                Action::Ask => self.ask(),
                // A job that has just ended refuses these, and its end is the next event.
                Action::Approve => drop(self.hub.approve(self.job)),
                Action::Reject => drop(self.hub.reject(self.job)),
                Action::Cancel(kind) => {
                    self.question.withdraw();
                    drop(self.hub.cancel(self.job, kind));
                }
                Action::Finish(finished) => self.finished = Some(finished),
            }
        }
    }

    fn ask(&mut self) {
        self.screen.draw(&std::mem::take(&mut self.lines), None);
        self.question.ask(self.view.question());
    }

    fn draw(&mut self) {
        if self.question.is_open() {
            return;
        }
        let status = self.view.status(since(self.began, Timestamp::now()));
        let status = status.filter(|_| self.finished.is_none());
        self.screen.draw(&std::mem::take(&mut self.lines), status.as_deref());
    }
}

fn since(began: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(began)).unwrap_or_default()
}

/// The question before anything is changed. A thread of its own waits for the answer: reading a terminal cannot be
/// broken off, and when the program is to end it must not wait for that.
#[derive(Debug)]
enum Question {
    NotAsked,
    Open(mpsc::Receiver<bool>),
    Closed,
}

impl Question {
    fn ask(&mut self, question: String) {
        let (answered, answer) = mpsc::channel(1);
        std::thread::spawn(move || {
            let yes = view::ask(&question);
            // Nobody listens any more when the question was withdrawn.
            let _ = answered.blocking_send(yes);
        });
        *self = Self::Open(answer);
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// The answer when there is one. Pending for ever while nothing has been asked.
    async fn answer(&mut self) -> bool {
        let Self::Open(answer) = self else { return std::future::pending().await };
        let yes = answer.recv().await.unwrap_or(false);
        *self = Self::Closed;
        yes
    }

    fn withdraw(&mut self) {
        if self.is_open() {
            // The cursor stands behind the question.
            view::tell("\n");
            *self = Self::Closed;
        }
    }
}

/// Ctrl-C, and what else asks a program to end.
struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
