use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::step::RecordReader;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    micros: i64,
    stream: Stream,
    text: Vec<u8>,
    continues: bool,
}

fn next(reader: &mut RecordReader) -> Option<Record> {
    let found = reader.peek(false).unwrap()?;
    let RecordRef { micros, stream, text, continues } = found.record;
    let (record, next) = (Record { micros, stream, text: text.to_vec(), continues }, found.next);
    reader.pass(next);
    Some(record)
}

fn all(path: &Path) -> Vec<Record> {
    let mut reader = RecordReader::new(path, 0);
    std::iter::from_fn(|| next(&mut reader)).collect()
}

fn texts(path: &Path) -> Vec<String> {
    all(path).into_iter().map(|record| String::from_utf8(record.text).unwrap()).collect()
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output.log");
    (folder, path)
}

#[test]
fn a_partial_record_is_not_read_until_the_next_writer_terminates_it() {
    let (_folder, path) = file();
    std::fs::write(&path, "1000000 o whole\n1000001 e torn by a cra").unwrap();
    assert_eq!(texts(&path), ["whole"]);

    let mut reader = RecordReader::new(&path, 0);
    next(&mut reader).unwrap();
    assert_eq!(next(&mut reader), None);
    RecordWriter::open(&path).unwrap().say(Stream::Information, "after").unwrap();

    let torn = next(&mut reader).unwrap();
    assert_eq!((torn.stream, torn.text.as_slice()), (Stream::Stderr, b"torn by a cra".as_slice()));
    assert_eq!(next(&mut reader).unwrap().text, b"after");
    assert_eq!(next(&mut reader), None);
}

#[test]
fn other_lines_are_text_and_empty_lines_are_skipped() {
    let (_folder, path) = file();
    std::fs::write(&path, "\n\nhello there\n1000000 q x\n\n1000000 o \n99999999999999999999 o x\n\n")
        .unwrap();
    let records = all(&path);
    assert_eq!(texts(&path), ["hello there", "1000000 q x", "", "99999999999999999999 o x"]);
    assert!(records.iter().all(|record| record.stream == Stream::Stdout && !record.continues));
}

#[test]
fn a_damaged_file_without_newlines_is_read_in_bounded_pieces() {
    let (_folder, path) = file();
    let bytes = [vec![b'x'; 9 * MAX_TEXT + 5], b"\n1000000 o fine\n".to_vec()].concat();
    std::fs::write(&path, &bytes).unwrap();
    let records = all(&path);
    assert!(records.iter().all(|record| record.text.len() <= 4 * MAX_TEXT));
    let (last, damaged) = records.split_last().unwrap();
    assert_eq!(last.text, b"fine");
    assert_eq!(damaged.iter().map(|record| record.text.len()).sum::<usize>(), 9 * MAX_TEXT + 5);
}

#[test]
fn two_concurrent_writers_keep_all_records_intact() {
    let (_folder, path) = file();
    let write = |stream, count: usize| {
        let path = path.clone();
        move || {
            for number in 0..count {
                let text = format!("{number} {}", "x".repeat(number % 9000));
                RecordWriter::open(&path).unwrap().say(stream, &text).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(write(Stream::Stdout, 2000));
        scope.spawn(write(Stream::Information, 2000));
    });
    let records = all(&path);
    for stream in [Stream::Stdout, Stream::Information] {
        let numbers = records.iter().filter(|record| record.stream == stream).map(|record| {
            let text = std::str::from_utf8(&record.text).unwrap();
            let (number, rest) = text.split_once(' ').unwrap();
            let number: usize = number.parse().unwrap();
            assert_eq!(rest.len(), number % 9000);
            number
        });
        assert!(numbers.eq(0..2000));
    }
    assert_eq!(records.len(), 4000);
}

#[test]
fn positions_round_trip_and_invalid_ones_are_refused() {
    let position = Position { record: u64::MAX, within: 17 };
    assert_eq!(position.to_string().parse(), Ok(position));
    assert_eq!(position.to_string().len(), Position::default().to_string().len());
    assert!("".parse::<Position>().is_err());
    assert!("12 x".parse::<Position>().is_err());
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![
        Just(Stream::Stdout),
        Just(Stream::Stderr),
        Just(Stream::Information),
        Just(Stream::Warning),
        Just(Stream::Error)
    ]
}

/// Anything but a newline, sometimes as long as a record can be.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let byte = || any::<u8>().prop_map(|byte| if byte == b'\n' { 0 } else { byte });
    prop_oneof![
        9 => vec(byte(), 0..80),
        1 => (byte(), MAX_TEXT - 2..=MAX_TEXT).prop_map(|(byte, length)| vec![byte; length])
    ]
}

fn record() -> impl Strategy<Value = Record> {
    (stream(), text(), any::<bool>(), -1_000_000_000_000_000..4_000_000_000_000_000_i64)
        .prop_map(|(stream, text, continues, micros)| Record { micros, stream, text, continues })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_round_trip(
        batches in vec(vec(record(), 1..6), 0..6),
        restart in vec(any::<bool>(), 6),
    ) {
        let (_folder, path) = file();
        let mut writer = RecordWriter::open(&path).unwrap();
        let mut reader = RecordReader::new(&path, 0);
        let mut end = 0;
        for (batch, restart) in batches.iter().zip(restart) {
            let mut buffer = Vec::new();
            for record in batch {
                let time = Timestamp::from_microsecond(record.micros).unwrap();
                encode(&mut buffer, time, record.stream, &record.text, record.continues);
            }
            writer.append(&buffer).unwrap();
            end += buffer.len() as u64;
            for record in batch {
                prop_assert_eq!(next(&mut reader), Some(record.clone()));
            }
            prop_assert_eq!(next(&mut reader), None);
            if restart {
                writer = RecordWriter::open(&path).unwrap();
                reader = RecordReader::new(&path, end);
            }
        }
    }

    #[test]
    fn the_pieces_of_a_line_add_up_to_the_line(line in vec(text(), 0..4)) {
        let line = line.concat();
        let parts: Vec<_> = pieces(&line).collect();
        prop_assert_eq!(parts.iter().map(|(text, _)| *text).collect::<Vec<_>>().concat(), line.clone());
        prop_assert!(parts.iter().all(|(text, _)| text.len() <= MAX_TEXT));
        let (last, before) = parts.split_last().unwrap();
        prop_assert!(!last.1 && before.iter().all(|(_, continues)| *continues));
    }
}
