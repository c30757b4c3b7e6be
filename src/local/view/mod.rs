//! Shows a job to the user: a pure state machine from events to lines, and a thin driver for the terminal.
//!
//! [`View`] has two formats. *Live* is for a terminal: the engine's output scrolls by under a heading for each task, a
//! row with the duration follows each task, and the last row shows the running task ([`View::status`]). *Plain* is for
//! pipes and files: one line per event, prefixed with its task, without colors or redrawing. Both show the outputs at the
//! end, with sensitive values masked. Everything else is in the job's log, and the view does not repeat it.

mod event;
mod outputs;
mod paint;
mod repeats;
mod screen;
mod text;

use std::time::Duration;

use hawser_contract::{Fault, LogLevel, Outcome, OutputSet, Success, Task};

use super::area;
pub use event::{Event, JobEnding};
pub use paint::Paint;
use repeats::{LogLine, Repeats};
pub use screen::{JobScreen, REFRESH, ask, can_ask, write_to_user};
pub use text::clean;
use text::{plural, short_duration};

/// Width of the column of task names, which are those of the protocol, of the runtime log, and of the server.
const NAME: usize = 22;
/// Width of the column of durations.
const TIME: usize = 7;

/// What the job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Plan,
    Apply,
    Destroy,
}

impl Verb {
    pub fn word(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Apply => "apply",
            Self::Destroy => "destroy",
        }
    }
}

/// The job that the view shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Title {
    pub verb: Verb,
    /// The directory as the user named it, or a name for it.
    pub subject: String,
    pub engine: String,
}

/// Everything the view knows about the job. Times are relative to the start of the job.
#[derive(Debug)]
pub struct View {
    live: bool,
    paint: Paint,
    title: Title,
    /// When each task started.
    started: Vec<(Task, Duration)>,
    running: Option<Task>,
    /// The heading above the last line of output.
    heading: Option<Task>,
    /// The last line of output was empty. It is shown only if another line follows.
    gap: bool,
    repeats: Repeats,
    /// Errors of the runner at the end of the log. The last one is usually the reason why the task failed.
    errors: Vec<LogLine>,
    outputs: Option<OutputSet>,
    resources: Option<u64>,
}

impl View {
    pub fn new(live: bool, title: Title) -> Self {
        Self {
            live,
            paint: Paint::new(live),
            title,
            started: Vec::new(),
            running: None,
            heading: None,
            gap: false,
            repeats: Repeats::default(),
            errors: Vec::new(),
            outputs: None,
            resources: None,
        }
    }

    /// The question before anything is changed.
    pub fn question(&self) -> String {
        let subject = clean(&self.title.subject, false);
        let question = match self.title.verb {
            Verb::Apply | Verb::Plan => "Apply this plan?".to_owned(),
            Verb::Destroy => format!("Destroy all resources of {subject}?"),
        };
        self.paint.bold(&question)
    }

    /// The first lines.
    pub fn opening(&self) -> Vec<String> {
        let Title { verb, subject, engine } = &self.title;
        let verb = verb.word();
        let subject = clean(subject, false);
        if self.live {
            let details = self.paint.dim(&format!("{verb} with {engine}"));
            vec![format!("{}  {details}", self.paint.bold(&subject)), String::new()]
        } else {
            vec![format!("hawser local: {verb} {subject} with {engine}")]
        }
    }

    /// Returns the lines to print for an event.
    pub fn on(&mut self, event: &Event, now: Duration) -> Vec<String> {
        match event {
            Event::Started(task) => self.started(*task, now),
            Event::Line { task, level, text } => self.line(*task, *level, text, now),
            Event::Ended(task, outcome) => self.ended(*task, outcome, now),
            Event::Note(text) => self.note(text),
            Event::Finished(ending) => self.finished(ending, now),
        }
    }

    fn started(&mut self, task: Task, now: Duration) -> Vec<String> {
        if self.started.iter().any(|(known, _)| *known == task) {
            return Vec::new();
        }
        self.started.push((task, now));
        self.running = Some(task);
        self.repeats.clear_recent();
        if self.live { Vec::new() } else { vec![plain(task, "started")] }
    }

