//! Names, the private folder, the environment and the lock of a module.

mod extra_files;
mod state;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use std::time::Instant;

use hawser::sources::Fetcher;
use hawser::workspace::{ModuleLock, PrivateFile, Workspace, WorkspaceError};

use crate::support::eventually::{LIMIT, eventually, eventually_blocking};
use crate::support::git::Repo;
use crate::support::module::{Module, git_source, is_module_file, variables};

#[test]
fn no_name_or_subdirectory_leads_outside() {
    let module = Module::new();
    let build = |stack: &str, namespace: &str, name: &str, subdirectory: &str| {
        let mut metadata = module.metadata.clone();
        metadata.stack_name = stack.into();
        metadata.namespace_name = namespace.into();
        metadata.module_name = name.into();
        metadata.source_subdirectory = Some(subdirectory.into());
        Workspace::new(&module.settings(), &metadata)
    };
    for bad in ["", ".", "..", "../x", "a/b", "/etc", "a\0b"] {
        build(bad, "n", "m", "").unwrap_err();
        build("s", bad, "m", "").unwrap_err();
        build("s", "n", bad, "").unwrap_err();
    }
    for reserved in [".hawser", ".temp", "sourcecache"] {
        build(reserved, "n", "m", "").unwrap_err();
        build("s", reserved, reserved, "").unwrap();
    }
    for bad in ["..", "../x", "a/../..", "/etc", "a\0b", ".git", ".snapcd"] {
        build("s", "n", "m", bad).unwrap_err();
    }
    let workspace = build("my stack", "n", "m", "./a//b/").unwrap();
    assert_eq!(workspace.init_dir(), module.folder.path().join("work/my stack/n/m/a/b"));
    assert!(!module.folder.path().join("work").exists(), "looking at a module created something");
}

