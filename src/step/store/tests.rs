use hawser_contract::requests::CancelKind;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::step::{Exit, Position, RecoveryPhase, SupervisorNote};

fn open(root: &Path) -> Result<StepStore, StoreError> {
    StepStore::open(root, Uuid::nil(), "a")
}

fn create(store: &StepStore, name: &str) -> StepFolder {
    match store.create(name, "Validate", &json!({"jobId": name})).unwrap() {
        Created::New(folder, _) => folder,
        Created::Known(folder) => panic!("{} is known already", folder.name()),
    }
}

fn names(store: &StepStore) -> Vec<String> {
    store.list().unwrap().into_iter().map(|(folder, _)| folder.name()).collect()
}

fn set_aside(root: &Path) -> Vec<String> {
    let damaged = root.join(".hawser").join(Uuid::nil().to_string()).join("a/damaged");
    let entries = fs::read_dir(damaged).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn note() -> SupervisorNote {
    SupervisorNote { pid: 1, started: Timestamp::now(), boot_id: None }
}

fn exit() -> Exit {
    Exit { finished: Timestamp::now(), code: Some(0), signal: None, failure: None }
}

#[test]
fn a_second_runner_of_the_same_instance_is_refused_and_one_of_another_is_not() {
    let root = tempfile::tempdir().unwrap();
    let first = open(root.path()).unwrap();
    let error = open(root.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }) && error.to_string().contains("Runner.Instance"));
    StepStore::open(root.path(), Uuid::nil(), "b").unwrap();
    drop(first);
    open(root.path()).unwrap();
}

#[test]
fn instance_names_do_not_lead_anywhere_else() {
    assert_eq!(encoded("host-1.example_x"), "host-1.example_x");
    assert_eq!(encoded("../../etc"), "%2E.%2F..%2Fetc");
    assert_eq!(encoded(".."), "%2E.");
    assert_eq!(encoded(""), "%");
    assert_eq!(encoded("a b/ä"), "a%20b%2F%C3%A4");
    for name in ["host-1.example_x", "../../etc", "..", "", "a b/ä", "%", "100%25"] {
        assert_eq!(decoded(&encoded(name)), name);
    }
}

#[test]
fn what_another_instance_left_is_known_unless_it_is_running_or_left_nothing() {
    let root = tempfile::tempdir().unwrap();
    let other = |name: &str| StepStore::open(root.path(), Uuid::nil(), name).unwrap();
    drop(other("nothing left"));
    let running = other("running");
    create(&running, "a");
    let gone = other("old name");
    create(&gone, "a");
    let damaged = create(&gone, "b");
    gone.set_aside(&damaged, "for the test");
    let path = gone.root.clone();
    drop(gone);
    // Of another runner, which has a server's record of its own.
    create(&StepStore::open(root.path(), Uuid::from_u128(1), "else").unwrap(), "a");

    let own = open(root.path()).unwrap();
    create(&own, "a");
    let expected = Abandoned { instance: "old name".to_owned(), path, steps: 2 };
    // A process that another test is just starting has this one's files open for a moment, and a lock with them.
    let found = std::iter::repeat_with(|| own.abandoned_by_others()).take(1000).find(|found| {
        std::thread::sleep(Duration::from_millis(10));
        !found.is_empty()
    });
    assert_eq!(found, Some(vec![expected]));
}

#[test]
fn steps_keep_their_order_of_arrival_over_restarts() {
    let root = tempfile::tempdir().unwrap();
    let expected: Vec<String> = ["z", "b", "y", "a", "x"].map(str::to_owned).into();
    for name in &expected {
        // A restart before each, and no look at what is there before the next one comes.
        create(&open(root.path()).unwrap(), name);
    }
    assert_eq!(names(&open(root.path()).unwrap()), expected);
}

#[test]
fn a_task_that_is_pushed_again_is_known() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "job.Plan");
    let store = open(root.path()).unwrap();
    let again = store.create("job.Plan", "Plan", &json!({"other": true})).unwrap();
    assert!(matches!(again, Created::Known(known) if known == folder));
    assert_eq!(folder.request().unwrap().payload, json!({"jobId": "job.Plan"}));

    let before = Instant::now();
    assert!(!store.retired_since("job.Plan", before));
    store.discard(&store.retire(&folder).unwrap());
    assert_eq!(names(&store), Vec::<String>::new());
    assert!(store.retired_since("job.Plan", before), "a push that waited since is a repeat");
    assert!(!store.retired_since("job.Plan", Instant::now()), "one that comes now is not");
    create(&store, "job.Plan");
}

