//! Init: backends, and the questions that Terraform asks about them.

use hawser_contract::{BackendConfig, BackendConfiguration, InitFlags};

use super::*;
use crate::support::real_engines::terraform_and_tofu;

test_with_terraform_and_tofu! {
    variables_in_a_backend_setting_are_expanded_even_those_that_a_hook_exports,
    the_servers_backend_settings_win_over_those_of_the_environment,
    migrating_moves_the_state,
    reconfiguring_does_not_migrate_the_state,
    a_changed_backend_fails_init_with_a_hint,
}

const BACKEND: &str = "terraform {\n  backend \"local\" {}\n}\n";

fn with_path(path: &str, flags: InitFlags) -> EngineTask {
    EngineTask {
        init: InitOptions {
            flags,
            backend_configuration: BackendConfiguration {
                module_backend_configs: vec![BackendConfig { name: "path".into(), value: path.into() }],
                ..BackendConfiguration::default()
            },
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    }
}

/// A module that was applied with its state in the module's folder, and now has a backend.
async fn applied_and_moved(engine: &RealEngine) -> Bench {
    let bench = Bench::of(engine, &[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    bench.write("backend.tf", BACKEND);
    bench
}

async fn variables_in_a_backend_setting_are_expanded_even_those_that_a_hook_exports(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", BACKEND)]);
    let nasty = "a'b\"c `d` $(e) & é";
    let mut own = with_path("${NASTY}/$FROM_HOOK/100$/x.tfstate", InitFlags::default());
    own.before_hook = Some("export FROM_HOOK=hook".into());
    own.init.resolved_env_vars = BTreeMap::from([("NASTY".to_owned(), nasty.to_owned())]);
    bench.run(TaskRequest::Engine(own)).await.completed();
    let noted = fs::read(bench.module().join(".terraform/terraform.tfstate")).unwrap();
    let noted: serde_json::Value = serde_json::from_slice(&noted).unwrap();
    assert_eq!(noted["backend"]["config"]["path"], json!(format!("{nasty}/hook/100$/x.tfstate")));
}

async fn the_servers_backend_settings_win_over_those_of_the_environment(engine: RealEngine) {
    let bench = Bench::of(&engine, &[("main.tf", BACKEND)]);
    let users = "-backend-config=path=users.tfstate -backend-config=workspace_dir=users";
    for name in ["TF_CLI_ARGS_init", "TF_CLI_ARGS"] {
        let own = EngineTask {
            // `TF_CLI_ARGS` is for every command, so only for this one here.
            before_hook: Some(format!("export {name}='{users}'")),
            ..with_path("server.tfstate", InitFlags::default())
        };
        bench.run(TaskRequest::Engine(own)).await.completed();
        let noted = fs::read(bench.module().join(".terraform/terraform.tfstate")).unwrap();
        let noted: serde_json::Value = serde_json::from_slice(&noted).unwrap();
        assert_eq!(noted["backend"]["config"]["path"], "server.tfstate", "{name}");
        assert_eq!(noted["backend"]["config"]["workspace_dir"], "users", "{name}");
    }
}

#[tokio::test]
async fn an_unset_variable_in_a_backend_setting_is_logged() {
    let bench = Bench::new(&[("main.tf", BACKEND)]);
    let own = with_path("x${NOT_SET_ANYWHERE}.tfstate", InitFlags::default());
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert!(ran.says("$NOT_SET_ANYWHERE is not set"), "{:#?}", ran.log);
    ran.completed();
}

async fn migrating_moves_the_state(engine: RealEngine) {
    let bench = applied_and_moved(&engine).await;
    let flags = InitFlags { auto_migrate_enabled: true, ..InitFlags::default() };
    bench.run(TaskRequest::Engine(with_path("moved.tfstate", flags))).await.completed();
    assert_eq!(counts(bench.run(plan()).await).total_unchanged_count, 1);
}

async fn reconfiguring_does_not_migrate_the_state(engine: RealEngine) {
    let bench = applied_and_moved(&engine).await;
    let flags = InitFlags { auto_reconfigure_enabled: true, ..InitFlags::default() };
    bench.run(TaskRequest::Engine(with_path("fresh.tfstate", flags))).await.completed();
    assert_eq!(counts(bench.run(plan()).await).create_count, 1);
    // Terraform itself empties the local state file here, also after a no, and keeps a backup.
    let kept = fs::read_to_string(bench.module().join("terraform.tfstate.backup")).unwrap();
    assert!(kept.contains("terraform_data"), "{kept}");
}

async fn a_changed_backend_fails_init_with_a_hint(engine: RealEngine) {
    let bench = applied_and_moved(&engine).await;
    let fault = bench.run(TaskRequest::Engine(with_path("x.tfstate", InitFlags::default()))).await.faulted();
    assert!(fault.message.contains("MigrateState") && fault.message.contains("Reconfigure"), "{fault:?}");
}

#[tokio::test]
async fn a_module_can_move_from_one_engine_to_another() {
    let mut bench = Bench::new(&[("main.tf", "resource \"terraform_data\" \"x\" {}\n")]);
    for (existing, engine) in (0..).zip(terraform_and_tofu()) {
        bench = bench.with_engine(&engine);
        bench.settings["Engine"]["EnvironmentAllowList"] = json!([]);
        let task = |task| TaskRequest::Engine(EngineTask::new(task, engine.name.clone()));
        bench.run(task(Task::Init)).await.completed();
        let data = counts(bench.run(task(Task::Plan)).await);
        assert_eq!((data.create_count, data.total_unchanged_count), (1 - existing, existing));
        assert_eq!(bench.run(task(Task::ApplyFromPlan)).await.completed(), Success::Resources(1));
    }
}

#[tokio::test]
async fn an_environment_variable_that_cannot_be_set_is_refused_without_its_value() {
    let bench = Bench::new(&[("main.tf", "")]);
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("A=B".to_owned(), "hush".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    let fault = bench.run(TaskRequest::Engine(own)).await.faulted();
    assert!(fault.message.contains("A=B") && !format!("{fault:?}").contains("hush"), "{fault:?}");
}
