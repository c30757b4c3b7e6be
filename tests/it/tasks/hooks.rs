//! Hooks around real engine commands.

use super::*;

test_with_terraform_and_tofu! {
    a_variable_that_a_before_hook_exports_is_used_by_the_plan,
    variables_that_no_shell_can_name_reach_the_engine,
    the_hooks_of_the_other_tasks_run_around_their_own_command,
    a_missing_engine_is_reported_with_the_path_that_the_hook_has_set,
    the_fault_names_the_phase_exit_code_and_last_lines,
}

fn plan_hooks(before: &str, after: &str) -> TaskRequest {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let own = EngineTask {
        before_hook: text(before),
        after_hook: text(after),
        ..EngineTask::new(Task::Plan, ENGINE)
    };
    TaskRequest::Engine(own)
}

async fn module(engine: &RealEngine) -> Bench {
    let bench = Bench::of(
        engine,
        &[(
            "main.tf",
            "variable \"x\" { default = \"\" }\nresource \"terraform_data\" \"x\" {\n  count = var.x == \"\" ? 0 : 3\n}\n",
        )],
    );
    bench.run(init()).await.completed();
    bench
}

async fn a_variable_that_a_before_hook_exports_is_used_by_the_plan(engine: RealEngine) {
    let bench = module(&engine).await;
    let ran = bench.run(plan_hooks("export TF_VAR_x=yes", "echo \"after: $TF_VAR_x\"")).await;
    assert!(ran.says("after: yes"), "{:#?}", ran.log);
    assert_eq!(counts(ran).create_count, 3);
}

