//! Which commit a revision means.

use std::path::Path;
use std::sync::Mutex;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use hawser::base::git_url::GitUrl;
use hawser::masking::{Rules, SecretStore};
use hawser::sources::{Fetcher, SourceError};
use hawser_contract::{Source, SourceRevisionType, SourceType};
use tokio_util::sync::CancellationToken;

use crate::support::git::{Repo, git_in};
use crate::support::module::{WithVariable as _, fetcher, git_source, http};

async fn resolve_with_log(source: &Source) -> (Result<String, SourceError>, String) {
    let scratch = tempfile::tempdir().unwrap();
    let log = Mutex::new(Vec::new());
    let add = |line: &str| log.lock().unwrap().push(line.to_owned());
    let fetcher = Fetcher { log: &add, ..fetcher(&scratch.path().join("not/there/yet")) };
    let resolved = fetcher.resolve(source).await;
    drop(fetcher);
    (resolved, log.into_inner().unwrap().join("\n"))
}

async fn resolved(source: &Source) -> Result<String, SourceError> {
    resolve_with_log(source).await.0
}

#[tokio::test]
async fn a_branch_is_found_by_its_exact_name_only() {
    let repo = Repo::with(&[("main.tf", "")]);
    let main = repo.head();
    repo.git(&["checkout", "--quiet", "-b", "feature/main"]);
    let feature = repo.commit(&[("main.tf", "# feature")]);
    repo.git(&["checkout", "--quiet", "-b", "a/feature/main"]);
    repo.commit(&[("main.tf", "# deeper")]);

    assert_eq!(resolved(&git_source(&repo.url(), "main")).await.unwrap(), main);
    assert_eq!(resolved(&git_source(&repo.url(), "feature/main")).await.unwrap(), feature);
    assert_eq!(resolved(&git_source(&repo.url(), "refs/heads/feature/main")).await.unwrap(), feature);

    repo.git(&["branch", "-D", "main"]);
    let error = resolved(&git_source(&repo.url(), "main")).await.unwrap_err();
    assert!(matches!(error, SourceError::UnknownRevision { .. }), "{error}");
}

#[tokio::test]
async fn annotated_tags_are_peeled_and_a_branch_takes_precedence_over_a_tag() {
    let repo = Repo::with(&[("main.tf", "")]);
    let first = repo.head();
    repo.git(&["tag", "--annotate", "--message=x", "annotated"]);
    repo.git(&["tag", "light"]);
    repo.git(&["tag", "--annotate", "--message=x", "both"]);
    let second = repo.commit(&[("main.tf", "# two")]);
    repo.git(&["branch", "both"]);

    assert_eq!(resolved(&git_source(&repo.url(), "annotated")).await.unwrap(), first);
    assert_eq!(resolved(&git_source(&repo.url(), "light")).await.unwrap(), first);
    assert_eq!(resolved(&git_source(&repo.url(), "both")).await.unwrap(), second);
    assert_eq!(resolved(&git_source(&repo.url(), "refs/tags/both")).await.unwrap(), first);
}

#[tokio::test]
async fn an_empty_revision_is_the_remotes_head() {
    let repo = Repo::with(&[("main.tf", "")]);
    repo.git(&["checkout", "--quiet", "-b", "trunk"]);
    let trunk = repo.commit(&[("main.tf", "# trunk")]);
    assert_eq!(resolved(&git_source(&repo.url(), "")).await.unwrap(), trunk);

    let error = resolved(&git_source(&Repo::empty().url(), "")).await.unwrap_err();
    assert!(matches!(error, SourceError::NoHead { .. }), "{error}");
}

#[tokio::test]
async fn full_commit_ids_are_used_as_they_are_and_abbreviated_ones_are_found() {
    let repo = Repo::with(&[("main.tf", "")]);
    let first = repo.head();
    repo.commit(&[("main.tf", "# two")]);

    // A full id does not need the server.
    let unreachable = git_source("https://127.0.0.1:1/repo", &first.to_uppercase());
    assert_eq!(resolved(&unreachable).await.unwrap(), first);
    assert_eq!(resolved(&git_source(&repo.url(), &first[..9])).await.unwrap(), first);

    let error = resolved(&git_source(&repo.url(), "abcdef012345")).await.unwrap_err();
    assert!(matches!(error, SourceError::UnknownCommit { .. }), "{error}");
}

