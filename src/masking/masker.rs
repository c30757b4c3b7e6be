//! The compiled form of a set of secrets.
//!
//! A text is looked at without its line breaks: what is folded, wrapped or of several lines is found all the same. Each
//! masked part becomes one [`MASK`], where it begins; line breaks stay where they are.

use std::borrow::Cow;

use super::Rules;
use super::encodings::{Effort, Forms};
use super::scanner::{Cursor, Scanner, Span};

/// Stands for a secret, whatever its length.
pub const MASK: &str = "***";

/// All needles of a job together. An automaton takes about twenty times as much, and twice that while it is built; and there
/// is one for each job and one for all together.
const MOST_NEEDLE_BYTES: usize = 512 * 1024;

/// Masks a set of secrets in texts.
#[derive(Debug)]
pub struct Masker {
    sight: Sight,
    patterns: Vec<regex::Regex>,
    minimum_length: usize,
    /// Not every form is looked for that there was room for usually.
    lessened: bool,
}

#[derive(Debug)]
enum Sight {
    /// There is nothing to look for.
    Nothing,
    Needles(Box<Scanner>),
    /// What to look for is not known, or is too much: all text is masked.
    Everything {
        reason: String,
    },
}

/// Where a text that comes in pieces has got to. It means something only to the masker that it is from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamCursor(Option<Cursor>);

/// Parts of a text that are to be masked, in order; none overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn as_slice(&self) -> &[Span] {
        &self.0
    }

    /// Adds a part that ends behind all others. Where parts overlap they become one.
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
        let fitting = Effort::DOWN.into_iter().find_map(|effort| {
            let mut forms = Forms::new(rules.minimum_length, effort);
            for secret in &secrets {
                // Not even begun with one that cannot fit.
                if forms.bytes().saturating_add(secret.len()) > MOST_NEEDLE_BYTES {
                    return None;
                }
                forms.add(secret);
            }
            (forms.bytes() <= MOST_NEEDLE_BYTES).then_some((effort, forms))
        });
        let lessened = fitting.as_ref().is_some_and(|(effort, _)| *effort != Effort::All);
        let sight = match fitting {
            None => {
                Sight::Everything { reason: format!("they have more than {} KiB", MOST_NEEDLE_BYTES / 1024) }
            }
            Some((_, forms)) if forms.needles().is_empty() => Sight::Nothing,
            Some((_, forms)) => match Scanner::new(forms.needles()) {
                Ok(scanner) => Sight::Needles(Box::new(scanner)),
                Err(error) => Sight::Everything { reason: error.to_string() },
            },
        };
        Self { sight, patterns: rules.patterns.clone(), minimum_length: rules.minimum_length, lessened }
    }

    /// Masks all text: for when it is not known what is secret.
    pub fn of_everything(reason: &str) -> Self {
        let sight = Sight::Everything { reason: reason.to_owned() };
        Self { sight, patterns: Vec::new(), minimum_length: 0, lessened: false }
    }

    /// Why all text is masked, if it is.
    pub fn masks_everything(&self) -> Option<&str> {
        match &self.sight {
            Sight::Everything { reason } => Some(reason),
            Sight::Nothing | Sight::Needles(_) => None,
        }
    }

    /// Whether there are so many secrets that not all of their forms are looked for.
    pub fn is_lessened(&self) -> bool {
        self.lessened
    }

    /// The text without the secrets in it.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut spans = Spans::default();
        let mut place = self.start();
        let mut base = 0;
        let mut masked = Vec::new();
        let mut lines = Spans::default();
        for line in lines_of(text) {
            lines.clear();
            place = self.follow(place, line.as_bytes(), &mut lines);
            self.patterns(line.as_bytes(), &mut lines);
            masked.extend(lines.as_slice().iter().map(|span| span.start + base..span.end + base));
            base += line.len().cast_signed();
        }
        if masked.is_empty() {
            return Cow::Borrowed(text);
        }
        spans.add_anywhere(masked);
        Cow::Owned(without(text, spans.as_slice()))
    }

    /// The shortest part of a secret that is worth masking.
    pub(crate) fn minimum_length(&self) -> usize {
        self.minimum_length
    }

    pub(crate) fn start(&self) -> StreamCursor {
        match &self.sight {
            Sight::Needles(scanner) => StreamCursor(Some(scanner.start())),
            Sight::Nothing | Sight::Everything { .. } => StreamCursor(None),
        }
    }

    /// Goes on over the next piece of a text that has no line breaks, and adds what is to be masked, from the first
    /// byte of this piece. What begins in an earlier piece has a negative start.
    pub(crate) fn follow(&self, place: StreamCursor, text: &[u8], spans: &mut Spans) -> StreamCursor {
        match (&self.sight, place) {
            (Sight::Needles(scanner), StreamCursor(cursor)) => {
                let cursor = cursor.unwrap_or_else(|| scanner.start());
                StreamCursor(Some(scanner.scan(cursor, text, |span| spans.add(span))))
            }
            (Sight::Everything { .. }, _) => {
                if !text.is_empty() {
                    spans.add(0..text.len().cast_signed());
                }
                place
            }
            (Sight::Nothing, _) => place,
        }
    }

    /// Whether what is masked in a piece may depend on the pieces before it.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self.sight, Sight::Needles(_))
    }

    /// How many bytes before this place may be the beginning of a secret.
    pub(crate) fn open(&self, place: StreamCursor) -> usize {
        match (&self.sight, place) {
            (Sight::Needles(scanner), StreamCursor(Some(cursor))) => scanner.depth(cursor),
            _ => 0,
        }
    }

    /// Adds what the patterns match within a line.
    pub(crate) fn patterns(&self, line: &[u8], spans: &mut Spans) {
        if self.patterns.is_empty() {
            return;
        }
        let mut matched = Vec::new();
        let mut base = 0;
        for chunk in line.utf8_chunks() {
            for pattern in &self.patterns {
                let found = pattern.find_iter(chunk.valid()).map(|found| found.range());
                matched.extend(
                    found
                        .filter(|range| !range.is_empty())
                        .map(|range| (base + range.start).cast_signed()..(base + range.end).cast_signed()),
                );
            }
            base += chunk.valid().len() + chunk.invalid().len();
        }
        spans.add_anywhere(matched);
    }
}

/// The lines of a text, without their end marks.
fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line))
}

/// The text with masks in place of the spans, which count its bytes without the line breaks.
fn without(text: &str, spans: &[Span]) -> String {
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
