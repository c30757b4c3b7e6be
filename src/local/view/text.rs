//! Durations and sanitized text.

use std::fmt::Display;
use std::time::Duration;

use jiff::Timestamp;

/// The time from `start` to `end`, or zero if a clock went backward.
pub(super) fn since(start: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(start)).unwrap_or_default()
}

/// `0.4s`, `12.0s`, `3m 05s`, `2h 07m`.
pub(super) fn short_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

pub(super) fn plural<Count: Display>(count: Count, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

const RESET: &str = "\u{1b}[0m";

/// Removes everything from a text that could move the cursor, clear the screen, or ring the bell. With `colors`, keeps
/// colors and resets them at the end.
pub fn clean(text: &str, colors: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut is_colored = false;
    for (part, is_code) in console::AnsiCodeIterator::new(text) {
        if is_code {
            if colors && is_color(part) {
                clean.push_str(part);
                is_colored = part != RESET;
            }
            continue;
        }
        for character in part.chars() {
            match character {
                '\t' => clean.push_str("    "),
                other if other.is_control() => {}
                other => clean.push(other),
            }
        }
    }
    if is_colored {
        clean.push_str(RESET);
    }
    clean
}

/// `ESC [ … m` with numbers only.
fn is_color(code: &str) -> bool {
    code.strip_prefix("\u{1b}[").and_then(|rest| rest.strip_suffix('m')).is_some_and(|numbers| {
        numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';' || byte == b':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (milliseconds, text) in
            [(0, "0.0s"), (440, "0.4s"), (59_999, "59.9s"), (185_000, "3m 05s"), (7_620_000, "2h 07m")]
        {
            assert_eq!(short_duration(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn clean_text_cannot_move_the_cursor_or_ring_the_bell() {
        let text = "\u{1b}[2J\u{1b}[1;31mred\u{1b}[0m\u{7}\r\u{1b}]0;title\u{7}\ttab\u{1b}[5A\u{9b}2J";
        let shown = clean(text, true);
        assert!(shown.starts_with("\u{1b}[1;31mred\u{1b}[0m"), "{shown:?}");
        assert!(shown.ends_with("    tab2J") || shown.ends_with("    tab"), "{shown:?}");
        assert!(!shown.contains(['\r', '\u{7}', '\u{9b}']) && !shown.contains("[2J"), "{shown:?}");
        assert!(!clean(text, false).contains('\u{1b}'));
        assert_eq!(clean("\u{1b}[1;31mred", true), "\u{1b}[1;31mred\u{1b}[0m");
        assert_eq!(clean("\u{1b}[1;31mred", false), "red");
    }
}
