//! Finds needles in a stream of text.
//!
//! All occurrences count, including overlapping ones: a match depends only on the
//! [`MAX_NEEDLE_BYTES`](super::encodings::MAX_NEEDLE_BYTES) bytes around it, so a reader can start anywhere a little before it.
//! Running the automaton on every byte would cost more than the rest of shipping, so a filter first samples groups of four
//! bytes: the start of each needle contains a group that is sampled.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchKind};
use thiserror::Error;

/// How many bytes the filter samples together.
const GROUP: usize = 4;
/// How many bytes of a needle the filter uses. More bytes would allow longer steps, but each needle would set more bits.
const MAX_HEAD_BYTES: usize = 8;

#[derive(Debug, Error)]
pub(super) enum ScannerError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Search(#[from] aho_corasick::MatchError),
}

/// The position in a stream. Valid only for the scanner that created it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(StateID);

/// A range relative to the first byte of the last piece; it may start before that piece.
pub(super) type Span = Range<isize>;

pub(super) struct Scanner {
    automaton: NFA,
    start: StateID,
    /// By state: how many of the last bytes are the start of a needle.
    depths: Vec<u16>,
    filter: Option<Filter>,
}

impl std::fmt::Debug for Scanner {
    /// Omits the needles, which are secret.
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
            for (index, byte) in needle.bytes().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                if depths.len() <= state.as_usize() {
                    depths.resize(state.as_usize() + 1, 0);
                }
                depths[state.as_usize()] = u16::try_from(index + 1).unwrap_or(u16::MAX);
            }
        }
        Ok(Self { automaton, start, depths, filter: Filter::new(needles) })
    }

    pub(super) fn start(&self) -> Cursor {
        Cursor(self.start)
    }

    /// How many of the last bytes may be the start of a needle.
    pub(super) fn depth(&self, cursor: Cursor) -> usize {
        self.depths.get(cursor.0.as_usize()).copied().map_or(0, usize::from)
    }

    /// Scans the next piece of a stream and reports every needle that ends in it.
    pub(super) fn scan(&self, cursor: Cursor, text: &[u8], mut report: impl FnMut(Span)) -> Cursor {
        let mut state = cursor.0;
        let mut at = 0;
        // The filter has checked everything before this.
        let mut filtered = 0;
        while at < text.len() {
            let depth = self.depth(Cursor(state));
            if depth < GROUP
                && let Some(filter) = &self.filter
                && let Some(from) = at.checked_sub(depth).filter(|from| *from >= filtered)
            {
                // No needle that started before `from` can match: its depth would be greater.
                state = self.start;
                (at, filtered) = match filter.find(text, from) {
                    Some(hit) => (hit.saturating_sub(filter.step - 1).max(from), hit + 1),
                    // Too few bytes are left for the filter.
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
                report(end - lengths.max().unwrap_or(0).cast_signed()..end);
            }
        }
        Cursor(state)
    }
}

/// A Bloom filter of the groups of bytes at the start of all needles. It has false positives, but no false negatives.
struct Filter {
    bits: Vec<u64>,
    shift: u32,
    /// Every needle has this many consecutive groups, so it is enough to sample every `step`th position.
    step: usize,
}

impl Filter {
    /// None if a needle is shorter than a group.
    fn new(needles: &BTreeSet<String>) -> Option<Self> {
        let head = needles.iter().map(String::len).min()?.min(MAX_HEAD_BYTES);
        let step = (head + 1).checked_sub(GROUP).filter(|step| *step > 0)?;
        // About one bit in a hundred is set, so that false positives are rare.
        let size = (needles.len() * step * 128).next_power_of_two().clamp(1 << 12, 1 << 22);
        let mut filter = Self { bits: vec![0; size / 64], shift: 32 - size.trailing_zeros(), step };
        for needle in needles {
            for group in needle.as_bytes()[..head].windows(GROUP) {
                if let Some(group) = group.first_chunk() {
                    let (word, bit) = filter.bit(*group);
                    filter.bits[word] |= bit;
                }
            }
        }
        Some(filter)
    }

    fn bit(&self, group: [u8; GROUP]) -> (usize, u64) {
        let hash = u32::from_le_bytes(group).wrapping_mul(0x9E37_79B1) >> self.shift;
        ((hash / 64) as usize, 1 << (hash % 64))
    }

    fn may_match(&self, text: &[u8], at: usize) -> bool {
        let Some(group) = text.get(at..).and_then(<[u8]>::first_chunk) else { return false };
        let (word, bit) = self.bit(*group);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// The first sampled position that may be in a needle.
    fn find(&self, text: &[u8], from: usize) -> Option<usize> {
        let last = text.len().checked_sub(GROUP).filter(|last| *last >= from)?;
        (from..last).step_by(self.step).chain([last]).find(|at| self.may_match(text, *at))
    }
}
