use hawser_contract::requests::CancelKind;
use hawser_contract::{Outcome, Task};
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::step::CancelledBy;
use crate::step::{Exit, Position, RecoveryPhase, SupervisorNote};

fn open(root: &Path) -> Result<StepStore, StoreError> {
    StepStore::open(root, Uuid::nil(), "a")
}

fn create(store: &StepStore, name: &str) -> StepFolder {
    match store.create(&name.into(), "Validate", &json!({"jobId": name})).unwrap() {
        Created::New(folder) => folder,
        Created::Known(folder) => panic!("{} exists already", folder.name()),
    }
}

/// The keys of the intact steps in order of arrival. Damaged ones are set aside, as in the recovery.
fn names(store: &StepStore) -> Vec<String> {
    let mut steps: Vec<(u64, String)> = Vec::new();
    for folder in store.folders().unwrap() {
        match store.look(&folder) {
            Ok(_) => steps.push((folder.sequence(), folder.key().to_string())),
            Err(error) => {
                assert!(error.is_damage(), "{error}");
                store.set_aside(&folder, &error.to_string());
            }
        }
    }
    steps.sort();
    steps.into_iter().map(|(_, name)| name).collect()
}

fn set_aside(root: &Path) -> Vec<String> {
    let damaged = root.join(".hawser").join(Uuid::nil().to_string()).join("a/damaged");
    let entries = fs::read_dir(damaged).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn note() -> SupervisorNote {
    SupervisorNote { pid: 1, started: Timestamp::now(), boot_id: None, start_time: None }
}

fn exit() -> Exit {
    Exit::Code(0)
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
fn instance_names_cannot_leave_the_folder() {
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
fn steps_of_another_instance_are_found_unless_it_is_running() {
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
    // Another runner.
    create(&StepStore::open(root.path(), Uuid::from_u128(1), "else").unwrap(), "a");

    let own = open(root.path()).unwrap();
    create(&own, "a");
    let expected = Abandoned { instance: "old name".to_owned(), path, steps: 2 };
    // A process that another test is starting briefly holds copies of this lock.
    let found = std::iter::repeat_with(|| own.abandoned_by_others()).take(1000).find(|found| {
        std::thread::sleep(Duration::from_millis(10));
        !found.is_empty()
    });
    assert_eq!(found, Some(vec![expected]));
}

#[test]
fn steps_keep_their_order_of_arrival_across_restarts() {
    let root = tempfile::tempdir().unwrap();
    let expected: Vec<String> = ["z", "b", "y", "a", "x"].map(str::to_owned).into();
    for name in &expected {
        // A restart before each step.
        create(&open(root.path()).unwrap(), name);
    }
    assert_eq!(names(&open(root.path()).unwrap()), expected);
}

#[test]
fn a_task_that_is_pushed_again_is_a_duplicate() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "job.Plan");
    let store = open(root.path()).unwrap();
    let again = store.create(&"job.Plan".into(), "Plan", &json!({"other": true})).unwrap();
    assert!(matches!(again, Created::Known(known) if known == folder));
    assert_eq!(folder.request().unwrap().payload, json!({"jobId": "job.Plan"}));

    // The folder is removed later, and its removal does not end the next step.
    store.acknowledged(folder.sequence());
    let next = create(&store, "job.Plan");
    assert!(store.is_superseded(&folder) && !store.is_superseded(&next));
    assert_eq!(names(&store), ["job.Plan"; 2]);
    store.discard(&store.retire(&folder).unwrap());
    let again = store.create(&"job.Plan".into(), "Plan", &json!({})).unwrap();
    assert!(matches!(again, Created::Known(known) if known == next));
}

#[test]
fn a_step_that_is_left_alone_supersedes_no_other_and_hides_none() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let first = create(&store, "job.Plan");
    store.acknowledged(first.sequence());
    let newer = create(&store, "job.Plan");
    drop(store);

    let store = open(root.path()).unwrap();
    assert!(store.is_superseded(&first));
    store.leave_alone(&newer);
    assert!(!store.is_superseded(&first));
    let again = store.create(&"job.Plan".into(), "Plan", &json!({})).unwrap();
    assert!(matches!(again, Created::Known(known) if known == first));
    store.leave_alone(&first);
    let next = create(&store, "job.Plan");
    assert!(next.sequence() > newer.sequence());
}

