//! What a person sees of a job: a pure machine from events to lines, and a thin driver for the terminal.
//!
//! [`View`] knows two forms. *Live* is for a terminal: the engine's output scrolls by under a heading per task, a
//! row with its time follows each task, and the last row shows the running task ([`View::status`]). *Plain* is for
//! pipes and files: one line per thing that happened, each with its task in front, no colors, nothing redrawn.
//! Either way the plan comes as a small table, the outputs stand at the end, and sensitive ones are masked.

mod event;
mod paint;
mod screen;
mod tables;
mod text;

use std::time::Duration;

use hawser_contract::{Fault, LogLevel, Outcome, OutputSet, PlanData, Success, Task};

pub use event::{Event, JobEnding};
pub use paint::Paint;
pub use screen::{REFRESH, Screen, ask, somebody_is_there, tell};
pub use text::clean;
use text::{Words as _, plural, took};

/// How wide the task names are, with the space after them.
const NAME: usize = 11;
/// How wide a time is.
const TIME: usize = 7;

/// What is being done.
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

/// What the view is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Title {
    pub verb: Verb,
    /// The directory as the user named it, or what stands for it.
    pub subject: String,
    pub engine: &'static str,
}

/// The job as far as the view has heard of it. Times are counted from the moment the job began.
#[derive(Debug)]
pub struct View {
    live: bool,
    paint: Paint,
    title: Title,
    /// When each task that has been heard of started.
    started: Vec<(Task, Duration)>,
    running: Option<Task>,
    /// The task whose heading the last line of output stands under.
    under: Option<Task>,
    /// An empty line of output that is only shown when another line follows it.
    gap: bool,
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
            under: None,
            gap: false,
            outputs: None,
            resources: None,
        }
    }

    /// What is asked before anything is changed.
    pub fn question(&self) -> String {
        let subject = clean(&self.title.subject, false);
        let question = match self.title.verb {
            Verb::Apply | Verb::Plan => "Apply this plan?".to_owned(),
            Verb::Destroy => format!("Destroy what {subject} has made?"),
        };
        self.paint.bold(&question)
    }

    /// The line above everything else.
    pub fn opening(&self) -> Vec<String> {
        let Title { verb, subject, engine } = &self.title;
        let verb = verb.word();
        let subject = clean(subject, false);
        if self.live {
            let facts = self.paint.dim(&format!("{verb} with {engine}"));
            vec![format!("{}  {facts}", self.paint.bold(&subject)), String::new()]
        } else {
            vec![format!("hawser local: {verb} {subject} with {engine}")]
        }
    }

    /// Takes an event in and gives the lines that it adds to what has been printed.
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
        if self.live { Vec::new() } else { vec![plain(task, "started")] }
    }

    fn line(&mut self, task: Task, level: LogLevel, text: &str, now: Duration) -> Vec<String> {
        // The first line of a task may overtake the report that it runs.
        let mut lines = self.started(task, now);
        if !self.live {
            let text = clean(text, false);
            lines.push(plain(task, &format!("| {text}")).trim_end().to_owned());
            return lines;
        }
        let is_first = self.under != Some(task);
        if is_first {
            self.gap = false;
            self.under = Some(task);
            lines.push(self.paint.bold(task.label()));
        }
        if clean(text, false).trim().is_empty() {
            self.gap = !is_first;
            return lines;
        }
        let bar = match level {
            LogLevel::Error | LogLevel::Fatal => self.paint.red("│"),
            LogLevel::Warning => self.paint.yellow("│"),
            LogLevel::Verbose | LogLevel::Debug | LogLevel::Information => self.paint.dim("│"),
        };
        if std::mem::take(&mut self.gap) {
            lines.push(bar.clone());
        }
        lines.push(format!("{bar} {}", clean(text, true)));
        lines
    }

    fn ended(&mut self, task: Task, outcome: &Outcome, now: Duration) -> Vec<String> {
        let mut lines = self.started(task, now);
        let took = self.time_of(task, now);
        self.running = None;
        self.under = None;
        lines.push(if self.live { self.row(task, outcome, took) } else { plain_end(task, outcome, took) });
        match outcome {
            Outcome::Completed(Success::Plan(data)) => lines.extend(self.plan(data)),
            Outcome::Completed(Success::Outputs(set)) => self.outputs.clone_from(set),
            Outcome::Completed(Success::Resources(count)) => self.resources = Some(*count),
            Outcome::Faulted(fault) => self.resources = fault.resources,
            _ => {}
        }
        lines
    }

    fn plan(&self, data: &PlanData) -> Vec<String> {
        let mut lines = vec![String::new()];
        lines.extend(tables::plan(data, self.paint));
        lines.push(String::new());
        lines
    }

    fn note(&mut self, text: &str) -> Vec<String> {
        self.under = None;
        let text = clean(text, false);
        let line = if self.live { self.paint.yellow(&format!("! {text}")) } else { format!("note: {text}") };
        vec![line]
    }

    fn finished(&mut self, ending: &JobEnding, now: Duration) -> Vec<String> {
        // Below the table of the plan there is an empty line already.
        let under_the_plan = self.title.verb == Verb::Plan && *ending == JobEnding::Completed;
        let mut lines = if under_the_plan { Vec::new() } else { vec![String::new()] };
        if let (JobEnding::Completed, Some(set)) = (ending, &self.outputs) {
            lines.extend(tables::outputs(set, self.paint));
            lines.push(String::new());
        }
        lines.extend(self.verdict(ending, now));
        lines
    }

    /// The last words: what came of it, in one line, and why if it did not go well.
    fn verdict(&self, ending: &JobEnding, now: Duration) -> Vec<String> {
        let after = took(now);
        match ending {
            JobEnding::Completed => {
                let count = self.resources.unwrap_or_default();
                let words = match self.title.verb {
                    Verb::Plan => format!("Planned in {after}; nothing was changed."),
                    Verb::Destroy if count == 0 => format!("Destroyed in {after}; nothing is left."),
                    Verb::Destroy => format!("Destroyed in {after}; {} left.", plural(count, "resource")),
                    Verb::Apply => format!("Applied in {after}; {} in the state.", plural(count, "resource")),
                };
                vec![self.paint.green(&format!("{}{words}", self.mark("✔ ")))]
            }
            JobEnding::Cancelled => {
                let mut words = format!("Cancelled after {after}.");
                if self.changes_may_have_been_made() {
                    words.push_str(" What was changed until then stays changed.");
                }
                vec![self.paint.yellow(&format!("{}{words}", self.mark("■ ")))]
            }
            JobEnding::Declined => {
                vec![
                    self.paint
                        .yellow(&format!("{}Not done, as you wish; nothing was changed.", self.mark("■ "))),
                ]
            }
            JobEnding::Failed(task, fault) => self.failure(*task, fault, &after),
        }
    }

    fn failure(&self, task: Option<Task>, fault: &Fault, after: &str) -> Vec<String> {
        let what = task.map_or("The job", Task::label);
        let mut lines = vec![self.paint.red(&format!("{}{what} failed after {after}.", self.mark("✘ ")))];
        lines.extend(indented(&fault.message));
        if let Some(count) = fault.resources {
            lines.push(format!("  {} in the state now.", plural(count, "resource")));
        }
        let details = fault.details.trim();
        if !details.is_empty() && details != fault.message.trim() {
            let details = indented(details);
            lines.extend(details.into_iter().map(|line| self.paint.dim(&line)));
        }
        lines
    }

    fn changes_may_have_been_made(&self) -> bool {
        self.started.iter().any(|(task, _)| matches!(task, Task::ApplyFromPlan | Task::DestroyFromPlan))
    }

    /// A sign in front of a line that would only be noise in a file.
    fn mark(&self, sign: &'static str) -> &'static str {
        if self.live { sign } else { "" }
    }

    /// The running task and its time, for the last row of a terminal.
    pub fn status(&self, now: Duration) -> Option<String> {
        const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
        let task = self.running?;
        let tick = usize::try_from(now.as_millis() / REFRESH.as_millis()).unwrap_or_default();
        let spinner = SPINNER.get(tick % SPINNER.len())?;
        let name = self.paint.bold(&format!("{:NAME$}", task.label()));
        let time = took(self.time_of(task, now));
        Some(format!("{} {name}{time:>TIME$}", self.paint.cyan(&spinner.to_string())))
    }

    fn time_of(&self, task: Task, now: Duration) -> Duration {
        let started = self.started.iter().find(|(known, _)| *known == task);
        started.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since))
    }

    /// A task that has ended.
    fn row(&self, task: Task, outcome: &Outcome, time: Duration) -> String {
        let name = format!("{:NAME$}", task.label());
        let paint = self.paint;
        let time = paint.dim(&format!("{:>TIME$}", took(time)));
        match outcome {
            Outcome::Completed(success) => {
                let detail = paint.dim(&detail(success));
                format!("{} {name}{time}  {detail}", paint.green("✔")).trim_end().to_owned()
            }
            Outcome::Faulted(_) => format!("{} {}{time}", paint.red("✘"), paint.red(&name)),
            Outcome::Cancelled => {
                format!("{} {name}{time}  {}", paint.yellow("■"), paint.yellow("cancelled"))
            }
        }
    }
}

