//! Hooks: the user's own commands before and after an engine command, and the script that runs all three.

pub mod bash_script;
pub mod command;
pub mod quote;

pub(crate) use bash_script::LONGEST_WORD;
pub use bash_script::{Part, Script, ScriptError};
pub use command::{Command, HiddenArguments, Piece};
pub use quote::quote;
