//! States and related files under any name: a new revision keeps them, and a clean init copies them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use hawser_contract::requests::GetModule;
use serde_json::json;

use crate::support::git::Repo;
use crate::support::module::{Module, git_source, variables};

const BACKEND: &str = "terraform {\n  backend \"local\" {\n    path = \"state/prod.json\"\n  }\n}\n\
    resource \"terraform_data\" \"it\" {}\n";

/// Runs Terraform in the module and returns its exit code.
fn terraform(module: &Module, arguments: &[&str]) -> i32 {
    let ran = Command::new("terraform").args(arguments).current_dir(module.root()).output().unwrap();
    let code = ran.status.code().unwrap();
    assert_ne!(code, 1, "{}", String::from_utf8_lossy(&ran.stderr));
    code
}

#[tokio::test]
async fn a_local_backend_finds_its_state_in_the_next_revision_under_any_name() {
    let repo = Repo::with(&[("main.tf", BACKEND)]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    terraform(&module, &["init", "-input=false"]);
    terraform(&module, &["apply", "-input=false", "-auto-approve"]);
    assert!(module.read("state/prod.json").unwrap().contains("terraform_data"));

    repo.commit(&[("readme", "new")]);
    module.get_main(&repo).await.unwrap();

    let changes = terraform(&module, &["plan", "-input=false", "-detailed-exitcode"]);
    assert_eq!(changes, 0, "the plan makes again what is there: {}", module.log());
}

/// What init saves about a local backend.
fn local_backend(path: &str) -> String {
    json!({"version": 3, "backend": {"type": "local", "config": {"path": path}}}).to_string()
}

#[tokio::test]
async fn states_that_only_the_backend_names_survive_anywhere_in_the_module() {
    let outside = tempfile::tempdir().unwrap();
    let elsewhere = outside.path().join("state.json");
    fs::write(&elsewhere, "elsewhere").unwrap();
    let repo = Repo::with(&[("main.tf", "# one"), ("env/main.tf", ""), ("tracked/state", "as committed")]);
    let module = Module::in_subdirectory("env");
    module.get_main(&repo).await.unwrap();
    let absolute = module.root().join("a/bsolute").display().to_string();
    module.write("env/.terraform/terraform.tfstate", &local_backend("../shared/state"));
    module.write(".terraform/terraform.tfstate", &local_backend(&absolute));
    module.write("b/.terraform/terraform.tfstate", &local_backend(elsewhere.to_str().unwrap()));
    module.write("c/.terraform/terraform.tfstate", &local_backend("../../../../../state"));
    module.write("d/.terraform/terraform.tfstate", &local_backend("."));
    module.write("e/.terraform/terraform.tfstate", &local_backend("../tracked/state"));
    module.write("f/.data/terraform.tfstate", &local_backend("of-f"));
    let data = variables(&[("TF_DATA_DIR", ".data")]);
    module.write("f/.snapcd/snapcd.env", &serde_json::to_string(&data).unwrap());
    let kept = [
        "shared/state",
        "shared/state.backup",
        "shared/.state.lock.info",
        "a/bsolute",
        "f/of-f",
        "f/.data/environment",
    ];
    for path in kept {
        module.write(path, path);
    }
    for path in ["shared/other", "d/generated"] {
        module.write(path, "goes");
    }

    repo.commit(&[("main.tf", "# two"), ("tracked/state", "committed again"), ("shared/state", "theirs")]);
    module.get_main(&repo).await.unwrap();

    for path in kept {
        assert_eq!(module.read(path).as_deref(), Some(path), "{}", module.log());
    }
    for path in ["shared/other", "d/generated"] {
        assert_eq!(module.read(path), None, "{path}");
    }
    assert_eq!(module.read("tracked/state").unwrap(), "committed again");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "elsewhere");
    // A state is not dropped if there is no room for it.
    repo.git(&["rm", "--quiet", "-r", "shared"]);
    repo.commit(&[("shared", "a file now")]);
    let error = module.get_main(&repo).await.unwrap_err().to_string();
    assert!(error.contains("shared/state") && error.contains("move that state"), "{error}");
}

