//! A stream of bytes as lines of bounded length.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Longer lines are split, so that a program that never ends its line cannot use up memory.
const LONGEST_LINE: usize = 8 * 1024;

/// Passes each line to `on_line` without its ending, and replaces bytes that are not UTF-8. A carriage return also ends a
/// line, because programs redraw their progress with it.
pub(super) async fn read_lines(
    mut from: impl AsyncRead + Unpin,
    mut on_line: impl FnMut(&str),
) -> io::Result<()> {
    let mut line: Vec<u8> = Vec::new();
    let mut chunk = [0; 4096];
    let mut emit = |line: &mut Vec<u8>| {
        if !line.is_empty() {
            on_line(&String::from_utf8_lossy(line));
            line.clear();
        }
    };
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            emit(&mut line);
            return Ok(());
        }
        for &byte in &chunk[..read] {
            if matches!(byte, b'\n' | b'\r') {
                emit(&mut line);
                continue;
            }
            line.push(byte);
            if line.len() == LONGEST_LINE {
                emit(&mut line);
            }
        }
    }
}

/// The last lines of a stream.
#[derive(Debug, Default)]
pub(super) struct LastLines(VecDeque<String>);

impl LastLines {
    /// Enough for an error and its context, and not too much for the text of a fault.
    const LINES: usize = 20;

    pub(super) fn push(&mut self, line: String) {
        if self.0.len() == Self::LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines_of(bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        read_lines(bytes, |line| lines.push(line.to_owned())).await.unwrap();
        lines
    }

    #[tokio::test]
    async fn lines_end_with_any_ending_and_the_last_one_without() {
        assert_eq!(
            lines_of(b"a\nb\r\n\n10%\r20%\rlast \xff").await,
            ["a", "b", "10%", "20%", "last \u{fffd}"]
        );
    }

    #[tokio::test]
    async fn a_line_without_end_comes_in_pieces() {
        let lines = lines_of(&[b'x'; 2 * LONGEST_LINE + 1]).await;
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST_LINE, LONGEST_LINE, 1]);
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let mut tail = LastLines::default();
        (0..100).for_each(|n| tail.push(n.to_string()));
        let lines = tail.into_lines();
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (LastLines::LINES, Some("99")));
    }
}
