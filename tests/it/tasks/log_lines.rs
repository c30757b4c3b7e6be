//! The lines that the runner adds to a job's log, with the real engines: each fact once, in the engine's own words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hawser_contract::requests::GetModule;
use hawser_contract::{
    EngineName, EngineTask, FlagLists, InitOptions, Source, SourceRevisionType, SourceType, Success, Task,
    TaskRequest,
};

use crate::support::git::Repo;
use crate::support::pulumi::{pulumi_init, pulumi_module, pulumi_plan, pulumi_task};
use crate::support::real_engines::{real, terraform_and_tofu};
use crate::support::steps::{Bench, Ran};

const ONE_RESOURCE: &str = "resource \"terraform_data\" \"it\" {\n  input = \"x\"\n}\n";

const STASHES: &str = "resources:
  first:
    type: pulumi:index:Stash
    properties: {input: one}
  second:
    type: pulumi:index:Stash
    properties: {input: '${first.output}'}
";

/// An Init sets an empty file as the settings of the engine, in place of the operator's.
fn task(task: Task, engine: &EngineName) -> TaskRequest {
    let settings = ("TF_CLI_CONFIG_FILE".to_owned(), "/dev/null".to_owned());
    let init = InitOptions { resolved_env_vars: [settings].into(), ..InitOptions::default() };
    let new = EngineTask::new(task, engine.clone());
    TaskRequest::Engine(if task == Task::Init { EngineTask { init, ..new } } else { new })
}

/// Runs a task that must complete, and returns its log.
#[track_caller]
fn lines(ran: Ran) -> Vec<String> {
    let log = ran.log.iter().map(|(_, line)| console::strip_ansi_codes(line).trim_end().to_owned()).collect();
    ran.completed();
    log
}

fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn the_engine_and_its_version_are_logged_once_per_job() {
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[("main.tf", ONE_RESOURCE)]).with_engine(&engine);
        let name = &engine.name;
        let program = format!(" ({}) in ", engine.folder.join(name.as_str()).display());
        let first = lines(bench.run(task(Task::Init, name)).await);
        let version = first[0].strip_prefix(&format!("{name} 1.")).unwrap_or_else(|| panic!("{first:#?}"));
        assert!(version.contains(&program), "{version}");
        for later in [Task::Validate, Task::Plan, Task::ApplyFromPlan, Task::Output] {
            let later = lines(bench.run(task(later, name)).await);
            assert_eq!(count(&later, &program), 0, "{later:#?}");
        }
        // Another job starts with it again, even without an Init.
        let next_job = lines(bench.of_job(7).run(task(Task::Plan, name)).await);
        assert_eq!(count(&next_job, &program), 1, "{next_job:#?}");
    }
}

/// OpenTofu prints problems with its settings before the JSON.
#[tokio::test]
async fn a_warning_in_front_of_the_version_does_not_hide_it() {
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[("main.tf", ONE_RESOURCE)]).with_engine(&engine);
        let missing = bench.root.path().join("missing").display().to_string();
        let init = TaskRequest::Engine(EngineTask {
            init: InitOptions {
                resolved_env_vars: [("TF_CLI_CONFIG_FILE".to_owned(), missing)].into(),
                ..InitOptions::default()
            },
            ..EngineTask::new(Task::Init, engine.name.clone())
        });
        let log = lines(bench.run(init).await);
        assert!(log[0].starts_with(&format!("{} 1.", engine.name)), "{log:#?}");
    }
}

#[tokio::test]
async fn a_plan_is_summarized_once_and_by_the_engine() {
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[("main.tf", ONE_RESOURCE)]).with_engine(&engine);
        bench.run(task(Task::Init, &engine.name)).await.completed();
        let log = lines(bench.run(task(Task::Plan, &engine.name)).await);
        let summaries: Vec<_> = log.iter().filter(|line| line.starts_with("Plan:")).collect();
        assert_eq!(summaries, ["Plan: 1 to add, 0 to change, 0 to destroy."], "{log:#?}");
        assert_eq!(count(&log, "to create,"), 0, "{log:#?}");
    }
}

#[tokio::test]
async fn a_pulumi_destroy_is_previewed_in_the_words_and_numbers_of_pulumi() {
    let Some(bench) = pulumi_module(STASHES) else { return };
    let none = FlagLists::default;
    bench.run(pulumi_init(&bench, &[])).await.completed();
    let planned = lines(bench.run(pulumi_plan(Task::Plan, &[], none())).await);
    assert_eq!(count(&planned, "to create"), 1, "{planned:#?}");
    bench.run(pulumi_task(Task::ApplyFromPlan, none())).await.completed();

    let planned = lines(bench.run(pulumi_plan(Task::PlanDestroy, &[], none())).await);
    let destroyed = lines(bench.run(pulumi_task(Task::DestroyFromPlan, none())).await);
    for line in
        [" -  pulumi:index:Stash second delete", " -  pulumi:index:Stash first delete", "    - 3 to delete"]
    {
        for log in [&planned, &destroyed] {
            assert!(log.iter().any(|it| it == line), "no {line:?} in {log:#?}");
        }
    }
    assert_eq!(count(&planned, "to destroy"), 0, "{planned:#?}");
}

