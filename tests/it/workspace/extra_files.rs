//! Files that the server adds to a module.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use hawser::workspace::{PrivateFile, WorkspaceError};
use hawser_contract::requests::{ExtraFile, GetModule};

use crate::support::git::Repo;
use crate::support::module::{Module, extra, git_source, with_extra};

async fn place(module: &Module, repo: &Repo, files: &[ExtraFile]) -> Result<String, WorkspaceError> {
    module.get(&git_source(&repo.url(), "main"), &with_extra(files)).await
}

fn manifest(module: &Module) -> serde_json::Value {
    serde_json::from_str(&module.read(".snapcd/extra-files.json").unwrap()).unwrap()
}

#[tokio::test]
async fn files_are_created_updated_and_deleted_as_requested() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    place(&module, &repo, &[extra("a.tf", "one", false), extra("conf/deep/b.json", "b", false)])
        .await
        .unwrap();
    assert_eq!(module.read("a.tf").unwrap(), "one");
    assert_eq!(module.read("conf/deep/b.json").unwrap(), "b");
    assert_eq!(fs::metadata(module.root().join("a.tf")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(manifest(&module)["created"], serde_json::json!(["a.tf", "conf/deep/b.json"]));

    place(&module, &repo, &[extra("./a.tf", "two", false), extra("conf/deep/b.json", "b", false)])
        .await
        .unwrap();
    assert_eq!(module.read("a.tf").unwrap(), "two");

    place(&module, &repo, &[extra("a.tf", "two", false)]).await.unwrap();
    assert!(!module.root().join("conf").exists());

    place(&module, &repo, &[]).await.unwrap();
    assert_eq!(module.read("a.tf"), None);
    assert_eq!(manifest(&module)["created"], serde_json::json!([]));
}

#[tokio::test]
async fn a_folder_may_replace_a_file_and_back_unless_the_folder_contains_other_files() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    let (file, inner) = (extra("conf", "file", false), extra("conf/deep/b.json", "b", false));
    for _ in 0..2 {
        place(&module, &repo, std::slice::from_ref(&file)).await.unwrap();
        assert_eq!(module.read("conf").unwrap(), "file");
        place(&module, &repo, std::slice::from_ref(&inner)).await.unwrap();
        assert_eq!(module.read("conf/deep/b.json").unwrap(), "b");
    }
    module.write("conf/deep/of-somebody-else", "precious");
    let error = place(&module, &repo, &[file]).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::ExtraFileIsFolder { .. }), "{error}");
    assert_eq!(module.read("conf/deep/of-somebody-else").unwrap(), "precious");
}

