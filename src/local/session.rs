//! The loop of `hawser local`: passes hub events, answers, and signals to the controller, performs its actions, and shows
//! the view.

use std::future::Future;
use std::io;
use std::pin::pin;

use hawser_dev_server::{EmbeddedHub, Events, JobSpec, Recorded};
use jiff::Timestamp;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::controller::{Action, Controller, Finished, Input};
use super::user_paths::UserPaths;
use super::view::{self, Event, JobScreen, Title};
use crate::base::signals::Signals;

/// How many events are handled before their lines are printed.
const EVENTS_AT_ONCE: usize = 500;

#[derive(Debug)]
pub struct LocalJob {
    pub title: Title,
    pub spec: JobSpec,
    /// Approve without asking.
    pub yes: bool,
    /// Shown before everything else.
    pub notes: Vec<String>,
    pub paths: UserPaths,
}

/// Submits a job to the hub and shows it until it ends. `runner_ended` resolves, with the reason, if the runner ends.
pub async fn run(
    hub: &EmbeddedHub,
    local_job: LocalJob,
    runner_ended: impl Future<Output = String>,
) -> io::Result<Finished> {
    // Ctrl-C, and the other signals that ask a program to end.
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut interrupts = Signals::listen(&kinds)?;
    let mut runner_ended = pin!(runner_ended);
    let mut refresh = tokio::time::interval(view::REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut events = hub.take_events();
    let mut session = Session::start(hub, local_job);
    loop {
        tokio::select! {
            _ = interrupts.next() => session.feed(Timestamp::now(), Input::Interrupt),
            answer = session.question.answer() => session.feed(Timestamp::now(), Input::Answer(answer)),
            reason = &mut runner_ended => session.feed(Timestamp::now(), Input::RunnerEnded(reason)),
            recorded = events.next() => session.handle(recorded, &mut events),
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
    controller: Controller,
    screen: JobScreen,
    paths: UserPaths,
    question: Question,
    finished: Option<Finished>,
}

impl<'a> Session<'a> {
    fn start(hub: &'a EmbeddedHub, local_job: LocalJob) -> Self {
        let started = Timestamp::now();
        let mut screen = JobScreen::new(local_job.title, started);
        screen.open();
        let mut session = Self {
            hub,
            controller: Controller::new(local_job.yes),
            screen,
            paths: local_job.paths,
            question: Question::default(),
            finished: None,
            job: hub.submit(local_job.spec),
        };
        for note in local_job.notes {
            session.feed(started, Input::Progress(Event::Note(note)));
        }
        session
    }

    /// Handles an event and the ones queued behind it, so that many lines are printed at once.
    fn handle(&mut self, first: Recorded, events: &mut Events) {
        let mut next = Some(first);
        let mut handled = 0;
        while let Some(Recorded { at, event, .. }) = next {
            match Input::from_hub(self.job, event) {
                Some(Input::Progress(event)) => self.feed(at, Input::Progress(self.paths.in_event(event))),
                Some(input) => self.feed(at, input),
                None => {}
            }
            handled += 1;
            if handled == EVENTS_AT_ONCE || self.finished.is_some() {
                return;
            }
            next = events.try_next();
        }
    }

    fn feed(&mut self, at: Timestamp, input: Input) {
        for action in self.controller.on(input) {
            match action {
                Action::Show(event) => self.screen.on(at, &event),
                Action::Ask => {
                    self.screen.draw(false);
                    self.question.ask(self.screen.question());
                }
                // A job that has just ended refuses these. Its end is the next event.
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

    fn draw(&mut self) {
        if !self.question.is_open() {
            self.screen.draw(self.finished.is_none());
        }
    }
}

/// The question before anything is changed, while it is open. A separate thread waits for the answer, because reading from a
/// terminal cannot be interrupted and must not keep the program from ending.
#[derive(Debug, Default)]
struct Question(Option<mpsc::Receiver<bool>>);

impl Question {
    fn ask(&mut self, question: String) {
        let (answered, answer) = mpsc::channel(1);
        std::thread::spawn(move || {
            let yes = view::ask(&question);
            // The receiver is gone if the question was withdrawn.
            let _ = answered.blocking_send(yes);
        });
        self.0 = Some(answer);
    }

    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Waits for the answer, forever if no question is open.
    async fn answer(&mut self) -> bool {
        let Some(answer) = &mut self.0 else { return std::future::pending().await };
        let yes = answer.recv().await.unwrap_or(false);
        self.0 = None;
        yes
    }

    fn withdraw(&mut self) {
        if self.0.take().is_some() {
            // The cursor is at the end of the question.
            view::write_to_user("\n");
        }
    }
}
