//! Text with secrets, cut into records in any way, and read as a step stream reads it.

use std::collections::BTreeMap;

use hawser_contract::{Metadata, Task};
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

use super::*;
use crate::masking::{MASK, Rules, SecretStore};
use crate::settings::model::JobLogStreamSettings;
use crate::shipping::Labels;
use crate::shipping::batch::BatchLimits;
use crate::shipping::reader::{LogReader, Offer};
use crate::step::records::{MAX_TEXT, encode, pieces};
use crate::step::{Position, RecordWriter};

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

#[derive(Debug, Clone)]
struct Piece {
    stream: Stream,
    text: String,
    continues: bool,
}

/// A step's log on a real file, and what the server would have of it.
struct Bed {
    _directory: tempfile::TempDir,
    path: PathBuf,
    settings: JobLogStreamSettings,
    limit: usize,
    secrets: JobSecrets,
    now: Instant,
    log: Option<LogReader>,
    /// The place behind the last batch.
    end: Position,
    batches: usize,
    /// Lines by stream, the last of which may go on.
    lines: BTreeMap<usize, Vec<String>>,
    goes_on: BTreeMap<usize, bool>,
}

impl Bed {
    fn new(secrets: &[String], settings: JobLogStreamSettings, limit: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let secret_store = SecretStore::new(Rules::new(&settings).unwrap());
        let job = secret_store.job(Some(Uuid::nil()));
        job.learn(secrets.iter().map(String::as_str));
        Self {
            path: directory.path().join("output.log"),
            _directory: directory,
            settings,
            limit,
            secrets: job,
            now: Instant::now(),
            log: None,
            end: Position::default(),
            batches: 0,
            lines: BTreeMap::new(),
            goes_on: BTreeMap::new(),
        }
    }

    fn write(&self, records: &[Piece]) {
        let mut bytes = Vec::new();
        for record in records {
            encode(&mut bytes, Timestamp::now(), record.stream, record.text.as_bytes(), record.continues);
        }
        RecordWriter::open(&self.path).unwrap().append(&bytes).unwrap();
    }

    /// A restarted runner knows only the acknowledged position.
    fn restart(&mut self) {
        self.log = None;
    }

    /// The connection was cut: everything after the acknowledged position is sent again.
    fn go_back(&mut self) {
        if let Some(log) = &mut self.log {
            log.go_to(self.end);
        }
    }

    /// One batch, if there is one; false at the end of what can be sent now.
    fn ship(&mut self, ended: bool) -> bool {
        let limits = BatchLimits::new(&self.settings, self.limit);
        let labels = Labels {
            job_id: Uuid::nil(),
            task: Task::Plan,
            module: Metadata {
                module_id: Uuid::nil(),
                stack_name: String::new(),
                namespace_name: String::new(),
                module_name: String::new(),
                source_subdirectory: None,
            },
        };
        let open = || LogReader::open(&self.path, &labels, self.end, self.secrets.clone(), limits);
        let log = self.log.get_or_insert_with(open);
        // Every batch is sent at once.
        log.last_batch = None;
        let Offer::Batch { arguments, end } = log.offer(ended, self.now).unwrap() else { return false };
        assert!(arguments.len() <= self.limit);
        self.end = end;
        self.batches += 1;
        let arguments: Value = serde_json::from_str(&arguments).unwrap();
        for entry in arguments[0].as_array().unwrap() {
            let stream = usize::from(entry["tags"]["stream"] == "stderr");
            let text = entry["message"].as_str().unwrap();
            let lines = self.lines.entry(stream).or_default();
            match lines.last_mut() {
                Some(last) if self.goes_on.get(&stream) == Some(&true) => last.push_str(text),
                _ => lines.push(text.to_owned()),
            }
            self.goes_on.insert(stream, entry["tags"]["continues"] == "true");
        }
        true
    }

    fn ship_all(&mut self, ended: bool) {
        while self.ship(ended) {}
    }

    fn lines(&self, stream: Stream) -> Vec<String> {
        self.lines.get(&(stream as usize)).cloned().unwrap_or_default()
    }

    fn text(&self, stream: Stream) -> String {
        self.lines(stream).concat()
    }
}

