//! A character of which one record has the beginning and the next one the rest: its first bytes are carried over.

use crate::step::{RecordRef, Stream};

/// The first bytes of characters whose rest stands in the next record of the same stream: at most three bytes
/// per stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Utf8Carry {
    streams: [PartialChar; 5],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PartialChar {
    bytes: [u8; 3],
    length: u8,
}

impl Utf8Carry {
    pub(super) fn held(&self, stream: Stream) -> &[u8] {
        let held = &self.streams[stream as usize];
        &held.bytes[..usize::from(held.length)]
    }

    pub(super) fn set(&mut self, stream: Stream, bytes: &[u8]) {
        let held = &mut self.streams[stream as usize];
        held.length = 0;
        for (place, byte) in held.bytes.iter_mut().zip(bytes) {
            *place = *byte;
            held.length += 1;
        }
    }

    /// Follows a record that goes by unsent: what it leaves behind for the next one of its stream.
    pub(super) fn follow(&mut self, record: &RecordRef<'_>) {
        let joined = [self.held(record.stream), record.text].concat();
        let tail = if record.continues { unfinished(&joined) } else { 0 };
        self.set(record.stream, &joined[joined.len() - tail..]);
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let carry = *self;
        [Stream::Stdout, Stream::Stderr, Stream::Information, Stream::Warning, Stream::Error]
            .into_iter()
            .filter(move |stream| !carry.held(*stream).is_empty())
    }
}

/// How many bytes at the end are the start of a character that is not complete.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|length| {
            std::str::from_utf8(&bytes[bytes.len() - length..])
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unfinished_finds_exactly_the_cut_character(text in "\\PC{1,20}", cut in 0_usize..80) {
            let bytes = &text.as_bytes()[..cut.min(text.len())];
            let boundary = text.floor_char_boundary(bytes.len());
            prop_assert_eq!(unfinished(bytes), bytes.len() - boundary);
        }
    }
}
