//! Problems with the cache never fail a checkout.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hawser_contract::requests::GetModule;

use super::{Store, files_below, release};
use crate::support::eventually::LIMIT;
use crate::support::git::{Repo, git_in};
use crate::support::module::git_source;

#[tokio::test]
async fn a_cache_that_is_locked_for_too_long_is_bypassed() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    store.module().get_main(&repo).await.unwrap();
    let holder = store.hold();
    // The timeout also applies to the fetch without the cache, which may be slow on a busy machine.
    let mut limit = Duration::from_millis(500);
    loop {
        let mut module = store.module();
        module.fetcher.fetch_timeout = limit;
        let got = module.get_main(&repo).await;
        assert!(module.log().contains("without the cache"), "{}", module.log());
        match got {
            Ok(_) => break,
            Err(error) => assert!(error.to_string().contains("took longer"), "{error}"),
        }
        limit *= 2;
        assert!(limit < LIMIT, "{}", module.log());
    }
    release(holder);
}

#[tokio::test]
async fn a_damaged_cache_is_detected_and_created_again() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 9] = [
        ("garbage in objects", |copy| {
            for file in files_below(&copy.join("objects")) {
                fs::remove_file(&file).unwrap();
                fs::write(file, "garbage").unwrap();
            }
        }),
        ("no objects", |copy| fs::remove_dir_all(copy.join("objects")).unwrap()),
        ("half an object", |copy| {
            let file = files_below(&copy.join("objects")).pop().unwrap();
            let half = fs::read(&file).unwrap();
            fs::remove_file(&file).unwrap();
            fs::write(file, &half[..half.len() / 2]).unwrap();
        }),
        ("no HEAD", |copy| fs::remove_file(copy.join("HEAD")).unwrap()),
        ("a config that cannot be read", |copy| fs::write(copy.join("config"), "[[").unwrap()),
        ("empty", |copy| {
            fs::remove_dir_all(copy).unwrap();
            fs::create_dir(copy).unwrap();
        }),
        ("a file", |copy| {
            fs::remove_dir_all(copy).unwrap();
            fs::write(copy, "x").unwrap();
        }),
        ("a lock that a killed git has left", |copy| {
            fs::write(copy.join("shallow.lock"), "").unwrap();
        }),
        ("killed in a fetch", |copy| {
            fs::write(copy.join("shallow.lock"), "").unwrap();
            fs::write(copy.with_extension("busy"), "").unwrap();
        }),
    ];
    for (name, damage) in damages {
        for is_new_commit in [false, true] {
            let store = Store::new();
            let repo = Repo::with(&[("main.tf", "# one"), ("other.tf", "# same")]);
            store.module().get_main(&repo).await.unwrap();
            damage(&store.copy());
            if is_new_commit {
                repo.commit(&[("main.tf", "# two")]);
            }
            let module = store.module();
            let commit = module.get_main(&repo).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(module.read("main.tf").unwrap(), if is_new_commit { "# two" } else { "# one" });
            assert!(!module.log().contains("without the cache"), "{name}: {}", module.log());

            repo.vanish();
            let module = store.module();
            let again = module.get_commit(&repo, &commit).await;
            again.unwrap_or_else(|error| panic!("{name}, {is_new_commit}: {error}"));
            assert!(store.with_ending("busy").is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn cached_commits_are_available_while_the_server_is_down() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = store.module().get_main(&repo).await.unwrap();
    let second = repo.commit(&[("main.tf", "# two")]);
    let elsewhere = repo.vanish();

    let error = store.module().get_commit(&repo, &second).await.unwrap_err().to_string();
    assert!(error.contains("git failed to fetch"), "{error}");
    store.module().get_commit(&repo, &first).await.unwrap();

    fs::rename(elsewhere, repo.path().join(".git")).unwrap();
    store.module().get_commit(&repo, &second).await.unwrap();
}

#[tokio::test]
async fn an_unusable_cache_folder_is_bypassed() {
    let store = Store::new();
    fs::write(store.path(), "in the way").unwrap();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = store.module();
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert!(module.log().contains("without the cache"), "{}", module.log());
}

#[tokio::test]
async fn a_cancelled_or_timed_out_fetch_leaves_the_cache_usable() {
    let store = Store::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", listener.local_addr().unwrap());
    let source = git_source(&url, "0123456789012345678901234567890123456789");
    let module = store.module();
    let request = GetModule::default();
    let (got, _open) = tokio::join!(module.get(&source, &request), async {
        let accepted = tokio::task::spawn_blocking(move || listener.accept().unwrap()).await.unwrap();
        module.cancel.cancel();
        accepted
    });
    assert!(got.unwrap_err().is_cancelled());
    assert!(store.with_ending("busy").is_empty());

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", listener.local_addr().unwrap());
    let source = git_source(&url, "0123456789012345678901234567890123456789");
    let mut module = store.module();
    module.fetcher.fetch_timeout = Duration::from_millis(300);
    let error = module.get(&source, &GetModule::default()).await.unwrap_err().to_string();
    assert!(error.contains("took longer"), "{error}");
    assert!(store.with_ending("busy").is_empty());
    for lock in store.with_ending("lock") {
        fs::File::open(lock).unwrap().try_lock().unwrap();
    }
}

/// Serves the repositories of a folder with the git protocol. The connection with the number `silent`, counted from 0, never gets
/// an answer; the receiver gets that connection.
fn serve_but(silent: usize, folder: &Path) -> (String, tokio::sync::oneshot::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}", listener.local_addr().unwrap());
    let (tell, told) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let base = format!("--base-path={}", folder.display());
    std::thread::spawn(move || {
        for (at, socket) in listener.incoming().enumerate() {
            let socket = socket.unwrap();
            if at == silent {
                tell.take().unwrap().send(socket).unwrap();
                continue;
            }
            let mut daemon = Command::new("git")
                .args(["daemon", "--inetd", "--export-all", &base])
                .stdin(OwnedFd::from(socket.try_clone().unwrap()))
                .stdout(OwnedFd::from(socket))
                .spawn()
                .unwrap();
            daemon.wait().unwrap();
        }
    });
    (url, told)
}

#[tokio::test]
async fn an_abandoned_fetch_is_repaired_by_the_next_one() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let (server, silent) = serve_but(1, repo.path().parent().unwrap());
    let url = format!("{server}/{}", repo.path().file_name().unwrap().to_str().unwrap());
    let source = |commit: &str| git_source(&url, commit);
    let request = GetModule::default();
    store.module().get(&source(&repo.head()), &request).await.unwrap();
    let second = source(&repo.commit(&[("main.tf", "# two")]));

    let given_up = store.module();
    tokio::select! {
        got = given_up.get(&second, &request) => panic!("{got:?}"),
        socket = silent => drop(socket.unwrap()),
    }
    assert_eq!(store.with_ending("busy").len(), 1);

    let module = store.module();
    module.get(&second, &request).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# two");
    assert!(!module.log().contains("without the cache"), "{}", module.log());
    assert!(store.with_ending("busy").is_empty());
    git_in(&store.copy(), &["fsck"]);
}
