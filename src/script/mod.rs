//! The bash script of a step: hooks and engine commands.

pub mod bash_script;
pub mod command;
pub mod quote;

pub(crate) use bash_script::LONGEST_WORD;
pub use bash_script::{Script, ScriptError};
pub use command::{EngineCommand, HiddenArguments, Piece, Retry};
pub use quote::quote;

pub use crate::step::ScriptPhase;
