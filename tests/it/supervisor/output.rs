//! Output, and processes that the script leaves behind.

use std::fs;

use super::*;

/// Prints the peak memory of the supervisor in kilobytes. The pages of its program file do not count, because their number
/// depends on the build.
const OWN_PEAK: &str = "awk '/^VmHWM/ { peak = $2 } /^RssFile/ { program = $2 } END { print peak - program }' /proc/$PPID/status";

#[tokio::test]
async fn a_line_of_a_megabyte_arrives_whole() {
    let step = Step::new("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after");
    step.run().await;
    assert_eq!(step.stdout(), ["x".repeat(1_000_000), "after".to_owned()]);
}

#[tokio::test]
async fn any_bytes_and_an_unterminated_last_line_are_recorded() {
    let step = Step::new(r"printf 'a\xff\xfe\x00\x1b[31mb\r\n\n\r\nlast'; printf '\xc3' >&2");
    assert_eq!(step.run().await, Exit::Code(0));
    let texts = |stream| -> Vec<Vec<u8>> {
        step.records()
            .into_iter()
            .filter(|record| record.stream == stream)
            .map(|record| record.text)
            .collect()
    };
    assert_eq!(texts(Stream::Stdout), [b"a\xff\xfe\x00\x1b[31mb".to_vec(), vec![], vec![], b"last".to_vec()]);
    assert_eq!(texts(Stream::Stderr), [vec![0xc3]]);
}

#[tokio::test]
async fn a_flood_on_both_streams_is_recorded_in_little_memory() {
    let step = Step::new(&format!("seq 1 300000 & seq 1 300000 >&2; wait; {OWN_PEAK}"));
    assert_eq!(step.run().await, Exit::Code(0));
    let numbers: Vec<String> = (1..=300_000).map(|number| number.to_string()).collect();
    let mut stdout = step.stdout();
    let memory = stdout.pop().unwrap();
    assert!(stdout == numbers && step.lines(Stream::Stderr) == numbers);
    assert!(step.records().is_sorted_by_key(|record| record.micros));
    let kilobytes: u64 = memory.parse().unwrap();
    assert!(kilobytes < 10_000, "{kilobytes} KB");
}

#[tokio::test]
async fn a_flood_of_empty_lines_is_recorded_in_little_memory() {
    let step = Step::new(&format!("yes '' | head -n 500000; {OWN_PEAK}"));
    assert_eq!(step.run().await, Exit::Code(0));
    let lines = step.stdout();
    let (memory, empty) = lines.split_last().unwrap();
    assert!(empty.len() == 500_000 && empty.iter().all(String::is_empty));
    let kilobytes: u64 = memory.parse().unwrap();
    assert!(kilobytes < 10_000, "{kilobytes} KB");
}

#[tokio::test]
async fn a_script_that_takes_long_to_read_the_results_reports_that_once() {
    let reading = |meanwhile: &str| {
        let collect = vec![EngineCommand::new(["bash", "-c", meanwhile])];
        Step::of(&Script { collect, ..script(None, &["true"], after("true")) })
    };
    let reports = |step: &Step| {
        let lines = step.lines(Stream::Information);
        lines.iter().filter(|line| *line == "Reading the results").count()
    };
    let step = reading(AWAIT_GO);
    step.launch();
    eventually("the report", || reports(&step) == 1).await;
    step.go();
    step.wait().await;
    assert_eq!((step.exit(), reports(&step)), (Exit::Code(0), 1));

    let step = reading("");
    assert_eq!((step.run().await, reports(&step)), (Exit::Code(0), 0));
}

#[tokio::test]
async fn a_script_that_closes_its_output_runs_to_its_end() {
    let step = Step::new(&format!("echo before; exec >&- 2>&-; touch closed; {AWAIT_GO} exit 5"));
    step.launch();
    step.until_written("closed").await;
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(5));
    assert_eq!(step.stdout(), ["before"]);
}

#[tokio::test]
async fn a_background_process_that_ends_soon_may_finish() {
    let step = Step::new("(sleep 0.2; echo late) & echo early");
    assert_eq!(step.run().await, Exit::Code(0));
    assert_eq!(step.stdout(), ["early", "late"]);
    assert_eq!(step.lines(Stream::Warning), Vec::<String>::new());
}

#[tokio::test]
async fn daemons_are_ended_and_logged_even_if_they_hold_the_output_open() {
    let step = Step::new(
        "(setsid sleep 601 & echo $! > holder)
         (setsid bash -c 'sleep 602 & echo $! > inner; wait' >/dev/null 2>&1 & echo $! > outer)
         until [ -s inner ]; do sleep 0.02; done
         echo done; exit 4",
    );
    let exit = step.run().await;
    assert_eq!(exit, Exit::Code(4), "daemons do not change the exit code");
    for name in ["holder", "inner", "outer"] {
        assert!(!exists(step.pid(name).await), "{name} still exists");
    }
    let warnings = step.lines(Stream::Warning);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("3 processes") && warnings[0].contains("sleep"), "{warnings:?}");
    assert_eq!(step.stdout(), ["done"]);
}

#[tokio::test]
async fn a_daemon_that_ignores_sigterm_is_killed_and_its_output_is_recorded() {
    let step = Step::new(
        "setsid bash -c 'trap \"echo not me\" TERM; echo $$ > stubborn; while :; do sleep 0.05; done' &
         until [ -s stubborn ]; do sleep 0.02; done",
    );
    assert_eq!(step.run().await, Exit::Code(0));
    assert!(!exists(step.pid("stubborn").await));
    assert!(step.stdout().contains(&"not me".to_owned()));
}

#[tokio::test]
async fn an_unrelated_process_that_holds_the_output_open_does_not_delay_the_end() {
    // The file `written` comes last: while `echo` writes the process ID, file descriptor 1 is another file.
    let step = Step::new(&format!("printf 'no end'; echo $$ > script; touch written; {AWAIT_GO}"));
    step.launch();
    step.until_written("written").await;
    let script = step.pid("script").await;
    let held = fs::OpenOptions::new().write(true).open(format!("/proc/{script}/fd/1")).unwrap();
    step.go();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
    assert_eq!(step.stdout(), ["no end"]);
    assert!(step.lines(Stream::Warning)[0].contains("held open"));
    drop(held);
}
