use super::*;
use hawser_contract::{OutputValue, Variable, VariableSet};

const LIVE: Look = Look { live: true, width: 80 };

const APPLY: [Task; 8] = [
    Task::GetDefinitiveRevision,
    Task::GetModule,
    Task::Init,
    Task::Validate,
    Task::Variables,
    Task::Plan,
    Task::ApplyFromPlan,
    Task::Output,
];

fn title(verb: Verb) -> Title {
    Title { verb, subject: "examples/hello".into(), engine: "terraform" }
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

fn plan_data() -> PlanData {
    PlanData {
        create_count: 12,
        modify_count: 1,
        recreate_count: 3,
        total_unchanged_count: 40,
        outputs_create_count: 7,
        outputs_total_changed_count: 7,
        ..PlanData::default()
    }
}

/// A whole apply as it comes from the hub, one event every 300 ms.
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
        done(Task::Plan, Success::Plan(Box::new(plan_data()))),
        Event::Started(Task::ApplyFromPlan),
        // The second report of the same task changes nothing.
        Event::Started(Task::ApplyFromPlan),
        info(Task::ApplyFromPlan, "Apply complete!"),
        done(Task::ApplyFromPlan, Success::Resources(56)),
        Event::Started(Task::Output),
        done(Task::Output, Success::Outputs(Some(outputs()))),
        Event::Finished(Ending::Completed),
    ]
}

fn transcript(look: Look, verb: Verb, tasks: &[Task], events: &[Event]) -> String {
    let mut view = View::new(look, title(verb), tasks);
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
    insta::assert_snapshot!(transcript(Look::PLAIN, Verb::Apply, &APPLY, &an_apply()));
}

#[test]
fn plain_lines_have_no_escapes_and_no_sensitive_value() {
    for look in [Look::PLAIN, LIVE] {
        let shown = transcript(look, Verb::Apply, &APPLY, &an_apply());
        assert!(!shown.contains("hunter2"));
        assert_eq!(shown.contains('\u{1b}'), look.live);
    }
}

#[test]
fn an_apply_in_a_terminal() {
    let shown = transcript(LIVE, Verb::Apply, &APPLY, &an_apply());
    let bare = console::strip_ansi_codes(&shown).into_owned();
    assert!(bare.lines().all(|line| console::measure_text_width(line) <= 80), "{bare}");
    insta::assert_snapshot!(bare);
}

#[test]
fn colours_in_a_terminal() {
    let shown = transcript(LIVE, Verb::Apply, &APPLY, &an_apply());
    insta::assert_snapshot!(shown.replace('\u{1b}', "␛"));
}

#[test]
fn the_block_shows_every_task_with_its_state_and_time() {
    let mut view = View::new(LIVE, title(Verb::Apply), &APPLY);
    let mut shown = Vec::new();
    let mut now = Duration::ZERO;
    for event in an_apply() {
        view.on(&event, now);
        now += Duration::from_millis(300);
        if matches!(event, Event::Started(Task::Init | Task::ApplyFromPlan)) {
            shown.extend(view.block(now, 3));
            shown.push(format!("one row: {}", view.one_row(now, 3).unwrap_or_default()));
            shown.push(String::new());
        }
    }
    insta::assert_snapshot!(console::strip_ansi_codes(&shown.join("\n")));
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
        Event::Finished(Ending::Failed(Some(Task::ApplyFromPlan), fault)),
    ]
}

#[test]
fn a_failure_says_what_failed_why_and_what_is_in_the_state() {
    let tasks = [Task::ApplyFromPlan, Task::Output];
    insta::assert_snapshot!("failure_plain", transcript(Look::PLAIN, Verb::Apply, &tasks, &a_failure()));
    let live = transcript(LIVE, Verb::Apply, &tasks, &a_failure());
    insta::assert_snapshot!("failure_live", console::strip_ansi_codes(&live));
}

/// The end of terraform's output as a fault has it: the rest of one box, and a whole one.
const BOXES: &str = "│   on main.tf line 1, in output \"x\":\n│    1: output \"x\" {\n╵\n╷\n│ Error: Unreadable module directory\n│ \n\
    │ Unable to evaluate directory symlink: lstat ../modules/a-long-name: no such file or directory\n╵";

