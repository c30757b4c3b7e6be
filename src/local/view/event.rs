//! What the view is told, and how it is made from what happened at the embedded hub.

use hawser_contract::{Fault, LogLevel, Outcome, Task};

/// Something that a person may want to see.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Started(Task),
    /// A line of the engine's output, or one that the runner added.
    Line {
        task: Task,
        level: LogLevel,
        text: String,
    },
    Ended(Task, Outcome),
    /// A word of `hawser local` itself.
    Note(String),
    Finished(JobEnding),
}

/// How the whole job ended.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEnding {
    Completed,
    Cancelled,
    /// The answer to the question was no.
    Declined,
    /// The task is missing when it was not a task that failed.
    Failed(Option<Task>, Fault),
}