#[tokio::test]
async fn an_abbreviated_commit_is_found_in_a_sha256_repository_and_outside_of_branches() {
    let folder = tempfile::tempdir().unwrap();
    git_in(folder.path(), &["init", "--quiet", "--initial-branch=main", "--object-format=sha256"]);
    git_in(folder.path(), &["commit", "--quiet", "--allow-empty", "--message=x"]);
    let commit = git_in(folder.path(), &["rev-parse", "HEAD"]);
    assert_eq!(commit.len(), 64);
    let url = format!("file://{}", folder.path().display());
    assert_eq!(resolved(&git_source(&url, &commit[..12])).await.unwrap(), commit);

    let repo = Repo::with(&[("main.tf", "")]);
    let proposed = propose(&repo);
    assert_eq!(resolved(&git_source(&repo.url(), &proposed[..12])).await.unwrap(), proposed);
}

/// Creates a commit in a pull request only, which is not its tip.
pub(super) fn propose(repo: &Repo) -> String {
    repo.git(&["checkout", "--quiet", "--detach"]);
    let proposed = repo.commit(&[("main.tf", "# proposed")]);
    repo.commit(&[("main.tf", "# proposed again")]);
    repo.git(&["update-ref", "refs/pull/1/head", "HEAD"]);
    repo.git(&["checkout", "--quiet", "main"]);
    proposed
}

#[tokio::test]
async fn a_range_means_the_highest_tag_by_number() {
    let repo = Repo::with(&[("main.tf", "")]);
    for tag in ["v1.2.0", "v1.9.0"] {
        repo.git(&["tag", tag]);
    }
    let wanted = repo.commit(&[("main.tf", "# ten")]);
    repo.git(&["tag", "--annotate", "--message=x", "v1.10.0"]);
    repo.commit(&[("main.tf", "# later")]);
    for tag in ["v1.11.0-rc.1", "v2.0.0", "ui-v1.12.0", "1.13.0"] {
        repo.git(&["tag", tag]);
    }
    let range = |range: &str| Source {
        source_revision_type: SourceRevisionType::SemanticVersionRange,
        ..git_source(&repo.url(), range)
    };
    let (resolved_to, log) = resolve_with_log(&range("v1.*")).await;
    assert_eq!(resolved_to.unwrap(), wanted);
    assert!(log.contains("v1.10.0"), "{log}");
    assert_eq!(resolved(&range("v1.11.0-rc.1")).await.unwrap(), repo.head());

    let error = resolved(&range("v3.*")).await.unwrap_err().to_string();
    assert!(error.contains("v3.*"), "{error}");
    resolved(&range("main")).await.unwrap_err();
}

#[tokio::test]
async fn no_url_or_revision_is_an_option_or_a_program() {
    let repo = Repo::with(&[("main.tf", "")]);
    let proof = repo.path().join("proof");
    let touch = format!("touch {}", proof.display());
    for url in
        [format!("--upload-pack={touch}"), format!("ext::sh -c '{touch}'"), "-v".to_owned(), String::new()]
    {
        let error = resolved(&git_source(&url, "main")).await.unwrap_err();
        assert!(matches!(error, SourceError::Url(_)), "{url}: {error}");
    }
    for revision in
        [format!("--upload-pack={touch}"), "-h".into(), "ma*n".into(), "main^{}".into(), "a b".into()]
    {
        let error = resolved(&git_source(&repo.url(), &revision)).await.unwrap_err();
        assert!(matches!(error, SourceError::InvalidRevision { .. }), "{revision}: {error}");
    }
    assert!(!proof.exists());
}

#[tokio::test]
async fn credentials_in_a_url_are_not_in_messages() {
    let (error, log) = resolve_with_log(&git_source("http://user:hunter2@127.0.0.1:1/repo", "main")).await;
    let error = error.unwrap_err();
    let shown = format!("{error} {error:?} {log}");
    assert!(!shown.contains("hunter2") && shown.contains("***@127.0.0.1"), "{shown}");
    assert!(shown.contains("exit code"), "{shown}");
}

