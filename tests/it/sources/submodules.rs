//! Submodules.

use std::fs;
use std::time::Duration;

use hawser_contract::requests::GetModule;

use super::serve_files;
use crate::support::eventually::LIMIT;
use crate::support::git::{Repo, git_in};
use crate::support::module::{Module, git_source, variables};

/// Commits a submodule at `path`, with the lines `settings` in `.gitmodules`.
fn add(repo: &Repo, path: &str, commit: &str, settings: &str) -> String {
    fs::create_dir_all(repo.path().join(path)).unwrap();
    let before = fs::read_to_string(repo.path().join(".gitmodules")).unwrap_or_default();
    let entry = format!("{before}[submodule \"{path}\"]\n\tpath = {path}\n{settings}\n");
    fs::write(repo.path().join(".gitmodules"), entry).unwrap();
    repo.git(&["add", ".gitmodules"]);
    repo.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},{path}")]);
    repo.git(&["commit", "--quiet", "--message=a submodule"]);
    repo.head()
}

fn url(url: &str) -> String {
    format!("\turl = {url}")
}

fn beside(repo: &Repo) -> String {
    url(&format!("../{}", repo.path().file_name().unwrap().to_str().unwrap()))
}

#[tokio::test]
async fn nested_submodules_are_fetched_and_cached() {
    let (inner, lib) = (Repo::with(&[("deep.tf", "# deep")]), Repo::with(&[("lib.tf", "# old")]));
    let repo = Repo::with(&[("main.tf", "# main")]);
    add(&lib, "inner", &inner.head(), &beside(&inner));
    let wanted = lib.commit(&[("lib.tf", "# lib")]);
    lib.commit(&[("lib.tf", "# later")]);
    let commit = add(&repo, "libs/my lib", &wanted, &url(&lib.url()));
    let cache = tempfile::tempdir().unwrap();

    for vanish in [false, true] {
        if vanish {
            for repo in [&inner, &lib, &repo] {
                repo.vanish();
            }
        }
        let module = Module::cached(cache.path());
        module.get_commit(&repo, &commit).await.unwrap();
        assert_eq!(module.read("main.tf").unwrap(), "# main");
        assert_eq!(module.read("libs/my lib/lib.tf").unwrap(), "# lib");
        assert_eq!(module.read("libs/my lib/inner/deep.tf").unwrap(), "# deep");
        assert_eq!(git_in(&module.root(), &["status", "--porcelain"]), "");
    }
}

#[tokio::test]
async fn a_submodule_that_cannot_be_fetched_is_named_and_the_old_tree_stays() {
    let lib = Repo::with(&[("lib.tf", "")]);
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    add(&repo, "libs/gone", &lib.head(), &beside(&lib));
    lib.vanish();

    let error = module.get_main(&repo).await.unwrap_err().to_string();
    assert!(error.contains("failed to fetch the submodule \"libs/gone\": git failed"), "{error}");
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert!(!module.root().join(".gitmodules").exists());
}

#[tokio::test]
async fn submodules_that_are_skipped_or_not_in_gitmodules_stay_empty() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let nowhere = "0123456789012345678901234567890123456789";
    add(&repo, "left/out", nowhere, &format!("{}\n\tupdate = none", url("/nowhere")));
    repo.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{nowhere},unknown")]);
    repo.git(&["commit", "--quiet", "--message=x"]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    for path in ["left/out", "unknown"] {
        assert_eq!(fs::read_dir(module.root().join(path)).unwrap().count(), 0);
        assert!(module.log().contains(&format!("{path:?}")), "{}", module.log());
    }
}

#[tokio::test]
async fn the_url_of_a_submodule_is_never_an_option_a_program_or_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let proof = folder.path().join("proof");
    let touch = format!("touch {}", proof.display());
    let commit = "0123456789012345678901234567890123456789";
    for (line, says) in [
        (url(&format!("--upload-pack={touch}")), "dash"),
        (url(&format!("ext::sh -c '{touch}'")), "remote helpers"),
        (url("../../../../../../../../x"), "points outside"),
        (url("somewhere"), "relative"),
        (String::new(), "empty"),
        (format!("{}\n\tupdate = !{touch}", url("/nowhere")), "git failed"),
    ] {
        let repo = Repo::with(&[("main.tf", "")]);
        add(&repo, "evil", commit, &line);
        let error = Module::new().get_main(&repo).await.unwrap_err().to_string();
        assert!(error.contains("\"evil\"") && error.contains(says), "{line}: {error}");
    }
    assert!(!proof.exists());
}

#[tokio::test]
async fn the_depth_of_submodules_is_limited() {
    let repo = Repo::with(&[("main.tf", "")]);
    // Every commit has the previous one as its submodule.
    for _ in 0..17 {
        let before = repo.head();
        add(&repo, "self", &before, &beside(&repo));
    }
    let error = Module::new().get_main(&repo).await.unwrap_err().to_string();
    assert!(error.contains("nested more than 16 deep"), "{error}");
}

