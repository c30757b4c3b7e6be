//! The thin part: puts lines and the block below them on stdout, and asks the question on stderr.
//!
//! Nothing here fails: when stdout has gone away (a closed terminal, `| head`), the job goes on without it.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use console::Term;

use super::block::Block;
use super::{Look, View};

/// Lines of output that must still fit above the block; in a lower terminal only one row is kept.
const OUTPUT_ROOM: usize = 6;

/// Lines are not broken into shorter pieces than this, whatever the terminal.
const NARROWEST: usize = 20;

/// How often the block is drawn when nothing happens.
pub const REFRESH: Duration = Duration::from_millis(100);

/// Where the view is shown.
#[derive(Debug)]
pub struct Screen {
    /// Only for the live form.
    live: Option<Live>,
}

#[derive(Debug, Default)]
struct Live {
    block: Block,
    tick: usize,
}

impl Screen {
    /// Looks at stdout and the environment and decides for one of the two forms.
    pub fn open() -> Self {
        let terminal = Term::stdout();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
        if !terminal.is_term() || no_colour || dumb {
            return Self { live: None };
        }
        Self { live: Some(Live::default()) }
    }

    /// How the view is to look from now on: somebody may have changed the size of the terminal.
    pub fn look(&self) -> Look {
        match self.live {
            Some(_) => Look { live: true, width: size().1.max(NARROWEST) },
            None => Look::PLAIN,
        }
    }

    /// Prints lines, and draws the block anew below them.
    pub fn draw(&mut self, lines: &[String], view: &View, now: Duration) {
        let mut rows = Vec::new();
        if let Some(live) = &mut self.live {
            live.tick += 1;
            let (height, _) = size();
            rows.push(String::new());
            rows.extend(view.block(now, live.tick));
            if rows.len() + OUTPUT_ROOM >= height {
                rows = view.one_row(now, live.tick).into_iter().collect();
            }
        }
        self.put(lines, &rows);
    }

    /// Takes the block away and prints lines where it was.
    pub fn print(&mut self, lines: &[String]) {
        self.put(lines, &[]);
    }

    fn put(&mut self, lines: &[String], rows: &[String]) {
        let mut block = Block::default();
        let block = self.live.as_mut().map_or(&mut block, |live| &mut live.block);
        let text = block.draw(size().1, lines, rows);
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }
}

/// Rows and columns of the terminal at this moment.
fn size() -> (usize, usize) {
    let (height, width) = Term::stdout().size();
    (height.into(), width.into())
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