#[tokio::test]
async fn a_login_in_the_url_reaches_the_server_but_not_the_command_line() {
    const COMMIT: &str = "0123456789012345678901234567890123456789";
    // base64 of `us er:p'$(x)/w`
    const LOGIN: &str = "Basic dXMgZXI6cCckKHgpL3c=";
    let refs = |headers: HeaderMap| async move {
        if headers.get("authorization").is_some_and(|it| it == LOGIN) {
            Ok(format!("{COMMIT}\trefs/heads/main\n"))
        } else {
            Err((StatusCode::UNAUTHORIZED, [("WWW-Authenticate", "Basic realm=\"x\"")]))
        }
    };
    let server = serve(Router::new().route("/repo/info/refs", get(refs))).await;
    let url = server.replace("http://", "http://us%20er:p'$(x)%2Fw@");
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("arguments");
    let real = hawser::base::process::find_program("git", &[]).unwrap();
    let script = format!("echo \"$*\" >> '{}'; exec {} \"$@\"", seen.display(), real.display());
    stand_in(folder.path(), "git", &script);
    let fetcher = with_git_of(folder.path());

    let source = git_source(&format!("{url}/repo"), "main");
    let resolved = fetcher.resolve(&source).await;

    assert_eq!(resolved.unwrap(), COMMIT);
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(
        seen.contains(&format!("{server}/repo")) && !seen.contains("$(x)") && !seen.contains("us%20er"),
        "{seen}"
    );
}

#[tokio::test]
async fn missing_credentials_cause_an_error_instead_of_a_prompt() {
    let url =
        serve(Router::new().fallback(|| async {
            (StatusCode::UNAUTHORIZED, [("WWW-Authenticate", "Basic realm=\"x\"")], "")
        }))
        .await;
    let error = resolved(&git_source(&format!("{url}/repo"), "main")).await.unwrap_err().to_string();
    assert!(error.contains("terminal prompts disabled"), "{error}");
}

/// Uses the git in this folder, with the settings of the machine's git.
fn with_git_of(folder: &Path) -> Fetcher<'static> {
    let fetcher = Fetcher::new(http(), folder.to_owned(), &|_| {}, CancellationToken::new());
    Fetcher { binary_paths: vec![folder.to_owned()], ..fetcher }
}

/// Writes a program that is found before the real one.
fn stand_in(folder: &Path, name: &str, script: &str) {
    crate::support::write_program(&folder.join(name), &format!("#!/bin/sh\n{script}\n"));
}

#[tokio::test]
async fn git_is_searched_in_the_folders_of_the_settings_first() {
    let folder = tempfile::tempdir().unwrap();
    stand_in(folder.path(), "git", "echo own git >&2; exit 42");
    let fetcher = with_git_of(folder.path());
    let source = git_source("https://127.0.0.1:1/repo", "main");
    let error = fetcher.resolve(&source).await.unwrap_err().to_string();
    assert!(error.contains("exit code 42") && error.contains("own git"), "{error}");
}

#[tokio::test]
async fn the_exit_code_of_git_decides_and_not_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let real = hawser::base::process::find_program("git", &[]).unwrap();
    let noisy = format!("echo 'fatal: error: everything is lost' >&2; exec '{}' \"$@\"", real.display());
    stand_in(folder.path(), "git", &noisy);
    let repo = Repo::with(&[("main.tf", "")]);
    let fetcher = with_git_of(folder.path());
    let resolved = fetcher.resolve(&git_source(&repo.url(), "main")).await.unwrap();
    assert_eq!(resolved, repo.head());
    let place = tempfile::tempdir().unwrap();
    fetcher.check_out(&GitUrl::parse(&repo.url()).unwrap(), &resolved, place.path()).await.unwrap();
    assert!(place.path().join("main.tf").exists());
}

