//! Splits a stream of bytes into lines, regardless of its chunks.
//!
//! A line ends with LF or CR LF, which are not part of it. A line of color codes without any text is emitted as an empty line:
//! engines end a colored text with a reset on a line of its own, which looks empty to the user. A line that is longer than a record is emitted in pieces as it
//! arrives, so at most one record and one chunk of it are in memory. Bytes after the last terminator are also a line, which
//! is emitted when the stream ends.

use memchr::memchr_iter;

use crate::step::records::{MAX_TEXT, cut, pieces};

/// The lines of one stream.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The start of an incomplete line; at most `MAX_TEXT + 1` bytes between two chunks.
    pending: Vec<u8>,
}

impl Lines {
    /// Takes the next chunk and emits the texts of complete records, each with whether its line continues.
    pub(super) fn feed(&mut self, chunk: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        let mut start = 0;
        for end in memchr_iter(b'\n', chunk) {
            let part = &chunk[start..end];
            start = end + 1;
            if self.pending.is_empty() {
                emit_line(without_cr(part), &mut emit);
            } else {
                self.pending.extend_from_slice(part);
                emit_line(without_cr(&self.pending), &mut emit);
                self.pending.clear();
            }
        }
        self.pending.extend_from_slice(&chunk[start..]);
        let mut done = 0;
        // One more byte than the limit stays, because it may be the CR of a line that ends exactly at the limit.
        while self.pending.len() - done > MAX_TEXT + 1 {
            let rest = &self.pending[done..];
            let at = cut(rest);
            emit(&rest[..at], true);
            done += at;
        }
        self.pending.drain(..done);
    }

    /// The stream has ended: emits the last line if it has no terminator.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit_line(&self.pending, &mut emit);
            self.pending.clear();
        }
    }
}

fn emit_line(line: &[u8], emit: &mut impl FnMut(&[u8], bool)) {
    for (text, continues) in pieces(without_bare_colors(line)) {
        emit(text, continues);
    }
}

/// The line, or nothing if it consists of color codes (`ESC [ … m`) only.
fn without_bare_colors(line: &[u8]) -> &[u8] {
    let mut rest = line;
    while let Some(code) = rest.strip_prefix(b"\x1b[") {
        let end = code.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'));
        match end.map(|end| code.split_at(end)) {
            Some((_, [b'm', after @ ..])) => rest = after,
            _ => break,
        }
    }
    if rest.is_empty() { rest } else { line }
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Pieces = Vec<(Vec<u8>, bool)>;

    fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Pieces {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for chunk in chunks {
            lines.feed(chunk, |text, continues| out.push((text.to_vec(), continues)));
            assert!(lines.pending.len() <= MAX_TEXT + 1, "{} bytes are pending", lines.pending.len());
        }
        lines.finish(|text, continues| out.push((text.to_vec(), continues)));
        out
    }

    /// Splits into whole lines first, and then into pieces.
    fn model(bytes: &[u8]) -> Pieces {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let last = lines.pop().unwrap_or_default();
        let mut lines: Vec<&[u8]> =
            lines.into_iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
        if !last.is_empty() {
            lines.push(last);
        }
        let parts = |line| {
            pieces(without_bare_colors(line))
                .map(|(text, continues)| (text.to_vec(), continues))
                .collect::<Pieces>()
        };
        lines.into_iter().flat_map(parts).collect()
    }

    fn texts(bytes: &[u8]) -> Vec<String> {
        split([bytes]).into_iter().map(|(text, _)| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn terminators_are_removed_and_an_unterminated_last_line_is_kept() {
        assert_eq!(texts(b"a\r\nb\n\n\r\nc\r"), ["a", "b", "", "", "c\r"]);
        assert_eq!(texts(b""), Vec::<String>::new());
        assert_eq!(texts(b"a\rb\n"), ["a\rb"]);
    }

    #[test]
    fn a_line_of_color_codes_without_text_is_empty() {
        assert_eq!(texts(b"\x1b[0m\n\x1b[1;31m\x1b[38:5:9m\x1b[m\r\n\x1b[0m"), ["", "", ""]);
        for kept in ["\x1b[32m+\x1b[0m", "\x1b[0m ", "\x1b[2J", "\x1b[0", "\x1b", "\x1b[0m\x1b["] {
            assert_eq!(texts(format!("{kept}\n").as_bytes()), [kept]);
        }
    }

    #[test]
    fn a_line_as_long_as_a_record_is_one_record_with_any_terminator() {
        for end in ["\n", "\r\n", ""] {
            let line = "x".repeat(MAX_TEXT) + end;
            assert_eq!(split(line.as_bytes().chunks(1000)), [("x".repeat(MAX_TEXT).into_bytes(), false)]);
        }
    }

    #[test]
    fn a_long_line_is_not_split_inside_a_character() {
        for shift in 0..4 {
            let line = "a".repeat(shift) + &"€𝄞".repeat(20_000);
            let parts = split(line.as_bytes().chunks(4096));
            assert!(parts.iter().all(|(text, _)| text.len() <= MAX_TEXT));
            let joined: String = parts.iter().map(|(text, _)| std::str::from_utf8(text).unwrap()).collect();
            assert_eq!(joined, line);
            assert_eq!(parts.iter().filter(|(_, continues)| !continues).count(), 1);
        }
    }

    /// Runs of one byte, so that long lines occur, and mostly bytes that matter to the splitter.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), Just(0x80), Just(0xC3), any::<u8>()];
        let length = prop_oneof![4 => 1..4_usize, 1 => MAX_TEXT - 3..MAX_TEXT + 4];
        vec((byte, length), 0..24)
            .prop_map(|runs| runs.into_iter().flat_map(|(byte, length)| vec![byte; length]).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_chunking_of_any_bytes_gives_the_same_lines(bytes in bytes(), sizes in vec(1..30_000_usize, 1..8)) {
            let mut chunks = Vec::new();
            let mut rest = bytes.as_slice();
            for size in sizes.iter().cycle() {
                let (chunk, after) = rest.split_at((*size).min(rest.len()));
                chunks.push(chunk);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(split(chunks), model(&bytes));
        }
    }
}