#[test]
fn damaged_folders_are_set_aside_and_the_sound_ones_are_still_there() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    type Damage = fn(&StepFolder);
    let damages: [(&str, Damage); 7] = [
        ("no-request", |folder| fs::remove_file(folder.path().join("request.json")).unwrap()),
        ("half-request", |folder| fs::write(folder.path().join("request.json"), "{\"version\":1,").unwrap()),
        ("empty-request", |folder| fs::write(folder.path().join("request.json"), "").unwrap()),
        ("bad-exit", |folder| fs::write(folder.path().join("exit.json"), "{}").unwrap()),
        ("bad-outcome", |folder| fs::write(folder.path().join("outcome.json"), [0; 100]).unwrap()),
        ("bad-cancel", |folder| fs::write(folder.path().join("cancel.json"), "[1]").unwrap()),
        ("directory", |folder| fs::create_dir(folder.path().join("supervisor.json")).unwrap()),
    ];
    create(&store, "first");
    for (name, damage) in damages {
        damage(&create(&store, name));
    }
    create(&store, "last");
    fs::write(store.root.join("steps/a-stray-file"), "").unwrap();
    drop(store);

    let store = open(root.path()).unwrap();
    assert_eq!(names(&store), ["first", "last"]);
    let kept = set_aside(root.path());
    assert_eq!(kept.len(), damages.len() + 1, "{kept:?}");
    for (name, _) in damages {
        assert!(kept.iter().any(|kept| kept.starts_with(name)), "{name} is in {kept:?}");
    }
}

#[test]
fn what_was_set_aside_is_to_be_told_of_until_it_is_though_the_runner_dies_in_between() {
    let root = tempfile::tempdir().unwrap();
    let damage =
        |name: &str| fs::write(open(root.path()).unwrap().folder(name).path().join("exit.json"), "{");
    for name in ["known", "told", "again"] {
        create(&open(root.path()).unwrap(), name);
        damage(name).unwrap();
    }
    // Each of these is a process that dies right after it has set something aside.
    drop(open(root.path()).unwrap());
    drop(open(root.path()).unwrap());

    let store = open(root.path()).unwrap();
    assert_eq!(store.take_set_aside(), ["again", "known", "told"].map(str::to_owned).into());
    store.told("told");
    create(&store, "again");
    drop(store);
    assert_eq!(open(root.path()).unwrap().take_set_aside(), ["known".to_owned()].into());
}

#[test]
fn an_answer_is_there_with_its_outcome_or_not_at_all() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let call = Call { method: "PlanFaulted".to_owned(), arguments: Vec::new() };
    let Created::New(folder, _) = store.create_with("a", "Plan", &json!({}), Some(&call)).unwrap() else {
        panic!("it is new");
    };
    assert_eq!(folder.outcome().unwrap(), Some(call));
}

#[test]
fn the_highest_number_there_is_keeps_nobody_from_starting() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "a");
    let request = StepRequest { sequence: u64::MAX, ..folder.request().unwrap() };
    folder.set_request(&request).unwrap();
    assert_eq!(names(&open(root.path()).unwrap()), ["a"]);
}

#[test]
fn a_folder_of_a_newer_version_is_refused_and_set_aside() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "newer");
    let path = folder.path().join("request.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&path, text).unwrap();
    let error = folder.request().unwrap_err();
    assert!(matches!(error, FolderError::Newer { found: 2, .. }), "{error}");
    assert_eq!(names(&store), Vec::<String>::new());
    assert_eq!(set_aside(root.path()).len(), 1);
}

#[test]
fn what_was_half_made_or_half_removed_is_gone_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let place = store.root.clone();
    drop(store);
    for path in ["new/3.x", "done/y"] {
        fs::create_dir(place.join(path)).unwrap();
        fs::write(place.join(path).join("request.json"), "half").unwrap();
    }
    fs::write(place.join("new/a-file"), "").unwrap();
    assert_eq!(names(&open(root.path()).unwrap()), Vec::<String>::new());
    assert_eq!(fs::read_dir(place.join("new")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.join("done")).unwrap().count(), 0);
}

