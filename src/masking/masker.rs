//! The compiled form of a set of secrets.
//!
//! Line breaks are ignored, so folded, wrapped, and multi-line secrets are found. Each match is replaced by one [`MASK`] where
//! it starts; line breaks stay.

use std::borrow::Cow;

use super::Rules;
use super::encodings::{Effort, Forms};
use super::scanner::{Cursor, Scanner, Span};

/// Replaces a secret of any length.
pub const MASK: &str = "***";

/// The limit for all needles of a job. An automaton needs about twenty times as much memory, and twice that while it is built.
/// There is one automaton per job, and one for all jobs together.
const MAX_TOTAL_BYTES: usize = 512 * 1024;

/// Masks a set of secrets in texts.
#[derive(Debug)]
pub struct Masker {
    mode: MaskMode,
    patterns: Vec<regex::Regex>,
    minimum_length: usize,
    /// Some encodings were left out because there are too many secrets.
    reduced: bool,
}

#[derive(Debug)]
enum MaskMode {
    /// There are no secrets.
    Nothing,
    Needles(Box<Scanner>),
    /// The secrets are unknown, or too many: all text is masked.
    Everything {
        reason: String,
    },
}

/// The position in a stream. Valid only for the masker that created it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamCursor(Option<Cursor>);

/// Ranges to mask, in order and without overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// Adds a range that ends after all others. Overlapping ranges are merged.
    pub(crate) fn add(&mut self, mut span: Span) {
        while let Some(last) = self.0.pop_if(|last| last.end > span.start) {
            span = span.start.min(last.start)..span.end.max(last.end);
        }
        self.0.push(span);
    }

    fn add_anywhere(&mut self, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.0);
        all.extend(spans);
        all.sort_by_key(|span| span.start);
        all.into_iter().for_each(|span| self.add(span));
    }
}