#[tokio::test]
async fn an_apply_ends_with_the_number_of_resources_in_the_state() {
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[("main.tf", ONE_RESOURCE)]).with_engine(&engine);
        for before in [Task::Init, Task::Plan] {
            bench.run(task(before, &engine.name)).await.completed();
        }
        let applied = bench.run(task(Task::ApplyFromPlan, &engine.name)).await;
        assert_eq!(applied.log.last().unwrap().1, "1 resource in the state");
        assert_eq!(applied.completed(), Success::Resources(1));
        bench.run(task(Task::PlanDestroy, &engine.name)).await.completed();
        let destroyed = bench.run(task(Task::DestroyFromPlan, &engine.name)).await;
        assert_eq!(destroyed.log.last().unwrap().1, "No resources in the state");
    }
}

#[tokio::test]
async fn the_commit_is_logged_once_per_job() {
    let repo = Repo::with(&[("main.tf", ONE_RESOURCE)]);
    let bench = Bench::new(&[]);
    let source = |revision: &str, definitive: Option<String>| Source {
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
        source_url: repo.url(),
        source_revision: revision.to_owned(),
        source_definitive_revision: definitive,
        source_semantic_version: None,
    };
    let head = repo.head();
    for revision in ["main", head.as_str()] {
        let mut log = lines(bench.run(TaskRequest::GetDefinitiveRevision(source(revision, None))).await);
        // The first time it is cloned, the second time it is there already.
        let source = source(revision, Some(repo.head()));
        log.extend(lines(bench.run(TaskRequest::GetModule(source, GetModule::default())).await));
        assert_eq!(count(&log, &head), 1, "{log:#?}");
    }
    // Without an earlier task that has logged it.
    let alone = lines(bench.run(TaskRequest::GetModule(source("main", None), GetModule::default())).await);
    assert_eq!(count(&alone, &head), 1, "{alone:#?}");
}

#[tokio::test]
async fn plans_are_private_files() {
    let mode =
        |bench: &Bench, file: &str| fs::metadata(bench.private(file)).unwrap().permissions().mode() & 0o777;
    for engine in terraform_and_tofu() {
        let bench = Bench::new(&[("main.tf", ONE_RESOURCE)]).with_engine(&engine);
        for each in [Task::Init, Task::Plan, Task::PlanDestroy] {
            bench.run(task(each, &engine.name)).await.completed();
        }
        assert_eq!((mode(&bench, "plan.out"), mode(&bench, "destroy.out")), (0o600, 0o600));
    }
    let Some(bench) = pulumi_module(STASHES) else { return };
    bench.run(pulumi_init(&bench, &[])).await.completed();
    bench.run(pulumi_plan(Task::Plan, &[], FlagLists::default())).await.completed();
    assert_eq!(mode(&bench, "plan.json"), 0o600);
}

#[tokio::test]
async fn a_changed_backend_names_the_flag_to_set() {
    for engine in terraform_and_tofu() {
        let backend = |path: &str| {
            format!("terraform {{\n  backend \"local\" {{\n    path = \"{path}\"\n  }}\n}}\n{ONE_RESOURCE}")
        };
        let bench = Bench::new(&[("main.tf", &backend("a.tfstate"))]).with_engine(&engine);
        for each in [Task::Init, Task::Plan, Task::ApplyFromPlan] {
            bench.run(task(each, &engine.name)).await.completed();
        }
        bench.write("main.tf", &backend("b.tfstate"));
        for each in [Task::Init, Task::Plan] {
            let fault = bench.run(task(each, &engine.name)).await.faulted();
            let message = &fault.message;
            assert!(message.contains("set the flag MigrateState"), "{each}: {message}");
            assert!(message.contains("Reconfigure"), "{each}: {message}");
        }
    }
}

#[tokio::test]
async fn a_description_with_an_escaped_dollar_in_a_heredoc_is_kept() {
    let Some(engine) = real(EngineName::TERRAFORM) else { return };
    let text = "variable \"it\" {\n  description = <<-EOT\n    Use ${\"$\"}{name} or $${name}.\n  EOT\n}\n";
    let bench = Bench::new(&[("main.tf", text)]).with_engine(&engine);
    match bench.run(task(Task::Variables, &engine.name)).await.completed() {
        Success::Variables(Some(set)) => {
            let description = set.variables[0].description.as_deref();
            assert_eq!(description, Some("Use ${name} or ${name}.\n"));
        }
        other => panic!("{other:?}"),
    }
}
