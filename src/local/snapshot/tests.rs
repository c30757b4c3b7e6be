use std::fs;

use super::*;

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A user's directory and a snapshot repository.
struct Case {
    home: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join("user").join(path)
    }

    fn write(&self, path: &str, contents: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self
    }

    fn git(&self, inside: &str, arguments: &[&str]) -> String {
        let git = git("set up a test").unwrap().current_dir(&self.path(inside));
        let git = git.args(["-c", "user.name=u", "-c", "user.email=u@example.com"]).args(arguments);
        wait(text(git)).unwrap()
    }

    fn take(&self, directory: &str) -> Result<Snapshot, LocalError> {
        let (directory, names) = check(&self.path(directory))?;
        wait(take(&directory, &names, &self.home.path().join("our own.git")))
    }

    /// The path in the commit of one of the user's paths.
    fn inside(&self, path: &str) -> String {
        let path = self.home.path().canonicalize().unwrap().join("user").join(path);
        path.strip_prefix("/").unwrap().to_str().unwrap().trim_end_matches('/').to_owned()
    }

    /// Clones the snapshot as a runner would, and lists its files relative to the user's folder.
    fn fetched(&self, snapshot: &Snapshot) -> BTreeSet<String> {
        let clone = self.home.path().join("clone");
        let _ = fs::remove_dir_all(&clone);
        let git = || git("fetch a snapshot").unwrap();
        let get = git().args(["clone", "--quiet", "--branch", "snapshot", &snapshot.url]).args([&clone]);
        wait(run(get)).unwrap();
        let list = git().current_dir(&clone).args(["ls-files", "-z"]);
        let above = self.inside("");
        paths(&wait(run(list)).unwrap())
            .map(|path| path.strip_prefix(&above).unwrap().to_string_lossy().into_owned())
            .collect()
    }

    /// The files in the snapshot of a directory that is not part of a larger repository.
    fn taken(&self, directory: &str) -> Vec<String> {
        let files = self.fetched(&self.take(directory).unwrap());
        files.iter().map(|path| path.strip_prefix(directory).unwrap()[1..].to_owned()).collect()
    }
}

#[test]
fn a_directory_without_a_repository_is_included_without_ignored_files() {
    let case = Case::new();
    case.write("p/main.tf", "")
        .write("p/modules/x/x.tf", "")
        .write("p/.gitignore", "*.log\n")
        .write("p/a.log", "");
    let snapshot = case.take("p").unwrap();
    assert_eq!(snapshot.subdirectory, case.inside("p"));
    assert_eq!(Vec::from_iter(case.fetched(&snapshot)), ["p/.gitignore", "p/main.tf", "p/modules/x/x.tf"]);
    assert!(!case.path("p/.git").exists());
}

#[test]
fn uncommitted_changes_and_deletions_are_part_of_the_snapshot() {
    let case = Case::new();
    case.write("p/main.tf", "committed").write("p/gone.tf", "");
    case.git("p", &["init", "-q"]);
    case.git("p", &["add", "-A"]);
    case.git("p", &["commit", "-qm", "one"]);
    case.write("p/main.tf", "changed").write("p/new.tf", "");
    fs::remove_file(case.path("p/gone.tf")).unwrap();

    assert_eq!(case.taken("p"), ["main.tf", "new.tf"]);
    assert_eq!(
        fs::read_to_string(case.home.path().join("clone").join(case.inside("p/main.tf"))).unwrap(),
        "changed"
    );
}

#[test]
fn the_users_repository_and_index_do_not_change() {
    let case = Case::new();
    case.write("p/main.tf", "").write("p/staged.tf", "");
    case.git("p", &["init", "-q"]);
    case.git("p", &["add", "staged.tf"]);
    let before = (fs::read(case.path("p/.git/index")).unwrap(), case.git("p", &["count-objects", "-v"]));
    case.take("p").unwrap();
    let after = (fs::read(case.path("p/.git/index")).unwrap(), case.git("p", &["count-objects", "-v"]));
    assert_eq!(before, after);
}

