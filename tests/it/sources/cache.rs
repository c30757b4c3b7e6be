//! The source cache: what it saves, sharing between processes, and eviction.

mod trouble;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hawser::sources::Cache;
use hawser_contract::requests::GetModule;
use hawser_contract::{Source, TaskRequest};
use serde_json::json;

use super::serve_files;
use crate::support::eventually::eventually;
use crate::support::git::{Repo, git_in};
use crate::support::module::{Module, WithVariable as _, git_source};
use crate::support::steps::Bench;

struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("sourcecache")
    }

    fn module(&self) -> Module {
        Module::cached(&self.path())
    }

    fn capped(&self, bytes: u64) -> Module {
        let mut module = Module::new();
        module.fetcher.cache = Some(Cache { folder: self.path(), max_bytes: bytes });
        module
    }

    fn with_ending(&self, ending: &str) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = fs::read_dir(self.path())
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|it| it == ending))
            .collect();
        found.sort();
        found
    }

    /// The only copy in the cache.
    fn copy(&self) -> PathBuf {
        let [copy] = self.with_ending("git").try_into().unwrap();
        copy
    }

    /// Another process takes the only copy until it is killed.
    fn hold(&self) -> Child {
        let [lock] = self.with_ending("lock").try_into().unwrap();
        hold(&lock)
    }
}

