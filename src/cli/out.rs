//! Output to stdout and stderr. `println!` panics when the reader is gone (`hawser job list | head`); these functions
//! ignore that, and the command continues.

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

/// One line of untrusted text, such as an engine's output, on stdout. Nothing in it moves the cursor or clears the screen,
/// and colors are kept only in a terminal.
pub(super) fn untrusted_line(text: &str) {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    line(view::clean(text, io::stdout().is_terminal() && !no_color));
}

/// A whole document on stdout. Failing to write it is an error, unless the reader is gone.
pub(super) fn document(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}
