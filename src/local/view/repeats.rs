//! Lines that the user has already seen: warnings that the engine repeats on every call, and the engine's errors that a
//! fault quotes. Only the view leaves them out; the server gets every line.
//!
//! Engines print a warning in a box (`╷`, `│ Warning: …`, `╵`). OpenTofu prints those about its own settings without one,
//! because it has not read its settings yet.

use std::collections::{HashSet, VecDeque};

use hawser_contract::LogLevel;

use super::text::clean;

/// The line in front of warnings about the engine's own settings.
const SETTINGS_HEADING: &str = "There are some problems with the CLI configuration:";
/// A longer box is shown as it arrives.
const LONGEST_BOX: usize = 100;
/// How many different warnings are remembered.
const MAX_WARNINGS: usize = 1000;
/// How many lines of a task are remembered. A fault quotes its last lines.
const RECENT: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogLine {
    pub level: LogLevel,
    pub text: String,
}

/// Decides which lines of a job are shown.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    warnings: HashSet<String>,
    /// The beginning of a box or a warning. It is shown or left out when it is complete.
    held: Vec<LogLine>,
    /// The last lines of the task, as plain text.
    recent: VecDeque<String>,
}

impl Repeats {
    /// Returns the lines to show now.
    pub(super) fn next(&mut self, line: LogLine) -> Vec<LogLine> {
        let text = plain(&line.text);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(unframed(&text).to_owned());
        let mut lines = Vec::new();
        let is_part = match self.held.first().map(|first| plain(&first.text)) {
            None => false,
            Some(first) if first == "╷" => text.starts_with(['│', '╵']) && self.held.len() < LONGEST_BOX,
            // Without a box, a warning is its heading, an empty line, and a line of text.
            Some(_) => text.is_empty() == (self.held.len() == 1),
        };
        if !is_part {
            lines.append(&mut self.held);
        }
        let is_first = self.held.is_empty();
        if is_first && text == SETTINGS_HEADING {
            if self.is_new(text) {
                lines.push(line);
            }
            return lines;
        }
        if is_first && text != "╷" && !text.starts_with("Warning: ") {
            lines.push(line);
            return lines;
        }
        self.held.push(line);
        let is_boxed = text.starts_with(['╷', '│', '╵']);
        if text == "╵" || !is_boxed && self.held.len() == 3 {
            let block = std::mem::take(&mut self.held);
            let text: Vec<String> = block.iter().map(|line| plain(&line.text)).collect();
            let is_warning = text.iter().any(|line| unframed(line).starts_with("Warning: "));
            if !is_warning || self.is_new(text.join("\n")) {
                lines.extend(block);
            }
        }
        lines
    }

    /// The beginning of a warning whose end has not arrived. Call it before anything else is shown.
    pub(super) fn flush(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.held)
    }

    /// Starts a task.
    pub(super) fn clear_recent(&mut self) {
        self.recent.clear();
    }

    /// Whether all lines of a text were among the last lines of the task.
    pub(super) fn has_shown(&self, text: &str) -> bool {
        let mut lines = text.lines().map(plain);
        lines.all(|line| {
            let line = unframed(&line);
            line.is_empty() || self.recent.iter().any(|recent| recent == line)
        })
    }

    /// Remembers a warning. `false` if it is known already.
    fn is_new(&mut self, warning: String) -> bool {
        if self.warnings.contains(&warning) {
            return false;
        }
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.insert(warning);
        }
        true
    }
}

fn plain(text: &str) -> String {
    clean(text, false).trim_end().to_owned()
}

/// Without the frame of a box.
fn unframed(line: &str) -> &str {
    line.trim_matches(['╷', '│', '╵', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of these lines.
    fn shown(lines: &[&str]) -> Vec<String> {
        let mut repeats = Repeats::default();
        let mut shown = Vec::new();
        for text in lines {
            shown.extend(repeats.next(LogLine { level: LogLevel::Information, text: (*text).to_owned() }));
        }
        shown.extend(repeats.flush());
        shown.into_iter().map(|line| line.text).collect()
    }

    const WARNING: [&str; 4] = ["╷", "│ Warning: deprecated", "│ use another", "╵"];

    #[test]
    fn a_repeated_warning_is_left_out() {
        let once = [&["first"], &WARNING[..], &["second"]].concat();
        assert_eq!(shown(&[&once[..], &WARNING, &["third"]].concat()), [&once[..], &["third"]].concat());
        let colored = WARNING.map(|line| format!("\u{1b}[33m{line}\u{1b}[0m"));
        let colored: Vec<&str> = colored.iter().map(String::as_str).collect();
        assert_eq!(shown(&[&WARNING[..], &colored].concat()), WARNING);
    }

    #[test]
    fn another_warning_and_every_error_is_shown() {
        let other = ["╷", "│ Warning: deprecated", "│ use a third one", "╵"];
        let error = ["╷", "│ Error: no", "╵"];
        let lines = [&WARNING[..], &other, &error, &error].concat();
        assert_eq!(shown(&lines), lines);
    }

    #[test]
    fn a_box_that_another_stream_interrupts_or_that_does_not_end_is_shown() {
        let interrupted = ["╷", "│ Warning: deprecated", "from another stream", "│ use another", "╵"];
        assert_eq!(shown(&interrupted), interrupted);
        assert_eq!(shown(&WARNING[..2]), WARNING[..2]);
        let long = [vec!["╷"], vec!["│ Warning: deprecated"; 3 * LONGEST_BOX], vec!["╵"]].concat();
        assert_eq!(shown(&long), long);
    }

    #[test]
    fn warnings_about_the_settings_of_the_engine_are_shown_once() {
        let boxed = [&[SETTINGS_HEADING], &WARNING[..]].concat();
        assert_eq!(shown(&[&boxed[..], &boxed].concat()), boxed);
        let bare = [SETTINGS_HEADING, "", "Warning: Unable to open", "", "It does not exist.", "Success!"];
        let repeated = [&bare[..], &bare].concat();
        assert_eq!(shown(&repeated), [&bare[..], &["", "Success!"]].concat());
        let other = ["Warning: retrying", "connecting", "Warning: retrying", "connecting"];
        assert_eq!(shown(&other), other);
    }

    #[test]
    fn a_text_counts_as_shown_if_all_of_its_lines_were() {
        let mut repeats = Repeats::default();
        for text in ["\u{1b}[31m│\u{1b}[0m Error: no such file", "│", "│   on main.tf line 1"] {
            repeats.next(LogLine { level: LogLevel::Information, text: text.to_owned() });
        }
        assert!(repeats.has_shown("Error: no such file\n\n  on main.tf line 1"));
        assert!(!repeats.has_shown("Error: no such file\nand more"));
        repeats.clear_recent();
        assert!(!repeats.has_shown("Error: no such file"));
    }
}
