//! Prints lines to stdout with a status row below them, and asks the question on stderr.
//!
//! The status row does not end with a newline and is erased before the next line is printed. It is truncated to the
//! width of the terminal. Lines are never truncated; the terminal wraps them. A terminal that becomes narrower may keep
//! an old status row.
//!
//! Errors are ignored: if stdout is closed (a closed terminal, `| head`), the job continues without it.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use console::Term;
use jiff::Timestamp;

use super::text::since;
use super::{Event, Title, View};

/// How often the status row is redrawn.
pub const REFRESH: Duration = Duration::from_millis(100);

const ERASE_ROW: &str = "\r\u{1b}[2K";

/// A job on the screen.
#[derive(Debug)]
pub struct JobScreen {
    view: View,
    started: Timestamp,
    /// Lines that have not been printed yet.
    lines: Vec<String>,
    has_status: bool,
}

impl JobScreen {
    /// Stdout and the environment decide whether colors and a status row are shown.
    pub fn new(title: Title, started: Timestamp) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
        let live = Term::stdout().is_term() && !no_color && !dumb;
        Self { view: View::new(live, title), started, lines: Vec::new(), has_status: false }
    }

    pub fn open(&mut self) {
        self.lines.extend(self.view.opening());
    }

    pub fn on(&mut self, at: Timestamp, event: &Event) {
        self.lines.extend(self.view.on(event, since(self.started, at)));
    }

    /// The question before anything is changed.
    pub fn question(&self) -> String {
        self.view.question()
    }

    /// Prints the new lines, with the running task below them if `with_status` is set.
    pub fn draw(&mut self, with_status: bool) {
        let mut text = String::new();
        if self.has_status {
            text.push_str(ERASE_ROW);
        }
        for line in self.lines.drain(..) {
            text.push_str(&line);
            text.push('\n');
        }
        let status = self.view.status(since(self.started, Timestamp::now())).filter(|_| with_status);
        self.has_status = status.is_some();
        if let Some(status) = status {
            // The cursor needs the last column.
            let width = usize::from(Term::stdout().size().1).saturating_sub(1);
            text.push_str(&console::truncate_str(&status, width, ""));
        }
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }
}

/// Writes to the user's terminal, even if the output is redirected to a file or a pipe.
pub fn write_to_user(text: &str) {
    let terminal = || File::options().write(true).open("/dev/tty");
    let mut output: Box<dyn io::Write> = match (io::stderr().is_terminal(), terminal()) {
        (false, Ok(terminal)) => Box::new(terminal),
        _ => Box::new(io::stderr()),
    };
    let _ = output.write_all(text.as_bytes());
    let _ = output.flush();
}

/// Whether a user can answer a question.
pub fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks, and waits for a line on stdin. Only `y` and `yes` count as yes; end of file counts as no.
pub fn ask(question: &str) -> bool {
    write_to_user(&format!("\n{question} [y/N] "));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
