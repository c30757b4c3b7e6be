//! Words, times, and text from elsewhere made fit to be shown.

use std::time::Duration;

use hawser_contract::Task;

/// The short names that people see.
pub(super) trait Words {
    fn label(self) -> &'static str;
}

impl Words for Task {
    fn label(self) -> &'static str {
        match self {
            Self::GetDefinitiveRevision => "Revision",
            Self::GetModule => "Source",
            Self::Init => "Init",
            Self::Validate => "Validate",
            Self::Variables => "Variables",
            Self::Plan | Self::PlanDestroy => "Plan",
            Self::ApplyFromPlan => "Apply",
            Self::DestroyFromPlan => "Destroy",
            Self::Output => "Outputs",
        }
    }
}

/// `0.4s`, `12.0s`, `3m 05s`, `2h 07m`.
pub(super) fn took(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

pub(super) fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

pub(super) fn count<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}

const RESET: &str = "\u{1b}[0m";

/// Text from elsewhere without anything that could move the cursor, clear the screen or ring the bell. Colors are
/// kept when `colors` is set, and reset at the end.
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

/// `ESC [ … m`, with nothing but numbers in it.
fn is_color(code: &str) -> bool {
    code.strip_prefix("\u{1b}[").and_then(|rest| rest.strip_suffix('m')).is_some_and(|numbers| {
        numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';' || byte == b':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_at_every_length() {
        for (milliseconds, words) in
            [(0, "0.0s"), (440, "0.4s"), (59_999, "59.9s"), (185_000, "3m 05s"), (7_620_000, "2h 07m")]
        {
            assert_eq!(took(Duration::from_millis(milliseconds)), words);
        }
    }

    #[test]
    fn text_from_elsewhere_cannot_move_the_cursor_or_ring_the_bell() {
        let rude = "\u{1b}[2J\u{1b}[1;31mred\u{1b}[0m\u{7}\r\u{1b}]0;title\u{7}\ttab\u{1b}[5A\u{9b}2J";
        let shown = clean(rude, true);
        assert!(shown.starts_with("\u{1b}[1;31mred\u{1b}[0m"), "{shown:?}");
        assert!(shown.ends_with("    tab2J") || shown.ends_with("    tab"), "{shown:?}");
        assert!(!shown.contains(['\r', '\u{7}', '\u{9b}']) && !shown.contains("[2J"), "{shown:?}");
        assert!(!clean(rude, false).contains('\u{1b}'));
        assert_eq!(clean("\u{1b}[1;31mred", true), "\u{1b}[1;31mred\u{1b}[0m");
        assert_eq!(clean("\u{1b}[1;31mred", false), "red");
    }
}