#[tokio::test]
async fn pulumi_stacks_and_settings_that_are_not_committed_survive_a_new_revision() {
    let repo = Repo::with(&[
        ("Pulumi.yaml", "name: p"),
        ("Pulumi.prod.yaml", "committed"),
        ("Pulumi.gone.yaml", "committed"),
    ]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    let kept = [".pulumi/stacks/p/dev.json", ".pulumi/meta.yaml", "state/.pulumi/stacks/x.json"];
    for path in kept {
        module.write(path, path);
    }
    module.write("Pulumi.dev.yaml", "encryptionsalt: v1:abc");
    module.write("Pulumi.new.yaml", "of the runner");
    module.write("Pulumi.prod.yaml", "changed by a plan");
    module.write("Pulumi.gone.yaml", "changed by a plan");

    repo.git(&["rm", "--quiet", "Pulumi.gone.yaml"]);
    repo.commit(&[("Pulumi.prod.yaml", "committed again"), ("Pulumi.new.yaml", "of the repository")]);
    module.get_main(&repo).await.unwrap();

    for path in kept {
        assert_eq!(module.read(path).as_deref(), Some(path));
    }
    assert_eq!(module.read("Pulumi.dev.yaml").as_deref(), Some("encryptionsalt: v1:abc"));
    assert_eq!(module.read("Pulumi.prod.yaml").unwrap(), "committed again");
    assert_eq!(module.read("Pulumi.new.yaml").unwrap(), "of the repository");
    assert!(module.log().contains("Using Pulumi.new.yaml of the new revision"), "{}", module.log());
    assert_eq!(module.read("Pulumi.gone.yaml"), None);
}

#[tokio::test]
async fn names_of_pulumi_parameters_are_kept_with_the_settings_that_contain_them() {
    let (note, backend) = (".snapcd/pulumi-parameters.json", ".snapcd/pulumi.json");
    for (file, is_kept) in [("Pulumi.dev.yaml", true), ("Pulumi.prod.yaml", false)] {
        let repo = Repo::with(&[("Pulumi.yaml", "name: p"), ("Pulumi.prod.yaml", "committed")]);
        let module = Module::new();
        module.get_main(&repo).await.unwrap();
        module.write("Pulumi.dev.yaml", "of the runner");
        module.write("Pulumi.prod.yaml", "changed by a plan");
        module.write(note, &json!({file: {"stack": "x"}, "other.yaml": {"stack": "y"}}).to_string());
        module.write(backend, "{}");
        repo.commit(&[("other", "")]);
        module.get_main(&repo).await.unwrap();
        let expected = is_kept.then(|| json!({file: {"stack": "x"}}).to_string());
        assert_eq!(module.read(note), expected, "{file}");
        assert!(module.read(backend).is_some());
        let clean = GetModule { clean_init_enabled: true, ..GetModule::default() };
        module.get(&git_source(&repo.url(), "main"), &clean).await.unwrap();
        assert_eq!((module.read(note), module.read(backend)), (None, None));
    }
}

#[tokio::test]
async fn a_clean_init_logs_the_states_that_it_drops_and_keeps_copies() {
    let state = |instances: usize| {
        let instances = vec![json!({}); instances];
        json!({"version": 4, "resources": [{"mode": "managed", "instances": instances}]}).to_string()
    };
    let stack = json!({"version": 3, "checkpoint": {"stack": "dev", "latest": {"resources": [
        {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"}, {"urn": "urn:pulumi:dev::p::x:y:Z::a"},
    ]}}})
    .to_string();
    let repo = Repo::with(&[("main.tf", ""), ("fixture.tfstate", &state(7))]);
    let module = Module::new();
    module.get_main(&repo).await.unwrap();
    module.workspace().save_environment(&variables(&[("A", "1")])).unwrap();
    let rescued = module.workspace().rescued_dir().to_owned();
    let clean = GetModule { clean_init_enabled: true, ..GetModule::default() };
    let source = git_source(&repo.url(), "main");

    module.get(&source, &clean).await.unwrap();
    assert!(!module.log().contains("Kept") && !rescued.exists(), "{}", module.log());

    let deep = format!("{}/terraform.tfstate", ["deep"; 60].join("/"));
    let lost = [
        ("terraform.tfstate", state(2), "2 resources"),
        ("env/errored.tfstate", "{\"version\": 4, \"resou".to_owned(), "(unreadable)"),
        ("state/prod.json", state(1), "1 resource)"),
        ("other/prod.tfstate.json", state(1), "1 resource)"),
        (".pulumi/stacks/p/dev.json", stack, "1 resource)"),
        (&deep, state(1), "1 resource)"),
    ];
    for (path, text, _) in &lost {
        module.write(path, text);
    }
    let no_loss = [
        ("empty/terraform.tfstate", state(0)),
        ("terraform.tfstate.backup", state(3)),
        (".terraform/terraform.tfstate", local_backend("state/prod.json")),
        (".pulumi/backups/p/dev.json", "x".to_owned()),
        (".pulumi/stacks/p/dev.json.bak", "x".to_owned()),
    ];
    for (path, text) in &no_loss {
        module.write(path, text);
    }
    module.get(&source, &clean).await.unwrap();

    let log = module.log();
    assert!(!log.contains("Kept"), "{log}");
    for path in lost.iter().map(|it| it.0).chain(no_loss.iter().map(|it| it.0)) {
        assert_eq!(module.read(path), None, "{path}");
    }
    let copies: Vec<_> = fs::read_dir(&rescued).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(copies.len(), lost.len(), "{copies:?}");
    for (path, text, says) in &lost {
        let line = log.lines().find(|line| line.contains(&format!("drops the state {path} (")));
        let line = line.unwrap_or_else(|| panic!("{path} is not named: {log}"));
        assert!(line.contains(says), "{line}");
        let copy = copies.iter().find(|copy| line.ends_with(copy.to_str().unwrap())).unwrap();
        let name = path.replace('/', "-");
        let name = &name[name.len().saturating_sub(180)..];
        assert!(copy.to_str().unwrap().ends_with(&format!("-clean-init-{name}")), "{copy:?}");
        assert_eq!(&fs::read_to_string(copy).unwrap(), text);
        assert_eq!(fs::metadata(copy).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(module.workspace().load_environment().unwrap(), variables(&[("A", "1")]));
}