/// The lines of a stream by definition: every occurrence of every secret in the text without line breaks is masked; but
/// the few bytes at the end of a line that nobody waits for are not.
fn model(secrets: &[String], records: &[Piece], stream: Stream, minimum: usize) -> Vec<String> {
    let records: Vec<&Piece> = records.iter().filter(|record| record.stream == stream).collect();
    let text: String = records.iter().map(|record| record.text.as_str()).collect();
    let open = |end: usize| {
        let is_beginning = |from: &usize| secrets.iter().any(|secret| secret.starts_with(&text[*from..end]));
        (0..end).find(is_beginning).map_or(0, |from| end - from)
    };
    let mut found: Vec<Range<usize>> = Vec::new();
    for secret in secrets {
        let at = (0..text.len()).filter(|at| text[*at..].starts_with(secret.as_str()));
        found.extend(at.map(|at| at..at + secret.len()));
    }
    // The beginning of a secret at the very end is masked if it is long enough.
    let last = open(text.len());
    if last >= minimum {
        found.push(text.len() - last..text.len());
    }
    found.sort_by_key(|range| range.start);

    let mut lines: Vec<String> = Vec::new();
    let (mut at, mut goes_on, mut masked_before) = (0, false, false);
    for record in records {
        let end = at + record.text.len();
        let waits = open(end) >= if record.continues { 1 } else { SHORTEST_OPEN };
        let mut spans: Vec<Range<usize>> = Vec::new();
        for range in found.iter().filter(|range| at < end && range.start < end && range.end > at) {
            if range.end > end && !waits {
                continue;
            }
            match spans.last_mut() {
                Some(last) if last.end > range.start => last.end = last.end.max(range.end),
                _ => spans.push(range.clone()),
            }
        }
        let mut out = String::new();
        let mut done = at;
        for span in &spans {
            out.push_str(&text[done..span.start.max(done)]);
            if span.start >= at || !masked_before {
                out.push_str(MASK);
            }
            done = span.end.min(end);
        }
        out.push_str(&text[done..end]);
        if !record.text.is_empty() {
            masked_before = spans.last().is_some_and(|span| span.end >= end);
        }
        match lines.last_mut() {
            Some(last) if goes_on => last.push_str(&out),
            _ => lines.push(out),
        }
        (at, goes_on) = (end, record.continues);
    }
    lines
}

/// Cuts the text of each stream into records and shuffles the streams together, each in its order.
fn cut(texts: &[String; 2], lengths: &[(usize, bool)], turns: &[bool]) -> Vec<Piece> {
    let mut lengths = lengths.iter().cycle();
    let mut queues = STREAMS.map(|stream| {
        let mut rest = texts[stream as usize].as_str();
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (length, continues) = lengths.next().copied().unwrap_or((1, false));
            let (text, behind) = rest.split_at(length.min(rest.len()));
            records.push(Piece { stream, text: text.to_owned(), continues });
            rest = behind;
        }
        records.into_iter()
    });
    let mut turns = turns.iter().cycle();
    let mut records = Vec::new();
    while queues.iter().any(|queue| queue.len() > 0) {
        let turn = usize::from(turns.next().copied().unwrap_or_default());
        let next = queues[turn].next();
        records.extend(next.or_else(|| queues[1 - turn].next()));
    }
    records
}

/// Fillers and secrets, one after the other.
fn texts(filler: &'static str) -> impl Strategy<Value = Vec<(String, prop::sample::Index, bool)>> {
    vec((filler, any::<prop::sample::Index>(), any::<bool>()), 1..8)
}

fn compose(parts: &[(String, prop::sample::Index, bool)], secrets: &[String]) -> String {
    parts
        .iter()
        .map(|(filler, which, with)| filler.clone() + if *with { which.get(secrets).as_str() } else { "" })
        .collect()
}

