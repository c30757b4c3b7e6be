//! What a person sees of a job: a pure machine from events to lines, and a thin driver for the terminal.
//!
//! [`View`] knows two forms. *Live* is for a terminal: the engine's output scrolls by under a heading per task,
//! and a block with all tasks, their state and their time stays below it ([`View::block`]). *Plain* is for pipes
//! and files: one line per thing that happened, each with its task in front, no colours, nothing redrawn.
//! Either way the plan comes as a small table, the outputs stand at the end, and sensitive ones are masked.

mod block;
mod event;
mod paint;
mod screen;
mod tables;
mod text;

use std::time::Duration;

use hawser_contract::{Fault, LogLevel, Outcome, OutputSet, PlanData, Success, Task};

pub use event::{Ending, Event};
pub use paint::Paint;
pub use screen::{REFRESH, Screen, ask, somebody_is_there, tell};
pub use text::clean;
use text::{Words as _, plural, took};

/// How wide the task names are, with the space after them.
const NAME: usize = 11;
/// How wide a time is.
const TIME: usize = 7;

/// How the view is to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub live: bool,
    /// Columns of the terminal; not used by the plain form, which never wraps.
    pub width: usize,
}

impl Look {
    pub const PLAIN: Self = Self { live: false, width: 80 };
}

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
    look: Look,
    paint: Paint,
    title: Title,
    rows: Vec<Row>,
    /// The task whose heading the last line of output stands under.
    under: Option<Task>,
    /// An empty line of output that is only shown when another line follows it.
    gap: bool,
    outputs: Option<OutputSet>,
    resources: Option<u64>,
}

#[derive(Debug)]
struct Row {
    task: Task,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Waiting,
    Running { since: Duration },
    Done { took: Duration, detail: String },
    Failed { took: Duration },
    Cancelled { took: Duration },
}

impl View {
    pub fn new(look: Look, title: Title, tasks: &[Task]) -> Self {
        let rows = tasks.iter().map(|task| Row { task: *task, state: State::Waiting }).collect();
        Self {
            look,
            paint: Paint::new(look.live),
            title,
            rows,
            under: None,
            gap: false,
            outputs: None,
            resources: None,
        }
    }

