//! Tasks that arrive between the check of a module and its removal.

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

/// A working directory with one old module.
struct WorkingDir {
    root: tempfile::TempDir,
    folders: WorkingDirectorySettings,
    options: CleanOptions,
}

impl WorkingDir {
    fn new(was_locked: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let folders = WorkingDirectorySettings {
            working_directory: root.path().to_owned(),
            temp_directory: root.path().join(".temp"),
        };
        let options = CleanOptions {
            older_than: Duration::from_secs(24 * 3600),
            caches: false,
            modules: true,
            with_state: false,
            rescued: Vec::new(),
            remove: true,
        };
        let dir = Self { root, folders, options };
        fs::create_dir_all(dir.module().join(".git")).unwrap();
        let old = SystemTime::now() - LONG_AGO;
        if was_locked {
            drop(dir.workspace().lock("a test").unwrap());
            let lock = dir.root.path().join(".hawser/locks/s/n/m.lock");
            OpenOptions::new().write(true).open(lock).unwrap().set_modified(old).unwrap();
        }
        File::open(dir.module()).unwrap().set_modified(old).unwrap();
        dir
    }

    /// Locks the module. A process that another test is starting may hold a copy of the previous lock for a moment.
    fn lock(&self) -> ModuleLock {
        loop {
            if let Ok(lock) = self.workspace().lock("a test") {
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
            options: &self.options,
            own: self.root.path().join(".hawser"),
            before: SystemTime::now() - self.options.older_than,
            report: Report::default(),
        }
    }

    fn workspace(&self) -> Workspace {
        let mut workspaces = self.cleaning().workspaces(self.root.path()).unwrap();
        assert_eq!(workspaces.len(), 1, "{workspaces:?}");
        workspaces.remove(0)
    }

    /// Why the module is kept if `meanwhile` happens between check and removal. `None` if it is removed.
    fn kept_because(&self, meanwhile: impl FnOnce() -> Option<ModuleLock>) -> Option<String> {
        let candidate = self.cleaning().candidate(self.workspace()).expect("the module is old");
        let lock = meanwhile();
        loop {
            let mut cleaning = self.cleaning();
            cleaning.remove_unused(&candidate).unwrap();
            let Report { kept, failed, .. } = cleaning.report;
            assert_eq!(failed, [""; 0]);
            let reason = kept.first().map(|kept| kept.reason.clone());
            // A process that another test is starting inherits our lock for a moment.
            if lock.is_some() || reason.as_ref().is_none_or(|reason| !reason.contains("in use by")) {
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
fn a_module_that_was_used_since_the_check_is_kept() {
    for was_locked in [true, false] {
        assert_eq!(WorkingDir::new(was_locked).kept_because(|| None), None, "no task arrived");

        let dir = WorkingDir::new(was_locked);
        let came_and_went = || {
            drop(dir.lock());
            None
        };
        assert_eq!(dir.kept_because(came_and_went).as_deref(), Some("just used"));

        let dir = WorkingDir::new(was_locked);
        let reason = dir.kept_because(|| Some(dir.lock())).unwrap();
        assert!(reason.contains("in use by a test (process"), "{reason}");
    }
}

#[test]
fn a_module_with_a_new_step_since_the_check_is_kept() {
    for was_locked in [true, false] {
        let dir = WorkingDir::new(was_locked);
        let store = StepStore::open(dir.root.path(), Uuid::nil(), "one").unwrap();
        let waits = || {
            store.create(&"step".into(), "Validate", &payload()).unwrap();
            None
        };
        assert_eq!(dir.kept_because(waits).as_deref(), Some("a step is using it or waiting for it"));

        // An unreadable step may be for any module.
        let dir = WorkingDir::new(was_locked);
        let step = dir.root.path().join(".hawser/runner/one/steps/step");
        let unreadable = || {
            fs::create_dir_all(&step).unwrap();
            fs::write(step.join("request.json"), "{").unwrap();
            None
        };
        assert_eq!(dir.kept_because(unreadable).as_deref(), Some("a step is using it or waiting for it"));
    }
}

#[test]
fn the_module_of_a_step_is_the_one_that_the_runner_parses() {
    let metadata = |name: &str| json!({"stackName": "s", "namespaceName": "n", "moduleName": name, "moduleId": Uuid::nil()});
    let twice = json!({
        "jobId": Uuid::nil(), "organizationId": Uuid::nil(), "Metadata": metadata("a"), "metadata": metadata("b"),
    });
    let request =
        StepRequest { received: jiff::Timestamp::UNIX_EPOCH, method: "Validate".to_owned(), payload: twice };
    let Ok(Push::Task(read)) = request.push() else { panic!("the request is valid") };
    let expected = format!("s/n/{}", read.common.metadata.module_name);
    assert_eq!(module_of(&request), Some(expected));
    let unreadable = StepRequest { payload: json!({"metadata": metadata("a")}), ..request };
    assert_eq!(module_of(&unreadable), None);
}