fn settings(batch: u32) -> JobLogStreamSettings {
    JobLogStreamSettings { batch_size_limit: batch, ..Default::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exactly_the_secrets_are_masked_with_any_split_and_any_restart(
        secrets in vec("[ab]{6,9}|[abc]{8,20}", 1..4),
        out in texts("[abc]{0,12}"),
        err in texts("[abc]{0,12}"),
        lengths in vec((0_usize..14, prop::bool::weighted(0.3)), 1..20)
            .prop_filter("records with text", |lengths| lengths.iter().any(|(length, _)| *length > 0)),
        turns in vec(any::<bool>(), 1..20),
        writes in vec(0_usize..5, 1..10).prop_filter("something", |writes| writes.iter().any(|write| *write > 0)),
        interruptions in vec(0_u8..4, 1..10),
        batch in 1_u32..6,
    ) {
        let records = cut(&[compose(&out, &secrets), compose(&err, &secrets)], &lengths, &turns);
        let mut bed = Bed::new(&secrets, settings(batch), 32 * 1024);
        let mut rest = records.as_slice();
        let mut interruptions = interruptions.iter().cycle();
        let mut interrupt = |bed: &mut Bed| match interruptions.next() {
            Some(1) => bed.restart(),
            Some(2) => bed.go_back(),
            _ => {}
        };
        for write in writes.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*write));
            bed.write(now);
            rest = later;
            while bed.ship(false) {
                interrupt(&mut bed);
            }
            if rest.is_empty() {
                break;
            }
        }
        while bed.ship(true) {
            interrupt(&mut bed);
        }
        for stream in STREAMS {
            prop_assert_eq!(bed.lines(stream), model(&secrets, &records, stream, 6), "{:?}", records);
        }
    }

    #[test]
    fn after_the_wait_times_out_no_maskable_part_of_a_secret_is_sent(
        secrets in vec("[A-Z]{6,24}", 1..4),
        out in texts("[a-z]{0,12}"),
        err in texts("[a-z]{1,12}"),
        lengths in vec((1_usize..30, prop::bool::weighted(0.3)), 1..20),
        turns in vec(any::<bool>(), 1..20),
        interruptions in vec(0_u8..5, 1..10),
        batch in 1_u32..6,
    ) {
        let texts = [compose(&out, &secrets), compose(&err, &secrets)];
        let records = cut(&texts, &lengths, &turns);
        let mut bed = Bed::new(&secrets, settings(batch), 32 * 1024);
        for (record, interruption) in records.iter().zip(interruptions.iter().cycle()) {
            bed.write(std::slice::from_ref(record));
            match interruption {
                // Nothing waits any longer.
                1 => bed.now += Duration::from_secs(5),
                2 => bed.restart(),
                3 => bed.go_back(),
                _ => {}
            }
            bed.ship_all(false);
            bed.now += Duration::from_millis(100);
        }
        bed.ship_all(true);
        for stream in STREAMS {
            let text = bed.text(stream);
            let harmless = |text: &str| text.replace(|other: char| !other.is_ascii_lowercase(), "");
            prop_assert_eq!(harmless(&text), harmless(&texts[stream as usize]));
            let longest = text.split(|other: char| !other.is_ascii_uppercase()).map(str::len).max();
            prop_assert!(longest < Some(6), "{} of {:?}", text, records);
        }
    }
}

#[test]
fn a_megabyte_line_is_masked_only_where_a_secret_spans_records() {
    let secrets = ["correct-horse-battery".to_owned(), "x".repeat(3000)];
    let mut line = String::new();
    let mut expected = String::new();
    while line.len() < 1 << 20 {
        // A secret lies over each end of a record, and many lie anywhere.
        let room = MAX_TEXT - line.len() % MAX_TEXT;
        let filler = format!("{} \"é\" \u{1b}[1m", line.len());
        let secret = &secrets[usize::from(line.len().is_multiple_of(7))];
        let gap = if room > 400 && room < 2000 { "-".repeat(room - filler.len() - 8) } else { String::new() };
        line.extend([filler.as_str(), gap.as_str(), secret.as_str()]);
        expected.extend([filler.as_str(), gap.as_str(), MASK]);
    }
    for limit in [4096, 32 * 1024] {
        for restarts in [false, true] {
            let mut bed = Bed::new(&secrets, settings(50), limit);
            let records: Vec<Piece> = pieces(line.as_bytes())
                .map(|(text, continues)| Piece {
                    stream: Stream::Stdout,
                    text: str::from_utf8(text).unwrap().to_owned(),
                    continues,
                })
                .collect();
            bed.write(&records);
            while bed.ship(true) {
                if restarts && bed.batches.is_multiple_of(5) {
                    bed.restart();
                }
            }
            assert!(bed.text(Stream::Stdout) == expected, "limit {limit}, restarts {restarts}");
        }
    }
}

