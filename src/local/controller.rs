//! Decides what `hawser local` does: a pure state machine from inputs to actions.
//!
//! It decides when to ask and what each Ctrl-C does: the first cancels gracefully through the hub, the second kills
//! through the hub, the third leaves at once. [`super::session`] is the loop that feeds it and performs its actions.

use hawser_contract::requests::CancelKind;
use hawser_contract::{Fault, Outcome, Task};
use hawser_dev_server::{HubEvent, JobState, outcome_of};
use uuid::Uuid;

use super::view::{Event, JobEnding};

#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Progress of the job that the user may want to see.
    Progress(Event),
    AwaitingApproval,
    /// The runner reports on a job of an earlier run, which was killed while its engine was running.
    EarlierRun,
    /// The user's answer to the question.
    Answer(bool),
    /// Ctrl-C, or another signal that asks the program to end.
    Interrupt,
    JobEnded(JobState),
    /// The runner ended before the job did.
    RunnerEnded(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Show(Event),
    Ask,
    Approve,
    Reject,
    Cancel(CancelKind),
    Finish(Finished),
}

/// How the command ends. The view has already shown it, except for `Left`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Completed,
    Failed,
    /// The runner ended before the job did.
    RunnerFailed,
    /// Cancelled or declined by the user.
    Stopped,
    /// The user did not wait for the cancel. The engine may still be running.
    Left,
}

#[derive(Debug)]
pub struct Controller {
    /// Approve without asking.
    yes: bool,
    interrupts: u32,
    /// The question is open, so no engine is running.
    asking: bool,
    earlier_run_shown: bool,
    fault: Option<(Task, Fault)>,
}

impl Controller {
    pub fn new(yes: bool) -> Self {
        Self { yes, interrupts: 0, asking: false, earlier_run_shown: false, fault: None }
    }

    pub fn on(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::Progress(event) => {
                if let Event::Ended(task, Outcome::Faulted(fault)) = &event {
                    self.fault = Some((*task, fault.clone()));
                }
                vec![Action::Show(event)]
            }
            Input::EarlierRun if std::mem::replace(&mut self.earlier_run_shown, true) => Vec::new(),
            Input::EarlierRun => {
                vec![note("An earlier run on this directory was killed. Waiting for its engine to finish.")]
            }
            // The cancel is on its way.
            Input::AwaitingApproval if self.interrupts > 0 => Vec::new(),
            // Also if the plan counts no changes: forgetting, importing, or moving a resource changes the state, but
            // is not counted.
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
            Input::JobEnded(state) => {
                let finished = match state {
                    JobState::Completed => Finished::Completed,
                    JobState::Cancelled | JobState::Rejected => Finished::Stopped,
                    _ => Finished::Failed,
                };
                // Only the answer to the question rejects a local job.
                let ending = match state {
                    JobState::Rejected => JobEnding::Declined,
                    state => JobEnding::new(state, self.fault.take()),
                };
                finish(ending, finished)
            }
            Input::RunnerEnded(reason) => {
                let fault = Fault::new(format!("the runner ended: {reason}"));
                finish(JobEnding::Failed(None, fault), Finished::RunnerFailed)
            }
        }
    }

    fn interrupted(&mut self) -> Vec<Action> {
        self.interrupts += 1;
        match self.interrupts {
            1 if self.asking => vec![Action::Cancel(CancelKind::Graceful)],
            1 => vec![
                note("Cancelling. Waiting for the engine to stop; press Ctrl-C again to kill it."),
                Action::Cancel(CancelKind::Graceful),
            ],
            2 => vec![
                note("Killing the engine. Press Ctrl-C again to exit without waiting."),
                Action::Cancel(CancelKind::Kill),
            ],
            _ => vec![Action::Finish(Finished::Left)],
        }
    }
}

fn note(text: &str) -> Action {
    Action::Show(Event::Note(text.to_owned()))
}

fn finish(ending: JobEnding, finished: Finished) -> Vec<Action> {
    vec![Action::Show(Event::Finished(ending)), Action::Finish(finished)]
}

