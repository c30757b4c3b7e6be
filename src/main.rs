//! The command line, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser::main()
}