#[test]
fn a_record_waits_at_most_one_period_for_the_next_and_a_flood_stays_on_disk() {
    let secrets = ["hunter2-hunter2".to_owned()];
    let say = |stream, text: &str| Piece { stream, text: text.to_owned(), continues: false };
    let wait = || {
        let mut bed = Bed::new(&secrets, settings(50), 32 * 1024);
        bed.write(&[
            say(Stream::Stdout, "first"),
            say(Stream::Stdout, "is hunter2-h"),
            say(Stream::Stderr, "e"),
        ]);
        bed.ship_all(false);
        assert_eq!(bed.text(Stream::Stdout), "first");
        assert_eq!(bed.text(Stream::Stderr), "", "lines go in order");
        bed
    };
    // The text goes on.
    for (next, expected) in [("unter2!", "firstis ***!"), ("arm", "firstis hunter2-harm")] {
        let mut bed = wait();
        bed.write(&[say(Stream::Stdout, next)]);
        bed.ship_all(false);
        assert_eq!(bed.text(Stream::Stdout), expected);
        assert_eq!(bed.text(Stream::Stderr), "e");
    }
    // The period is over; what comes then is masked all the same.
    let mut bed = wait();
    bed.now += Duration::from_secs(5);
    bed.ship_all(false);
    assert_eq!(bed.text(Stream::Stdout), "firstis ***");
    bed.write(&[say(Stream::Stdout, "unter2!")]);
    bed.ship_all(false);
    assert_eq!(bed.text(Stream::Stdout), "firstis ***!");
    // Another stream floods.
    let mut bed = wait();
    bed.write(&vec![say(Stream::Stderr, &"e".repeat(1000)); 250]);
    bed.ship_all(false);
    assert_eq!(bed.text(Stream::Stderr), "");
    bed.write(&vec![say(Stream::Stderr, &"e".repeat(1000)); 20]);
    bed.ship_all(false);
    assert_eq!(bed.text(Stream::Stdout), "firstis ***");
    assert_eq!(bed.text(Stream::Stderr).len(), 1 + 270 * 1000);
    // A short beginning goes as it is.
    let mut bed = Bed::new(&secrets, settings(50), 32 * 1024);
    bed.write(&[say(Stream::Stdout, "is hunt")]);
    bed.ship_all(false);
    assert_eq!(bed.text(Stream::Stdout), "");
    bed.ship_all(true);
    assert_eq!(bed.text(Stream::Stdout), "is hunt");
}

#[test]
fn a_new_secret_is_masked_in_the_next_line_even_if_it_began_before() {
    let mut bed = Bed::new(&[], settings(50), 32 * 1024);
    let say = |text: &str| Piece { stream: Stream::Stdout, text: text.to_owned(), continues: false };
    bed.write(&[say("a late-se")]);
    bed.ship_all(false);
    bed.secrets.learn(["late-secret"]);
    bed.write(&[say("cret b"), say("late-secret c")]);
    bed.ship_all(false);
    assert_eq!(bed.lines(Stream::Stdout), ["a late-se", "*** b", "*** c"]);
}

#[test]
fn a_new_secret_is_masked_in_the_current_batch() {
    let settings = JobLogStreamSettings { eagerly_emit_first_event: false, ..settings(50) };
    let mut bed = Bed::new(&[], settings, 32 * 1024);
    let say = |text: &str| Piece { stream: Stream::Stdout, text: text.to_owned(), continues: false };
    bed.write(&[say("a late-secret"), say("b")]);
    bed.ship_all(false);
    assert_eq!(bed.batches, 0, "it waits to be full");
    bed.secrets.learn(["late-secret"]);
    bed.write(&[say("c late-secret")]);
    bed.ship_all(true);
    assert_eq!(bed.lines(Stream::Stdout), ["a ***", "b", "c ***"]);
    assert_eq!(bed.batches, 1);
}

#[test]
fn patterns_apply_within_a_record() {
    let settings = JobLogStreamSettings { redact_patterns: vec!["id=[0-9]+".into()], ..settings(50) };
    let mut bed = Bed::new(&["12345abc".to_owned()], settings, 32 * 1024);
    let say = |text: &str| Piece { stream: Stream::Stdout, text: text.to_owned(), continues: false };
    bed.write(&[say("x id=12345abc id=7 y"), say("id=")]);
    bed.ship_all(true);
    assert_eq!(bed.lines(Stream::Stdout), ["x *** *** y", "id="]);
}