fn plain(task: Task, words: &str) -> String {
    format!("{:NAME$}{words}", task.label())
}

fn plain_end(task: Task, outcome: &Outcome, time: Duration) -> String {
    let time = took(time);
    let words = match outcome {
        Outcome::Completed(success) => match detail(success).as_str() {
            "" => format!("done in {time}"),
            detail => format!("done in {time} ({detail})"),
        },
        Outcome::Faulted(_) => format!("failed after {time}"),
        Outcome::Cancelled => format!("cancelled after {time}"),
    };
    plain(task, &words)
}

/// What a finished task has to say in half a line.
fn detail(success: &Success) -> String {
    match success {
        Success::Done => String::new(),
        Success::Revision(revision) => clean(revision.get(..12).unwrap_or(revision), false),
        Success::Variables(None) => "none declared".to_owned(),
        Success::Variables(Some(set)) => plural(text::count(&set.variables), "variable"),
        Success::Plan(data) => tables::plan_words(data),
        Success::Resources(count) => format!("{} in the state", plural(*count, "resource")),
        Success::Outputs(None) => "none".to_owned(),
        Success::Outputs(Some(set)) => plural(text::count(&set.outputs), "output"),
    }
}

fn indented(text: &str) -> Vec<String> {
    text.lines().map(|line| format!("  {}", clean(line, false)).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests;
