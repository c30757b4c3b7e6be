//! What `hawser local` does about what happens: a pure machine from inputs to actions.
//!
//! It knows when to ask, what an answer means, and what each Ctrl-C asks for: the first cancels gracefully
//! through the hub, the second kills through the hub, the third leaves at once. The loop that feeds it and
//! carries its actions out is [`super::session`].

use hawser_contract::requests::CancelKind;
use hawser_contract::{Fault, Outcome, Task};
use hawser_dev_server::{HubEvent, JobState, outcome_of};
use uuid::Uuid;

use super::view::{Event, JobEnding};

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The job moved on in a way that a person may want to see.
    Seen(Event),
    AwaitingApproval,
    /// The runner speaks of a job of an earlier run, which was killed while its engine was at work.
    EarlierRun,
    /// What was said to the question.
    Answer(bool),
    /// Ctrl-C, or a request to end that came in another way.
    Interrupt,
    /// The job is over.
    Ended(Verdict),
    /// The runner ended before the job did.
    RunnerGone(String),
}

/// How the hub says that a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Completed,
    Cancelled,
    Rejected,
    Failed(String),
}

/// Something is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Show(Event),
    Ask,
    Approve,
    Reject,
    Cancel(CancelKind),
    Finish(Finished),
}

/// How it ended. The view has told the user already, except of having left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Completed,
    Failed,
    /// Cancelled or declined, as the user wanted.
    Stopped,
    /// The user did not want to wait any more; the engine may still be running.
    Left,
}

#[derive(Debug)]
pub struct Controller {
    /// Changes are made without a question.
    yes: bool,
    interrupts: u32,
    /// The question stands, and no engine runs meanwhile.
    asking: bool,
    told_of_earlier_run: bool,
    fault: Option<(Task, Fault)>,
}

impl Controller {
    pub fn new(yes: bool) -> Self {
        Self { yes, interrupts: 0, asking: false, told_of_earlier_run: false, fault: None }
    }

    pub fn on(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::Seen(event) => {
                self.remember(&event);
                vec![Action::Show(event)]
            }
            Input::EarlierRun if std::mem::replace(&mut self.told_of_earlier_run, true) => Vec::new(),
            Input::EarlierRun => {
                let text = "An earlier run on this directory was killed: its engine is waited for first.";
                vec![Action::Show(Event::Note(text.to_owned()))]
            }
            // The cancel that was asked for is on its way.
            Input::AwaitingApproval if self.interrupts > 0 => Vec::new(),
            // Also when the plan counts no change: forgetting, importing or moving a resource counts nowhere, and yet
            // changes the state.
            Input::AwaitingApproval if self.yes => vec![Action::Approve],
            Input::AwaitingApproval => {
                self.asking = true;
                vec![Action::Ask]
            }
            Input::Answer(_) if self.interrupts > 0 => Vec::new(),
            Input::Answer(true) => {
                self.asking = false;
                vec![Action::Approve]
            }
            Input::Answer(false) => vec![Action::Reject],
            Input::Interrupt => self.interrupted(),
            Input::Ended(verdict) => self.ended(verdict),
            Input::RunnerGone(reason) => {
                let ending = JobEnding::Failed(None, Fault::new(format!("the runner ended: {reason}")));
                vec![Action::Show(Event::Finished(ending)), Action::Finish(Finished::Failed)]
            }
        }
    }

    fn remember(&mut self, event: &Event) {
        if let Event::Ended(task, Outcome::Faulted(fault)) = event {
            self.fault = Some((*task, fault.clone()));
        }
    }

    fn interrupted(&mut self) -> Vec<Action> {
        self.interrupts += 1;
        let note = |text: &str| Action::Show(Event::Note(text.to_owned()));
        match self.interrupts {
            1 if self.asking => vec![Action::Cancel(CancelKind::Graceful)],
            1 => vec![
                note("Cancelling: the engine may finish what it is at. Press Ctrl-C again to kill it."),
                Action::Cancel(CancelKind::Graceful),
            ],
            2 => vec![
                note("Killing the engine. Press Ctrl-C once more to leave without waiting."),
                Action::Cancel(CancelKind::Kill),
            ],
            _ => vec![Action::Finish(Finished::Left)],
        }
    }

    fn ended(&mut self, verdict: Verdict) -> Vec<Action> {
        let (ending, finished) = match verdict {
            Verdict::Completed => (JobEnding::Completed, Finished::Completed),
            Verdict::Cancelled => (JobEnding::Cancelled, Finished::Stopped),
            Verdict::Rejected => (JobEnding::Declined, Finished::Stopped),
            Verdict::Failed(error) => {
                let ending = match self.fault.take() {
                    Some((task, fault)) => JobEnding::Failed(Some(task), fault),
                    None => JobEnding::Failed(None, Fault::new(error)),
                };
                (ending, Finished::Failed)
            }
        };
        vec![Action::Show(Event::Finished(ending)), Action::Finish(finished)]
    }
}

