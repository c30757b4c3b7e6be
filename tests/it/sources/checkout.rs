//! Checkouts, and what must survive a new revision.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hawser::sources::SourceError;
use hawser::workspace::WorkspaceError;
use hawser_contract::requests::GetModule;
use hawser_contract::{Source, SourceType};

use super::resolving::serve;
use crate::support::git::Repo;
use crate::support::module::{Module, WithVariable as _, extra, git_source, variables, with_extra};

const CLEAN: fn() -> GetModule = || GetModule { clean_init_enabled: true, ..GetModule::default() };

#[tokio::test]
async fn a_commit_that_is_not_a_tip_is_fetched_alone() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = repo.head();
    repo.commit(&[("main.tf", "# two")]);
    let module = Module::new();
    let source =
        Source { source_definitive_revision: Some(first.clone()), ..git_source(&repo.url(), "main") };

    assert_eq!(module.get(&source, &GetModule::default()).await.unwrap(), first);

    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert_eq!(module.workspace().local_commit().unwrap(), first);
    assert_eq!(crate::support::git::git_in(&module.root(), &["rev-list", "--count", "HEAD"]), "1");
    assert!(module.log().contains(&format!("Cloning {}", repo.url())), "{}", module.log());
    assert_eq!(fs::metadata(module.root()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn the_whole_history_is_fetched_from_a_server_without_single_commits() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = repo.head();
    repo.commit(&[("main.tf", "# two")]);
    let mut module = Module::new();
    // The old protocol serves tips only.
    module.fetcher = module
        .fetcher
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "protocol.version")
        .env("GIT_CONFIG_VALUE_0", "0");

    module.get(&git_source(&repo.url(), &first), &GetModule::default()).await.unwrap();

    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert!(module.log().contains("whole history"), "{}", module.log());

    let proposed = super::resolving::propose(&repo);
    module.get(&git_source(&repo.url(), &proposed), &GetModule::default()).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# proposed");
    module.get(&git_source(&repo.url(), &first), &GetModule::default()).await.unwrap();

    let unknown = "0123456789012345678901234567890123456789";
    let error = module.get(&git_source(&repo.url(), unknown), &GetModule::default()).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::Source(SourceError::UnknownCommit { .. })), "{error}");
    assert_eq!(module.read("main.tf").unwrap(), "# one");
}

#[tokio::test]
async fn the_same_commit_is_not_fetched_again() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    let commit = module.get_main(&repo).await.unwrap();
    module.write("left-by-a-hook", "x");
    repo.vanish();

    let source = Source { source_definitive_revision: Some(commit), ..git_source(&repo.url(), "main") };
    module.get(&source, &GetModule::default()).await.unwrap();

    assert_eq!(module.read("left-by-a-hook").unwrap(), "x");
}

