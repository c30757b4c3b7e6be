//! Finds needles in texts that come in pieces.
//!
//! All occurrences count, also those that overlap: what is found at a place depends on the
//! [`LONGEST_NEEDLE`](super::encodings::LONGEST_NEEDLE) bytes around it only, so a reader may begin anywhere a little
//! before. An automaton per byte would cost more than all the rest of shipping, so a filter looks at four bytes of the
//! text here and there first: each needle has, in its first bytes, a group of four at one of the places looked at.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchKind};
use thiserror::Error;

/// Bytes that the filter looks at together.
const GROUP: usize = 4;
/// The filter knows no more than this of the beginning of a needle. More would make its steps longer, and each needle
/// would fill more of it.
const LONGEST_HEAD: usize = 8;

#[derive(Debug, Error)]
pub(super) enum ScannerError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Search(#[from] aho_corasick::MatchError),
}

/// Where a text that goes on has got to. It means something only to the scanner that it is from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(StateID);

/// A part of a text, from the first byte of the piece that was scanned last; it may have begun before that.
pub(super) type Span = Range<isize>;

pub(super) struct Scanner {
    automaton: NFA,
    start: StateID,
    /// By state: how many of the last bytes are the beginning of a needle.
    depths: Vec<u16>,
    filter: Option<Filter>,
}

impl std::fmt::Debug for Scanner {
    /// Without the needles.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").finish_non_exhaustive()
    }
}

impl Scanner {
    pub(super) fn new(needles: &BTreeSet<String>) -> Result<Self, ScannerError> {
        let automaton = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(needles)?;
        let start = automaton.start_state(Anchored::No)?;
        let mut depths = Vec::new();
        for needle in needles {
            let mut state = start;
            for (place, byte) in needle.bytes().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                if depths.len() <= state.as_usize() {
                    depths.resize(state.as_usize() + 1, 0);
                }
                depths[state.as_usize()] = u16::try_from(place + 1).unwrap_or(u16::MAX);
            }
        }
        Ok(Self { automaton, start, depths, filter: Filter::new(needles) })
    }

    pub(super) fn start(&self) -> Cursor {
        Cursor(self.start)
    }

    /// How many of the last bytes may be the beginning of a needle.
    pub(super) fn depth(&self, cursor: Cursor) -> usize {
        self.depths.get(cursor.0.as_usize()).copied().map_or(0, usize::from)
    }

    /// Goes on over the next piece of a text and tells of every needle that ends in it.
    pub(super) fn scan(&self, cursor: Cursor, text: &[u8], mut found: impl FnMut(Span)) -> Cursor {
        let mut state = cursor.0;
        let mut at = 0;
        // The filter has nothing more to say about what is before this.
        let mut filtered = 0;
        while at < text.len() {
            let depth = self.depth(Cursor(state));
            if depth < GROUP
                && let Some(filter) = &self.filter
                && let Some(from) = at.checked_sub(depth).filter(|from| *from >= filtered)
            {
                // No needle that began before `from` goes on: its beginning would be deeper.
                state = self.start;
                (at, filtered) = match filter.find(text, from) {
                    Some(hit) => (hit.saturating_sub(filter.step - 1).max(from), hit + 1),
                    // The last bytes are too few for the filter.
                    None => (text.len().saturating_sub(GROUP - 1).max(from), text.len()),
                };
                continue;
            }
            state = self.automaton.next_state(Anchored::No, state, text[at]);
            at += 1;
            if self.automaton.is_match(state) {
                let lengths = (0..self.automaton.match_len(state))
                    .map(|index| self.automaton.pattern_len(self.automaton.match_pattern(state, index)));
                let end = at.cast_signed();
                found(end - lengths.max().unwrap_or(0).cast_signed()..end);
            }
        }
        Cursor(state)
    }
}

/// Knows the groups of four bytes in the beginnings of all needles, more or less: it may say yes when there is no
/// needle, never no when there is one.
struct Filter {
    /// A bit for each group that may be there.
    bits: Vec<u64>,
    shift: u32,
    /// A needle has one of its groups at one of so many places in a row, so it is enough to look at every `step`th.
    step: usize,
}

impl Filter {
    /// None when a needle is too short to have a group.
    fn new(needles: &BTreeSet<String>) -> Option<Self> {
        let head = needles.iter().map(String::len).min()?.min(LONGEST_HEAD);
        let step = (head + 1).checked_sub(GROUP).filter(|step| *step > 0)?;
        // One bit in a hundred or so is set, so that few texts look like one with a needle by chance.
        let size = (needles.len() * step * 128).next_power_of_two().clamp(1 << 12, 1 << 22);
        let mut filter = Self { bits: vec![0; size / 64], shift: 32 - size.trailing_zeros(), step };
        for needle in needles {
            for group in needle.as_bytes()[..head].windows(GROUP) {
                if let Some(group) = group.first_chunk() {
                    let (word, bit) = filter.place(*group);
                    filter.bits[word] |= bit;
                }
            }
        }
        Some(filter)
    }

    fn place(&self, group: [u8; GROUP]) -> (usize, u64) {
        let hash = u32::from_le_bytes(group).wrapping_mul(0x9E37_79B1) >> self.shift;
        ((hash / 64) as usize, 1 << (hash % 64))
    }

    fn knows(&self, text: &[u8], at: usize) -> bool {
        let Some(group) = text.get(at..).and_then(<[u8]>::first_chunk) else { return false };
        let (word, bit) = self.place(*group);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// The first place, of those that are looked at, where a needle may have one of its groups.
    fn find(&self, text: &[u8], from: usize) -> Option<usize> {
        let last = text.len().checked_sub(GROUP).filter(|last| *last >= from)?;
        (from..last).step_by(self.step).chain([last]).find(|at| self.knows(text, *at))
    }
}
