//! Text for stdout and stderr. `println!` and its kin panic when the reader has gone (`hawser job list | head`); here that
//! is no failure, and what the command is at goes on.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use super::Failure;
use crate::local::view;

/// One line on stdout.
pub(super) fn line(text: impl Display) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// One line on stderr.
pub(super) fn aside(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// One line on stdout with text that others have written, such as an engine: nothing in it moves the cursor or clears the
/// screen, and its colours stay out of pipes and files.
pub(super) fn foreign_line(text: &str) {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    line(view::clean(text, io::stdout().is_terminal() && !no_colour));
}

/// A whole document on stdout, for commands that do nothing else: one that could not be written is a failure, unless
/// the reader did not want more of it.
pub(super) fn document(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}