    fn line(&mut self, task: Task, level: LogLevel, text: &str, now: Duration) -> Vec<String> {
        // The first line of a task may arrive before the report that the task is running.
        let mut lines = self.started(task, now);
        let line = LogLine { level, text: text.to_owned() };
        if matches!(level, LogLevel::Error | LogLevel::Fatal) {
            lines.extend(self.flush(task));
            self.errors.push(line);
            return lines;
        }
        for error in std::mem::take(&mut self.errors) {
            lines.extend(self.shown(task, &error));
        }
        for line in self.repeats.next(line) {
            lines.extend(self.shown(task, &line));
        }
        lines
    }

    fn flush(&mut self, task: Task) -> Vec<String> {
        let held = self.repeats.flush();
        held.iter().flat_map(|line| self.shown(task, line)).collect()
    }

    /// A line of output. Empty lines are shown between others, one at a time.
    fn shown(&mut self, task: Task, line: &LogLine) -> Vec<String> {
        let mut lines = Vec::new();
        let is_first = self.heading != Some(task);
        if clean(&line.text, false).trim().is_empty() {
            self.gap = !is_first;
            return lines;
        }
        if is_first {
            self.gap = false;
            self.heading = Some(task);
            if self.live {
                lines.push(self.paint.bold(task.name()));
            }
        }
        let bar = match line.level {
            _ if !self.live => plain(task, "|"),
            LogLevel::Error | LogLevel::Fatal => self.paint.red("│"),
            LogLevel::Warning => self.paint.yellow("│"),
            LogLevel::Verbose | LogLevel::Debug | LogLevel::Information => self.paint.dim("│"),
        };
        if std::mem::take(&mut self.gap) {
            lines.push(bar.clone());
        }
        lines.push(format!("{bar} {}", clean(&line.text, self.live)).trim_end().to_owned());
        lines
    }

    fn ended(&mut self, task: Task, outcome: &Outcome, now: Duration) -> Vec<String> {
        let mut lines = self.started(task, now);
        lines.extend(self.flush(task));
        let errors = std::mem::take(&mut self.errors);
        let error = errors.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n");
        // The end of the job shows the reason of the failure.
        if !matches!(outcome, Outcome::Faulted(fault) if fault.message.trim() == error.trim()) {
            lines.extend(errors.iter().flat_map(|line| self.shown(task, line)));
        }
        let duration = self.duration(task, now);
        self.running = None;
        self.heading = None;
        lines.push(if self.live {
            self.row(task, outcome, duration)
        } else {
            plain_end(task, outcome, duration)
        });
        match outcome {
            Outcome::Completed(Success::Outputs(set)) => self.outputs.clone_from(set),
            Outcome::Completed(Success::Resources(count)) => self.resources = Some(*count),
            Outcome::Faulted(fault) => self.resources = fault.resources,
            _ => {}
        }
        lines
    }

    fn note(&mut self, text: &str) -> Vec<String> {
        let mut lines = self.running.map(|task| self.flush(task)).unwrap_or_default();
        self.heading = None;
        let text = clean(text, false);
        lines.push(if self.live { self.paint.yellow(&format!("! {text}")) } else { format!("note: {text}") });
        lines
    }

    fn finished(&mut self, ending: &JobEnding, now: Duration) -> Vec<String> {
        let mut lines = self.running.map(|task| self.flush(task)).unwrap_or_default();
        lines.push(String::new());
        if let (JobEnding::Completed, Some(set)) = (ending, &self.outputs) {
            lines.extend(outputs::lines(set, self.paint));
            lines.push(String::new());
        }
        lines.extend(self.summary(ending, now));
        lines
    }

