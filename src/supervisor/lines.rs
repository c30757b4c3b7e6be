//! Turns the bytes of a stream into lines, whatever the pieces in which they arrive.
//!
//! A line ends with LF or CR LF; the end mark is not part of it. A line that is longer than a record goes out in
//! pieces as it arrives, so no more of it than one record and one chunk is ever in memory. Bytes after the last
//! end mark are a line too, given when the stream ends.

use memchr::memchr_iter;

use crate::step::records::{MAX_TEXT, cut, pieces};

/// The lines of one stream.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of a line whose end has not arrived; at most `MAX_TEXT + 1` bytes between two chunks.
    pending: Vec<u8>,
}

impl Lines {
    /// Takes the next chunk and gives the texts of the records that are complete with it, each with whether its
    /// line goes on.
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
        // One byte more than the limit has to be seen beyond it: the last may be the CR of an end mark, and then
        // the line ends exactly at the limit.
        while self.pending.len() - done > MAX_TEXT + 1 {
            let rest = &self.pending[done..];
            let at = cut(rest);
            emit(&rest[..at], true);
            done += at;
        }
        self.pending.drain(..done);
    }

    /// The stream has ended: gives what has no end mark.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit_line(&self.pending, &mut emit);
            self.pending.clear();
        }
    }
}

fn emit_line(line: &[u8], emit: &mut impl FnMut(&[u8], bool)) {
    for (text, continues) in pieces(line) {
        emit(text, continues);
    }
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
            assert!(lines.pending.len() <= MAX_TEXT + 1, "{} bytes are held", lines.pending.len());
        }
        lines.finish(|text, continues| out.push((text.to_vec(), continues)));
        out
    }

    /// The same by definition: whole lines first, then their pieces.
    fn model(bytes: &[u8]) -> Pieces {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let last = lines.pop().unwrap_or_default();
        let mut lines: Vec<&[u8]> =
            lines.into_iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
        if !last.is_empty() {
            lines.push(last);
        }
        let parts =
            |line| pieces(line).map(|(text, continues)| (text.to_vec(), continues)).collect::<Pieces>();
        lines.into_iter().flat_map(parts).collect()
    }

    fn texts(bytes: &[u8]) -> Vec<String> {
        split([bytes]).into_iter().map(|(text, _)| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn end_marks_are_cut_and_a_last_line_without_one_is_kept() {
        assert_eq!(texts(b"a\r\nb\n\n\r\nc\r"), ["a", "b", "", "", "c\r"]);
        assert_eq!(texts(b""), Vec::<String>::new());
        assert_eq!(texts(b"a\rb\n"), ["a\rb"]);
    }

    #[test]
    fn a_line_as_long_as_a_record_is_one_record_with_either_end_mark() {
        for end in ["\n", "\r\n", ""] {
            let line = "x".repeat(MAX_TEXT) + end;
            assert_eq!(split(line.as_bytes().chunks(1000)), [("x".repeat(MAX_TEXT).into_bytes(), false)]);
        }
    }

    #[test]
    fn a_long_line_is_not_cut_inside_of_a_character() {
        for shift in 0..4 {
            let line = "a".repeat(shift) + &"€𝄞".repeat(20_000);
            let parts = split(line.as_bytes().chunks(4096));
            assert!(parts.iter().all(|(text, _)| text.len() <= MAX_TEXT));
            let joined: String = parts.iter().map(|(text, _)| std::str::from_utf8(text).unwrap()).collect();
            assert_eq!(joined, line);
            assert_eq!(parts.iter().filter(|(_, continues)| !continues).count(), 1);
        }
    }

    /// Runs of one byte, with what matters to the splitter being likely, so that long lines come up too.
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