impl Input {
    /// The input for the controller of job `shown`, if the event matters to it.
    pub(super) fn from_hub(shown: Uuid, event: HubEvent) -> Option<Self> {
        let note = |text: String| Some(Self::Progress(Event::Note(text)));
        match event {
            HubEvent::Claimed { job, task, .. } | HubEvent::Running { job, task, .. } if job == shown => {
                Some(Self::Progress(Event::Started(task)))
            }
            HubEvent::Log(entry) if entry.job_id == shown => {
                let (task, text) = (entry.task_name, entry.message.clone());
                Some(Self::Progress(Event::Line { task, level: entry.level, text }))
            }
            HubEvent::Result { job, task, call, .. } if job == shown => {
                Some(Self::Progress(Event::Ended(task, outcome_of(&call))))
            }
            HubEvent::AwaitingApproval { job } if job == shown => Some(Self::AwaitingApproval),
            HubEvent::JobEnded { job, state } if job == shown => Some(Self::JobEnded(state)),
            HubEvent::UnknownJob { .. } => Some(Self::EarlierRun),
            HubEvent::Disconnected { reason, .. } => note(format!("the runner disconnected: {reason}")),
            HubEvent::Refused { reason, .. } => note(format!("the hub refused the runner: {reason}")),
            violation @ HubEvent::Violation { .. } => note(violation.to_string()),
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
        Input::Progress(Event::Ended(Task::Plan, Outcome::Completed(Success::Plan(Box::new(data)))))
    }

    fn finished(actions: &[Action]) -> Option<Finished> {
        actions.iter().find_map(|action| match action {
            Action::Finish(finished) => Some(*finished),
            _ => None,
        })
    }

    #[test]
    fn nothing_is_applied_without_approval() {
        let mut controller = Controller::new(false);
        controller.on(planned(1));
        let asked = controller.on(Input::AwaitingApproval);
        assert_eq!(asked, [Action::Ask]);
        assert_eq!(controller.on(Input::Answer(false)), [Action::Reject]);
        assert_eq!(finished(&controller.on(Input::JobEnded(JobState::Rejected))), Some(Finished::Stopped));
    }

    #[test]
    fn a_yes_on_the_command_line_or_to_the_question_approves() {
        let mut controller = Controller::new(true);
        controller.on(planned(1));
        assert_eq!(controller.on(Input::AwaitingApproval), [Action::Approve]);
        let mut controller = Controller::new(false);
        controller.on(planned(1));
        controller.on(Input::AwaitingApproval);
        assert_eq!(controller.on(Input::Answer(true)), [Action::Approve]);
        assert_eq!(finished(&controller.on(Input::JobEnded(JobState::Completed))), Some(Finished::Completed));
    }

    #[test]
    fn a_plan_that_counts_no_changes_still_needs_an_answer() {
        let mut controller = Controller::new(false);
        controller.on(planned(0));
        assert_eq!(controller.on(Input::AwaitingApproval), [Action::Ask]);
    }

    #[test]
    fn the_first_interrupt_cancels_the_second_kills_and_the_third_leaves() {
        let mut controller = Controller::new(true);
        assert!(controller.on(Input::Interrupt).contains(&Action::Cancel(CancelKind::Graceful)));
        assert!(controller.on(Input::Interrupt).contains(&Action::Cancel(CancelKind::Kill)));
        assert_eq!(controller.on(Input::Interrupt), [Action::Finish(Finished::Left)]);
        assert_eq!(finished(&controller.on(Input::JobEnded(JobState::Cancelled))), Some(Finished::Stopped));
    }

    #[test]
    fn an_interrupt_at_the_question_overrides_any_answer() {
        let mut controller = Controller::new(false);
        controller.on(planned(1));
        controller.on(Input::AwaitingApproval);
        // No engine is running, so the view shows no note about one.
        assert_eq!(controller.on(Input::Interrupt), [Action::Cancel(CancelKind::Graceful)]);
        assert_eq!(controller.on(Input::Answer(true)), []);
        let mut controller = Controller::new(true);
        controller.on(Input::Interrupt);
        assert_eq!(controller.on(Input::AwaitingApproval), []);
    }

    #[test]
    fn an_earlier_run_is_reported_once() {
        let mut controller = Controller::new(true);
        assert_eq!(controller.on(Input::EarlierRun).len(), 1);
        assert_eq!(controller.on(Input::EarlierRun), []);
    }

    #[test]
    fn a_failure_is_shown_with_its_task_and_fault() {
        let mut controller = Controller::new(true);
        let fault = Fault::new("no such provider");
        controller.on(Input::Progress(Event::Ended(Task::Init, Outcome::Faulted(fault.clone()))));
        let actions =
            controller.on(Input::JobEnded(JobState::Failed { error: "Init: no such provider".into() }));
        let shown = Event::Finished(JobEnding::Failed(Some(Task::Init), fault));
        assert_eq!(actions, [Action::Show(shown), Action::Finish(Finished::Failed)]);
        assert_eq!(
            finished(&Controller::new(true).on(Input::RunnerEnded("x".into()))),
            Some(Finished::RunnerFailed)
        );
    }
}
