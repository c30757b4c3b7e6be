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

/// Text from elsewhere without anything that could move the cursor, clear the screen or ring the bell. Colours
/// are kept when `colours` is set.
pub fn clean(text: &str, colours: bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for (part, is_code) in console::AnsiCodeIterator::new(text) {
        if is_code {
            if colours && is_colour(part) {
                clean.push_str(part);
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
    clean
}

/// `ESC [ … m`, with nothing but numbers in it.
fn is_colour(code: &str) -> bool {
    code.strip_prefix("\u{1b}[").and_then(|rest| rest.strip_suffix('m')).is_some_and(|numbers| {
        numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';' || byte == b':')
    })
}

const RESET: &str = "\u{1b}[0m";

/// Breaks a line so that no part is wider than `width` columns, at a space where there is one in its second half.
/// Colours go on in the next part, and no part leaves them switched on for what is printed after it.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut parts = Vec::new();
    let mut part = Part::default();
    // The part as it was after its last space: a good place to break.
    let mut after_space: Option<Part> = None;
    for (piece, is_code) in console::AnsiCodeIterator::new(text) {
        if is_code {
            part.text.push_str(piece);
            if piece == RESET || piece == "\u{1b}[m" {
                part.colours.clear();
            } else {
                part.colours.push_str(piece);
            }
            continue;
        }
        for character in piece.chars() {
            let columns = console::measure_text_width(character.encode_utf8(&mut [0; 4]));
            if part.columns + columns > width && part.columns > 0 {
                let head = after_space.take().filter(|head| head.columns * 2 > width);
                let (head, tail) = match head {
                    Some(head) => (head.clone(), part.after(&head)),
                    None => (part.clone(), part.after(&part)),
                };
                parts.push(head.closed());
                part = tail;
            }
            part.text.push(character);
            part.columns += columns;
            if character == ' ' {
                after_space = Some(part.clone());
            }
        }
    }
    parts.push(part.closed());
    parts
}

/// A part of a line that is being broken.
#[derive(Debug, Clone, Default)]
struct Part {
    text: String,
    columns: usize,
    /// The codes that are in force at its end.
    colours: String,
}

impl Part {
    /// What follows `head`, which this part begins with.
    fn after(&self, head: &Self) -> Self {
        let rest = self.text.get(head.text.len()..).unwrap_or_default();
        Self {
            text: format!("{}{rest}", head.colours),
            columns: self.columns - head.columns,
            colours: self.colours.clone(),
        }
    }

    fn closed(&self) -> String {
        let text = self.text.trim_end_matches(' ');
        if self.colours.is_empty() { text.to_owned() } else { format!("{text}{RESET}") }
    }
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
    }

    #[test]
    fn wrapping_breaks_at_a_space_unless_that_would_leave_half_a_line_empty() {
        assert_eq!(wrap("one two three", 9), ["one two", "three"]);
        assert_eq!(wrap("a bcdefghijkl", 8), ["a bcdefg", "hijkl"]);
        assert_eq!(
            wrap("\u{1b}[31mone two three", 9),
            ["\u{1b}[31mone two\u{1b}[0m", "\u{1b}[31mthree\u{1b}[0m"]
        );
        let text = "some words of many lengths, and aVeryLongOneThatFitsNowhereAtAll in between";
        for width in 1..40 {
            let parts = wrap(text, width);
            assert!(parts.iter().all(|part| console::measure_text_width(part) <= width), "{parts:?}");
            assert_eq!(parts.concat().replace(' ', ""), text.replace(' ', ""));
        }
    }

    #[test]
    fn wrapping_keeps_every_character_and_never_leaves_a_colour_on() {
        assert_eq!(wrap("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(
            wrap("\u{1b}[31mabcdef\u{1b}[0mg", 4),
            ["\u{1b}[31mabcd\u{1b}[0m", "\u{1b}[31mef\u{1b}[0mg"]
        );
        assert_eq!(wrap("日本語", 4), ["日本", "語"]);
        assert_eq!(wrap("\u{1b}[1mopen", 10), ["\u{1b}[1mopen\u{1b}[0m"]);
    }
}