#[tokio::test]
async fn the_private_folder_is_private_and_ignored_by_git() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    let workspace = module.workspace();
    fs::create_dir(workspace.private_dir()).unwrap();
    fs::set_permissions(workspace.private_dir(), fs::Permissions::from_mode(0o755)).unwrap();

    let path = workspace.write_private(PrivateFile::INPUTS, b"secret").unwrap();

    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(path, workspace.private_path(PrivateFile::INPUTS));
    assert_eq!((mode(&workspace.private_dir()), mode(&path)), (0o700, 0o600));
    assert_eq!(crate::support::git::git_in(&module.root(), &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn a_private_folder_or_init_directory_that_became_a_symlink_is_refused() {
    let repo = Repo::with(&[("sub/main.tf", "")]);
    let outside = tempfile::tempdir().unwrap();
    let module = Module::in_subdirectory("sub");
    module.get_main(&repo).await.unwrap();
    let workspace = module.workspace();

    symlink(outside.path(), workspace.private_dir()).unwrap();
    let error = workspace.tree().unwrap().private_made().unwrap_err();
    assert!(matches!(error, WorkspaceError::NotPrivateFolder { .. }), "{error}");

    fs::rename(module.root().join("sub"), module.root().join("moved")).unwrap();
    symlink(outside.path(), module.root().join("sub")).unwrap();
    let error = workspace.save_environment(&variables(&[])).unwrap_err();
    assert!(matches!(error, WorkspaceError::Outside { .. }), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_committed_private_folder_is_not_trusted() {
    let repo =
        Repo::with(&[("main.tf", ""), (".snapcd/snapcd.env", "{}"), (".snapcd/extra-files.json", "rubbish")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    assert!(!module.workspace().private_dir().exists());
}

#[tokio::test]
async fn the_environment_is_saved_with_any_values_and_missing_before_init() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    let says = |error: WorkspaceError| error.to_string();
    assert!(
        says(module.workspace().load_environment().unwrap_err()).contains("Init has not run for this module")
    );
    module.get_main(&repo).await.unwrap();
    assert!(
        says(module.workspace().load_environment().unwrap_err()).contains("Init has not run for this module")
    );

    let all = variables(&[("A", "line\nline"), ("B", "\"'$(x)`\\"), ("C", ""), ("Ü", "€"), ("D", " x ")]);
    module.workspace().save_environment(&all).unwrap();
    assert_eq!(module.workspace().load_environment().unwrap(), all);

    let large = "x".repeat(128 * 1024 - 3);
    module.workspace().save_environment(&variables(&[("A", &large)])).unwrap();
    let larger = format!("{large}x");
    let error = says(module.workspace().save_environment(&variables(&[("A", &larger)])).unwrap_err());
    assert!(error.contains("\"A\"") && error.contains("128 KiB") && error.len() < 300, "{error}");
    module.workspace().save_environment(&all).unwrap();

    for bad in [("A=B", "x"), ("", "x"), ("A", "x\0y")] {
        let error = says(module.workspace().save_environment(&variables(&[bad])).unwrap_err());
        assert!(!error.contains("x\0y"), "{error}");
    }
    assert_eq!(module.workspace().load_environment().unwrap(), all);
    module.write(".snapcd/snapcd.env", "{\"A\":");
    assert!(says(module.workspace().load_environment().unwrap_err()).contains("run Init again"));
}

#[test]
fn a_module_has_one_holder_and_the_error_names_it() {
    let module = Module::new();
    let held = module.workspace().lock("a test").unwrap();
    let error = module.workspace().lock("a test").unwrap_err();
    assert!(
        matches!(&error, WorkspaceError::Busy { module, .. } if module == "stack/namespace/module"),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(held);
    lock_soon(&module);
}

/// Takes the lock as soon as it is free. A process that another test is just starting may inherit the locked file for a moment.
fn lock_soon(module: &Module) -> ModuleLock {
    eventually_blocking("the module's lock is free", || module.workspace().lock("a test").ok())
}

#[test]
fn the_lock_works_across_processes_and_ends_with_its_holder() {
    let module = Module::new();
    drop(lock_soon(&module));
    let file = module.folder.path().join("work/.hawser/locks/stack/namespace/module.lock");
    let mut holder = Command::new("flock")
        .args(["--exclusive", "--no-fork", file.to_str().unwrap(), "sh", "-c", "echo held; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 4];
    holder.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert!(matches!(module.workspace().lock("a test").unwrap_err(), WorkspaceError::Busy { .. }));
    holder.kill().unwrap();
    holder.wait().unwrap();
    lock_soon(&module);
}

#[tokio::test]
async fn a_committed_private_folder_is_not_trusted_when_its_parent_becomes_the_init_directory() {
    let list = r#"{"created": ["main.tf"], "overwritten": []}"#;
    let repo = Repo::with(&[
        ("main.tf", ""),
        ("sub/main.tf", "source"),
        ("sub/.snapcd/snapcd.env", "{\"A\": \"theirs\"}"),
        ("sub/.snapcd/extra-files.json", list),
    ]);
    let mut module = Module::new();
    module.get_main(&repo).await.unwrap();
    assert!(module.log().contains("Removed sub/.snapcd of the source"), "{}", module.log());
    module.metadata.source_subdirectory = Some("sub".into());
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("sub/main.tf").unwrap(), "source");
    let error = module.workspace().load_environment().unwrap_err();
    assert!(matches!(error, WorkspaceError::NotInitialized { .. }), "{error}");

    // The tree of another runner still contains the committed folder, and the next revision does not.
    let module = Module::in_subdirectory("sub");
    crate::support::git::git_in(
        module.folder.path(),
        &["clone", "--quiet", &repo.url(), module.root().to_str().unwrap()],
    );
    module.get_main(&repo).await.unwrap();
    let error = module.workspace().load_environment().unwrap_err();
    assert!(matches!(error, WorkspaceError::NotInitialized { .. }), "{error}");
}

#[tokio::test]
async fn a_damaged_checkout_is_fetched_again_and_keeps_its_state() {
    let repo = Repo::with(&[("sub/main.tf", "source")]);
    type Damage = fn(&Module);
    let damages: [(&str, Damage); 3] = [
        ("its init directory", |module| {
            fs::rename(module.root().join("sub"), module.root().join("moved")).unwrap();
        }),
        ("its .git folder", |module| fs::remove_file(module.root().join(".git/HEAD")).unwrap()),
        ("its .git folder", |module| module.write(".git/HEAD", "ref: refs/heads/main")),
    ];
    for (says, damage) in damages {
        let module = Module::in_subdirectory("sub");
        module.get_main(&repo).await.unwrap();
        module.write("terraform.tfstate", "precious");
        damage(&module);
        module.get_main(&repo).await.unwrap();
        assert!(
            module.log().contains("must be fetched again") && module.log().contains(says),
            "{}",
            module.log()
        );
        assert_eq!(module.read("sub/main.tf").unwrap(), "source");
        assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
        assert_eq!(module.read("moved/main.tf"), None);
    }
}

#[tokio::test]
async fn unchanged_files_of_the_old_revision_give_way_with_sha1_and_sha256() {
    for format in ["--object-format=sha1", "--object-format=sha256"] {
        let repo = Repo::empty();
        fs::remove_dir_all(repo.path().join(".git")).unwrap();
        repo.git(&["init", "--quiet", "--initial-branch=main", format]);
        symlink("main.tf", repo.path().join("link.tfstate")).unwrap();
        repo.commit(&[("main.tf", "# one"), ("kept.tfstate", "committed"), ("gone.tfstate", "committed")]);
        let module = Module::new();
        module.get_main(&repo).await.unwrap();
        module.write("kept.tfstate", "changed");
        // Rewritten with the same contents, so that git has to compare them.
        module.write("gone.tfstate", "committed");
        let link = module.root().join("link.tfstate");
        fs::remove_file(&link).unwrap();
        symlink("main.tf", &link).unwrap();

        repo.git(&["rm", "--quiet", "kept.tfstate", "gone.tfstate", "link.tfstate"]);
        repo.commit(&[("main.tf", "# two")]);
        module.get_main(&repo).await.unwrap();
        assert_eq!(module.read("main.tf").as_deref(), Some("# two"), "{format}");
        assert_eq!(module.read("kept.tfstate").as_deref(), Some("changed"), "{format}");
        assert_eq!(module.read("gone.tfstate"), None, "{format}");
        assert!(link.symlink_metadata().is_err(), "{format}");
    }
}

#[tokio::test]
async fn the_module_stays_locked_while_a_thread_of_an_aborted_task_still_changes_it() {
    let repo = Repo::with(&[("main.tf", "# new")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write("terraform.tfstate", "precious");

    let begun = Instant::now();
    // On a busy machine the thread may end before the task is aborted.
    for round in 0.. {
        assert!(begun.elapsed() < LIMIT, "it was never given up");
        let text = format!("# {round}");
        repo.commit(&[("main.tf", &text)]);
        let lock = lock_soon(&module);
        let share = std::sync::Arc::new(lock.share().unwrap());
        let held = std::sync::Arc::downgrade(&share);
        let begun = tokio::sync::Notify::new();
        let log = |line: &str| {
            // The last word before the two trees change places.
            if line.starts_with("Kept engine files of the old revision: 1") {
                begun.notify_one();
            }
        };
        let workspace = module.workspace().holding(Some(share));
        let (source, request) =
            (git_source(&repo.url(), "main"), hawser_contract::requests::GetModule::default());
        let fetcher = Fetcher { log: &log, ..module.fetcher.clone() };
        let is_given_up = tokio::select! {
            done = workspace.get_module(&source, &request, &is_module_file, &fetcher) => {
                done.unwrap();
                false
            }
            () = begun.notified() => true,
        };
        drop((lock, workspace));
        // Checked without disk access: the disk may be busy with this very change.
        eventually("the thread lets go", || held.upgrade().is_none()).await;
        assert_eq!(module.read("main.tf").as_deref(), Some(&*text), "the thread let go before it was done");
        drop(lock_soon(&module));
        assert_eq!(module.read("main.tf"), Some(text));
        assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
        if is_given_up {
            break;
        }
    }
}

#[tokio::test]
async fn private_files_that_became_symlinks_pipes_or_huge_are_refused_without_waiting() {
    let repo = Repo::with(&[("main.tf", "")]);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("env"), "{\"A\": \"secret of somebody else\"}").unwrap();
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    let workspace = module.workspace();
    workspace.save_environment(&variables(&[("A", "1")])).unwrap();
    let file = workspace.private_path(PrivateFile::ENVIRONMENT);

    fs::remove_file(&file).unwrap();
    symlink(outside.path().join("env"), &file).unwrap();
    workspace.load_environment().unwrap_err();
    fs::remove_file(&file).unwrap();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &file, fifo, mode, 0).unwrap();
    let error = with_cause(&workspace.load_environment().unwrap_err());
    assert!(error.contains("not a regular file"), "{error}");
    fs::remove_file(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let error = with_cause(&workspace.load_environment().unwrap_err());
    assert!(error.contains("larger than"), "{error}");
    workspace.save_environment(&variables(&[("A", "2")])).unwrap();
    assert_eq!(workspace.load_environment().unwrap(), variables(&[("A", "2")]));
}

fn with_cause(error: &WorkspaceError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}