#[test]
fn a_failure_in_a_narrow_terminal_begins_with_a_whole_box_and_breaks_between_words() {
    let fault = |details: &str| {
        let message =
            "terraform init ended with exit code 1, and this is what it said at its very end".into();
        let fault = Fault { message, details: details.into(), resources: None };
        [
            Event::Note("a note that is longer than forty columns, which are few".into()),
            Event::Finished(Ending::Failed(Some(Task::Init), fault)),
        ]
    };
    let shown = |look, details| {
        let shown = transcript(look, Verb::Apply, &[Task::Init], &fault(details));
        console::strip_ansi_codes(&shown).into_owned()
    };
    let narrow = shown(Look { live: true, width: 40 }, BOXES);
    assert!(narrow.lines().all(|line| console::measure_text_width(line) <= 40), "{narrow}");
    insta::assert_snapshot!(narrow);
    // Lines of a file are never broken, and half a box is better than none.
    let plain = shown(Look::PLAIN, BOXES);
    assert!(
        !plain.contains("on main.tf") && plain.contains("a-long-name: no such file or directory\n"),
        "{plain}"
    );
    assert!(shown(Look::PLAIN, "│ the end of a long one\n╵").contains("│ the end of a long one"));
    assert!(shown(Look::PLAIN, "no box\n╷\n│ x\n╵").contains("no box"));
}

#[test]
fn a_cancelled_job_says_that_changes_stay() {
    let events = [
        Event::Started(Task::DestroyFromPlan),
        Event::Ended(Task::DestroyFromPlan, Outcome::Cancelled),
        Event::Finished(Ending::Cancelled),
    ];
    let tasks = [Task::PlanDestroy, Task::DestroyFromPlan];
    let shown = transcript(LIVE, Verb::Destroy, &tasks, &events);
    insta::assert_snapshot!(console::strip_ansi_codes(&shown));

    let early = [Event::Started(Task::PlanDestroy), Event::Finished(Ending::Cancelled)];
    assert!(!transcript(LIVE, Verb::Destroy, &tasks, &early).contains("stays changed"));
}

#[test]
fn the_last_line_tells_plan_destroy_and_apply_apart() {
    let last = |verb, count| {
        let task = Task::ApplyFromPlan;
        let events = [done(task, Success::Resources(count)), Event::Finished(Ending::Completed)];
        let shown = transcript(Look::PLAIN, verb, &[task], &events);
        shown.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last(Verb::Plan, 0), "Planned in 0.3s; nothing was changed.");
    assert_eq!(last(Verb::Apply, 1), "Applied in 0.3s; 1 resource in the state.");
    assert_eq!(last(Verb::Destroy, 0), "Destroyed in 0.3s; nothing is left.");
    assert_eq!(last(Verb::Destroy, 2), "Destroyed in 0.3s; 2 resources left.");
}

#[test]
fn a_plan_without_changes_says_so() {
    let none = PlanData { total_unchanged_count: 2, ..PlanData::default() };
    assert_eq!(tables::plan_words(&none), "no changes");
    let outputs = PlanData { outputs_total_changed_count: 1, ..PlanData::default() };
    assert_eq!(tables::plan_words(&outputs), "1 output to change");
    let all = PlanData { create_count: 1, destroy_count: 2, ..PlanData::default() };
    assert_eq!(tables::plan_words(&all), "1 to create, 2 to destroy");
}

#[test]
fn a_narrow_terminal_breaks_neither_the_plan_nor_the_tasks() {
    let mut view = View::new(Look { live: true, width: 32 }, title(Verb::Apply), &APPLY);
    let mut lines = view.on(&done(Task::Plan, Success::Plan(Box::new(plan_data()))), Duration::ZERO);
    view.on(&done(Task::ApplyFromPlan, Success::Resources(1_000_000)), Duration::ZERO);
    lines.extend(view.on(&Event::Finished(Ending::Cancelled), Duration::ZERO).into_iter().take(9));
    let shown = console::strip_ansi_codes(&lines.join("\n")).into_owned();
    assert!(shown.lines().all(|line| console::measure_text_width(line) <= 32), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn a_line_that_overtakes_the_report_of_its_task_starts_the_task() {
    let events = [info(Task::Init, "hello"), Event::Started(Task::Init)];
    let shown = transcript(Look::PLAIN, Verb::Apply, &APPLY, &events);
    assert!(shown.ends_with("Init       started\nInit       | hello"), "{shown}");
}

#[test]
fn one_empty_line_is_between_the_plan_and_the_last_word() {
    let plan = done(Task::Plan, Success::Plan(Box::new(plan_data())));
    let shown = transcript(Look::PLAIN, Verb::Plan, &APPLY, &[plan, Event::Finished(Ending::Completed)]);
    assert!(!shown.contains("\n\n\n") && shown.contains("\n\nPlanned"), "{shown}");
}
