//! The block below the output: what to write so that it gives way to new lines and is drawn again under them.
//!
//! The cursor waits at the beginning of the row below the block. From there the block is found by counting rows
//! upwards, which is all that a terminal offers. One that becomes narrower breaks rows that no longer fit into
//! several, so they are counted anew at each drawing, and nothing is ever padded.

use std::fmt::Write as _;

/// Rows are no wider than this: a terminal may be narrower for a while before it says so, and what fits anyway is not
/// broken.
const WIDEST: usize = 48;

#[derive(Debug, Default)]
pub(super) struct Block {
    /// How wide each row is that stands on the screen.
    drawn: Vec<usize>,
}

impl Block {
    /// Takes the block away, adds `lines` to what stays, and puts a block of `rows` below them.
    pub(super) fn draw(&mut self, width: usize, lines: &[String], rows: &[String]) -> String {
        let width = width.max(1);
        let mut text = String::new();
        let above: usize = self.drawn.iter().map(|columns| columns.div_ceil(width).max(1)).sum();
        if above > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, "\r\u{1b}[{above}A\u{1b}[J");
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn.clear();
        for row in rows {
            let row = console::truncate_str(row, width.min(WIDEST), "…");
            self.drawn.push(console::measure_text_width(&row));
            text.push_str(&row);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that breaks what is wider than itself, as most do.
    #[derive(Default)]
    struct Terminal {
        /// Whole lines; the cursor is at the beginning of the one after them.
        lines: Vec<String>,
    }

    impl Terminal {
        fn write(&mut self, width: usize, mut text: &str) {
            if let Some(rest) = text.strip_prefix("\r\u{1b}[") {
                let (up, rest) = rest.split_once("A\u{1b}[J").unwrap();
                let mut up: usize = up.parse().unwrap();
                while up > 0 {
                    let line = self.lines.pop().expect("it goes up beyond the first line");
                    let rows = line.chars().count().div_ceil(width).max(1);
                    up = up.checked_sub(rows).unwrap_or_else(|| panic!("a half of {line:?} is left"));
                }
                text = rest;
            }
            assert!(!text.contains('\u{1b}'), "{text:?}");
            self.lines.extend(text.lines().map(str::to_owned));
        }
    }

    #[test]
    fn a_terminal_of_any_and_of_changing_width_keeps_every_line_and_one_block() {
        let (mut block, mut terminal) = (Block::default(), Terminal::default());
        let rows = ["", "a row", "another row that is longer than some terminals", &"wide ".repeat(30)];
        let rows = rows.map(str::to_owned);
        let mut expected = Vec::new();
        for (number, width) in [100, 100, 30, 7, 1, 48, 12, 200].into_iter().enumerate() {
            let lines = [format!("line {number}"), "x".repeat(90)];
            terminal.write(width, &block.draw(width, &lines, &rows));
            expected.extend(lines);
            let (kept, drawn) = terminal.lines.split_at(expected.len());
            assert_eq!(kept, expected, "at {width}");
            assert_eq!(drawn.len(), rows.len(), "at {width}: {drawn:?}");
            assert!(
                drawn.iter().all(|row| row.chars().count() <= width.min(WIDEST)),
                "at {width}: {drawn:?}"
            );
        }
        terminal.write(80, &block.draw(80, &["the end".to_owned()], &[]));
        expected.push("the end".to_owned());
        assert_eq!(terminal.lines, expected);
        assert_eq!(block.draw(80, &[], &[]), "", "there is nothing to take away any more");
    }
}