#[tokio::test]
async fn ssh_never_prompts_and_the_ssh_command_of_the_operator_is_used() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("own")).unwrap();
    for name in ["ssh", "own/ssh", "wrapper"] {
        stand_in(folder.path(), name, "echo \"ran $0 $*; askpass=$SSH_ASKPASS\" >&2; exit 255");
    }
    let in_folder = |name: &str| folder.path().join(name).display().to_string();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    // From the ~/.gitconfig of an operator with servers that are only reachable by ssh.
    let rewriting = "[url \"git@127.0.0.1:\"]\n\tinsteadOf = https://git.invalid/\n";
    let with_config = |more: &str| {
        let config = tempfile::NamedTempFile::new_in(folder.path()).unwrap().keep().unwrap().1;
        std::fs::write(&config, format!("{rewriting}{more}")).unwrap();
        fetcher(folder.path()).env("PATH", &path).env("GIT_CONFIG_GLOBAL", config)
    };
    let own = in_folder("own/ssh");
    let configured = with_config(&format!("[core]\n\tsshCommand = {own} -i /my/key\n"));
    for (fetcher, runs, in_batch_mode) in [
        (with_config(""), in_folder("ssh"), true),
        (configured, format!("{own} -i /my/key"), false),
        (
            with_config("").env("GIT_SSH_COMMAND", "wrapper -i /my/key"),
            in_folder("wrapper -i /my/key"),
            false,
        ),
        (with_config("").env("GIT_SSH", &own), own.clone(), false),
    ] {
        let urls = [
            "ssh://git@127.0.0.1/repo",
            "git@127.0.0.1:repo",
            "https://git.invalid/repo",
            "https://user:hunter2@git.invalid/repo",
        ];
        let commit = "0123456789012345678901234567890123456789";
        for url in urls {
            let listed = fetcher.resolve(&git_source(url, "main")).await;
            let place = tempfile::tempdir().unwrap();
            let url = GitUrl::parse(url).unwrap();
            let fetched = fetcher.check_out(&url, commit, place.path()).await;
            for error in [listed.unwrap_err(), fetched.unwrap_err()].map(|it| it.to_string()) {
                assert!(error.contains(&format!("ran {runs} ")), "{url}: {error}");
                assert_eq!(error.contains("-o BatchMode=yes"), in_batch_mode, "{url}: {error}");
                assert!(error.lines().any(|line| line.ends_with("askpass=")), "{url}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn other_source_types_are_not_supported() {
    for source_type in [SourceType::S3, SourceType::Https, SourceType::Mercurial, SourceType::Unknown] {
        let error = resolved(&Source { source_type, ..git_source("x", "") }).await.unwrap_err().to_string();
        assert!(error.contains("not supported"), "{error}");
    }
}

#[tokio::test]
async fn a_registry_leads_to_a_git_repository() {
    let repo = Repo::with(&[("modules/vpc/main.tf", "")]);
    repo.git(&["tag", "--annotate", "--message=x", "v1.2.0"]);
    let tagged = repo.head();
    repo.commit(&[("modules/vpc/main.tf", "# later")]);
    let answer =
        |address: String| move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) };
    let url = serve(
        Router::new()
            .route(
                "/vpc/aws/1.2.0/download",
                get(answer(format!("git::{}//modules/vpc?ref=v1.2.0", repo.url()))),
            )
            .route("/vpc/aws/download", get(answer(format!("git::{}", repo.url()))))
            .route("/archive/download", get(answer("https://host/x.tar.gz".into())))
            .route("/evil/download", get(answer("git::ext::sh -c date".into())))
            .route("/silent/download", get(|| async {})),
    )
    .await;
    let registry = |path: &str, revision: &str| Source {
        source_type: SourceType::Registry,
        ..git_source(&format!("{url}/{path}"), revision)
    };
    assert_eq!(resolved(&registry("vpc/aws", "1.2.0")).await.unwrap(), tagged);
    assert_eq!(resolved(&registry("vpc/aws/", "")).await.unwrap(), repo.head());
    for (path, revision, says) in [
        ("vpc/aws", "9.9.9", "404"),
        ("archive", "", "only Git"),
        ("evil", "", "remote helpers"),
        ("silent", "", "X-Terraform-Get"),
    ] {
        let error = resolved(&registry(path, revision)).await.unwrap_err().to_string();
        assert!(error.contains(says), "{path}: {error}");
    }
    let range = Source {
        source_revision_type: SourceRevisionType::SemanticVersionRange,
        ..registry("vpc/aws", "1.*")
    };
    assert!(matches!(resolved(&range).await.unwrap_err(), SourceError::RegistryRange));
}

#[tokio::test]
async fn a_password_from_a_registry_is_masked_before_git_gets_it() {
    let address = "git::http://me:from-registry@127.0.0.1:9/repo.git?ref=main";
    let answer = move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) };
    let url = serve(Router::new().route("/vpc/download", get(answer))).await;
    let source = Source { source_type: SourceType::Registry, ..git_source(&format!("{url}/vpc"), "") };
    let secret_store = SecretStore::new(Rules::new(&Default::default()).unwrap());
    let scratch = tempfile::tempdir().unwrap();
    for secrets in [secret_store.job(Some(uuid::Uuid::nil())), secret_store.job(None)] {
        assert_eq!(secrets.masker().text("from-registry"), "from-registry");
        let fetcher = Fetcher { secrets: Some(secrets.clone()), ..fetcher(scratch.path()) };
        let located = fetcher.locate(&source).await.unwrap();
        let url = GitUrl::parse("http://me:from-registry@127.0.0.1:9/repo.git").unwrap();
        assert_eq!(located.url, url, "git needs the password");
        assert_eq!(secrets.masker().text("from-registry"), "***");
        assert_eq!(secret_store.masker().text("from-registry"), "***");
    }
}

pub(super) async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
