use hawser_contract::{OutputValue, PlanData, Variable, VariableSet};

use super::*;

const LIVE: bool = true;
const PLAIN: bool = false;

fn title(verb: Verb) -> Title {
    Title { verb, subject: "examples/hello".into(), engine: "terraform".into() }
}

fn line(task: Task, level: LogLevel, text: &str) -> Event {
    Event::Line { task, level, text: text.into() }
}

fn info(task: Task, text: &str) -> Event {
    line(task, LogLevel::Information, text)
}

fn done(task: Task, success: Success) -> Event {
    Event::Ended(task, Outcome::Completed(success))
}

fn output(name: &str, kind: &str, value: &str, sensitive: Option<bool>) -> OutputValue {
    OutputValue {
        name: name.into(),
        sensitive,
        kind: kind.into(),
        value: value.into(),
        from_extra_file: false,
    }
}

fn outputs() -> OutputSet {
    let long = r#"{"kitchen":["kettle","toaster","coffee machine"],"office":["printer","lamp"],"x":{}}"#;
    OutputSet {
        timestamp: 0,
        checksum: String::new(),
        outputs: vec![
            output("greeting", "string", "Hello, world", Some(false)),
            output("names", "tuple", r#"["ada","grace"]"#, Some(false)),
            output("rooms", "object", long, None),
            output("poem", "string", "one line\nand another", None),
            output("empty", "string", "", None),
            output("count", "number", "3", None),
            output("token", "string", "hunter2", Some(true)),
        ],
    }
}

/// A complete apply, one event every 300 ms.
fn an_apply() -> Vec<Event> {
    let variable = Variable {
        name: "name".into(),
        kind: None,
        description: None,
        sensitive: false,
        nullable: true,
        from_extra_file: false,
    };
    let set = VariableSet {
        module_id: uuid::Uuid::nil(),
        timestamp: 0,
        checksum: String::new(),
        variables: vec![variable],
    };
    vec![
        Event::Note("terraform.tfstate in the directory is not used".into()),
        Event::Started(Task::GetDefinitiveRevision),
        done(
            Task::GetDefinitiveRevision,
            Success::Revision("3f2a91c0d4e5f60718293a4b5c6d7e8f90a1b2c3".into()),
        ),
        Event::Started(Task::GetModule),
        done(Task::GetModule, Success::Done),
        Event::Started(Task::Init),
        info(Task::Init, "\u{1b}[0m\u{1b}[1mInitializing the backend...\u{1b}[0m"),
        info(Task::Init, ""),
        info(Task::Init, ""),
        info(Task::Init, "Terraform has been successfully initialized!"),
        info(Task::Init, ""),
        done(Task::Init, Success::Done),
        Event::Started(Task::Validate),
        line(Task::Validate, LogLevel::Warning, "Warning: deprecated"),
        done(Task::Validate, Success::Done),
        Event::Started(Task::Variables),
        done(Task::Variables, Success::Variables(Some(set))),
        Event::Started(Task::Plan),
        info(Task::Plan, &format!("a long line {}", "0123456789".repeat(9))),
        done(Task::Plan, Success::Plan(Box::default())),
        Event::Started(Task::ApplyFromPlan),
        // The second report of the same task changes nothing.
        Event::Started(Task::ApplyFromPlan),
        info(Task::ApplyFromPlan, "Apply complete!"),
        done(Task::ApplyFromPlan, Success::Resources(56)),
        Event::Started(Task::Output),
        done(Task::Output, Success::Outputs(Some(outputs()))),
        Event::Finished(JobEnding::Completed),
    ]
}

fn transcript(live: bool, verb: Verb, events: &[Event]) -> String {
    let mut view = View::new(live, title(verb));
    let mut lines = view.opening();
    let mut now = Duration::ZERO;
    for event in events {
        lines.extend(view.on(event, now));
        now += Duration::from_millis(300);
    }
    lines.join("\n")
}

#[test]
fn an_apply_in_plain_lines() {
    insta::assert_snapshot!(transcript(PLAIN, Verb::Apply, &an_apply()));
}

#[test]
fn plain_lines_have_no_escapes_and_no_sensitive_value() {
    for live in [PLAIN, LIVE] {
        let shown = transcript(live, Verb::Apply, &an_apply());
        assert!(!shown.contains("hunter2"));
        assert_eq!(shown.contains('\u{1b}'), live);
    }
}

#[test]
fn an_apply_in_a_terminal() {
    let shown = transcript(LIVE, Verb::Apply, &an_apply());
    insta::assert_snapshot!(console::strip_ansi_codes(&shown));
}

#[test]
fn colors_in_a_terminal() {
    let shown = transcript(LIVE, Verb::Apply, &an_apply());
    insta::assert_snapshot!(shown.replace('\u{1b}', "␛"));
}

#[test]
fn the_status_row_shows_the_running_task_and_its_time() {
    let mut view = View::new(LIVE, title(Verb::Apply));
    let at = Duration::from_millis;
    assert_eq!(view.status(at(0)), None);
    view.on(&Event::Started(Task::Init), at(100));
    let row = view.status(at(500)).unwrap();
    assert_eq!(console::strip_ansi_codes(&row), "⠴ Init                     0.4s");
    view.on(&done(Task::Init, Success::Done), at(500));
    assert_eq!(view.status(at(600)), None);
}

fn a_failure() -> Vec<Event> {
    let fault = Fault {
        message: "terraform apply ended with exit code 1".into(),
        details: "Error: local-exec provisioner error".into(),
        resources: Some(2),
    };
    vec![
        Event::Started(Task::ApplyFromPlan),
        line(Task::ApplyFromPlan, LogLevel::Error, "Error: local-exec provisioner error"),
        Event::Ended(Task::ApplyFromPlan, Outcome::Faulted(fault.clone())),
        Event::Finished(JobEnding::Failed(Some(Task::ApplyFromPlan), fault)),
    ]
}

#[test]
fn a_failure_shows_the_task_the_reason_and_the_remaining_resources() {
    insta::assert_snapshot!("failure_plain", transcript(PLAIN, Verb::Apply, &a_failure()));
    let live = transcript(LIVE, Verb::Apply, &a_failure());
    insta::assert_snapshot!("failure_live", console::strip_ansi_codes(&live));
}

#[test]
fn a_cancelled_job_mentions_changes_that_were_made() {
    let events = [
        Event::Started(Task::DestroyFromPlan),
        Event::Ended(Task::DestroyFromPlan, Outcome::Cancelled),
        Event::Finished(JobEnding::Cancelled),
    ];
    let shown = transcript(LIVE, Verb::Destroy, &events);
    insta::assert_snapshot!(console::strip_ansi_codes(&shown));

    let early = [Event::Started(Task::PlanDestroy), Event::Finished(JobEnding::Cancelled)];
    assert!(!transcript(LIVE, Verb::Destroy, &early).contains("still in place"));
}

#[test]
fn the_last_line_summarizes_plan_apply_and_destroy() {
    let last = |verb, count| {
        let task = Task::ApplyFromPlan;
        let events = [done(task, Success::Resources(count)), Event::Finished(JobEnding::Completed)];
        let shown = transcript(PLAIN, verb, &events);
        shown.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last(Verb::Plan, 0), "Planned in 0.3s. Nothing was changed.");
    assert_eq!(last(Verb::Apply, 1), "Applied in 0.3s. 1 resource in the state.");
    assert_eq!(last(Verb::Destroy, 0), "Destroyed in 0.3s. No resources are left.");
    assert_eq!(last(Verb::Destroy, 2), "Destroyed in 0.3s. 2 resources left in the state.");
}

#[test]
fn the_first_line_of_a_task_starts_it() {
    let events = [info(Task::Init, "hello"), Event::Started(Task::Init)];
    let shown = transcript(PLAIN, Verb::Apply, &events);
    assert!(shown.ends_with("Init                  started\nInit                  | hello"), "{shown}");
}

#[test]
fn the_plan_is_shown_in_the_words_of_the_engine_only() {
    let events = [
        info(Task::Plan, "Plan: 2 to add, 0 to change, 1 to destroy."),
        done(Task::Plan, Success::Plan(Box::new(PlanData { create_count: 1, ..PlanData::default() }))),
        Event::Finished(JobEnding::Completed),
    ];
    let shown = transcript(PLAIN, Verb::Plan, &events);
    assert_eq!(shown.matches("to add").count(), 1, "{shown}");
    assert!(
        !shown.contains("create") && shown.ends_with("\n\nPlanned in 0.6s. Nothing was changed."),
        "{shown}"
    );
}

#[test]
fn a_warning_that_the_engine_repeats_is_shown_once() {
    let warning = ["╷", "│ Warning: deprecated", "╵", ""];
    let of = |task| warning.map(|text| info(task, text));
    let mut events = Vec::from(of(Task::Validate));
    events.push(done(Task::Validate, Success::Done));
    events.extend(of(Task::Plan));
    events.push(info(Task::Plan, "No changes."));
    for live in [PLAIN, LIVE] {
        let shown = transcript(live, Verb::Plan, &events);
        assert_eq!(shown.matches("Warning: deprecated").count(), 1, "{shown}");
        assert!(shown.contains("No changes."), "{shown}");
    }
}

#[test]
fn a_reason_that_the_log_does_not_contain_is_shown_in_full() {
    let message = "cannot find terraform on PATH";
    let fault = Fault { message: message.into(), details: "PATH is /bin".into(), resources: None };
    let events = [
        line(Task::Init, LogLevel::Error, message),
        Event::Ended(Task::Init, Outcome::Faulted(fault.clone())),
        Event::Finished(JobEnding::Failed(Some(Task::Init), fault)),
    ];
    let shown = transcript(PLAIN, Verb::Apply, &events);
    assert_eq!(shown.matches(message).count(), 1, "{shown}");
    assert!(shown.contains("PATH is /bin"), "{shown}");
    // An error that is not the reason stays where it was.
    let events = [line(Task::Init, LogLevel::Error, "another"), info(Task::Init, "next")];
    let shown = transcript(PLAIN, Verb::Apply, &events);
    assert!(shown.ends_with("Init                  | another\nInit                  | next"), "{shown}");
}
