//! No secret reaches the server, however its text is split.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hawser_dev_server::{JobKind, JobState};

use super::*;
use crate::support::eventually::eventually;
use crate::support::world::{World, job};

const SECRET: &str = "s3cr3t/of-the+house&home";

fn write(folder: &StepFolder, stream: Stream, texts: &[&str]) {
    let mut records = Vec::new();
    for text in texts {
        encode(&mut records, Timestamp::now(), stream, text.as_bytes(), false);
    }
    folder.writer().unwrap().append(&records).unwrap();
}

fn learn(bed: &Bed, job: u128) -> hawser::masking::JobSecrets {
    let secrets = bed.secret_store.job(Some(Uuid::from_u128(job)));
    secrets.learn([SECRET]);
    secrets
}

/// No maskable part of the secret is in the lines, separately or joined.
fn assert_clean(messages: &[String]) {
    let whole = messages.concat();
    for encoded in [SECRET.to_owned(), STANDARD.encode(SECRET)] {
        for piece in encoded.as_bytes().windows(6) {
            let piece = str::from_utf8(piece).unwrap();
            assert!(!whole.contains(piece), "{piece:?} in {messages:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_spans_two_records_or_batches_is_masked_in_both() {
    for batch in [1, 2, 50] {
        let mut bed = Bed::new();
        bed.settings.job_log_stream.batch_size_limit = batch;
        let (line, end) = channel();
        let record = accept_all(end);
        let (shipper, _stop) = bed.start(line);
        let step = bed.step(1, Task::Plan);
        let _secrets = learn(&bed, 1);
        let (first, second) = SECRET.split_at(9);
        write(&step.folder, Stream::Stdout, &["one", &format!("two {first}")]);
        write(&step.folder, Stream::Stderr, &["in between"]);
        write(&step.folder, Stream::Stdout, &[&format!("{second} three"), SECRET, "four"]);
        conclude(&step);
        assert!(ship(&shipper, step).await);
        assert_eq!(all_messages(&record), ["one", "two ***", "in between", " three", "***", "four"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_ends_like_the_start_of_a_secret_waits_at_most_one_period() {
    let mut bed = Bed::new();
    // Each line waits for its period, and does not wait twice.
    bed.settings.job_log_stream.eagerly_emit_first_event = false;
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let _secrets = learn(&bed, 1);
    shipper.add(step.clone()).await;
    let begin = Instant::now();
    write(&step.folder, Stream::Stdout, &["first"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    write(&step.folder, Stream::Stdout, &["it is s3cr"]);
    eventually("both lines arrive", || all_messages(&record).len() == 2).await;
    assert_eq!(all_messages(&record), ["first", "it is s3cr"]);
    let times: Vec<_> = logs(&record).iter().map(|seen| (seen.at - begin).as_secs()).collect();
    assert_eq!(times, [5, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_masked_where_its_line_is_split() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bed = Bed::new();
        bed.settings.job_log_stream.batch_size_limit = random.u32(1..4);
        let (line, end) = channel();
        let mut dice = random.fork();
        let record =
            serve(
                end,
                move |_, _| {
                    if dice.u8(..5) == 0 { Act::Cut { arrived: dice.bool() } } else { Act::Accept }
                },
            );
        let (shipper, _stop) = bed.start(line);
        let step = bed.step(1, Task::Plan);
        let _secrets = learn(&bed, 1);
        shipper.add(step.clone()).await;
        let encoded = STANDARD.encode(SECRET);
        for round in 0..30 {
            let text = [SECRET, &encoded][round % 2];
            let (first, second) = text.split_at(random.usize(6..text.len() - 5));
            write(&step.folder, Stream::Stdout, &[&format!("{round} {first}")]);
            tokio::time::sleep(Duration::from_millis(random.u64(..3000))).await;
            write(&step.folder, Stream::Stdout, &[second, "-"]);
        }
        conclude(&step);
        assert!(shipped(&shipper, &step.folder).await);
        let messages = all_messages(&record);
        assert_clean(&messages);
        for round in 0..30 {
            assert!(messages.contains(&format!("{round} ***")), "seed {seed}, {round}: {messages:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_runner_masks_recorded_secrets_even_in_the_middle_of_one() {
    for answered in 1..6 {
        let mut bed = Bed::new();
        bed.settings.job_log_stream.batch_size_limit = 1;
        let step = bed.step(1, Task::Plan);
        step.folder.add_secrets(&[SECRET.to_owned()]).unwrap();
        let (first, rest) = SECRET.split_at(7);
        let (second, third) = rest.split_at(8);
        write(
            &step.folder,
            Stream::Stdout,
            &["a", &format!("b {first}"), second, &format!("{third} c"), "d"],
        );
        conclude(&step);
        let mut received = Vec::new();
        for runner in 0..2 {
            // A restarted runner has not learned any secrets yet.
            bed.secret_store = SecretStore::new(Rules::new(&bed.settings.job_log_stream).unwrap());
            let (line, mut end) = connected_line();
            let (shipper, stop) = bed.start(line);
            shipper.add(step.clone()).await;
            for _ in 0..if runner == 0 { answered } else { 6 - answered } {
                let call = end.outgoing.recv().await.unwrap();
                if call.method == "AddLogs" {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    received.push(arguments[0][0]["message"].as_str().unwrap().to_owned());
                }
                let before = step.folder.shipped();
                call.answer.send(Ok(Value::Null)).unwrap();
                let moved_on = || !step.folder.path().exists() || step.folder.shipped() != before;
                eventually("the position is saved", moved_on).await;
            }
            stop.cancel();
            shipper.stopped().await;
        }
        assert_eq!(received, ["a", "b ***", "", " c", "d"], "{answered} calls by the first runner");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_with_a_damaged_record_of_secrets_sends_only_its_result() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    step.folder.add_secrets(&[SECRET.to_owned()]).unwrap();
    fs::write(step.folder.path().join("secrets.json"), "{").unwrap();
    write(&step.folder, Stream::Stdout, &[SECRET, "", "harmless"]);
    conclude(&step);
    let other = bed.step(2, Task::Plan);
    write(&other.folder, Stream::Stdout, &["another job"]);
    conclude(&other);
    assert!(ship(&shipper, step).await);
    assert!(ship(&shipper, other).await);
    assert_eq!(all_messages(&record), ["***", "", "***", "another job"]);
    assert_eq!(methods(&record), ["AddLogs", "PlanCompleted", "AddLogs", "PlanCompleted"]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_flat_while_a_line_waits_and_another_stream_floods() {
    let bed = Bed::new();
    let (line, end) = channel();
    let record = accept_all(end);
    let (shipper, _stop) = bed.start(line);
    let step = bed.step(1, Task::Plan);
    let _secrets = learn(&bed, 1);
    let status = shipper.status();
    shipper.add(step.clone()).await;
    write(&step.folder, Stream::Stdout, &[&format!("it is {}", &SECRET[..9])]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(all_messages(&record).is_empty());
    let flood = vec!["e".repeat(1000); 2000];
    let flood: Vec<&str> = flood.iter().map(String::as_str).collect();
    write(&step.folder, Stream::Stderr, &flood);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(all_messages(&record).len() > 1, "the flood is not held up for long");
    assert!(status.borrow().buffered_bytes <= 9 * 32 * 1024, "{}", status.borrow().buffered_bytes);
    write(&step.folder, Stream::Stdout, &[&SECRET[9..]]);
    conclude(&step);
    assert!(shipper.drained().await);
    let messages = all_messages(&record);
    assert_eq!(messages.len(), 2002);
    assert_eq!((messages[0].as_str(), messages[2001].as_str()), ("it is ***", ""));
}

/// A real job: real script, supervisor, runner process and hub.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_printed_in_any_form_never_reaches_the_hub_even_if_the_runner_is_killed() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let settings = [("JobLogStream__RedactValues__0", SECRET)];
    let mut runner = world.runner_with("one", &settings);
    let gate = world.path("gate");
    let mut spec = job(JobKind::Tasks(vec![Task::GetModule, Task::Init, Task::Validate]), &url, "module");
    spec.hooks.validate_before = Some(script(&gate));
    let id = world.hub.submit(spec);
    let seen = |text: &str| world.messages(id).iter().any(|line| line == text);
    eventually("the first half arrives", || seen("half ***")).await;
    runner.kill();
    fs::write(&gate, "").unwrap();
    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");

    let messages = world.messages(id);
    assert_clean(&messages);
    let printed: Vec<&String> = messages
        .iter()
        .skip_while(|line| *line != "begin")
        .take_while(|line| *line != "end")
        .filter(|line| !line.starts_with("xxxx"))
        .collect();
    let expected = ["begin", "plain ***.", "json {\"a\":\"***\"}", "basic ***", "url ***.", "***", "", "."];
    assert_eq!(printed[..expected.len()], expected);
    // Lines from before the kill. Those that were not acknowledged by then arrived twice.
    let first = messages.iter().take_while(|line| *line != "half ***");
    let long: String = first.filter(|line| line.starts_with("xxxx")).map(String::as_str).collect();
    assert_eq!(long.matches("***").count(), 1, "in the middle of a line of two records");
    world.assert_no_violation();
}

fn script(gate: &Path) -> String {
    let json = serde_json::to_string(SECRET).unwrap();
    format!(
        "s='{SECRET}'\n\
         echo begin\n\
         echo \"plain $s.\"\n\
         echo 'json {{\"a\":{json}}}'\n\
         echo \"basic $(printf %s \"$s\" | base64 -w0)\"\n\
         echo url s3cr3t%2Fof-the%2Bhouse%26home.\n\
         printf %s \"$s\" | base64 -w0 | fold -w 20; echo\n\
         echo .\n\
         head -c 16374 /dev/zero | tr '\\0' x; echo \"$s\"; \n\
         echo half s3cr3t/of-\n\
         while [ ! -e '{}' ]; do sleep 0.05; done\n\
         echo the+house'&'home behind\n\
         echo end\n",
        gate.display()
    )
}
