//! The recorded origin of a checkout, files of other users, annotated tags, and error messages.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hawser_contract::requests::GetModule;
use hawser_contract::{Source, SourceType};

use super::resolving::serve;
use super::serve_files;
use crate::support::git::{Repo, git_in};
use crate::support::module::{Module, WithVariable as _, extra, git_source, with_extra};

/// Like Git LFS: a required filter that reads the origin.
fn with_asking_filter(mut module: Module) -> Module {
    let settings =
        [("filter.asks.smudge", "git config --get remote.origin.url"), ("filter.asks.required", "true")];
    module.fetcher = module.fetcher.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (number, (key, value)) in settings.into_iter().enumerate() {
        module.fetcher = module.fetcher.env(format!("GIT_CONFIG_KEY_{number}"), key);
        module.fetcher = module.fetcher.env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    module
}

#[tokio::test]
async fn filters_and_hooks_find_the_origin_of_a_checkout_without_its_password() {
    let repo = Repo::with(&[("main.tf", ""), (".gitattributes", "*.bin filter=asks"), ("large.bin", "x")]);
    let module = with_asking_filter(Module::new());
    module.get_main(&repo).await.unwrap();
    assert_eq!(module.read("large.bin").unwrap().trim(), repo.url());
    assert_eq!(git_in(&module.root(), &["remote", "get-url", "origin"]), repo.url());

    let url = serve_files(&repo).await;
    let module = with_asking_filter(Module::new());
    module.get(&git_source(&url, "main"), &GetModule::default()).await.unwrap();
    assert_eq!(module.read("large.bin").unwrap().trim(), url.replace("user:hunter2@", ""));
    assert!(!module.read(".git/config").unwrap().contains("hunter2"));
}

#[tokio::test]
async fn a_disk_where_all_files_belong_to_another_user_works() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let first = repo.head();
    repo.commit(&[("main.tf", "# two")]);
    let url = serve_files(&repo).await;
    let cache = tempfile::tempdir().unwrap();
    let on_such_a_disk = |mut module: Module| {
        module.fetcher = module.fetcher.env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
        module.fetcher.fetch_timeout = Duration::from_secs(60);
        module
    };

    let module = on_such_a_disk(Module::new());
    // A server of plain files ignores filters, and git must not fetch the same objects again and again.
    module.get(&git_source(&url, &first[..9]), &GetModule::default()).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    module.write("terraform.tfstate", "precious");
    module.get(&git_source(&url, "main"), &GetModule::default()).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "# two");
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");

    for says in ["whole history", "was in the cache already"] {
        let module = on_such_a_disk(Module::cached(cache.path()));
        module.get(&git_source(&url, "main"), &GetModule::default()).await.unwrap();
        assert!(module.log().contains(says), "{}", module.log());
        assert!(!module.log().contains("Cannot use the cached copy"), "{}", module.log());
    }
}

#[tokio::test]
async fn the_id_of_an_annotated_tag_checks_out_its_commit_once() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let commit = repo.head();
    repo.git(&["tag", "--annotate", "--message=x", "v1"]);
    let tag = repo.git(&["rev-parse", "v1"]);
    assert_ne!(tag, commit);
    repo.commit(&[("main.tf", "# two")]);
    let cache = tempfile::tempdir().unwrap();
    for module in [Module::new(), Module::cached(cache.path())] {
        assert_eq!(module.get_commit(&repo, &tag).await.unwrap(), commit);
        assert_eq!(module.read("main.tf").unwrap(), "# one");
        assert_eq!(module.workspace().local_commit().unwrap(), commit);
        assert!(module.log().contains(&format!("{tag} is an annotated tag of {commit}")), "{}", module.log());
        module.write("left-by-a-hook", "x");
        // By either id, and by the id of the tag again after the extra files have changed.
        for id in [&tag, &commit, &tag] {
            let file = extra("extra.tf", id, false);
            let source =
                Source { source_definitive_revision: Some(id.clone()), ..git_source(&repo.url(), "main") };
            assert_eq!(module.get(&source, &with_extra(&[file])).await.unwrap(), commit);
        }
        assert!(!module.log().contains("fetched again"), "{}", module.log());
        assert_eq!(module.read("left-by-a-hook").unwrap(), "x");
    }
}

#[tokio::test]
async fn errors_name_the_actual_cause() {
    let repo = Repo::with(&[("modules/vpc/main.tf", "")]);
    let unknown = "0123456789012345678901234567890123456789";
    let error = Module::new().get_commit(&repo, unknown).await.unwrap_err().to_string();
    assert!(error.contains("contains it") && !error.contains("ambiguous"), "{error}");
    let error = Module::new().get(&git_source(&repo.url(), "0123456789"), &GetModule::default()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("contains it, or the abbreviated id is ambiguous"), "{error}");

    let address = format!("git::{}//modules/vcp?ref=main", repo.url());
    let answer = move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) };
    let right = format!("git::{}//modules?ref=main", repo.url());
    let right = move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", right)]) };
    let routes = Router::new().route("/m/1.0.0/download", get(answer)).route("/m/2.0.0/download", get(right));
    let url = serve(routes).await;
    let source =
        |version| Source { source_type: SourceType::Registry, ..git_source(&format!("{url}/m"), version) };
    let module = Module::in_subdirectory("example");
    let error = module.get(&source("1.0.0"), &GetModule::default()).await.unwrap_err().to_string();
    assert!(error.contains("modules/vcp") && error.contains("registry names"), "{error}");
    assert!(!error.contains("source subdirectory"), "{error}");
    let error = module.get(&source("2.0.0"), &GetModule::default()).await.unwrap_err().to_string();
    assert!(error.contains("modules/example") && error.contains("source subdirectory"), "{error}");
}