#[tokio::test]
async fn state_survives_a_new_revision_at_every_level() {
    let repo = Repo::with(&[("main.tf", "# one"), ("gone/main.tf", ""), ("old.txt", "")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    let kept = [
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "errored.tfstate",
        ".terraform/providers/registry/p",
        ".terraform/modules/modules.json",
        ".terraform/terraform.tfstate",
        ".terraform.lock.hcl",
        ".terraform.tfstate.lock.info",
        "terraform.tfstate.d/dev/terraform.tfstate",
        "gone/terraform.tfstate",
        "deep/er/.terraform/x",
    ];
    for path in kept {
        module.write(path, path);
    }
    std::os::unix::fs::symlink("/plugin/cache", module.root().join(".terraform/linked")).unwrap();
    module.write("generated.txt", "x");
    module.workspace().save_environment(&variables(&[("A", "1\n2")])).unwrap();
    module.write(".snapcd/plan.out", "stale");

    repo.git(&["rm", "--quiet", "-r", "gone", "old.txt"]);
    let second = repo.commit(&[("main.tf", "# two")]);
    assert_eq!(module.get_main(&repo).await.unwrap(), second);

    assert_eq!(module.read("main.tf").unwrap(), "# two");
    for path in kept {
        assert_eq!(module.read(path).as_deref(), Some(path));
    }
    let link = fs::read_link(module.root().join(".terraform/linked")).unwrap();
    assert_eq!(link.to_str(), Some("/plugin/cache"));
    assert_eq!(module.workspace().load_environment().unwrap(), variables(&[("A", "1\n2")]));
    for path in ["generated.txt", "old.txt", "gone/main.tf", ".snapcd/plan.out"] {
        assert_eq!(module.read(path), None, "{path}");
    }
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn committed_files_follow_the_repository() {
    let repo = Repo::with(&[
        ("main.tf", ""),
        (".terraform.lock.hcl", "lock one"),
        (".terraform-version", "1.5"),
        ("fixture.tfstate", "fixture one"),
        ("committed.tfstate", "committed"),
    ]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write(".terraform.lock.hcl", "changed by init");
    module.write("committed.tfstate", "changed by apply");

    repo.commit(&[
        (".terraform.lock.hcl", "lock two"),
        (".terraform-version", "1.6"),
        ("fixture.tfstate", "fixture two"),
        ("committed.tfstate", "committed again"),
    ]);
    module.get_main(&repo).await.unwrap();

    assert_eq!(module.read(".terraform.lock.hcl").unwrap(), "lock two");
    assert_eq!(module.read(".terraform-version").unwrap(), "1.6");
    assert_eq!(module.read("fixture.tfstate").unwrap(), "fixture two");
    assert_eq!(module.read("committed.tfstate").unwrap(), "changed by apply");
}

#[tokio::test]
async fn a_clean_init_really_cleans_even_at_the_same_commit() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    for path in ["terraform.tfstate", ".terraform/x", "sub/.terraform.lock.hcl", "generated.txt"] {
        module.write(path, "x");
    }
    module.workspace().save_environment(&variables(&[("A", "1")])).unwrap();

    module.get(&git_source(&repo.url(), "main"), &CLEAN()).await.unwrap();

    for path in ["terraform.tfstate", ".terraform", "sub", "generated.txt"] {
        assert!(!module.root().join(path).exists(), "{path}");
    }
    assert_eq!(module.workspace().load_environment().unwrap(), variables(&[("A", "1")]));
}

#[tokio::test]
async fn a_failed_clone_changes_neither_state_nor_tree_even_on_a_clean_init() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    let first = module.get_main(&repo).await.unwrap();
    module.write("terraform.tfstate", "precious");
    let second = repo.commit(&[("main.tf", "# two")]);
    repo.vanish();

    for request in [GetModule::default(), CLEAN()] {
        let source =
            Source { source_definitive_revision: Some(second.clone()), ..git_source(&repo.url(), "main") };
        let error = module.get(&source, &request).await.unwrap_err();
        assert!(error.to_string().contains("git failed to fetch"), "{error}");
        assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
        assert_eq!(module.read("main.tf").unwrap(), "# one");
        assert_eq!(module.workspace().local_commit().unwrap(), first);
        assert!(!module.staging().exists());
    }
}

#[tokio::test]
async fn an_unusable_revision_leaves_the_old_one_in_place() {
    let repo = Repo::with(&[("infra/main.tf", "# one")]);
    let module = Module::in_subdirectory("infra");
    module.get_main(&repo).await.unwrap();
    module.write("infra/terraform.tfstate", "precious");

    repo.git(&["rm", "--quiet", "-r", "infra"]);
    repo.commit(&[("readme", "")]);
    let error = module.get_main(&repo).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::NoSubdirectory { .. }), "{error}");

    repo.commit(&[("infra/readme", "")]);
    let error = module.get_main(&repo).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::NoModule { .. }), "{error}");

    repo.git(&["rm", "--quiet", "-r", "infra"]);
    std::os::unix::fs::symlink("/etc", repo.path().join("infra")).unwrap();
    repo.commit(&[]);
    let error = module.get_main(&repo).await.unwrap_err();
    assert!(error.to_string().contains("infra -> /etc"), "{error}");

    assert_eq!(module.read("infra/main.tf").unwrap(), "# one");
    assert_eq!(module.read("infra/terraform.tfstate").unwrap(), "precious");
}

