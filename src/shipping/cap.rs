//! The limit on the disk space of unsent logs (`JobLogStream.MaxUnsentBytes`; by default there is none).
//!
//! At the limit, the oldest unsent lines of the largest step are dropped. One warning replaces them. It is written to
//! `output.log` itself, so that it survives a restart and is sent in order like any other line:
//!
//! ```text
//! before:  … acknowledged | record record record record record | record …
//! after:   … acknowledged | (hole, NUL bytes)          warning | record …
//! ```
//!
//! The warning and the end of the hole are written in one call, starting at the start of a record. The rest of the hole is
//! made after that. So a crash in between may send lines that the warning counts as dropped, but never drops lines that
//! it does not count. If a warning itself is dropped, the next one includes its count.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use jiff::Timestamp;

use crate::step::record_reader::next_data;
use crate::step::records::encode;
use crate::step::{RecordReader, Stream};

const NOTICE: &str = " lines were dropped here, unsent: logs had reached JobLogStream.MaxUnsentBytes";
/// More than a notice with the longest time and count can take.
const NOTICE_BYTES: u64 = 160;

/// The step that must drop lines, and how many bytes, to bring the total below `limit`. It is the largest step. It drops
/// an eighth of the limit more than necessary, so that a flood is not dropped line by line, but stops where the second
/// largest step becomes the largest.
pub(super) fn step_to_trim<Id: Copy>(sizes: &BTreeMap<Id, u64>, limit: u64) -> Option<(Id, u64)> {
    let over = sizes.values().sum::<u64>().checked_sub(limit).filter(|over| *over > 0)?;
    let (largest, size) = sizes.iter().max_by_key(|(_, size)| **size).map(|(id, size)| (*id, *size))?;
    let mut others: Vec<u64> = sizes.values().copied().collect();
    others.sort_unstable();
    let second = others.iter().rev().nth(1).copied().unwrap_or(0);
    let slack = limit / 8;
    Some((largest, (over + slack).min((size - second).max(slack)).max(1)))
}

/// What was dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

/// Drops complete records, starting at `from`, until `bytes` are dropped or none is left. None if they are too short to
/// be replaced by the warning.
pub(super) fn drop_oldest(path: &Path, from: u64, bytes: u64) -> io::Result<Option<Dropped>> {
    let mut tail = RecordReader::new(path, from);
    let (mut lines, mut seen) = (0, 0);
    let mut last_micros = 0;
    // Starts of the last records, the first of which leaves enough room for the notice before `end`.
    let mut starts = VecDeque::new();
    let mut end = from;
    while seen < bytes.max(2 * NOTICE_BYTES) {
        let Some(found) = tail.peek(false)? else { break };
        lines += match dropped_before(found.record.stream, found.record.text) {
            Some(count) => count,
            None => u64::from(!found.record.continues),
        };
        last_micros = found.record.micros;
        seen += found.next - found.at;
        starts.push_back(found.at);
        end = found.next;
        while starts.get(1).is_some_and(|second| end - second >= NOTICE_BYTES) {
            starts.pop_front();
        }
        tail.pass(end);
    }
    let Some(start) = starts.front().copied().filter(|start| end - start >= NOTICE_BYTES) else {
        return Ok(None);
    };

    let mut notice = Vec::with_capacity(256);
    let time = Timestamp::from_microsecond(last_micros).unwrap_or_else(|_| Timestamp::now());
    encode(&mut notice, time, Stream::Warning, format!("{lines}{NOTICE}").as_bytes(), false);
    let length = usize::try_from(end - start).map_err(io::Error::other)?;
    let mut ending = vec![0; length.saturating_sub(notice.len())];
    ending.extend_from_slice(&notice);

    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&ending, start)?;
    punch(&file, from, start)?;
    Ok(Some(Dropped { lines, bytes: seen.saturating_sub(notice.len() as u64) }))
}

/// The count of an earlier notice.
fn dropped_before(stream: Stream, text: &[u8]) -> Option<u64> {
    let count = text.strip_suffix(NOTICE.as_bytes()).filter(|_| stream == Stream::Warning)?;
    std::str::from_utf8(count).ok()?.parse().ok()
}

/// Makes a hole: the bytes read as NUL and use no disk space.
fn punch(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    if to <= from {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, from, to - from) {
        // Some file systems do not support holes.
        Err(rustix::io::Errno::OPNOTSUPP) => blank(file, from, to),
        done => done.map_err(Into::into),
    }
}

/// Overwrites the lines with NUL bytes, so that they are skipped. Their disk space is freed with the step.
fn blank(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = [0; 64 * 1024];
    let mut at = from;
    while at < to {
        let length = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..usize::try_from(length).map_err(io::Error::other)?], at)?;
        at += length;
    }
    Ok(())
}

/// The bytes on disk, starting at `from`, without holes.
pub(super) fn used(path: &Path, from: u64) -> io::Result<u64> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let mut used = 0;
    let mut at = from;
    while at < length {
        let data = next_data(&file, at)?.min(length);
        let hole = next_hole(&file, data, length)?;
        used += hole - data;
        at = hole.max(at + 1);
    }
    Ok(used)
}

fn next_hole(file: &File, offset: u64, length: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset)) {
        Ok(hole) => Ok(hole.min(length).max(offset)),
        Err(rustix::io::Errno::NXIO | rustix::io::Errno::INVAL) => Ok(length),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_step_drops_lines_until_it_is_no_longer_the_largest() {
        let sizes = |sizes: &[u64]| sizes.iter().copied().enumerate().collect::<BTreeMap<_, _>>();
        assert_eq!(step_to_trim(&sizes(&[500, 300]), 800), None);
        assert_eq!(step_to_trim(&sizes(&[300, 501]), 800), Some((1, 101)));
        assert_eq!(step_to_trim(&sizes(&[9000, 4000]), 800), Some((0, 5000)));
        assert_eq!(step_to_trim(&sizes(&[4000, 4000]), 800), Some((1, 100)));
        assert_eq!(step_to_trim(&sizes(&[]), 0), None);
        assert_eq!(step_to_trim(&sizes(&[1]), 0), Some((0, 1)));
    }

    #[test]
    fn too_few_lines_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("output.log");
        std::fs::write(&path, "1 o a\n2 o b\n").unwrap();
        assert_eq!(drop_oldest(&path, 0, 1000).unwrap(), None);
        assert_eq!(std::fs::read(&path).unwrap(), b"1 o a\n2 o b\n");
    }

    #[test]
    fn a_hole_is_not_counted_as_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("output.log");
        assert_eq!(used(&path, 0).unwrap(), 0);
        std::fs::write(&path, "1 o some line or other\n".repeat(50_000)).unwrap();
        let whole = used(&path, 0).unwrap();
        assert_eq!(whole, 50_000 * 23);
        let dropped = drop_oldest(&path, 23, 800_000).unwrap().unwrap();
        assert!(dropped.bytes >= 799_000);
        let mut tail = RecordReader::new(&path, 0);
        let mut texts = Vec::new();
        while let Some(found) = tail.peek(false).unwrap() {
            texts.push(String::from_utf8(found.record.text.to_vec()).unwrap());
            let next = found.next;
            tail.pass(next);
        }
        assert_eq!(texts[0], "some line or other");
        assert_eq!(texts[1], format!("{}{NOTICE}", dropped.lines));
        assert_eq!(texts.len() as u64, 2 + 50_000 - 1 - dropped.lines);
        // On a file system without holes, the lines are blank but still use disk space.
        let left = used(&path, 0).unwrap();
        assert!(left == whole || left < whole - 790_000, "{left} of {whole}");
    }
}