#[test]
fn every_cancel_is_a_new_step() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let key = StepKey::cancel(CancelKind::Graceful, Uuid::nil());
    let [first, second] = [(); 2].map(|()| create(&store, &key.to_string()));
    assert_ne!(first, second);
    drop(store);
    let store = open(root.path()).unwrap();
    assert!(!store.is_superseded(&first), "its answer may not be acknowledged");
    create(&store, &key.to_string());
}

#[test]
fn the_names_of_folders_sort_by_arrival_and_hold_number_and_key() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let key = StepKey::task(Uuid::nil(), Task::Plan);
    let folders: Vec<StepFolder> = (0..12).map(|number| create(&store, &format!("{number}.{key}"))).collect();
    assert!(folders.is_sorted() && folders.iter().map(StepFolder::sequence).is_sorted());
    let folder = StepFolder::at(format!("/steps/00000012.{key}"));
    assert_eq!((folder.sequence(), folder.key()), (12, key.clone()));
    assert_eq!(folder.key().job_and_task(), Some((Uuid::nil(), Task::Plan)));
    let strange = StepFolder::at(format!("/steps/{key}"));
    assert_eq!((strange.sequence(), strange.key()), (0, key));
}

#[test]
fn a_number_is_not_used_again_while_a_folder_has_it() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let last = create(&store, "damaged");
    store.set_aside(&last, "for the test");
    drop(store);
    assert!(create(&open(root.path()).unwrap(), "next").sequence() > last.sequence());
}

#[test]
fn a_left_folder_that_disappears_is_reported_once() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "one");
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(store.leave(&folder));
    store.set_aside(&folder, "for the test");
    assert!(store.left().is_empty());
    assert_eq!(store.unreported().len(), 1);
}

#[test]
fn damaged_folders_are_set_aside_and_intact_ones_stay() {
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
        assert!(kept.iter().any(|kept| kept.contains(name)), "{name} is in {kept:?}");
    }
}

#[test]
fn damaged_steps_stay_unreported_across_crashes_until_they_are_reported() {
    let root = tempfile::tempdir().unwrap();
    let job = Uuid::from_u128;
    let keys = [1, 2, 3].map(|number| StepKey::task(job(number), Task::Plan));
    let damaged = keys.each_ref().map(|key| {
        let folder = create(&open(root.path()).unwrap(), &key.to_string());
        fs::write(folder.path().join("exit.json"), "{").unwrap();
        folder
    });
    // Each of these processes crashes right after it has set folders aside.
    names(&open(root.path()).unwrap());
    names(&open(root.path()).unwrap());

    let store = open(root.path()).unwrap();
    let unreported = |store: &StepStore| {
        let mut folders = store.unreported();
        folders.sort();
        folders
    };
    assert_eq!(unreported(&store), damaged);
    let repeat = store.create(&keys[0], "Plan", &json!({})).unwrap();
    assert!(matches!(repeat, Created::Known(known) if known == damaged[0]), "its outcome is not reported");
    store.mark_reported(&damaged[1]);
    let outcome = Outcome::Cancelled.of(Task::Plan, job(3));
    let report = store.create_report(&damaged[2], "Plan", &json!({}), &outcome).unwrap().unwrap();
    assert_eq!(report.outcome().unwrap(), Some(outcome.clone()));
    assert!(report.sequence() > damaged[2].sequence());
    // As after a crash before the marker was removed.
    fs::write(store.root.join(UNREPORTED).join(damaged[2].name()), "").unwrap();
    drop(store);
    let store = open(root.path()).unwrap();
    assert_eq!(store.create_report(&damaged[2], "Plan", &json!({}), &outcome).unwrap(), None);
    assert_eq!(unreported(&store), [damaged[0].clone()]);
}