#[tokio::test]
async fn a_source_file_is_only_replaced_on_request_and_restored_later() {
    let repo = Repo::with(&[("main.tf", "source"), ("sub/run.sh", "source")]);
    fs::set_permissions(repo.path().join("sub/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    repo.commit(&[]);
    let module = Module::new();

    place(&module, &repo, &[extra("main.tf", "extra", false)]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "source");
    assert!(module.log().contains("overwrite is not set"), "{}", module.log());

    let both = |text| [extra("main.tf", text, true), extra("sub/run.sh", text, true)];
    place(&module, &repo, &both("extra")).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "extra");
    assert_eq!(module.read(".snapcd/original-files/main.tf").unwrap(), "source");

    place(&module, &repo, &both("extra two")).await.unwrap();
    assert_eq!(module.read("sub/run.sh").unwrap(), "extra two");
    assert_eq!(module.read(".snapcd/original-files/sub/run.sh").unwrap(), "source");

    // Without `overwrite`, the file is treated as if it were no longer requested.
    place(&module, &repo, &[extra("main.tf", "extra", false)]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "source");
    assert_eq!(module.read("sub/run.sh").unwrap(), "source");
    let mode = fs::metadata(module.root().join("sub/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o100, 0o100);
    assert_eq!(manifest(&module)["overwritten"], serde_json::json!([]));
}

#[tokio::test]
async fn a_crash_after_a_restore_does_not_mistake_the_extra_file_for_the_original() {
    let repo = Repo::with(&[("main.tf", "source")]);
    let module = Module::new();
    place(&module, &repo, &[extra("main.tf", "extra", true)]).await.unwrap();
    fs::rename(module.root().join(".snapcd/original-files/main.tf"), module.root().join("main.tf")).unwrap();

    place(&module, &repo, &[extra("main.tf", "extra two", true)]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "extra two");
    place(&module, &repo, &[]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "source");
}

#[tokio::test]
async fn a_new_revision_starts_from_its_own_files() {
    let repo = Repo::with(&[("main.tf", "one")]);
    let module = Module::new();
    let files =
        [extra("main.tf", "extra", true), extra("b.tf", "b", false), extra(".terraformrc", "rc", false)];
    place(&module, &repo, &files).await.unwrap();

    repo.commit(&[("main.tf", "two"), ("b.tf", "from source")]);
    place(&module, &repo, &[extra("main.tf", "extra", true), extra("b.tf", "b", false)]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "extra");
    assert_eq!(module.read("b.tf").unwrap(), "from source");
    assert_eq!(module.read(".terraformrc"), None);

    place(&module, &repo, &[]).await.unwrap();
    assert_eq!(module.read("main.tf").unwrap(), "two");
}

#[tokio::test]
async fn no_file_name_leads_outside() {
    let repo = Repo::with(&[("main.tf", ""), ("sub/x", "")]);
    let outside = tempfile::tempdir().unwrap();
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    // A hook may create such symlinks; a revision that contains them is refused.
    symlink(outside.path(), module.root().join("link")).unwrap();
    symlink(outside.path().join("target"), module.root().join("file-link")).unwrap();

    for name in [
        "../x",
        "a/../../x",
        "/etc/x",
        "",
        ".",
        "sub/",
        "a\0b",
        ".git/hooks/post-checkout",
        ".snapcd/snapcd.env",
        "link/x",
        "link/new/x",
    ] {
        let error = place(&module, &repo, &[extra(name, "evil", true)]).await.unwrap_err();
        assert!(
            matches!(error, WorkspaceError::Name { .. } | WorkspaceError::Outside { .. }),
            "{name}: {error}"
        );
    }
    let error = place(&module, &repo, &[extra("sub", "x", true)]).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::ExtraFileIsFolder { .. }), "{error}");

    // A symlink at the path of the file is replaced, not followed, and restored as a symlink.
    place(&module, &repo, &[extra("file-link", "mine", true)]).await.unwrap();
    assert_eq!(module.read("file-link").unwrap(), "mine");
    place(&module, &repo, &[]).await.unwrap();
    assert!(module.root().join("file-link").is_symlink());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_list_with_files_outside_of_the_module_is_refused() {
    let repo = Repo::with(&[("main.tf", "")]);
    let module = Module::new();
    place(&module, &repo, &[extra("a.tf", "", false)]).await.unwrap();
    let precious = module.root().parent().unwrap().join("precious");
    fs::write(&precious, "x").unwrap();
    module.write(".snapcd/extra-files.json", r#"{"created":["../precious"],"overwritten":[]}"#);
    place(&module, &repo, &[]).await.unwrap_err();
    assert!(precious.exists());

    module.write(".snapcd/extra-files.json", "{");
    let error = place(&module, &repo, &[]).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::DamagedFile { file: PrivateFile::EXTRA_FILES, .. }), "{error}");
    let clean = GetModule { clean_init_enabled: true, ..GetModule::default() };
    module.get(&git_source(&repo.url(), "main"), &clean).await.unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_placed_in_the_new_revision_leaves_the_old_one_with_its_extra_files() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    let first = module.get_main(&repo).await.unwrap();
    place(&module, &repo, &[extra("a.tf", "one", false)]).await.unwrap();
    module.write("terraform.tfstate", "precious");

    repo.commit(&[("main.tf", "# two"), ("b.tf/folder", "")]);
    let files = [extra("a.tf", "two", false), extra("b.tf", "x", true)];
    let error = place(&module, &repo, &files).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::ExtraFileIsFolder { .. }), "{error}");
    assert_eq!(module.workspace().local_commit().unwrap(), first);
    assert_eq!(module.read("main.tf").unwrap(), "# one");
    assert_eq!(module.read("a.tf").unwrap(), "one");
    assert_eq!(module.read("terraform.tfstate").unwrap(), "precious");
    assert!(!module.staging().exists());
}

#[tokio::test]
async fn extra_files_of_the_previous_init_directory_are_deleted_when_only_the_subdirectory_changes() {
    let repo = Repo::with(&[("a/main.tf", "source"), ("b/main.tf", "source"), ("b/x.tf", "")]);
    let mut module = Module::in_subdirectory("a");
    let files = |text| [extra("main.tf", text, true), extra("conf/new.tf", text, false)];
    place(&module, &repo, &files("of a")).await.unwrap();
    module.metadata.source_subdirectory = Some("b".into());
    // A failure must not change anything either.
    place(&module, &repo, &[extra("/etc/x", "", false)]).await.unwrap_err();
    assert_eq!(module.read("a/main.tf").unwrap(), "of a");
    place(&module, &repo, &files("of b")).await.unwrap();

    assert_eq!(module.read("a/main.tf").unwrap(), "source");
    assert!(!module.root().join("a/conf").exists());
    assert_eq!(module.read("b/main.tf").unwrap(), "of b");
    assert_eq!(module.read("b/conf/new.tf").unwrap(), "of b");

    module.metadata.source_subdirectory = Some("a".into());
    place(&module, &repo, &[]).await.unwrap();
    assert_eq!(module.read("b/main.tf").unwrap(), "source");
    assert_eq!(module.read("a/main.tf").unwrap(), "source");
}

#[tokio::test]
async fn an_extra_file_with_the_name_of_a_state_stays_an_extra_file_in_a_new_revision() {
    let repo = Repo::with(&[("main.tf", "# one")]);
    let module = Module::new();
    place(&module, &repo, &[extra("seed.tfstate", "one", false)]).await.unwrap();
    repo.commit(&[("main.tf", "# two")]);
    place(&module, &repo, &[extra("seed.tfstate", "two", false)]).await.unwrap();
    assert_eq!(module.read("seed.tfstate").unwrap(), "two");
    assert_eq!(manifest(&module)["created"], serde_json::json!(["seed.tfstate"]));
    assert!(!module.log().contains("Skipping"), "{}", module.log());
    repo.commit(&[("main.tf", "# three")]);
    place(&module, &repo, &[]).await.unwrap();
    assert_eq!(module.read("seed.tfstate"), None);
}
