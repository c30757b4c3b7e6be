//! The thin part: puts lines on stdout, keeps the block below them, and asks the question on stderr.
//!
//! Nothing here fails: when stdout has gone away (a closed terminal, `| head`), the job goes on without it.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Look, View};

/// Lines of output that must still fit above the block; in a lower terminal only one row is kept.
const OUTPUT_ROOM: usize = 6;

/// How often the block is drawn when nothing happens.
pub const REFRESH: Duration = Duration::from_millis(100);

/// Where the view is shown.
#[derive(Debug)]
pub struct Screen {
    look: Look,
    /// Only for the live form.
    block: Option<Block>,
}

#[derive(Debug)]
struct Block {
    all: MultiProgress,
    rows: Vec<ProgressBar>,
    tick: usize,
}

impl Screen {
    /// Looks at stdout and the environment and decides for one of the two forms.
    pub fn open() -> Self {
        let terminal = Term::stdout();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
        if !terminal.is_term() || no_colour || dumb {
            return Self { look: Look::PLAIN, block: None };
        }
        let (_, width) = terminal.size();
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::term(terminal, 20));
        let look = Look { live: true, width: usize::from(width).max(20) };
        Self { look, block: Some(Block { all, rows: Vec::new(), tick: 0 }) }
    }

    pub fn look(&self) -> Look {
        self.look
    }

    pub fn print(&self, lines: &[String]) {
        match &self.block {
            // In one piece, since each call draws the block anew. An empty string would print nothing at all.
            Some(block) if !block.rows.is_empty() && !lines.is_empty() => {
                let text = lines.join("\n");
                let _ = block.all.println(if text.is_empty() { " " } else { &text });
            }
            _ => {
                let mut out = io::stdout().lock();
                for line in lines {
                    let _ = writeln!(out, "{line}");
                }
                let _ = out.flush();
            }
        }
    }

    /// Draws the block anew.
    pub fn refresh(&mut self, view: &View, now: Duration) {
        let Some(block) = &mut self.block else { return };
        block.tick += 1;
        let (height, _) = Term::stdout().size();
        let mut lines = vec![" ".to_owned()];
        lines.extend(view.block(now, block.tick));
        if lines.len() + OUTPUT_ROOM > usize::from(height) {
            lines = view.one_row(now, block.tick).into_iter().collect();
        }
        while block.rows.len() > lines.len() {
            if let Some(row) = block.rows.pop() {
                row.finish_and_clear();
                block.all.remove(&row);
            }
        }
        while block.rows.len() < lines.len() {
            let row = ProgressBar::new_spinner();
            // A template of one placeholder is always valid; the default would only look different.
            row.set_style(
                ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            block.rows.push(block.all.add(row));
        }
        for (row, line) in block.rows.iter().zip(lines) {
            row.set_message(line);
            row.tick();
        }
    }

    /// Takes the block away. What is printed from now on stays.
    pub fn clear(&mut self) {
        if let Some(block) = &mut self.block {
            for row in block.rows.drain(..) {
                row.finish_and_clear();
            }
            let _ = block.all.clear();
        }
    }
}

/// Says something to whoever is to answer, not to the file or the program that the output goes to.
pub fn tell(words: &str) {
    let terminal = || File::options().write(true).open("/dev/tty");
    let mut to: Box<dyn io::Write> = match (io::stderr().is_terminal(), terminal()) {
        (false, Ok(terminal)) => Box::new(terminal),
        _ => Box::new(io::stderr()),
    };
    let _ = to.write_all(words.as_bytes());
    let _ = to.flush();
}

/// Whether there is somebody to answer a question.
pub fn somebody_is_there() -> bool {
    io::stdin().is_terminal()
}

/// Asks, and waits for a line on stdin. Only a clear yes is a yes; the end of the input is a no.
pub fn ask(question: &str) -> bool {
    tell(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