#[tokio::test]
async fn state_is_never_dropped_when_the_new_revision_leaves_no_room_for_it() {
    let repo = Repo::with(&[("main.tf", ""), ("env/main.tf", "")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write("env/terraform.tfstate", "precious");

    repo.git(&["rm", "--quiet", "-r", "env"]);
    repo.commit(&[("env", "a file now")]);
    let error = module.get_main(&repo).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::StateBlocked { .. }), "{error}");
    assert_eq!(module.read("env/terraform.tfstate").unwrap(), "precious");
}

#[tokio::test]
async fn nothing_outside_is_touched_when_a_folder_with_state_becomes_a_symlink() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join(".terraform")).unwrap();
    for path in ["terraform.tfstate", ".terraform/x", "env"] {
        fs::write(outside.path().join(path), "of somebody else").unwrap();
    }
    for state in ["env/terraform.tfstate", "env/.terraform/x"] {
        let repo = Repo::with(&[("main.tf", "# one"), ("env/main.tf", "")]);
        let module = Module::new();
        module.get_main(&repo).await.unwrap();
        module.write(state, "precious");
        repo.git(&["rm", "--quiet", "-r", "env"]);
        std::os::unix::fs::symlink(outside.path(), repo.path().join("env")).unwrap();
        repo.commit(&[("main.tf", "# two")]);

        let got = module.get_main(&repo).await;
        assert!(matches!(got, Err(WorkspaceError::LinkOutside { .. })), "{got:?}");
        assert_eq!(module.read(state).unwrap(), "precious");

        // A symlink within the module is allowed, but the state of the old folder must not follow it.
        repo.git(&["rm", "--quiet", "env"]);
        std::os::unix::fs::symlink("other", repo.path().join("env")).unwrap();
        repo.commit(&[("other/main.tf", "")]);
        let got = module.get_main(&repo).await;
        if state.ends_with("tfstate") {
            assert!(matches!(got, Err(WorkspaceError::StateBlocked { .. })), "{got:?}");
            assert_eq!(module.read(state).unwrap(), "precious");
        } else {
            got.unwrap();
            assert!(
                module.log().contains("the new revision has another file or folder in its place"),
                "{}",
                module.log()
            );
            assert!(!module.root().join("other/.terraform").exists());
        }
    }

    // The settings of Init are secret, and a committed symlink must not lead them elsewhere.
    let repo = Repo::with(&[("main.tf", ""), ("sub/main.tf", "")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write("sub/.snapcd/snapcd.env", "secret");
    fs::create_dir(repo.path().join("sub/.snapcd")).unwrap();
    let link = repo.path().join("sub/.snapcd/snapcd.env");
    std::os::unix::fs::symlink("../main.tf", link).unwrap();
    repo.commit(&[("main.tf", "# two")]);
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("sub/.snapcd/snapcd.env").unwrap(), "secret");
    assert!(!module.root().join("sub/.snapcd/snapcd.env").is_symlink());

    for path in ["terraform.tfstate", ".terraform/x", "env"] {
        assert_eq!(fs::read_to_string(outside.path().join(path)).unwrap(), "of somebody else", "{path}");
    }
}

#[tokio::test]
async fn a_cancel_during_a_fetch_ends_git_and_changes_nothing() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write("terraform.tfstate", "precious");

    // A server that accepts the connection and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", listener.local_addr().unwrap());
    let connected = module.cancel.clone();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        connected.cancel();
        // The stream ends when the process ends.
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    });
    let commit = "0123456789012345678901234567890123456789";
    let error = module.get(&git_source(&url, commit), &GetModule::default()).await.unwrap_err();

    assert!(error.is_cancelled(), "{error}");
    assert!(server.join().unwrap(), "git still held its connection");
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn a_hanging_fetch_times_out() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", listener.local_addr().unwrap());
    let mut module = Module::new();
    module.fetcher.fetch_timeout = Duration::from_millis(300);
    let commit = "0123456789012345678901234567890123456789";
    let error = module.get(&git_source(&url, commit), &GetModule::default()).await.unwrap_err();
    assert!(error.to_string().contains("took longer"), "{error}");
}