impl Masker {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>, rules: &Rules) -> Self {
        let secrets: Vec<&str> = secrets.into_iter().collect();
        let chosen = Effort::DOWN.into_iter().find_map(|effort| {
            let mut forms = Forms::new(rules.minimum_length, effort);
            for secret in &secrets {
                // A secret that cannot fit is not encoded at all.
                if forms.bytes().saturating_add(secret.len()) > MAX_TOTAL_BYTES {
                    return None;
                }
                forms.add(secret);
            }
            (forms.bytes() <= MAX_TOTAL_BYTES).then_some((effort, forms))
        });
        let reduced = chosen.as_ref().is_some_and(|(effort, _)| *effort != Effort::All);
        let mode = match chosen {
            None => {
                MaskMode::Everything { reason: format!("the secrets exceed {} KiB", MAX_TOTAL_BYTES / 1024) }
            }
            Some((_, forms)) if forms.needles().is_empty() => MaskMode::Nothing,
            Some((_, forms)) => match Scanner::new(forms.needles()) {
                Ok(scanner) => MaskMode::Needles(Box::new(scanner)),
                Err(error) => MaskMode::Everything { reason: error.to_string() },
            },
        };
        Self { mode, patterns: rules.patterns.clone(), minimum_length: rules.minimum_length, reduced }
    }

    /// Masks all text, because the secrets are unknown.
    pub fn of_everything(reason: &str) -> Self {
        let mode = MaskMode::Everything { reason: reason.to_owned() };
        Self { mode, patterns: Vec::new(), minimum_length: 0, reduced: false }
    }

    /// If all text is masked, the reason.
    pub fn masks_everything(&self) -> Option<&str> {
        match &self.mode {
            MaskMode::Everything { reason } => Some(reason),
            MaskMode::Nothing | MaskMode::Needles(_) => None,
        }
    }

    /// Whether some encodings are not masked because there are too many secrets.
    pub fn is_reduced(&self) -> bool {
        self.reduced
    }

    /// Masks the secrets in a text.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut spans = Spans::default();
        let mut cursor = self.start();
        let mut base = 0;
        let mut masked = Vec::new();
        let mut lines = Spans::default();
        for line in lines_of(text) {
            lines.clear();
            cursor = self.follow(cursor, line.as_bytes(), &mut lines);
            self.patterns(line.as_bytes(), &mut lines);
            masked.extend(lines.as_slice().iter().map(|span| span.start + base..span.end + base));
            base += line.len().cast_signed();
        }
        if masked.is_empty() {
            return Cow::Borrowed(text);
        }
        spans.add_anywhere(masked);
        Cow::Owned(masked_text(text, spans.as_slice()))
    }

    /// The shortest secret that is masked.
    pub(crate) fn minimum_length(&self) -> usize {
        self.minimum_length
    }

    pub(crate) fn start(&self) -> StreamCursor {
        match &self.mode {
            MaskMode::Needles(scanner) => StreamCursor(Some(scanner.start())),
            MaskMode::Nothing | MaskMode::Everything { .. } => StreamCursor(None),
        }
    }

    /// Scans the next piece of a stream without line breaks and adds the ranges to mask, relative to the first byte of this
    /// piece. A range that starts in an earlier piece has a negative start.
    pub(crate) fn follow(&self, cursor: StreamCursor, text: &[u8], spans: &mut Spans) -> StreamCursor {
        match (&self.mode, cursor) {
            (MaskMode::Needles(scanner), StreamCursor(position)) => {
                let cursor = position.unwrap_or_else(|| scanner.start());
                StreamCursor(Some(scanner.scan(cursor, text, |span| spans.add(span))))
            }
            (MaskMode::Everything { .. }, _) => {
                if !text.is_empty() {
                    spans.add(0..text.len().cast_signed());
                }
                cursor
            }
            (MaskMode::Nothing, _) => cursor,
        }
    }

    /// Whether a match can span several pieces.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self.mode, MaskMode::Needles(_))
    }

    /// How many bytes before this position may be the start of a secret.
    pub(crate) fn open(&self, cursor: StreamCursor) -> usize {
        match (&self.mode, cursor) {
            (MaskMode::Needles(scanner), StreamCursor(Some(cursor))) => scanner.depth(cursor),
            _ => 0,
        }
    }

    /// Adds the matches of the patterns within a line.
    pub(crate) fn patterns(&self, line: &[u8], spans: &mut Spans) {
        if self.patterns.is_empty() {
            return;
        }
        let mut matched = Vec::new();
        let mut base = 0;
        for chunk in line.utf8_chunks() {
            for pattern in &self.patterns {
                let ranges = pattern.find_iter(chunk.valid()).map(|matched| matched.range());
                matched.extend(
                    ranges
                        .filter(|range| !range.is_empty())
                        .map(|range| (base + range.start).cast_signed()..(base + range.end).cast_signed()),
                );
            }
            base += chunk.valid().len() + chunk.invalid().len();
        }
        spans.add_anywhere(matched);
    }
}

/// The lines of a text, without their line breaks.
fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line))
}

/// Replaces the spans with masks. The spans do not count line breaks.
fn masked_text(text: &str, spans: &[Span]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut spans =
        spans.iter().map(|span| span.start.max(0).cast_unsigned()..span.end.max(0).cast_unsigned());
    let mut span = spans.next();
    let mut base = 0;
    for whole in text.split_inclusive('\n') {
        let line = lines_of(whole).next().unwrap_or_default();
        let mut at = 0;
        while let Some(next) = &span
            && next.start < base + line.len()
        {
            if next.start >= base {
                out.push_str(&line[at..next.start - base]);
                out.push_str(MASK);
            }
            at = (next.end - base).min(line.len());
            if next.end > base + line.len() {
                break;
            }
            span = spans.next();
        }
        out.push_str(&line[at..]);
        out.push_str(&whole[line.len()..]);
        base += line.len();
    }
    out
}
