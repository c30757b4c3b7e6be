//! The policy: the runner refuses everything that its settings do not allow.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hawser_contract::BackendConfig;
use hawser_contract::requests::ExtraFile;
use hawser_contract::{EngineName, Flag, SourceRefresh, SourceRevisionType, SourceType, Task, TerraformFlag};
use hawser_dev_server::{HubEvent, JobKind, JobSpec, JobState};
use serde_json::Value;
use uuid::Uuid;

use crate::support::audit::{audit_log, events};
use crate::support::eventually::{eventually, in_time};
use crate::support::git::git_in;
use crate::support::git_server::GitServer;
use crate::support::world::{EMPTY, World, job, waiting};

fn was_claimed(world: &World, id: Uuid) -> bool {
    world.hub.all_events().iter().any(|it| matches!(it.event, HubEvent::Running { job, .. } if job == id))
}

/// The error of a failed job, as reported to the server.
async fn error_of(world: &World, id: Uuid) -> (Task, String) {
    let ended = world.ended(id).await;
    assert!(matches!(ended.state, JobState::Failed { .. }), "{ended:#?}");
    let error = ended.error.unwrap();
    (error.task, error.message)
}

fn only(task: Task, url: &str, module: &str) -> JobSpec {
    let mut spec = job(JobKind::Tasks(vec![task]), url, module);
    spec.engine = EngineName::TERRAFORM;
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_task_claims_runs_and_writes_nothing_and_other_jobs_continue() {
    let world = World::new().await;
    let url = world.repository("allowed", EMPTY);
    let elsewhere = world.repository("elsewhere", EMPTY);
    let sources = format!("file://{}/allowed*", world.dir.path().display());
    let runner = world.runner_with(
        "one",
        &[
            ("Policy__AllowedEngines__0", "terraform"),
            ("Policy__AllowedSources__0", &sources),
            ("Policy__AllowedModules__0", "local/local/ok-*"),
            ("Policy__AllowedFlags__0", "Target"),
            ("Policy__AllowedBackendSettings__0", "key"),
            ("Policy__PlanOnly", "true"),
            ("Policy__Hooks", "None"),
        ],
    );
    world.connected(1).await;
    let ran = world.path("ran");
    let rows: Vec<(&str, &str, JobSpec)> = vec![
        ("Policy.AllowedEngines", "tofu", {
            let mut spec = only(Task::GetModule, &url, "ok-engine");
            spec.engine = EngineName::TOFU;
            spec
        }),
        ("Policy.AllowedSources", "elsewhere", only(Task::GetDefinitiveRevision, &elsewhere, "ok-source")),
        ("Policy.AllowedSources", "elsewhere", only(Task::GetModule, &elsewhere, "ok-source-2")),
        ("Policy.AllowedModules", "local/local/other", only(Task::GetModule, &url, "other")),
        ("Policy.AllowedFlags", "Parallelism", {
            let mut spec = only(Task::Plan, &url, "ok-flag");
            spec.flags.terraform_flags = vec![Flag::new(TerraformFlag::Parallelism, Some("1"))].into();
            spec
        }),
        ("Policy.AllowedFlags", "Upgrade", {
            let mut spec = only(Task::Init, &url, "ok-switch");
            spec.init_flags.auto_upgrade_enabled = true;
            spec
        }),
        ("Policy.AllowedBackendSettings", "shared_config_files", {
            let mut spec = only(Task::Init, &url, "ok-backend");
            spec.module_backend_configs =
                vec![backend("shared_config_files", r#"[".snapcd/inputs.tfvars"]"#)];
            spec
        }),
        ("Policy.PlanOnly", "ApplyFromPlan", only(Task::ApplyFromPlan, &url, "ok-apply")),
        ("Policy.PlanOnly", "DestroyFromPlan", only(Task::DestroyFromPlan, &url, "ok-destroy")),
        ("Policy.Hooks", "ValidateBeforeHook", {
            let mut spec = only(Task::Validate, &url, "ok-hook");
            spec.hooks.validate_before = Some(format!("touch '{}'", ran.display()));
            spec
        }),
    ];
    for (rule, value, spec) in rows {
        let module = spec.module_name.clone();
        let id = world.hub.submit(spec);
        let (task, message) = error_of(&world, id).await;
        assert!(message.contains(rule) && message.contains(value), "{message}");
        assert!(message.contains("Only the operator of this runner can allow it"), "{message}");
        assert_eq!(world.messages(id), std::slice::from_ref(&message), "one line in the job's log");
        assert_eq!(events(&runner, id), [format!("refused {task} {rule}")]);
        assert!(!was_claimed(&world, id), "{rule}");
        assert!(!runner.working.join("local").exists(), "{rule}: {module}");
        assert!(!runner.working.join(".hawser/locks").exists(), "{rule}: {module}");
    }
    assert!(!ran.exists());
    assert!(!runner.working.join("sourcecache").exists());

    let mut events_at_hub = world.hub.events();
    let refresh = SourceRefresh {
        organization_id: world.hub.identity().organization_id,
        source_url: elsewhere.clone(),
        source_revision: String::new(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    world.hub.refresh(refresh, Some("one")).unwrap();
    let answered = events_at_hub.find(|event| match event {
        HubEvent::RefreshEnded { result, .. } => Some(result.clone()),
        _ => None,
    });
    let fault = in_time("the refresh is answered", answered).await.unwrap_err();
    assert!(fault.message.contains("Policy.AllowedSources"), "{}", fault.message);
    let line = audit_log(&runner).pop().unwrap();
    assert_eq!((&line["event"], &line["task"]), (&"refused".into(), &"SourceRefresh".into()));

    let fine = world.hub.submit(job(JobKind::Plan, &url, "ok-plan"));
    let ended = world.ended(fine).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_server_nor_a_checkout_can_widen_the_settings() {
    let world = World::new().await;
    let wide = r#"{"Policy": {"PlanOnly": false, "Hooks": "All"}}"#;
    let touched = world.path("touched");
    let main = format!(
        "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    command = \"touch '{}'\"\n  }}\n}}\n",
        touched.display()
    );
    let url = world.repository(
        "repo",
        &[("main.tf", main.as_str()), ("appsettings.json", wide), ("appsettings.Production.json", wide)],
    );
    let runner = world.runner_with("one", &[("Policy__PlanOnly", "true")]);
    for (name, value) in [("Policy__PlanOnly", "false"), ("DOTNET_ENVIRONMENT", "Production")] {
        let mut spec = job(JobKind::Apply, &url, "wide");
        spec.env_vars.insert(name.into(), value.into());
        let id = world.hub.submit(spec);
        let (task, message) = error_of(&world, id).await;
        assert_eq!(task, Task::ApplyFromPlan);
        assert!(message.contains("Policy.PlanOnly"), "{message}");
        let events = events(&runner, id);
        assert_eq!(events.last().unwrap(), "refused ApplyFromPlan Policy.PlanOnly");
        assert!(events.contains(&"finished Plan completed".to_owned()), "{events:?}");
    }
    assert!(!touched.exists());
    world.assert_no_violation();
}

/// A registry that answers every module with this address.
async fn registry(address: String) -> String {
    let router = Router::new().route(
        "/vpc/aws/1.0.0/download",
        get(move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Commits a submodule `lib` to a repository.
fn add_submodule(repository: &str, url: &str, commit: &str) {
    let folder = Path::new(repository);
    fs::create_dir(folder.join("lib")).unwrap();
    let text = format!("[submodule \"lib\"]\n\tpath = lib\n\turl = {url}\n");
    fs::write(folder.join(".gitmodules"), text).unwrap();
    git_in(folder, &["add", ".gitmodules"]);
    git_in(folder, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},lib")]);
    git_in(folder, &["commit", "--quiet", "--message=a submodule"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_answers_and_submodules_must_be_allowed_sources() {
    let world = World::new().await;
    let elsewhere = world.repository("elsewhere", EMPTY);
    let parent = world.repository("allowed", EMPTY);
    add_submodule(&parent, &elsewhere, &git_in(Path::new(&elsewhere), &["rev-parse", "HEAD"]));
    let registry = registry(format!("git::file://{elsewhere}?ref=main")).await;
    let (own, registries) = (format!("file://{parent}"), format!("{registry}/*"));
    let runner = world.runner_with(
        "one",
        &[("Policy__AllowedSources__0", &own), ("Policy__AllowedSources__1", &registries)],
    );

    let mut spec = job(JobKind::Plan, &format!("{registry}/vpc/aws"), "registry");
    spec.source.source_type = SourceType::Registry;
    spec.source.source_revision = "1.0.0".into();
    let id = world.hub.submit(spec);
    let (task, message) = error_of(&world, id).await;
    assert_eq!(task, Task::GetDefinitiveRevision);
    assert!(message.contains("Policy.AllowedSources") && message.contains("elsewhere"), "{message}");
    let task = "GetDefinitiveRevision";
    let expected = [
        format!("accepted {task}"),
        format!("refused {task} Policy.AllowedSources"),
        format!("finished {task} faulted"),
    ];
    assert_eq!(events(&runner, id), expected);

    let id = world.hub.submit(job(JobKind::Plan, &parent, "submodule"));
    let (task, message) = error_of(&world, id).await;
    assert_eq!(task, Task::GetModule);
    assert!(
        message.contains("Policy.AllowedSources") && message.contains("the submodule \"lib\""),
        "{message}"
    );
    assert_eq!(
        events(&runner, id)[3..],
        ["refused GetModule Policy.AllowedSources", "finished GetModule faulted"]
    );
    assert!(!runner.working.join("local").exists());
    // Only the parent is in the cache.
    let copies: Vec<_> = fs::read_dir(runner.working.join("sourcecache")).unwrap().flatten().collect();
    let fetched = copies.iter().filter(|copy| copy.path().join("objects").is_dir()).count();
    assert_eq!(fetched, 1, "{copies:?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_may_not_redirect_to_one_that_is_not_allowed() {
    let world = World::new().await;
    let repository = world.repository("allowed", EMPTY);
    let elsewhere = registry(format!("git::file://{repository}?ref=main")).await;
    let target = format!("{elsewhere}/vpc/aws/1.0.0/download");
    let sends_on = Router::new().route(
        "/vpc/aws/1.0.0/download",
        get(move || async move { (StatusCode::FOUND, [("Location", target)]) }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let asked = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, sends_on).await });
    let spec = |module: &str| {
        let mut spec = job(JobKind::Plan, &format!("{asked}/vpc/aws"), module);
        spec.source.source_type = SourceType::Registry;
        spec.source.source_revision = "1.0.0".into();
        spec
    };
    let (own, first) = (format!("file://{repository}"), format!("{asked}/*"));
    let lists = [("Policy__AllowedSources__0", own.as_str()), ("Policy__AllowedSources__1", first.as_str())];
    let mut runner = world.runner_with("one", &lists);
    let (_, message) = error_of(&world, world.hub.submit(spec("sent-on"))).await;
    assert!(message.contains("Policy.AllowedSources") && message.contains(&elsewhere), "{message}");
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let second = format!("{elsewhere}/*");
    let _wider = world.runner_with("one", &[lists[0], lists[1], ("Policy__AllowedSources__2", &second)]);
    let ended = world.ended(world.hub.submit(spec("both"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_not_allowed_gets_no_request_even_between_allowed_ones() {
    let world = World::new().await;
    let repository = world.repository("allowed", EMPTY);
    let last = registry(format!("git::file://{repository}?ref=main")).await;
    let (between, asked_between) = redirecting_registry(format!("{last}/vpc/aws/1.0.0/download")).await;
    let (first, _) = redirecting_registry(format!("{between}/vpc/aws/1.0.0/download")).await;
    let spec = |module: &str| {
        let mut spec = job(JobKind::Plan, &format!("{first}/vpc/aws"), module);
        spec.source.source_type = SourceType::Registry;
        spec.source.source_revision = "1.0.0".into();
        spec
    };
    let own = format!("file://{repository}");
    let places = [format!("{first}/*"), format!("{last}/*"), format!("{between}/*")];
    let lists = [
        ("Policy__AllowedSources__0", own.as_str()),
        ("Policy__AllowedSources__1", places[0].as_str()),
        ("Policy__AllowedSources__2", places[1].as_str()),
        ("Policy__AllowedSources__3", places[2].as_str()),
    ];
    let mut runner = world.runner_with("one", &lists[..3]);
    let (_, message) = error_of(&world, world.hub.submit(spec("between"))).await;
    assert!(message.contains("Policy.AllowedSources") && message.contains(&between), "{message}");
    assert_eq!(asked_between.load(Ordering::SeqCst), 0);
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let _wider = world.runner_with("one", &lists);
    let ended = world.ended(world.hub.submit(spec("all"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(asked_between.load(Ordering::SeqCst) > 0);
}

/// A registry that redirects to another, and its number of requests.
async fn redirecting_registry(target: String) -> (String, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let answer = move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        (StatusCode::FOUND, [("Location", target)])
    };
    let router = Router::new().route("/vpc/aws/1.0.0/download", get(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_of_a_git_server_are_not_followed_with_a_list_of_sources() {
    let world = World::new().await;
    let (own, other) = (world.repository("own", EMPTY), world.repository("elsewhere", EMPTY));
    let elsewhere = GitServer::start(Path::new(&other), None).await;
    let server = GitServer::start(Path::new(&own), Some(format!("{}/repo.git", elsewhere.url))).await;
    let moved = format!("{}/moved.git", server.url);
    let allowed = format!("{}/*", server.url);
    let mut runner = world.runner_with("one", &[("Policy__AllowedSources__0", &allowed)]);
    let here = world.hub.submit(job(JobKind::Plan, &format!("{}/repo.git", server.url), "here"));
    let ended = world.ended(here).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");

    let (task, message) = error_of(&world, world.hub.submit(job(JobKind::Plan, &moved, "revision"))).await;
    assert_eq!(task, Task::GetDefinitiveRevision);
    assert!(message.contains(&moved), "{message}");
    // With a known commit, the server skips GetDefinitiveRevision.
    let mut spec = job(JobKind::Tasks(vec![Task::GetModule]), &moved, "module");
    spec.source.source_definitive_revision = Some(git_in(Path::new(&other), &["rev-parse", "HEAD"]));
    let (task, message) = error_of(&world, world.hub.submit(spec.clone())).await;
    assert_eq!(task, Task::GetModule);
    assert!(message.contains(&moved), "{message}");
    // The same applies to a submodule.
    let parent = world.repository("parent", EMPTY);
    add_submodule(&parent, &moved, spec.source.source_definitive_revision.as_ref().unwrap());
    let parent = GitServer::start(Path::new(&parent), None).await;
    assert_eq!(elsewhere.asked(), [""; 0]);
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let lists =
        [("Policy__AllowedSources__0", allowed), ("Policy__AllowedSources__1", format!("{}/*", parent.url))];
    let lists = [(lists[0].0, lists[0].1.as_str()), (lists[1].0, lists[1].1.as_str())];
    let mut runner = world.runner_with("one", &lists);
    let with_submodule = |module: &str| job(JobKind::Plan, &format!("{}/repo.git", parent.url), module);
    let (task, message) = error_of(&world, world.hub.submit(with_submodule("parent"))).await;
    assert_eq!(task, Task::GetModule);
    assert!(message.contains(&moved) && message.contains("the submodule \"lib\""), "{message}");
    assert_eq!(elsewhere.asked(), [""; 0]);
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    // Without a list, git follows the redirect, so the refusals above are due to the list.
    let _trusting = world.runner("one");
    spec.module_name = "trusting".into();
    for spec in [spec, with_submodule("trusting-parent")] {
        let ended = world.ended(world.hub.submit(spec)).await;
        assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    }
    assert!(!elsewhere.asked().is_empty());
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_step_that_has_not_started_is_checked_again_at_the_next_start() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "1")]);
    let first = world.hub.submit(waiting(&world, &url, "first", &gate));
    eventually("the first job runs its hook", || world.path("first.ran").exists()).await;
    let second = world.hub.submit(waiting(&world, &url, "second", &gate));
    eventually("the second job is accepted", || {
        events(&runner, second).contains(&"accepted GetModule".to_owned())
    })
    .await;
    runner.kill();

    let narrow = [("Runner__MaxConcurrentSteps", "1"), ("Policy__AllowedModules__0", "local/local/other")];
    let runner = world.runner_with("one", &narrow);
    // The running step keeps the only slot and is not checked again.
    let (task, message) = error_of(&world, second).await;
    assert_eq!(task, Task::GetModule);
    assert!(message.contains("Policy.AllowedModules"), "{message}");
    assert_eq!(events(&runner, second), ["accepted GetModule", "refused GetModule Policy.AllowedModules"]);
    assert!(!was_claimed(&world, second));
    assert!(!runner.working.join("local/local/second").exists());

    fs::write(&gate, "").unwrap();
    let ended = world.ended(first).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn unlisted_extra_files_and_variables_are_refused() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let extra = |name: &str| ExtraFile {
        file_name: name.into(),
        contents: "x = 1\n".into(),
        overwrite: true,
        source: Value::Null,
    };
    let mut runner = world.runner("one");
    let mut wide = job(JobKind::Plan, &url, "left");
    wide.env_vars.insert("GIT_SSH_COMMAND".into(), "evil".into());
    let ended = world.ended(world.hub.submit(wide)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let lists = [("Policy__AllowedExtraFiles__0", "*.yaml"), ("Policy__AllowedVariables__0", "MY_*")];
    let runner = world.runner_with("one", &lists);
    let mut with_file = job(JobKind::Plan, &url, "file");
    with_file.extra_files = vec![extra("fine.yaml"), extra("evil.tf")];
    let mut with_variable = job(JobKind::Plan, &url, "variable");
    with_variable.env_vars.insert("MY_OWN".into(), "1".into());
    with_variable.env_vars.insert("LD_PRELOAD".into(), "./evil.so".into());
    let left = only(Task::Plan, &url, "left");
    for (rule, value, refused, spec) in [
        ("Policy.AllowedExtraFiles", "evil.tf", Task::GetModule, with_file),
        ("Policy.AllowedVariables", "LD_PRELOAD", Task::Init, with_variable),
        ("Policy.AllowedVariables", "GIT_SSH_COMMAND", Task::Plan, left),
    ] {
        let id = world.hub.submit(spec);
        let (task, message) = error_of(&world, id).await;
        assert_eq!(task, refused);
        assert!(message.contains(rule) && message.contains(value), "{message}");
        assert!(events(&runner, id).contains(&format!("refused {task} {rule}")), "{:?}", events(&runner, id));
    }
    assert!(!runner.working.join("local/local/file").exists());
    assert!(!runner.working.join("local/local/variable/.snapcd/snapcd.env").exists());

    let mut fine = job(JobKind::Plan, &url, "fine");
    fine.extra_files = vec![extra("fine.yaml")];
    fine.env_vars.insert("MY_OWN".into(), "1".into());
    let ended = world.ended(world.hub.submit(fine)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(runner.working.join("local/local/fine/fine.yaml").exists());
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_variables_are_checked_against_the_current_settings() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner("one");
    let mut spec = job(JobKind::Plan, &url, "left");
    spec.env_vars.insert("TF_CLI_ARGS_plan".into(), "-refresh=false".into());
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let _narrower = world.runner_with("one", &[("Policy__AllowedFlags__0", "Target")]);
    let id = world.hub.submit(only(Task::Plan, &url, "left"));
    let (_, message) = error_of(&world, id).await;
    assert!(message.contains("Policy.AllowedFlags") && message.contains("TF_CLI_ARGS_plan"), "{message}");
}

fn backend(name: &str, value: &str) -> BackendConfig {
    BackendConfig { name: name.into(), value: value.into() }
}

/// The engine saves the backend settings of an Init and continues to use them.
#[tokio::test(flavor = "multi_thread")]
async fn saved_backend_settings_are_checked_against_the_current_settings() {
    let world = World::new().await;
    let local = "terraform {\n  backend \"local\" {}\n}\n";
    let url = world.repository("repo", &[("backend.tf", local), EMPTY[0]]);
    let elsewhere = world.path("elsewhere.tfstate").display().to_string();
    let mut runner = world.runner("one");
    let module = runner.working.join("local/local/left");
    let mut spec = job(JobKind::Apply, &url, "left");
    spec.module_backend_configs = vec![backend("path", &elsewhere)];
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(Path::new(&elsewhere).exists());
    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.kill();

    let inside = "path=inside.tfstate";
    let runner = world.runner_with("one", &[("Policy__AllowedBackendSettings__0", inside)]);
    let again = |tasks: &[Task], reconfigure: bool| {
        let mut spec = job(JobKind::Tasks(tasks.to_vec()), &url, "left");
        spec.engine = EngineName::TERRAFORM;
        spec.source.source_definitive_revision = Some(git_in(Path::new(&url), &["rev-parse", "HEAD"]));
        spec.init_flags.auto_reconfigure_enabled = reconfigure;
        spec.module_backend_configs.extend(reconfigure.then(|| backend("path", "inside.tfstate")));
        world.hub.submit(spec)
    };
    // An Init without backend settings leaves the backend unchanged.
    for task in [Task::Plan, Task::Validate, Task::Output, Task::Init] {
        let id = again(&[task], false);
        let (_, message) = error_of(&world, id).await;
        assert!(
            message.contains("Policy.AllowedBackendSettings") && message.contains("\"path\""),
            "{message}"
        );
        let refused = format!("refused {task} Policy.AllowedBackendSettings");
        assert!(events(&runner, id).contains(&refused), "{:?}", events(&runner, id));
    }
    // The file is carried over to the next revision.
    git_in(Path::new(&url), &["commit", "--quiet", "--allow-empty", "--message=next"]);
    let (task, message) = error_of(&world, again(&[Task::GetModule, Task::Plan], false)).await;
    assert_eq!(task, Task::Plan, "{message}");
    // Without the file, the settings are unknown and the task is refused.
    let note = module.join(".snapcd/backend-settings.json");
    fs::remove_file(&note).unwrap();
    let (_, message) = error_of(&world, again(&[Task::Plan], false)).await;
    assert!(message.contains("Policy.AllowedBackendSettings") && message.contains("not known"), "{message}");
    let ended = world.ended(again(&[Task::Init, Task::Plan], true)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(!fs::read_to_string(&note).unwrap().contains("elsewhere"));

    // A clean init removes the saved settings, so they are not checked.
    fs::write(&note, r#"{"settings": ["address=http://evil"]}"#).unwrap();
    error_of(&world, again(&[Task::Plan], false)).await;
    let mut clean = job(JobKind::Plan, &url, "left");
    clean.clean_init = true;
    let ended = world.ended(world.hub.submit(clean)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
}
