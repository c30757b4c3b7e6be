//! The errors that an engine reports in its output.

use crate::step::Stream;

/// What an engine printed: both streams in order, without colors. Stdout starts with what a before hook printed.
#[derive(Debug, Clone, Default)]
pub struct EngineOutput(pub Vec<(Stream, String)>);

impl EngineOutput {
    pub fn lines(&self, stream: Stream) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(of, _)| *of == stream).map(|(_, line)| line.as_str())
    }
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where it occurred, what it is, and its explanation, on one line.
    pub summary: String,
    /// As the engine printed it, without the frame around it.
    pub text: String,
}

impl Diagnostic {
    /// `place`: the resource, or the file and line.
    pub(super) fn new(place: &str, reason: &str, text: impl Into<String>) -> Self {
        let summary = if place.is_empty() { reason.to_owned() } else { format!("{place}: {reason}") };
        Self { summary, text: text.into() }
    }
}

/// Joins lines to one, without their indentation.
pub(super) fn on_one_line<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}
