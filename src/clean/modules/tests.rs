//! A task that arrives between the look at a module and its removal.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::super::{CleanOptions, Report};
use super::*;
use crate::settings::model::WorkingDirectorySettings;
use crate::step::StepStore;
use crate::workspace::ModuleLock;

const LONG_AGO: Duration = Duration::from_secs(60 * 24 * 3600);

/// A working directory with one module in it, which nobody has used for long.
struct Place {
    root: tempfile::TempDir,
    folders: WorkingDirectorySettings,
    order: CleanOptions,
}

impl Place {
    fn new(was_locked: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let folders = WorkingDirectorySettings {
            working_directory: root.path().to_owned(),
            temp_directory: root.path().join(".temp"),
        };
        let order = CleanOptions {
            older_than: Duration::from_secs(24 * 3600),
            caches: false,
            modules: true,
            with_state: false,
            rescued: Vec::new(),
            remove: true,
        };
        let place = Self { root, folders, order };
        fs::create_dir_all(place.module().join(".git")).unwrap();
        let old = SystemTime::now() - LONG_AGO;
        if was_locked {
            drop(place.workspace().lock().unwrap());
            let lock = place.root.path().join(".hawser/locks/s/n/m.lock");
            OpenOptions::new().write(true).open(lock).unwrap().set_modified(old).unwrap();
        }
        File::open(place.module()).unwrap().set_modified(old).unwrap();
        place
    }

    /// Takes the module's lock. A program that another test is just starting may have a copy of the last one, for a moment.
    fn lock(&self) -> ModuleLock {
        loop {
            if let Ok(lock) = self.workspace().lock() {
                return lock;
            }
            std::thread::yield_now();
        }
    }

    fn module(&self) -> PathBuf {
        self.root.path().join("s/n/m")
    }

    fn cleaning(&self) -> Cleaning<'_> {
        Cleaning {
            folders: &self.folders,
            order: &self.order,
            own: self.root.path().join(".hawser"),
            before: SystemTime::now() - self.order.older_than,
            report: Report::default(),
        }
    }

    fn workspace(&self) -> Workspace {
        let mut found = self.cleaning().workspaces(self.root.path()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// What clean says of the module when something happens after its look, such as a task that has the module from then on.
    /// None when the module is gone.
    fn kept_because(&self, meanwhile: impl FnOnce() -> Option<ModuleLock>) -> Option<String> {
        let candidate = self.cleaning().candidate(self.workspace()).expect("it was not used for long");
        let held = meanwhile();
        loop {
            let mut cleaning = self.cleaning();
            cleaning.remove_unused(&candidate).unwrap();
            let Report { kept, failed, .. } = cleaning.report;
            assert_eq!(failed, [""; 0]);
            let reason = kept.first().map(|kept| kept.reason.clone());
            // A process that another test is just starting has this one's files open for a moment, and a lock with them.
            if held.is_some() || reason.as_ref().is_none_or(|reason| !reason.contains("in use by")) {
                assert_eq!(reason.is_some(), self.module().exists(), "{reason:?}");
                return reason;
            }
        }
    }
}

fn payload() -> serde_json::Value {
    let metadata =
        json!({"stackName": "s", "namespaceName": "n", "moduleName": "m", "moduleId": Uuid::nil()});
    json!({"jobId": Uuid::nil(), "organizationId": Uuid::nil(), "metadata": metadata})
}

#[test]
fn a_module_that_a_task_has_used_since_the_look_stays() {
    for was_locked in [true, false] {
        assert_eq!(Place::new(was_locked).kept_because(|| None), None, "nobody came");

        let place = Place::new(was_locked);
        let came_and_went = || {
            drop(place.lock());
            None
        };
        assert_eq!(place.kept_because(came_and_went).as_deref(), Some("it was used just now"));

        let place = Place::new(was_locked);
        let reason = place.kept_because(|| Some(place.lock())).unwrap();
        assert!(reason.contains("in use by process"), "{reason}");
    }
}

#[test]
fn a_module_for_which_a_task_has_come_since_the_look_stays() {
    for was_locked in [true, false] {
        let place = Place::new(was_locked);
        let store = StepStore::open(place.root.path(), Uuid::nil(), "one").unwrap();
        let waits = || {
            store.create("step", "Validate", &payload()).unwrap();
            None
        };
        assert_eq!(place.kept_because(waits).as_deref(), Some("a step runs in it or waits for it"));

        // One that cannot be read may be for any module.
        let place = Place::new(was_locked);
        let step = place.root.path().join(".hawser/runner/one/steps/step");
        let unreadable = || {
            fs::create_dir_all(&step).unwrap();
            fs::write(step.join("request.json"), "{").unwrap();
            None
        };
        assert_eq!(place.kept_because(unreadable).as_deref(), Some("a step runs in it or waits for it"));
    }
}

#[test]
fn the_module_that_a_step_waits_for_is_the_one_that_the_runner_reads_in_its_request() {
    let metadata = |name: &str| json!({"stackName": "s", "namespaceName": "n", "moduleName": name, "moduleId": Uuid::nil()});
    let twice = json!({
        "jobId": Uuid::nil(), "organizationId": Uuid::nil(), "Metadata": metadata("a"), "metadata": metadata("b"),
    });
    let request = StepRequest {
        sequence: 1,
        received: jiff::Timestamp::UNIX_EPOCH,
        method: "Validate".to_owned(),
        payload: twice,
    };
    let Ok(Push::Task(read)) = request.push() else { panic!("it can be read") };
    let expected = format!("s/n/{}", read.common.metadata.module_name);
    assert_eq!(module_of(&request), Some(expected));
    let unreadable = StepRequest { payload: json!({"metadata": metadata("a")}), ..request };
    assert_eq!(module_of(&unreadable), None);
}