    /// The terminal may have another width now.
    pub fn look_like(&mut self, look: Look) {
        self.look = look;
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
        if self.look.live {
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
        let Some(row) = self.rows.iter_mut().find(|row| row.task == task) else { return Vec::new() };
        if row.state != State::Waiting {
            return Vec::new();
        }
        row.state = State::Running { since: now };
        if self.look.live { Vec::new() } else { vec![plain(task, "started")] }
    }

    fn line(&mut self, task: Task, level: LogLevel, text: &str, now: Duration) -> Vec<String> {
        // The first line of a task may overtake the report that it runs.
        let mut lines = self.started(task, now);
        if !self.look.live {
            let text = clean(text, false);
            lines.push(plain(task, &format!("| {text}")).trim_end().to_owned());
            return lines;
        }
        if self.under != Some(task) {
            self.gap = false;
            self.under = Some(task);
            lines.push(self.paint.bold(task.label()));
        } else if text.trim().is_empty() {
            self.gap = true;
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
        let wrapped = text::wrap(&clean(text, true), self.look.width.saturating_sub(2));
        lines.extend(wrapped.into_iter().filter(|part| !part.is_empty()).map(|part| format!("{bar} {part}")));
        lines
    }

    fn ended(&mut self, task: Task, outcome: &Outcome, now: Duration) -> Vec<String> {
        let Some(row) = self.rows.iter_mut().find(|row| row.task == task) else { return Vec::new() };
        let took = match row.state {
            State::Running { since } => now.saturating_sub(since),
            _ => Duration::ZERO,
        };
        row.state = match outcome {
            Outcome::Completed(success) => State::Done { took, detail: detail(success) },
            Outcome::Cancelled => State::Cancelled { took },
            Outcome::Faulted(_) => State::Failed { took },
        };
        let mut lines = Vec::new();
        if !self.look.live {
            lines.push(plain(task, &ended_words(&row.state)));
        }
        match outcome {
            Outcome::Completed(Success::Plan(data)) => lines.extend(self.plan(data)),
            Outcome::Completed(Success::Outputs(set)) => self.outputs.clone_from(set),
            Outcome::Completed(Success::Resources(count)) => self.resources = Some(*count),
            Outcome::Faulted(fault) => self.resources = fault.resources,
            _ => {}
        }
        lines
    }

    fn plan(&mut self, data: &PlanData) -> Vec<String> {
        self.under = None;
        let mut lines = vec![String::new()];
        lines.extend(tables::plan(data, self.paint, self.look));
        lines.push(String::new());
        lines
    }

    fn note(&mut self, text: &str) -> Vec<String> {
        self.under = None;
        let text = clean(text, false);
        if self.look.live {
            self.wrapped(&self.paint.yellow(&format!("! {text}")))
        } else {
            vec![format!("note: {text}")]
        }
    }

    fn finished(&mut self, ending: &Ending, now: Duration) -> Vec<String> {
        // Below the table of the plan there is an empty line already.
        let under_the_plan = self.title.verb == Verb::Plan && *ending == Ending::Completed;
        let mut lines = if under_the_plan { Vec::new() } else { vec![String::new()] };
        if self.look.live {
            // A row that the terminal would break looks like two.
            let rows = self.block(now, 0);
            let clipped =
                rows.iter().map(|row| console::truncate_str(row, self.look.width, "…").into_owned());
            lines.extend(clipped);
            lines.push(String::new());
        }
        if let (Ending::Completed, Some(set)) = (ending, &self.outputs) {
            lines.extend(tables::outputs(set, self.paint, self.look));
            lines.push(String::new());
        }
        lines.extend(self.verdict(ending, now).iter().flat_map(|line| self.wrapped(line)));
        lines
    }

    /// A line that fits into a terminal. What it begins with, blanks and the edge of a box, is in front of each part.
    fn wrapped(&self, line: &str) -> Vec<String> {
        if !self.look.live {
            return vec![line.to_owned()];
        }
        let bare = console::strip_ansi_codes(line);
        let edge: String = bare.chars().take_while(|it| [' ', '│'].contains(it)).collect();
        let edge_width = console::measure_text_width(&edge);
        if console::measure_text_width(&bare) <= self.look.width || edge_width * 2 > self.look.width {
            return vec![line.to_owned()];
        }
        let edge_again = self.paint.dim(&edge);
        let rest = line.replacen(&edge, "", 1);
        let parts = text::wrap(&rest, self.look.width - edge_width);
        parts.into_iter().map(|part| format!("{edge_again}{part}")).collect()
    }

    /// The last words: what came of it, in one line, and why if it did not go well.
    fn verdict(&self, ending: &Ending, now: Duration) -> Vec<String> {
        let after = took(now);
        match ending {
            Ending::Completed => {
                let count = self.resources.unwrap_or_default();
                let words = match self.title.verb {
                    Verb::Plan => format!("Planned in {after}; nothing was changed."),
                    Verb::Destroy if count == 0 => format!("Destroyed in {after}; nothing is left."),
                    Verb::Destroy => format!("Destroyed in {after}; {} left.", plural(count, "resource")),
                    Verb::Apply => format!("Applied in {after}; {} in the state.", plural(count, "resource")),
                };
                vec![self.paint.green(&format!("{}{words}", self.mark("✔ ")))]
            }
            Ending::Cancelled => {
                let mut words = format!("Cancelled after {after}.");
                if self.changes_may_have_been_made() {
                    words.push_str(" What was changed until then stays changed.");
                }
                vec![self.paint.yellow(&format!("{}{words}", self.mark("■ ")))]
            }
            Ending::Declined => {
                vec![
                    self.paint
                        .yellow(&format!("{}Not done, as you wish; nothing was changed.", self.mark("■ "))),
                ]
            }
            Ending::Failed(task, fault) => self.failure(*task, fault, &after),
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
            let details = indented(whole_boxes(details));
            lines.extend(details.into_iter().map(|line| self.paint.dim(&line)));
        }
        lines
    }

    fn changes_may_have_been_made(&self) -> bool {
        self.rows.iter().any(|row| {
            matches!(row.task, Task::ApplyFromPlan | Task::DestroyFromPlan) && row.state != State::Waiting
        })
    }

    /// A sign in front of a line that would only be noise in a file.
    fn mark(&self, sign: &'static str) -> &'static str {
        if self.look.live { sign } else { "" }
    }

    /// All tasks with their state and time, for the block that stays below the output. `tick` turns the spinner.
    pub fn block(&self, now: Duration, tick: usize) -> Vec<String> {
        self.rows.iter().map(|row| self.row(row, now, tick)).collect()
    }

    /// The one row that matters most now, for a terminal that is too low for the block.
    pub fn one_row(&self, now: Duration, tick: usize) -> Option<String> {
        let current = |row: &&Row| matches!(row.state, State::Running { .. });
        self.rows.iter().find(current).map(|row| self.row(row, now, tick))
    }

    fn row(&self, row: &Row, now: Duration, tick: usize) -> String {
        const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        let name = format!("{:NAME$}", row.task.label());
        let time = |time: Duration| format!("{:>TIME$}", took(time));
        let paint = self.paint;
        match &row.state {
            State::Waiting => paint.dim(&format!("· {}", name.trim_end())),
            State::Running { since } => {
                let spinner = SPINNER.get(tick % SPINNER.len()).copied().unwrap_or("⠋");
                let time = time(now.saturating_sub(*since));
                format!("{} {}{}", paint.cyan(spinner), paint.bold(&name), time)
            }
            State::Done { took, detail } => {
                let tail = if detail.is_empty() { String::new() } else { format!("  {detail}") };
                format!("{} {name}{}{}", paint.green("✔"), paint.dim(&time(*took)), paint.dim(&tail))
            }
            State::Failed { took } => {
                format!("{} {}{}", paint.red("✘"), paint.red(&name), paint.dim(&time(*took)))
            }
            State::Cancelled { took } => {
                let cancelled = paint.yellow("  cancelled");
                format!("{} {name}{}{cancelled}", paint.yellow("■"), paint.dim(&time(*took)))
            }
        }
    }
}

fn plain(task: Task, words: &str) -> String {
    format!("{:NAME$}{words}", task.label())
}

fn ended_words(state: &State) -> String {
    match state {
        State::Done { took: time, detail } if detail.is_empty() => format!("done in {}", took(*time)),
        State::Done { took: time, detail } => format!("done in {} ({detail})", took(*time)),
        State::Failed { took: time } => format!("failed after {}", took(*time)),
        State::Cancelled { took: time } => format!("cancelled after {}", took(*time)),
        State::Waiting | State::Running { .. } => String::new(),
    }
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

/// The end of an engine's output without the rest of a box at its beginning, if a whole one follows. Terraform and OpenTofu draw
/// a box around each error.
fn whole_boxes(text: &str) -> &str {
    let mut start = 0;
    let mut is_rest = false;
    for line in text.split_inclusive('\n') {
        match line.trim_start().chars().next() {
            Some('╷') if is_rest => return text.get(start..).unwrap_or(text),
            Some('╷') => return text,
            Some('│' | '╵') => is_rest = true,
            _ => {}
        }
        start += line.len();
    }
    text
}

fn indented(text: &str) -> Vec<String> {
    text.lines().map(|line| format!("  {}", clean(line, false)).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests;