#[test]
fn inside_a_repository_neighboring_modules_are_included() {
    let case = Case::new();
    case.write("repo/live/prod/main.tf", "").write("repo/modules/x/x.tf", "");
    case.git("repo", &["init", "-q"]);
    let snapshot = case.take("repo/live/prod").unwrap();
    assert_eq!(snapshot.subdirectory, case.inside("repo/live/prod"));
    assert_eq!(Vec::from_iter(case.fetched(&snapshot)), ["repo/live/prod/main.tf", "repo/modules/x/x.tf"]);
}

#[test]
fn the_path_in_the_commit_does_not_depend_on_the_root_of_the_repository() {
    let case = Case::new();
    case.write("a/b/c/main.tf", "").write("a/x.tf", "").write("a/b/y.tf", "");
    let alone = case.take("a/b/c").unwrap();
    for (root, files) in [
        ("a", &["a/b/c/main.tf", "a/b/y.tf", "a/x.tf"][..]),
        ("a/b", &["a/b/c/main.tf", "a/b/y.tf"]),
        ("a/b/c", &["a/b/c/main.tf"]),
    ] {
        case.git(root, &["init", "-q"]);
        let snapshot = case.take("a/b/c").unwrap();
        assert_eq!(snapshot.subdirectory, alone.subdirectory, "{root}");
        assert_eq!(Vec::from_iter(case.fetched(&snapshot)), files, "{root}");
    }
}

#[test]
fn parent_folders_with_reserved_names_are_renamed() {
    let case = Case::new();
    for odd in [".terraform", "x.tfstate.d", ".git", ".snapcd", "a\tb"] {
        case.write(&format!("{odd}/p/main.tf"), "");
        let snapshot = case.take(&format!("{odd}/p")).unwrap();
        assert!(!snapshot.subdirectory.contains(odd), "{}", snapshot.subdirectory);
        assert_eq!(case.fetched(&snapshot).len(), 1, "{odd}");
    }
}

#[test]
fn ignored_files_are_excluded_unless_tracked_or_variable_files() {
    let case = Case::new();
    case.write("p/.gitignore", "*.tfvars*\n*.secret\n.terraform*\n").write("p/main.tf", "");
    case.write("p/kept.secret", "").write("p/left.secret", "").write("p/.terraform.lock.hcl", "");
    case.write("p/terraform.tfvars", "").write("p/x.auto.tfvars.json", "{}").write("p/other.tfvars", "");
    case.git("p", &["init", "-q"]);
    case.git("p", &["add", "-f", "kept.secret", ".terraform.lock.hcl"]);
    assert_eq!(
        case.taken("p"),
        [
            ".gitignore",
            ".terraform.lock.hcl",
            "kept.secret",
            "main.tf",
            "terraform.tfvars",
            "x.auto.tfvars.json"
        ]
    );
}

#[test]
fn state_and_downloaded_providers_are_never_included() {
    let case = Case::new();
    case.write("p/main.tf", "").write("p/terraform.tfstate", "").write("p/terraform.tfstate.backup", "");
    case.write("p/.terraform/providers/x", "").write("p/terraform.tfstate.d/dev/terraform.tfstate", "");
    case.git("p", &["init", "-q"]);
    case.git("p", &["add", "-fA"]);
    let snapshot = case.take("p").unwrap();
    assert!(snapshot.leaves_state_behind);
    assert_eq!(Vec::from_iter(case.fetched(&snapshot)), ["p/main.tf"]);
    // The state of a workspace counts too.
    case.write("q/main.tf", "");
    assert!(!case.take("q").unwrap().leaves_state_behind);
    case.write("q/terraform.tfstate.d/dev/terraform.tfstate", "");
    assert!(case.take("q").unwrap().leaves_state_behind);
}

#[test]
fn submodules_and_nested_repositories_are_included_as_plain_files() {
    let case = Case::new();
    case.write("library/x.tf", "").write("p/main.tf", "").write("p/nested/deep/y.tf", "");
    case.git("library", &["init", "-q"]);
    case.git("library", &["add", "-A"]);
    case.git("library", &["commit", "-qm", "one"]);
    case.git("p", &["init", "-q"]);
    let library = case.path("library");
    let add =
        ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", library.to_str().unwrap(), "sub"];
    case.git("p", &add);
    case.git("p/nested", &["init", "-q"]);
    assert_eq!(case.taken("p"), [".gitmodules", "main.tf", "nested/deep/y.tf", "sub/x.tf"]);

    // The same without a repository around them.
    fs::remove_dir_all(case.path("p/.git")).unwrap();
    assert_eq!(case.taken("p"), [".gitmodules", "main.tf", "nested/deep/y.tf", "sub/x.tf"]);
}