fn hold(lock: &Path) -> Child {
    let mut holder = Command::new("flock")
        .args(["--exclusive", "--no-fork", lock.to_str().unwrap(), "sh", "-c", "echo held; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 4];
    holder.stdout.take().unwrap().read_exact(&mut said).unwrap();
    holder
}

fn release(mut holder: Child) {
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// Text that does not shrink when it is compressed.
fn noise(bytes: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(bytes).collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[tokio::test]
async fn a_commit_in_the_cache_needs_no_server_and_the_checkout_no_cache() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one"), ("a/b", "x")]);
    let commit = store.module().get_main(&repo).await.unwrap();
    repo.vanish();

    let module = store.module();
    module.get_commit(&repo, &commit).await.unwrap();

    assert!(module.log().contains("was in the cache already"), "{}", module.log());
    fs::remove_dir_all(store.path()).unwrap();
    assert_eq!(module.read("a/b").unwrap(), "x");
    assert!(!module.root().join(".git/objects/info/alternates").exists());
    assert_eq!(git_in(&module.root(), &["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(git_in(&module.root(), &["status", "--porcelain"]), "");
    git_in(&module.root(), &["fsck"]);
}

#[tokio::test]
async fn only_new_objects_are_fetched() {
    let store = Store::new();
    let files: Vec<(String, String)> = (0..50).map(|it| (format!("{it}.tf"), noise(1000))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let repo = Repo::with(&files);
    let module = || {
        let mut module = store.module();
        // Every fetch leaves a pack with the objects that were sent.
        for (name, value) in [
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "fetch.unpackLimit"),
            ("GIT_CONFIG_VALUE_0", "1"),
        ] {
            module.fetcher = module.fetcher.env(name, value);
        }
        module
    };
    let packed = || -> usize {
        let counts = git_in(&store.copy(), &["count-objects", "-v"]);
        counts.lines().find_map(|line| line.strip_prefix("in-pack: ")).unwrap().parse().unwrap()
    };
    module().get_main(&repo).await.unwrap();
    assert_eq!(packed(), 52);
    repo.commit(&[("0.tf", "changed")]);
    repo.commit(&[("1.tf", "changed")]);
    let second = module();
    second.get_main(&repo).await.unwrap();

    assert_eq!(second.read("1.tf").unwrap(), "changed");
    // Two files, the folder and the commit, and perhaps the bases of their deltas.
    assert!((56..=60).contains(&packed()), "{}", packed());
}

#[tokio::test]
async fn parallel_steps_share_the_cache() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# 0")]);
    let mut commits = vec![repo.head()];
    for number in 1..4 {
        commits.push(repo.commit(&[("main.tf", &format!("# {number}"))]));
    }
    let modules: Vec<Module> = (0..8).map(|_| store.module()).collect();
    let runs = modules.iter().enumerate().map(|(at, module)| module.get_commit(&repo, &commits[at % 4]));
    for (at, done) in futures::future::join_all(runs).await.into_iter().enumerate() {
        done.unwrap();
        assert_eq!(modules[at].read("main.tf").unwrap(), format!("# {}", at % 4));
        assert!(!modules[at].log().contains("without the cache"), "{}", modules[at].log());
    }
    git_in(&store.copy(), &["fsck"]);
    assert!(store.with_ending("busy").is_empty());
}

#[tokio::test]
async fn waiting_for_another_process_is_logged_once_and_can_be_cancelled() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let commit = store.module().get_main(&repo).await.unwrap();
    let holder = store.hold();
    let (cancelled, patient) = (store.module(), store.module());
    let waits = async |module: &Module| {
        eventually("it waits", || module.log().contains("Waiting for another step")).await;
    };
    let (got, ()) = tokio::join!(cancelled.get_commit(&repo, &commit), async {
        waits(&cancelled).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancelled.cancel.cancel();
    });
    assert!(got.unwrap_err().is_cancelled());
    assert!(!cancelled.root().exists());
    assert_eq!(cancelled.log().matches("Waiting for another step").count(), 1, "{}", cancelled.log());

    let (got, ()) = tokio::join!(patient.get_commit(&repo, &commit), async {
        waits(&patient).await;
        release(holder);
    });
    got.unwrap();
    assert_eq!(patient.read("main.tf").unwrap(), "# one");
}

#[tokio::test]
async fn a_server_without_single_commits_is_cached_too() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = repo.head();
    let tip = repo.commit(&[("main.tf", "# two")]);
    let module = || {
        let mut module = store.module();
        for (name, value) in
            [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "protocol.version"), ("GIT_CONFIG_VALUE_0", "0")]
        {
            module.fetcher = module.fetcher.env(name, value);
        }
        module
    };
    // The tip is fetched alone, and must not pass for the whole history.
    module().get_commit(&repo, &tip).await.unwrap();
    let old = module();
    old.get_commit(&repo, &first).await.unwrap();
    assert_eq!(old.read("main.tf").unwrap(), "# one");
    assert!(!old.log().contains("without the cache"), "{}", old.log());
    let third = repo.commit(&[("main.tf", "# three")]);
    module().get_commit(&repo, &third).await.unwrap();
    let proposed = super::resolving::propose(&repo);
    let of_a_pull_request = module();
    of_a_pull_request.get_commit(&repo, &proposed).await.unwrap();
    assert!(!of_a_pull_request.log().contains("without the cache"), "{}", of_a_pull_request.log());
    repo.vanish();
    for commit in [&first, &tip, &third, &proposed] {
        module().get_commit(&repo, commit).await.unwrap();
    }
}

#[tokio::test]
async fn the_operators_own_git_settings_do_not_disturb_the_cache() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = || {
        let mut module = store.module();
        let settings = [
            ("safe.bareRepository", "explicit"),
            ("fetch.prune", "true"),
            ("fetch.pruneTags", "true"),
            ("submodule.recurse", "true"),
            ("gc.auto", "1"),
            ("transfer.fsckObjects", "true"),
        ];
        module.fetcher = module.fetcher.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (at, (name, value)) in settings.into_iter().enumerate() {
            let fetcher = module.fetcher.env(format!("GIT_CONFIG_KEY_{at}"), name);
            module.fetcher = fetcher.env(format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        module
    };
    let first = module().get_main(&repo).await.unwrap();
    let second = repo.commit(&[("main.tf", "# two")]);
    module().get_main(&repo).await.unwrap();
    repo.vanish();
    for commit in [first, second] {
        let module = module();
        module.get_commit(&repo, &commit).await.unwrap();
        assert!(module.log().contains("was in the cache already"), "{}", module.log());
    }
}

#[tokio::test]
async fn credentials_are_neither_in_the_cache_nor_in_a_log() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let url = serve_files(&repo).await;
    let module = store.module();
    module.get(&git_source(&url, "main"), &GetModule::default()).await.unwrap();

    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert!(!module.log().contains("hunter2"), "{}", module.log());
    let files = files_below(&store.path());
    assert!(files.len() > 5);
    for file in files.into_iter().chain(files_below(&module.root().join(".git"))) {
        assert!(!file.to_str().unwrap().contains("hunter2"), "{}", file.display());
        let contents = fs::read(&file).unwrap();
        assert!(!contents.windows(7).any(|part| part == b"hunter2"), "{}", file.display());
    }
    // Other credentials, but the same repository.
    let other = url.replace("hunter2", "changed");
    let source = Source { source_definitive_revision: Some(repo.head()), ..git_source(&other, "main") };
    store.module().get(&source, &GetModule::default()).await.unwrap();
}

#[tokio::test]
async fn the_least_recently_used_repository_is_deleted_first_unless_it_is_in_use() {
    let store = Store::new();
    let repos: Vec<Repo> = (0..4).map(|_| Repo::with(&[("main.tf", &noise(200_000))])).collect();
    let get =
        async |at: usize| store.capped(400_000).get_commit(&repos[at], &repos[at].head()).await.unwrap();
    let name = |at: usize| {
        let path = repos[at].path().file_name().unwrap().to_str().unwrap().trim_matches('.').to_owned();
        move |copy: &PathBuf| copy.to_str().unwrap().contains(&path)
    };
    let is_cached = |at: usize| store.with_ending("git").iter().any(name(at));

    get(0).await;
    get(1).await;
    get(0).await;
    assert!(is_cached(0) && is_cached(1));
    get(2).await;
    assert!(is_cached(0) && !is_cached(1) && is_cached(2));

    let lock = store.with_ending("lock").into_iter().find(|path| name(0)(path)).unwrap();
    let holder = hold(&lock);
    get(3).await;
    assert!(is_cached(0) && !is_cached(2) && is_cached(3));
    release(holder);

    // A repository that is too large by itself is not kept.
    store.capped(1000).get_commit(&repos[1], &repos[1].head()).await.unwrap();
    assert!(store.with_ending("git").is_empty());
}

#[tokio::test]
async fn a_cached_repository_with_many_commits_is_created_again() {
    let store = Store::new();
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = store.module().get_main(&repo).await.unwrap();
    let mut update = Command::new("git")
        .current_dir(store.copy())
        .args(["--git-dir=.", "update-ref", "--stdin"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = update.stdin.take().unwrap();
    for number in 1..64 {
        writeln!(input, "create refs/hawser/commits/{number:015}/{number:040} {first}").unwrap();
    }
    drop(input);
    assert!(update.wait().unwrap().success());

    let second = repo.commit(&[("main.tf", "# two")]);
    let module = store.module();
    module.get_main(&repo).await.unwrap();

    let kept = git_in(&store.copy(), &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(kept.lines().count(), 1, "{kept}");
    repo.vanish();
    store.module().get_commit(&repo, &second).await.unwrap();
}

#[tokio::test]
async fn the_settings_switch_the_cache_on_and_off() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let commit = repo.head();
    let get = |url: &str| {
        let source = Source { source_definitive_revision: Some(commit.clone()), ..git_source(url, "main") };
        TaskRequest::GetModule(source, GetModule::default())
    };
    let mut bench = Bench::new(&[]);
    let cache = bench.root.path().join("work/sourcecache");
    bench.settings["Source"] = json!({"CacheEnabled": false});
    bench.run(get(&repo.url())).await.completed();
    assert!(!cache.exists());

    bench.settings["Source"] = json!({});
    fs::remove_dir_all(bench.module()).unwrap();
    bench.run(get(&repo.url())).await.completed();
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    repo.vanish();
    fs::remove_dir_all(bench.module()).unwrap();
    let again = bench.run(get(&repo.url())).await;
    assert!(again.says("was in the cache already"), "{again:?}");
    again.completed();
}

#[tokio::test]
async fn a_fetch_respects_the_timeout_of_the_settings() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", listener.local_addr().unwrap());
    let mut bench = Bench::new(&[]);
    bench.settings["Source"] = json!({"FetchTimeoutSeconds": 1});
    let source = git_source(&url, "0123456789012345678901234567890123456789");
    let ran = bench.run(TaskRequest::GetModule(source, GetModule::default())).await;
    let fault = format!("{:?}", ran.faulted());
    assert!(fault.contains("took longer"), "{fault}");
}

#[tokio::test]
async fn nothing_is_kept_without_a_cache() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    let commit = module.get_main(&repo).await.unwrap();
    assert!(!module.folder.path().join("work/sourcecache").exists());
    repo.vanish();
    Module::new().get_commit(&repo, &commit).await.unwrap_err();
}
