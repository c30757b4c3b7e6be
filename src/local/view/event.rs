//! The events that the view shows.

use hawser_contract::{Fault, LogLevel, Outcome, Task};
use hawser_dev_server::JobState;

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Started(Task),
    /// A line of the engine's output, or a line that the runner added.
    Line {
        task: Task,
        level: LogLevel,
        text: String,
    },
    Ended(Task, Outcome),
    /// A message of this program itself.
    Note(String),
    Finished(JobEnding),
}

/// How the whole job ended.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEnding {
    Completed,
    Cancelled,
    /// The user answered the question with no.
    Declined,
    /// The approval of a submitted job was refused.
    Rejected,
    /// The task is `None` if the job failed between tasks.
    Failed(Option<Task>, Fault),
}

impl JobEnding {
    /// `fault` is the last fault that a task of the job reported.
    pub fn new(state: JobState, fault: Option<(Task, Fault)>) -> Self {
        match (state, fault) {
            (JobState::Completed, _) => Self::Completed,
            (JobState::Cancelled, _) => Self::Cancelled,
            (JobState::Rejected, _) => Self::Rejected,
            (_, Some((task, fault))) => Self::Failed(Some(task), fault),
            (JobState::Failed { error }, None) => Self::Failed(None, Fault::new(error)),
            (other, None) => Self::Failed(None, Fault::new(format!("the job ended in the state {other}"))),
        }
    }
}
