//! What the script asks its supervisor through the gate, as bytes on a socket.
//!
//! A question is one line and the bytes after it, up to the end of the stream. The answer is [`YES`], or anything else: then
//! the rest of it is the reason, if there is one.
//!
//! ```text
//! phase engine\n/the/directory\0the place variables\0…     may the script enter this phase?
//! next\n                                                   may it go on in the phase?
//! engine a name\n/the/program                              may the asking process become an engine command?
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use crate::step::ScriptPhase;

pub const YES: u8 = b'y';
pub(super) const NO: u8 = b'n';

/// More than any question that the kernel lets a process ask about its own environment.
pub(super) const LONGEST: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Enters a phase. `place` is where the asking process is, see `place` in [`crate::step`].
    Phase { phase: ScriptPhase, place: Vec<u8> },
    /// Goes on in the phase.
    Next,
    /// Becomes an engine command. `name` is empty for the main command of the task.
    Engine {
        name: String,
        /// The file of the program, if it is a script.
        wrapper: Option<OsString>,
    },
}

impl Question {
    pub fn encode(&self) -> Vec<u8> {
        let (line, rest) = match self {
            Self::Phase { phase, place } => (format!("phase {}\n", phase.word()), place.as_slice()),
            Self::Next => ("next\n".to_owned(), [].as_slice()),
            Self::Engine { name, wrapper } => {
                (format!("engine {name}\n"), wrapper.as_ref().map_or([].as_slice(), |it| it.as_bytes()))
            }
        };
        [line.as_bytes(), rest].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = (str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
        if line == "next" {
            return Some(Self::Next);
        }
        match line.split_once(' ')? {
            ("phase", word) => {
                Some(Self::Phase { phase: ScriptPhase::from_word(word)?, place: rest.to_owned() })
            }
            ("engine", name) => {
                let wrapper = (!rest.is_empty()).then(|| OsString::from_vec(rest.to_owned()));
                Some(Self::Engine { name: name.to_owned(), wrapper })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_is_read_as_it_was_written_and_nothing_else_is_one() {
        let wrapper = |path: &str| (!path.is_empty()).then(|| path.into());
        let engine = |name: &str, path| Question::Engine { name: name.to_owned(), wrapper: wrapper(path) };
        let mut questions =
            vec![Question::Next, engine("", ""), engine("tofu workspace select", "/a b"), engine("", "/\n")];
        let place = b"/a\0\n\0\xff\0".to_vec();
        questions.extend(ScriptPhase::ALL.map(|phase| Question::Phase { phase, place: place.clone() }));
        for question in questions {
            assert_eq!(Question::decode(&question.encode()).as_ref(), Some(&question));
        }
        for bytes in ["", "next", "phase never\n", "phase\n", "engine\n", "nexts\n", "\u{0}\n"] {
            assert_eq!(Question::decode(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