#[test]
fn the_files_and_the_lock_say_where_a_step_stands() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "step");
    assert_eq!(folder.stage().unwrap(), RecoveryPhase::Prepare);

    let lock = folder.try_lock().unwrap().unwrap();
    assert!(folder.try_lock().unwrap().is_none());
    assert_eq!(folder.stage().unwrap(), RecoveryPhase::Running);
    folder.set_supervisor(&note()).unwrap();
    assert_eq!(folder.stage().unwrap(), RecoveryPhase::Running);
    lock.unlock().unwrap();
    assert_eq!(folder.stage().unwrap(), RecoveryPhase::Lost);
    folder.set_exit(&exit()).unwrap();
    assert_eq!(folder.stage().unwrap(), RecoveryPhase::Conclude);
}

#[test]
fn a_kill_replaces_a_graceful_cancel_and_nothing_replaces_a_kill() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "step");
    let cancel = || folder.cancel().unwrap().unwrap();
    let minute = Duration::from_secs(60);
    assert_eq!(folder.cancel().unwrap(), None);

    folder.request_cancel(CancelKind::Graceful).unwrap();
    assert_eq!((cancel().kind, cancel().kill_after_seconds), (CancelKind::Graceful, None));
    folder.request_cancel_within(minute).unwrap();
    folder.request_cancel(CancelKind::Graceful).unwrap();
    assert_eq!((cancel().kind, cancel().kill_after_seconds), (CancelKind::Graceful, Some(60)));
    folder.request_cancel(CancelKind::Kill).unwrap();
    folder.request_cancel_within(minute).unwrap();
    folder.request_cancel(CancelKind::Graceful).unwrap();
    assert_eq!((cancel().kind, cancel().kill_after_seconds), (CancelKind::Kill, None));

    // Nobody hears of a cancel from a note that cannot be read.
    fs::write(folder.cancel_path(), "{").unwrap();
    folder.request_cancel(CancelKind::Graceful).unwrap();
    assert_eq!(cancel().kind, CancelKind::Graceful);
}

#[test]
fn how_far_the_log_was_shipped_is_kept_and_damage_means_from_the_start() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "step");
    assert_eq!(folder.shipped(), Position::default());
    for position in [Position { record: 123_456, within: 7 }, Position { record: 5, within: 0 }] {
        folder.set_shipped(position).unwrap();
        assert_eq!(folder.shipped(), position);
    }
    fs::write(folder.path().join("shipped"), "rubbish").unwrap();
    assert_eq!(folder.shipped(), Position::default());
}

#[test]
fn a_log_that_lost_its_end_is_shipped_from_where_it_ends_now() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "step");
    let place = Position { record: 5, within: 3 };
    fs::write(folder.output_path(), "12345678").unwrap();
    folder.set_shipped(place).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), place, "nothing is wrong with it");
    fs::write(folder.output_path(), "1234").unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position { record: 4, within: 0 });
    // A part of a record was acknowledged, and the whole of it is lost.
    fs::write(folder.output_path(), "12345").unwrap();
    folder.set_shipped(place).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position { record: 5, within: 0 });
    fs::remove_file(folder.output_path()).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position::default());
}

#[test]
fn a_folder_is_gone_when_it_was_removed_and_not_when_its_disk_is_away() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "a");
    assert!(!folder.is_gone());
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(folder.is_gone());
    fs::remove_dir_all(folder.path().parent().unwrap()).unwrap();
    assert!(!folder.is_gone());
}

#[test]
fn secrets_of_a_step_are_added_up_in_a_private_file_and_a_damaged_one_stays_one() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "a");
    assert!(folder.secrets().unwrap().is_empty());
    folder.add_secrets(&["hunter22".to_owned()]).unwrap();
    folder.add_secrets(&["two\nlines".to_owned(), "hunter22".to_owned()]).unwrap();
    let expected = ["hunter22", "two\nlines"].map(str::to_owned);
    assert_eq!(folder.secrets().unwrap(), expected.into());
    let path = folder.path().join("secrets.json");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    fs::write(&path, "{").unwrap();
    assert!(folder.secrets().is_err());
    folder.add_secrets(&["again".to_owned()]).unwrap();
    assert!(folder.secrets().is_err(), "what was lost is not forgotten");
}

#[test]
fn a_symlink_in_place_of_the_lock_is_damage_and_not_the_machines_fault() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "a");
    std::os::unix::fs::symlink("/dev/null", folder.lock_path()).unwrap();
    assert!(folder.try_lock().unwrap_err().is_damage());
}