#[test]
fn the_highest_sequence_number_does_not_prevent_a_start() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "a");
    fs::rename(folder.path(), folder.path().with_file_name(format!("{}.a", u64::MAX))).unwrap();
    assert_eq!(names(&open(root.path()).unwrap()), ["a"]);
}

#[test]
fn a_folder_of_a_newer_version_is_not_damaged() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "newer");
    let path = folder.path().join("request.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&path, text).unwrap();
    let error = folder.request().unwrap_err();
    assert!(matches!(error, FolderError::Newer { found: 2, .. }), "{error}");
    assert!(!error.is_damage() && !error.is_temporary());
}

#[test]
fn half_created_and_half_removed_steps_are_gone_after_a_restart() {
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
fn the_files_and_the_lock_determine_the_phase() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "step");
    assert_eq!(folder.phase().unwrap(), RecoveryPhase::Prepare);

    let lock = folder.try_lock().unwrap().unwrap();
    assert!(folder.try_lock().unwrap().is_none());
    assert_eq!(folder.phase().unwrap(), RecoveryPhase::Running);
    folder.set_supervisor(&note()).unwrap();
    assert_eq!(folder.phase().unwrap(), RecoveryPhase::Running);
    lock.unlock().unwrap();
    assert_eq!(folder.phase().unwrap(), RecoveryPhase::Lost);
    folder.set_exit(&exit(), None).unwrap();
    assert_eq!(folder.phase().unwrap(), RecoveryPhase::Conclude);
}

#[test]
fn a_kill_replaces_a_graceful_cancel_and_nothing_replaces_a_kill() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "step");
    let cancel = || folder.cancel().unwrap().unwrap();
    assert_eq!(folder.cancel().unwrap(), None);

    folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    assert_eq!(cancel().kind, CancelKind::Graceful);
    folder.record_cancel(CancelKind::Kill, CancelledBy::Server).unwrap();
    folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    assert_eq!(cancel().kind, CancelKind::Kill);

    // A damaged record is replaced.
    fs::write(folder.path().join("cancel.json"), "{").unwrap();
    folder.record_cancel(CancelKind::Graceful, CancelledBy::Server).unwrap();
    assert_eq!(cancel().kind, CancelKind::Graceful);
}

#[test]
fn the_shipped_position_is_stored_and_damage_resets_it() {
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
fn a_log_that_lost_its_end_is_shipped_from_its_new_end() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "step");
    let place = Position { record: 5, within: 3 };
    fs::write(folder.output_path(), "12345678").unwrap();
    folder.set_shipped(place).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), place, "the log is intact");
    fs::write(folder.output_path(), "1234").unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position { record: 4, within: 0 });
    // A part of a record was acknowledged, and the whole record is lost.
    fs::write(folder.output_path(), "12345").unwrap();
    folder.set_shipped(place).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position { record: 5, within: 0 });
    fs::remove_file(folder.output_path()).unwrap();
    folder.mend_shipped().unwrap();
    assert_eq!(folder.shipped(), Position::default());
}

#[test]
fn a_removed_folder_is_gone_and_one_on_a_missing_disk_is_not() {
    let root = tempfile::tempdir().unwrap();
    let folder = create(&open(root.path()).unwrap(), "a");
    assert!(!folder.is_gone());
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(folder.is_gone());
    fs::remove_dir_all(folder.path().parent().unwrap()).unwrap();
    assert!(!folder.is_gone());
}

#[test]
fn secrets_accumulate_in_a_private_file_and_damage_is_not_repaired() {
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
    assert!(folder.secrets().is_err(), "the damage is still visible");
}

#[test]
fn a_symlink_in_place_of_the_lock_is_damage() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path()).unwrap();
    let folder = create(&store, "a");
    std::os::unix::fs::symlink("/dev/null", folder.lock_path()).unwrap();
    assert!(folder.try_lock().unwrap_err().is_damage());
}
