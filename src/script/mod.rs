//! Hooks: the user's own commands before and after an engine command, and the script that runs all three.

pub mod bash_script;
pub mod command;
pub mod quote;

pub(crate) use bash_script::LONGEST_WORD;
pub use bash_script::{Part, Script, ScriptError};
pub use command::{Command, HiddenArguments, Piece};
pub use quote::quote;

/// A hook with the name that users know it by, such as `ApplyBeforeHook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook<'a> {
    pub name: &'static str,
    pub text: &'a str,
}

impl<'a> Hook<'a> {
    /// A hook that is missing or blank does not exist: it is neither run nor checked.
    pub fn new(name: &'static str, text: Option<&'a str>) -> Option<Self> {
        text.filter(|text| !text.trim().is_empty()).map(|text| Self { name, text })
    }
}