#[test]
fn a_directory_that_its_repository_ignores_is_included_alone() {
    let case = Case::new();
    case.write("repo/.gitignore", "scratch/\n").write("repo/scratch/main.tf", "").write("repo/other.tf", "");
    case.git("repo", &["init", "-q"]);
    let snapshot = case.take("repo/scratch").unwrap();
    assert_eq!(snapshot.subdirectory, case.inside("repo/scratch"));
    assert_eq!(Vec::from_iter(case.fetched(&snapshot)), ["repo/scratch/main.tf"]);
}

#[test]
fn the_same_files_result_in_the_same_commit() {
    let case = Case::new();
    case.write("p/main.tf", "one");
    let first = case.take("p").unwrap();
    assert_eq!(case.take("p").unwrap(), first);
    case.write("p/main.tf", "two");
    assert_ne!(case.take("p").unwrap().commit, first.commit);
}

#[test]
fn contents_names_and_modes_are_preserved() {
    let case = Case::new();
    case.write("p/.gitattributes", "* text=auto\n*.bin filter=lfs\n").write("p/main.tf", "a\r\nb\r\n");
    case.write("p/a b\n*?.tf", "").write("p/x.bin", "content").write("p/-rf.sh", "");
    std::os::unix::fs::symlink("main.tf", case.path("p/link.tf")).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(case.path("p/-rf.sh"), fs::Permissions::from_mode(0o755)).unwrap();

    let snapshot = case.take("p").unwrap();
    let store = wait(SnapshotRepository::open(&case.home.path().join("our own.git"))).unwrap();
    let tree = wait(store.run(&["ls-tree", "-rz", &snapshot.commit])).unwrap();
    assert!(tree.contains("/p/a b\n*?.tf\0"), "{tree:?}");
    assert!(tree.contains("120000 blob") && tree.contains("100755 blob"), "{tree:?}");
    let show = |path: &str| {
        let object = format!("{}:{}/{path}", snapshot.commit, snapshot.subdirectory);
        wait(run(store.git("show a file").unwrap().args(["show", &object]))).unwrap()
    };
    assert_eq!(show("main.tf"), b"a\r\nb\r\n");
    assert_eq!(show("x.bin"), b"content");
}

#[test]
fn a_virtual_environment_with_links_becomes_one_without_links_to_the_outside() {
    let case = Case::new();
    case.write("p/Pulumi.yaml", "name: p").write("p/venv/lib/x.py", "").write("python3", "the program");
    fs::create_dir(case.path("p/venv/bin")).unwrap();
    for (target, link) in [("lib", "lib64"), ("../../../python3", "bin/python3"), ("python3", "bin/python")] {
        std::os::unix::fs::symlink(target, case.path("p/venv").join(link)).unwrap();
    }
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(case.path("python3"), fs::Permissions::from_mode(0o755)).unwrap();
    let snapshot = case.take("p").unwrap();
    let files =
        ["p/Pulumi.yaml", "p/venv/bin/python", "p/venv/bin/python3", "p/venv/lib/x.py", "p/venv/lib64"];
    assert_eq!(Vec::from_iter(case.fetched(&snapshot)), files);
    let venv = case.home.path().join("clone").join(case.inside("p/venv"));
    assert!(venv.join("lib64").is_symlink());
    for name in ["bin/python", "bin/python3"] {
        let copy = fs::symlink_metadata(venv.join(name)).unwrap();
        assert!(copy.is_file() && copy.permissions().mode() & 0o100 != 0, "{name}");
        assert_eq!(fs::read_to_string(venv.join(name)).unwrap(), "the program");
    }
}

#[test]
fn a_directory_without_configuration_is_refused() {
    let case = Case::new();
    case.write("p/readme.md", "").write("q/.gitignore", "*.tf\n").write("q/main.tf", "");
    let error = case.take("p").unwrap_err().to_string();
    assert!(error.contains("user/p") && error.contains("no .tf"), "{error}");
    let error = case.take("q").unwrap_err().to_string();
    assert!(error.contains("git ignores"), "{error}");
    let error = case.take("nowhere").unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}