#[tokio::test]
async fn a_crash_between_the_two_renames_is_undone_by_the_next_lock() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.write("terraform.tfstate", "precious");
    let crash = || {
        fs::create_dir_all(module.staging().join("new/half")).unwrap();
        fs::rename(module.root(), module.staging().join("old")).unwrap();
    };

    crash();
    let lock = module.workspace().lock("a test").unwrap();
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
    drop(lock);
    fs::remove_dir_all(module.staging()).unwrap();

    crash();
    let second = repo.commit(&[("main.tf", "# two")]);
    assert_eq!(module.get_main(&repo).await.unwrap(), second);
    assert_eq!(module.read("main.tf").unwrap(), "# two");
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn leftovers_of_a_crash_during_or_after_a_fetch_are_deleted() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    fs::create_dir_all(module.staging().join("new/.git/objects")).unwrap();
    module.get_main(&repo).await.unwrap();
    fs::create_dir_all(module.staging().join("old/half-removed")).unwrap();
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert!(!module.staging().exists());
}

/// A thread instead of the git of a killed runner: git would end too soon to always be in the way.
#[tokio::test]
async fn a_checkout_succeeds_while_an_earlier_one_still_writes() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    // The name before each attempt had its own, and a name of today.
    let folders = ["new", "new-0"].map(|name| module.staging().join(name));
    let done = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            for number in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                for folder in &folders {
                    let _ = fs::create_dir_all(folder.join(format!("{}/objects", number % 100)));
                    let _ = fs::write(folder.join(format!("{}/objects/{number}", number % 100)), "half");
                }
            }
        }
    });
    for number in 0..20 {
        let commit = repo.commit(&[("main.tf", &format!("# {number}"))]);
        assert_eq!(module.get_main(&repo).await.unwrap(), commit);
        assert_eq!(fs::read_dir(module.root()).unwrap().count(), 2, "main.tf and .git");
    }
    done.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    repo.commit(&[("main.tf", "# last")]);
    module.get_main(&repo).await.unwrap();
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn a_directory_of_another_runner_is_adopted_with_its_state() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    module.write("terraform.tfstate", "precious");
    module.write("main.tf", "# from before");
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
}

#[tokio::test]
async fn the_folder_of_a_registry_precedes_that_of_the_request_also_in_later_tasks() {
    let repo = Repo::with(&[("modules/vpc/example/main.tf", "# one"), ("modules/vpc/main.tf", "")]);
    let address = format!("git::{}//modules/vpc?ref=main", repo.url());
    let answer = move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) };
    let url = serve(Router::new().route("/vpc/1.0.0/download", get(answer))).await;
    let source = Source { source_type: SourceType::Registry, ..git_source(&format!("{url}/vpc"), "1.0.0") };

    let module = Module::in_subdirectory("example");
    assert_eq!(module.workspace().init_dir(), module.root().join("example"));
    module.get(&source, &GetModule::default()).await.unwrap();
    assert_eq!(module.workspace().init_dir(), module.root().join("modules/vpc/example"));
    module.workspace().tree().unwrap();
}

#[tokio::test]
async fn every_kind_of_module_file_makes_a_module_even_as_an_extra_file() {
    for name in ["a.tf", "a.tf.json", "a.tofu", "a.tofu.json", "Pulumi.yaml", "Pulumi.yml"] {
        Module::new().get_main(&Repo::with(&[(name, "")])).await.unwrap();
    }
    let repo = Repo::with(&[("a.tfvars", ""), ("x.tf/y", "")]);
    let module = Module::new();
    let error = module.get_main(&repo).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::NoModule { .. }), "{error}");
    assert!(!module.root().exists());
    let request = with_extra(&[extra("main.tf", "", false)]);
    module.get(&git_source(&repo.url(), "main"), &request).await.unwrap();
}