    /// The result of the job in one line, followed by the reason if it failed.
    fn summary(&self, ending: &JobEnding, now: Duration) -> Vec<String> {
        let time = short_duration(now);
        match ending {
            JobEnding::Completed => {
                let count = self.resources.unwrap_or_default();
                let text = match self.title.verb {
                    Verb::Plan => format!("Planned in {time}. Nothing was changed."),
                    Verb::Destroy if count == 0 => format!("Destroyed in {time}. No resources are left."),
                    Verb::Destroy => {
                        format!("Destroyed in {time}. {} left in the state.", plural(count, "resource"))
                    }
                    Verb::Apply => format!("Applied in {time}. {} in the state.", plural(count, "resource")),
                };
                vec![self.paint.green(&format!("{}{text}", self.mark("✔ ")))]
            }
            JobEnding::Cancelled => {
                let mut text = format!("Cancelled after {time}.");
                if self.may_have_changed_resources() {
                    text.push_str(" Changes made before that are still in place.");
                }
                vec![self.paint.yellow(&format!("{}{text}", self.mark("■ ")))]
            }
            JobEnding::Declined => {
                vec![self.paint.yellow(&format!("{}Cancelled. Nothing was changed.", self.mark("■ ")))]
            }
            JobEnding::Rejected => {
                vec![self.paint.yellow(&format!("{}Rejected. Nothing was changed.", self.mark("■ ")))]
            }
            JobEnding::Failed(task, fault) => self.failure(*task, fault, &time),
        }
    }

    fn failure(&self, task: Option<Task>, fault: &Fault, time: &str) -> Vec<String> {
        let name = task.map_or("The job", Task::name);
        let mut lines = vec![self.paint.red(&format!("{}{name} failed after {time}.", self.mark("✘ ")))];
        lines.extend(indented(&fault.message));
        if let Some(count) = fault.resources {
            lines.push(format!("  {} in the state.", plural(count, "resource")));
        }
        let details = fault.details.trim();
        if details != fault.message.trim() && !self.repeats.has_shown(details) {
            let details = indented(details);
            lines.extend(details.into_iter().map(|line| self.paint.dim(&line)));
        }
        if area::lacks_variable(&fault.message) || area::lacks_variable(&fault.details) {
            lines.push("  Pass the value of a variable with --var NAME=VALUE.".to_owned());
        }
        lines
    }

    fn may_have_changed_resources(&self) -> bool {
        self.started.iter().any(|(task, _)| matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan))
    }

    /// A symbol in front of a line, in a terminal only.
    fn mark(&self, sign: &'static str) -> &'static str {
        if self.live { sign } else { "" }
    }

    /// The running task and its duration, for the last row of a terminal.
    pub fn status(&self, now: Duration) -> Option<String> {
        const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
        let task = self.running.filter(|_| self.live)?;
        let tick = usize::try_from(now.as_millis() / REFRESH.as_millis()).unwrap_or_default();
        let spinner = SPINNER.get(tick % SPINNER.len())?;
        let name = self.paint.bold(&format!("{:NAME$}", task.name()));
        let time = short_duration(self.duration(task, now));
        Some(format!("{} {name}{time:>TIME$}", self.paint.cyan(&spinner.to_string())))
    }

    fn duration(&self, task: Task, now: Duration) -> Duration {
        let started = self.started.iter().find(|(known, _)| *known == task);
        started.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since))
    }

    /// The row of a task that has ended.
    fn row(&self, task: Task, outcome: &Outcome, time: Duration) -> String {
        let name = format!("{:NAME$}", task.name());
        let paint = self.paint;
        let time = paint.dim(&format!("{:>TIME$}", short_duration(time)));
        match outcome {
            Outcome::Completed(_) => format!("{} {name}{time}", paint.green("✔")),
            Outcome::Faulted(_) => format!("{} {}{time}", paint.red("✘"), paint.red(&name)),
            Outcome::Cancelled => {
                format!("{} {name}{time}  {}", paint.yellow("■"), paint.yellow("cancelled"))
            }
        }
    }
}

fn plain(task: Task, text: &str) -> String {
    format!("{:NAME$}{text}", task.name())
}

fn plain_end(task: Task, outcome: &Outcome, time: Duration) -> String {
    let time = short_duration(time);
    let text = match outcome {
        Outcome::Completed(_) => format!("done in {time}"),
        Outcome::Faulted(_) => format!("failed after {time}"),
        Outcome::Cancelled => format!("cancelled after {time}"),
    };
    plain(task, &text)
}

fn indented(text: &str) -> Vec<String> {
    text.lines().map(|line| format!("  {}", clean(line, false)).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests;