async fn variables_that_no_shell_can_name_reach_the_engine(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[(
            "main.tf",
            "variable \"my-var\" {}\noutput \"x\" { value = var.my-var }\nresource \"terraform_data\" \"x\" {\n  \
         provisioner \"local-exec\" {\n    interpreter = [\"bash\", \"-c\"]\n    command = \"greet\"\n  }\n}\n",
        )],
    );
    let own = EngineTask {
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("TF_VAR_my-var".to_owned(), "hello".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    bench.run(TaskRequest::Engine(own)).await.completed();
    counts(bench.run(plan()).await);
    // And what bash itself can put there.
    let own = EngineTask {
        before_hook: Some("greet() { echo greetings from the hook; }; export -f greet".to_owned()),
        ..EngineTask::new(Task::ApplyFromPlan, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert!(ran.says("greetings from the hook"), "{:#?}", ran.log);
    ran.completed();
    assert_eq!(outputs(bench.run(output()).await).outputs[0].value, "hello");
}

/// Where these words are in the log, each after the one before it.
#[track_caller]
pub(super) fn in_order(ran: &Ran, words: &[&str]) {
    let mut lines = ran.log.iter();
    for word in words {
        assert!(lines.any(|(_, line)| line.contains(word)), "{word:?} is not there: {:#?}", ran.log);
    }
}

async fn the_hooks_of_the_other_tasks_run_around_their_own_command(engine: RealEngine) {
    let bench = Bench::of(
        &engine,
        &[("main.tf", "resource \"terraform_data\" \"x\" {}\noutput \"o\" { value = 7 }\n")],
    );
    bench.run(init()).await.completed();
    counts(bench.run(plan()).await);
    bench.run(apply()).await.completed();
    let hook = |text: &str| Some(text.to_owned());

    let own = EngineTask {
        before_hook: hook("echo before: Validate"),
        after_hook: hook("echo after: Validate"),
        ..EngineTask::new(Task::Validate, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    in_order(&ran, &["before: Validate", "The configuration is valid", "after: Validate"]);
    ran.completed();

    let own = EngineTask {
        before_hook: hook("rm -f .snapcd/output.json; echo before: Output"),
        after_hook: hook("grep '\"value\": 7' .snapcd/output.json; echo after: Output"),
        ..EngineTask::new(Task::Output, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    in_order(&ran, &["before: Output", "\"value\": 7", "after: Output"]);
    ran.completed();

    let own = EngineTask {
        before_hook: hook("echo before: PlanDestroy"),
        after_hook: hook("ls .snapcd; echo after: PlanDestroy"),
        ..EngineTask::new(Task::PlanDestroy, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    in_order(&ran, &["before: PlanDestroy", "1 to destroy", "destroy.out", "after: PlanDestroy"]);
    counts(ran);

    let own = EngineTask {
        before_hook: hook("echo before: Destroy"),
        after_hook: hook("echo after: Destroy; exit 5"),
        ..EngineTask::new(Task::DestroyFromPlan, ENGINE)
    };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    in_order(&ran, &["before: Destroy", "1 destroyed", "after: Destroy"]);
    let fault = ran.faulted();
    let name = engine.name;
    let expected = format!("{name} apply (destroy) succeeded, but DestroyAfterHook failed with exit code 5");
    assert_eq!(fault.message, expected);
    assert_eq!(fault.resources, Some(0));

    // After an engine that fails there is no after hook.
    bench.write("broken.tf", "nonsense {");
    let own =
        EngineTask { after_hook: hook("echo after: Validate"), ..EngineTask::new(Task::Validate, ENGINE) };
    let ran = bench.run(TaskRequest::Engine(own)).await;
    assert!(!ran.says("after: Validate"), "{:#?}", ran.log);
    assert!(ran.faulted().message.starts_with(&format!("{name} validate failed with exit code 1")));
}

async fn a_missing_engine_is_reported_with_the_path_that_the_hook_has_set(engine: RealEngine) {
    let bench = module(&engine).await;
    let fault = bench.run(plan_hooks("PATH=/no/such:/folders", "")).await.faulted();
    let name = engine.name;
    let expected = format!(
        "{name} plan failed with exit code 127: cannot find program {name} in PATH (/no/such:/folders)"
    );
    assert_eq!(fault.message, expected);
    assert!(!fault.details.contains("gate"), "{fault:?}");
    let fault = bench.run(plan_hooks(&wrap(name.as_str(), "exit 127"), "")).await.faulted();
    assert!(fault.message.ends_with("exit code 127"), "{fault:?}");
}

#[tokio::test]
async fn a_hook_with_every_kind_of_quote_runs_unchanged() {
    let bench = module(&terraform()).await;
    let hook = r#"
x='single $HOME "double" `tick`'
y="double 'single' \$HOME \`tick\` $(printf '%s' "nested \"quotes\"")"
cat <<'EOF'
heredoc 'a' "b" `c` $d \e
EOF
echo "$x|$y|$'ansi\tc'|é漢"
"#;
    let ran = bench.run(plan_hooks(hook, "")).await;
    assert!(ran.says("heredoc 'a' \"b\" `c` $d \\e"), "{:#?}", ran.log);
    let expected =
        "single $HOME \"double\" `tick`|double 'single' $HOME `tick` nested \"quotes\"|$'ansi\\tc'|é漢";
    assert!(ran.says(expected), "{:#?}", ran.log);
    counts(ran);
}

async fn the_fault_names_the_phase_exit_code_and_last_lines(engine: RealEngine) {
    let bench = module(&engine).await;
    let ran = bench.run(plan_hooks("echo 'before says no' >&2; exit 3", "echo after")).await;
    assert!(!ran.says("after") && !ran.says("used the selected providers"), "{:#?}", ran.log);
    let fault = ran.faulted();
    assert_eq!(fault.message, "PlanBeforeHook failed with exit code 3");
    assert!(fault.details.contains("before says no"), "{fault:?}");

    let fault = bench.run(plan_hooks("", "echo 'after says no' >&2; false")).await.faulted();
    let name = engine.name;
    let expected = format!("{name} plan succeeded, but PlanAfterHook failed with exit code 1");
    assert_eq!(fault.message, expected);

    bench.write("broken.tf", "nonsense {");
    let ran = bench.run(plan_hooks("echo fine", "echo after")).await;
    assert!(!ran.says("after"), "{:#?}", ran.log);
    let fault = ran.faulted();
    assert!(
        fault
            .message
            .starts_with(&format!("{name} plan failed with exit code 1: 2 errors, the first: broken.tf:1: ")),
        "{fault:?}"
    );
}

#[tokio::test]
async fn a_before_hook_that_exits_with_0_is_not_a_success() {
    let bench = module(&terraform()).await;
    let fault = bench.run(plan_hooks("exit 0", "")).await.faulted();
    assert!(fault.message.contains("PlanBeforeHook ended the script"), "{fault:?}");
    assert!(fault.message.contains("terraform plan was not run"), "{fault:?}");
    counts(bench.run(plan_hooks("", "exit 0")).await);
}

#[tokio::test]
async fn with_preapproval_only_known_hooks_run() {
    let mut bench = module(&terraform()).await;
    let approved = bench.root.path().join("approved");
    fs::create_dir_all(approved.join("deep")).unwrap();
    fs::write(approved.join("deep/hello.sh"), "echo hello\n").unwrap();
    bench.settings["HooksPreapproval"] = json!({"Enabled": true, "PreapprovedHooksDirectory": approved});
    let ran = bench.run(plan_hooks("echo hello\r\n", " \n")).await;
    assert!(ran.says("hello"));
    counts(ran);
    let ran = bench.run(plan_hooks("echo hello", "echo goodbye")).await;
    assert!(ran.log.is_empty(), "nothing may run: {:#?}", ran.log);
    let fault = ran.faulted();
    assert!(fault.message.contains("PlanAfterHook") && fault.message.contains("echo goodbye"), "{fault:?}");
    fs::remove_dir_all(&approved).unwrap();
    bench.run(plan_hooks("echo hello", "")).await.faulted();
}

#[tokio::test]
async fn a_before_hook_may_install_the_engine() {
    let bench = Bench::new(&[("main.tf", "")]);
    let path = std::env::var("PATH").unwrap();
    let own = EngineTask {
        before_hook: Some(format!("export PATH='{path}'")),
        init: InitOptions {
            resolved_env_vars: BTreeMap::from([("PATH".to_owned(), "/no/such/folder".to_owned())]),
            ..InitOptions::default()
        },
        ..EngineTask::new(Task::Init, ENGINE)
    };
    let context = bench.context();
    let Ok(Prepared::Run(mut launch)) = prepare(&context, &TaskRequest::Engine(own.clone())).await else {
        panic!("not prepared")
    };
    // Only for finding bash itself: the test starts it by name.
    launch.environment.retain(|(name, _)| name != "PATH");
    let exit = crate::support::steps::execute(&context.folder, &launch, None);
    hawser::tasks::conclude(&context, &TaskRequest::Engine(own), &exit).await.unwrap();
}

#[tokio::test]
async fn an_init_with_a_hook_that_changes_path_completes() {
    let bench = Bench::new(&[("main.tf", "")]);
    let hook = "mkdir only; ln -s \"$(command -v terraform)\" only/; PATH=$PWD/only; rm() { return 3; }";
    let own = EngineTask { before_hook: Some(hook.to_owned()), ..EngineTask::new(Task::Init, ENGINE) };
    assert_eq!(bench.run(TaskRequest::Engine(own)).await.completed(), Success::Done);
}
