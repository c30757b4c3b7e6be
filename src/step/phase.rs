//! The phases of a script.

/// The phase that a script is in, or was in when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptPhase {
    Before,
    Engine,
    /// The engine commands have succeeded.
    Succeeded,
    /// The results of the engine are read.
    Collect,
    After,
    Done,
}

impl ScriptPhase {
    pub const ALL: [Self; 6] =
        [Self::Before, Self::Engine, Self::Succeeded, Self::Collect, Self::After, Self::Done];

    /// The name in the step's `part` file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Engine => "engine",
            Self::Succeeded => "succeeded",
            Self::Collect => "collect",
            Self::After => "after",
            Self::Done => "done",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.word() == word)
    }

    /// Whether the engine commands have succeeded.
    pub fn is_past_engine(self) -> bool {
        !matches!(self, Self::Before | Self::Engine)
    }
}