impl Input {
    /// What an event at the hub means for the job that is being shown.
    pub(super) fn from_hub(shown: Uuid, event: HubEvent) -> Option<Self> {
        let note = |text: String| Some(Self::Seen(Event::Note(text)));
        match event {
            HubEvent::Claimed { job, task, .. } | HubEvent::Running { job, task, .. } if job == shown => {
                Some(Self::Seen(Event::Started(task)))
            }
            HubEvent::Log(entry) if entry.job_id == shown => {
                let task = Task::from_name(&entry.task_name)?;
                let text = entry.message.clone().into_owned();
                Some(Self::Seen(Event::Line { task, level: entry.level, text }))
            }
            HubEvent::Result { job, task, call, .. } if job == shown => {
                Some(Self::Seen(Event::Ended(task, outcome_of(&call))))
            }
            HubEvent::AwaitingApproval { job } if job == shown => Some(Self::AwaitingApproval),
            HubEvent::JobEnded { job, state } if job == shown => Some(Self::Ended(match state {
                JobState::Completed => Verdict::Completed,
                JobState::Cancelled => Verdict::Cancelled,
                JobState::Rejected => Verdict::Rejected,
                JobState::Failed { error } => Verdict::Failed(error),
                other => Verdict::Failed(format!("the job ended as {other}")),
            })),
            HubEvent::UnknownJob { .. } => Some(Self::EarlierRun),
            HubEvent::Disconnected { reason, .. } => {
                note(format!("the runner lost its connection: {reason}"))
            }
            HubEvent::Refused { reason, .. } => note(format!("the runner was refused: {reason}")),
            refused @ HubEvent::Violation { .. } => note(refused.to_string()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::{PlanData, Success};

    fn planned(changes: u64) -> Input {
        let data = PlanData { create_count: changes, total_changed_count: changes, ..PlanData::default() };
        Input::Seen(Event::Ended(Task::Plan, Outcome::Completed(Success::Plan(Box::new(data)))))
    }

    fn ends(actions: &[Action]) -> Option<Finished> {
        actions.iter().find_map(|action| match action {
            Action::Finish(finished) => Some(*finished),
            _ => None,
        })
    }

    #[test]
    fn nothing_is_applied_without_a_yes() {
        let mut conductor = Controller::new(false);
        conductor.on(planned(1));
        let asked = conductor.on(Input::AwaitingApproval);
        assert_eq!(asked, [Action::Ask]);
        assert_eq!(conductor.on(Input::Answer(false)), [Action::Reject]);
        assert_eq!(ends(&conductor.on(Input::Ended(Verdict::Rejected))), Some(Finished::Stopped));
    }

    #[test]
    fn a_yes_on_the_command_line_or_to_the_question_approves() {
        let mut conductor = Controller::new(true);
        conductor.on(planned(1));
        assert_eq!(conductor.on(Input::AwaitingApproval), [Action::Approve]);
        let mut conductor = Controller::new(false);
        conductor.on(planned(1));
        conductor.on(Input::AwaitingApproval);
        assert_eq!(conductor.on(Input::Answer(true)), [Action::Approve]);
        assert_eq!(ends(&conductor.on(Input::Ended(Verdict::Completed))), Some(Finished::Completed));
    }

    #[test]
    fn a_plan_whose_counts_are_all_zero_may_still_change_the_state_and_is_asked_about() {
        let mut conductor = Controller::new(false);
        conductor.on(planned(0));
        assert_eq!(conductor.on(Input::AwaitingApproval), [Action::Ask]);
    }

    #[test]
    fn the_first_interrupt_cancels_the_second_kills_and_the_third_leaves() {
        let mut conductor = Controller::new(true);
        assert!(conductor.on(Input::Interrupt).contains(&Action::Cancel(CancelKind::Graceful)));
        assert!(conductor.on(Input::Interrupt).contains(&Action::Cancel(CancelKind::Kill)));
        assert_eq!(conductor.on(Input::Interrupt), [Action::Finish(Finished::Left)]);
        assert_eq!(ends(&conductor.on(Input::Ended(Verdict::Cancelled))), Some(Finished::Stopped));
    }

    #[test]
    fn an_interrupt_at_the_question_is_no_yes_whatever_is_typed_after_it() {
        let mut conductor = Controller::new(false);
        conductor.on(planned(1));
        conductor.on(Input::AwaitingApproval);
        // No engine runs, so nothing is said of one.
        assert_eq!(conductor.on(Input::Interrupt), [Action::Cancel(CancelKind::Graceful)]);
        assert_eq!(conductor.on(Input::Answer(true)), []);
        let mut conductor = Controller::new(true);
        conductor.on(Input::Interrupt);
        assert_eq!(conductor.on(Input::AwaitingApproval), []);
    }

    #[test]
    fn an_earlier_run_is_told_of_once() {
        let mut conductor = Controller::new(true);
        assert_eq!(conductor.on(Input::EarlierRun).len(), 1);
        assert_eq!(conductor.on(Input::EarlierRun), []);
    }

    #[test]
    fn a_failure_is_told_with_the_task_and_the_fault() {
        let mut conductor = Controller::new(true);
        let fault = Fault::new("no such provider");
        conductor.on(Input::Seen(Event::Ended(Task::Init, Outcome::Faulted(fault.clone()))));
        let actions = conductor.on(Input::Ended(Verdict::Failed("Init: no such provider".into())));
        let told = Event::Finished(JobEnding::Failed(Some(Task::Init), fault));
        assert_eq!(actions, [Action::Show(told), Action::Finish(Finished::Failed)]);
        assert_eq!(ends(&Controller::new(true).on(Input::RunnerGone("x".into()))), Some(Finished::Failed));
    }
}