#[tokio::test]
async fn a_checkout_with_too_many_submodules_is_refused_before_they_are_fetched() {
    let repo = Repo::with(&[("main.tf", "")]);
    let commit = repo.head();
    let mut modules = String::new();
    let mut index = String::new();
    for number in 0..501 {
        let settings = beside(&repo);
        modules.push_str(&format!("[submodule \"m{number}\"]\n\tpath = m{number}\n{settings}\n"));
        index.push_str(&format!("160000 {commit} 0\tm{number}\n"));
        fs::create_dir(repo.path().join(format!("m{number}"))).unwrap();
    }
    fs::write(repo.path().join(".gitmodules"), modules).unwrap();
    fs::write(repo.path().join(".git/links"), index).unwrap();
    repo.git(&["add", ".gitmodules"]);
    let filled = std::process::Command::new("git")
        .args(["update-index", "--index-info"])
        .current_dir(repo.path())
        .stdin(fs::File::open(repo.path().join(".git/links")).unwrap())
        .status();
    assert!(filled.unwrap().success());
    repo.git(&["commit", "--quiet", "--message=many"]);
    let module = Module::new();
    let error = module.get_main(&repo).await.unwrap_err().to_string();
    assert!(error.contains("more than 500 submodules"), "{error}");
    assert_eq!(module.log().matches("Cloning").count(), 1, "{}", module.log());
}

#[tokio::test]
async fn a_repository_on_a_server_cannot_fetch_from_this_machines_disk() {
    let lib = Repo::with(&[("lib.tf", "# private")]);
    for address in [lib.url(), lib.path().display().to_string()] {
        let repo = Repo::with(&[("main.tf", "")]);
        add(&repo, "lib", &lib.head(), &url(&address));
        let source = git_source(&serve_files(&repo).await, "main");
        let error = Module::new().get(&source, &GetModule::default()).await.unwrap_err().to_string();
        assert!(error.contains("\"lib\"") && error.contains("this machine's disk"), "{error}");
    }
}

#[tokio::test]
async fn relative_urls_keep_the_login_of_the_parent() {
    let repo = Repo::with(&[("main.tf", "")]);
    // It is its own submodule, at an earlier commit.
    let first = repo.head();
    add(&repo, "self", &first, &url("../repo"));
    let source = git_source(&serve_files(&repo).await, "main");
    let module = Module::new();
    module.get(&source, &GetModule::default()).await.unwrap();
    assert_eq!(module.read("self/main.tf").unwrap(), "");
    assert!(!module.log().contains("hunter2"), "{}", module.log());
}

#[tokio::test]
async fn state_in_a_submodule_is_kept_and_its_committed_files_follow_the_commit() {
    let lib = Repo::with(&[("lib.tf", "# one"), ("fixture.tfstate", "fixture one")]);
    let repo = Repo::with(&[("main.tf", "")]);
    add(&repo, "lib", &lib.head(), &beside(&lib));
    let module = Module::in_subdirectory("lib");
    module.get_main(&repo).await.unwrap();
    module.write("lib/terraform.tfstate", "precious");
    module.workspace().save_environment(&variables(&[("A", "1")])).unwrap();

    let second = lib.commit(&[("lib.tf", "# two"), ("fixture.tfstate", "fixture two")]);
    repo.git(&["update-index", "--cacheinfo", &format!("160000,{second},lib")]);
    repo.git(&["commit", "--quiet", "--message=x"]);
    module.get_main(&repo).await.unwrap();

    assert_eq!(module.read("lib/lib.tf").unwrap(), "# two");
    assert_eq!(module.read("lib/fixture.tfstate").unwrap(), "fixture two");
    assert_eq!(module.read("lib/terraform.tfstate").unwrap(), "precious");
    assert_eq!(module.workspace().load_environment().unwrap(), variables(&[("A", "1")]));
}

#[tokio::test]
async fn the_fetch_of_a_submodule_can_be_cancelled_and_times_out() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("git://{}/repo", listener.local_addr().unwrap());
    let repo = Repo::with(&[("main.tf", "")]);
    add(&repo, "slow", &repo.head(), &url(&address));

    // The repository itself is on this disk, but on a busy machine that may time out, too.
    let mut limit = Duration::from_millis(500);
    loop {
        let mut module = Module::new();
        module.fetcher.fetch_timeout = limit;
        let error = module.get_main(&repo).await.unwrap_err().to_string();
        assert!(error.contains("took longer"), "{error}");
        if error.contains("\"slow\"") {
            break;
        }
        limit *= 2;
        assert!(limit < LIMIT, "{error}");
    }

    // The connections of the fetches that timed out, if they got that far.
    listener.set_nonblocking(true).unwrap();
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).unwrap();

    let module = Module::new();
    let connected = module.cancel.clone();
    let server = std::thread::spawn(move || {
        let connection = listener.accept().unwrap();
        connected.cancel();
        connection
    });
    assert!(module.get_main(&repo).await.unwrap_err().is_cancelled());
    server.join().unwrap();
}
