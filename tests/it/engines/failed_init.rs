//! An Init that fails changes nothing for later tasks, and a user's commands get all that it used, or nothing.

use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitOptions, PulumiFlag, Task, TaskRequest, TerraformArrayFlag,
};

use super::counts;
use crate::support::pulumi::{pulumi_init, pulumi_module, pulumi_plan, pulumi_state};
use crate::support::real_engines::terraform_and_tofu;
use crate::support::steps::Bench;

/// The same Init with another variable, which later tasks see.
fn marked(init: TaskRequest, mark: &str, before_hook: Option<&str>) -> TaskRequest {
    let TaskRequest::Engine(mut task) = init else { unreachable!() };
    task.init.resolved_env_vars.insert("MARK".to_owned(), mark.to_owned());
    TaskRequest::Engine(EngineTask { before_hook: before_hook.map(str::to_owned), ..task })
}

fn shows(bench: &Bench, variables: &str) -> String {
    bench.run_by_hand(&format!("hawser exec module -- sh -c 'echo {variables}'")).trim_end().to_owned()
}

#[tokio::test]
async fn a_failed_init_of_pulumi_leaves_backend_stack_and_variables_to_later_tasks() {
    let Some(bench) = pulumi_module("outputs: {x: 1}\n") else { return };
    let variables = "$MARK $PULUMI_STACK $PULUMI_BACKEND_URL";
    bench.run(marked(pulumi_init(&bench, &[]), "first", None)).await.completed();
    let first = format!("first snapcd file://{}", pulumi_state(&bench).display());
    assert_eq!(shows(&bench, variables), first);

    let other = [(PulumiFlag::CloudUrl, Some("http://127.0.0.1:1")), (PulumiFlag::StackName, Some("other"))];
    let login = || std::fs::read(bench.private("credentials.json")).unwrap();
    let before = login();
    // Its engine did not run.
    bench.run(marked(pulumi_init(&bench, &other), "second", Some("exit 3"))).await.faulted();
    assert_eq!(shows(&bench, variables), first);
    bench.run(marked(pulumi_init(&bench, &other), "third", None)).await.faulted();
    assert_eq!(shows(&bench, variables), "third other http://127.0.0.1:1");
    assert_eq!(login(), before);

    let TaskRequest::Engine(task) = pulumi_plan(Task::Plan, &[], FlagLists::default()) else {
        unreachable!()
    };
    let before_hook = Some(format!("echo \"in $MARK {}\"", &variables[6..]));
    let ran = bench.run(TaskRequest::Engine(EngineTask { before_hook, ..task })).await;
    assert!(ran.says(&format!("in {first}")), "{:#?}", ran.log);
    ran.completed();
    assert_eq!(shows(&bench, variables), first);
}

#[tokio::test]
async fn a_failed_init_leaves_its_variables_to_no_later_task() {
    for engine in terraform_and_tofu() {
        let module = "terraform {\n  backend \"local\" {}\n}\nvariable \"text\" {\n  type = string\n}\noutput \"text\" {\n  value = var.text\n}\n";
        let bench = Bench::of(&engine, &[("main.tf", module)]);
        let init = |mark: &str, text: &str, settings: &[&str]| {
            let array = settings.iter().map(|it| Flag::new(TerraformArrayFlag::BackendConfig, Some(it)));
            let variable = Flag::new(TerraformArrayFlag::Var, Some(&format!("text={text}")));
            let array: Vec<_> = array.chain([variable]).collect();
            let variables = [("MARK", mark), ("TF_DATA_DIR", mark)];
            TaskRequest::Engine(EngineTask {
                init: InitOptions {
                    resolved_env_vars: variables.map(|(name, it)| (name.to_owned(), it.to_owned())).into(),
                    ..InitOptions::default()
                },
                flags: FlagLists { terraform_array_flags: array.into(), ..FlagLists::default() },
                ..EngineTask::new(Task::Init, EngineName::TERRAFORM)
            })
        };
        bench.run(init("first", "of the first", &[])).await.completed();
        // A file that does not exist.
        bench.run(init("second", "of the second", &["no-such-file"])).await.faulted();
        assert_eq!(shows(&bench, "$MARK $TF_DATA_DIR"), "second second");
        let plan = EngineTask {
            before_hook: Some("echo \"in $MARK\"".to_owned()),
            ..EngineTask::new(Task::Plan, EngineName::TERRAFORM)
        };
        // OpenTofu passes on the values of Init. Terraform does not need them.
        if engine.name == EngineName::TERRAFORM {
            bench.write("terraform.tfvars", "text = \"of the first\"\n");
        }
        let ran = bench.run(TaskRequest::Engine(plan)).await;
        assert!(ran.says("in first") && ran.says("of the first"), "{:#?}", ran.log);
        counts(ran);
        assert_eq!(shows(&bench, "$MARK $TF_DATA_DIR"), "first first");
    }
}
