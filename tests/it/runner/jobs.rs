//! Whole jobs over the real protocol: a hub, runner processes, git and Terraform.

use hawser_contract::Task;
use hawser_contract::requests::CancelKind;
use hawser_dev_server::{HubEvent, JobKind, JobState, TaskState};

use crate::support::eventually::{eventually, in_time};
use crate::support::faulty_hub::{Fault, Moment, Rubbish, Rule};
use crate::support::world::{World, job};

const GREETING: &[(&str, &str)] = &[(
    "main.tf",
    r#"
variable "name" {
  type = string
}
resource "terraform_data" "greeting" {
  input = "hello ${var.name}"
  provisioner "local-exec" {
    command = "echo greeting ${var.name}"
  }
}
output "greeting" {
  value = terraform_data.greeting.output
}
"#,
)];

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_and_a_destroy_run_terraform_from_the_first_task_to_the_last() {
    let world = World::new().await;
    let url = world.repository("repo", GREETING);
    let mut runner = world.runner("one");
    world.connected(1).await;

    let mut spec = job(JobKind::Apply, &url, "greeting");
    spec.parameters.insert("name".into(), "\"quay\"".into());
    let apply = world.hub.submit(spec.clone());
    let ended = world.ended(apply).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    assert_eq!(ended.plan.as_ref().unwrap().create_count, 1);
    assert_eq!(ended.resources, Some(1));
    let outputs = ended.outputs.unwrap().outputs;
    assert_eq!((outputs[0].name.as_str(), outputs[0].value.as_str()), ("greeting", "hello quay"));
    assert_eq!(ended.variables.unwrap().variables[0].name, "name");
    assert!(world.messages(apply).iter().any(|line| line.contains("greeting quay")));

    spec.kind = JobKind::Destroy;
    let destroy = world.hub.submit(spec);
    let ended = world.ended(destroy).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(ended.plan.unwrap().destroy_count, 1);
    assert_eq!(ended.resources, Some(0));
    world.assert_no_violation();

    eventually("every step folder is removed", || runner.steps().is_empty()).await;
    runner.signal(rustix::process::Signal::TERM);
    assert!(runner.exit().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_engine_faults_its_task_with_a_reason() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = local.missing\n}\n")]);
    let _runner = world.runner("one");
    let ended = world.ended(world.hub.submit(job(JobKind::Plan, &url, "broken"))).await;
    assert!(matches!(ended.state, JobState::Failed { .. }), "{ended:#?}");
    let error = ended.error.unwrap();
    assert_eq!(error.task, Task::Validate);
    let said = format!("{}\n{}", error.message, error.details);
    assert!(said.contains("missing"), "{said}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn three_runners_share_jobs_and_a_pinned_job_goes_to_its_runner() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let _runners: Vec<_> = ["one", "two", "three"].map(|name| world.runner(name)).into_iter().collect();
    world.connected(3).await;

    let shared: Vec<_> =
        (0..4).map(|index| world.hub.submit(job(JobKind::Plan, &url, &format!("shared-{index}")))).collect();
    let mut spec = job(JobKind::Plan, &url, "pinned");
    spec.instance = Some("two".into());
    let pinned = world.hub.submit(spec);

    for id in shared {
        let ended = world.ended(id).await;
        assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
        assert!(["one", "two", "three"].contains(&ended.owner.unwrap().as_str()));
    }
    let ended = world.ended(pinned).await;
    assert_eq!((ended.state, ended.owner.as_deref()), (JobState::Completed, Some("two")));
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_runner_with_a_connected_name_is_warned() {
    let world = World::new().await;
    let _first = world.runner("twin");
    world.connected(1).await;

    let elsewhere = world.path("elsewhere").display().to_string();
    let second = world.runner_with("twin", &[("WorkingDirectory__WorkingDirectory", &elsewhere)]);
    eventually("the second runner logs the problem", || {
        let log = second.log();
        log.contains("Runner.Instance") && log.contains("twin") && log.contains("already connected")
    })
    .await;
    assert_eq!(world.hub.runners(), ["twin"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_runner_with_the_same_folder_exits_with_an_error() {
    let world = World::new().await;
    let _first = world.runner("twin");
    world.connected(1).await;
    let mut second = world.runner("twin");
    assert_eq!(second.exit().await.code(), Some(75));
    assert!(second.log().contains("Runner.Instance"), "{}", second.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_survives_a_restart_of_its_server() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    world.hub.go_offline().await;
    let _runner = world.runner("one");
    world.hub.go_online().await;
    world.connected(1).await;
    world.hub.go_offline().await;
    world.hub.go_online().await;
    world.connected(1).await;

    let ended = world.ended(world.hub.submit(job(JobKind::Plan, &url, "late"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_refresh_returns_the_commit_or_a_fault() {
    use hawser_contract::{SourceRefresh, SourceRevisionType, SourceType};
    let world = World::new().await;
    let url = world.repository("repo", GREETING);
    let _runner = world.runner("one");
    world.connected(1).await;
    let refresh = |revision: &str| SourceRefresh {
        organization_id: world.hub.identity().organization_id,
        source_url: url.clone(),
        source_revision: revision.to_owned(),
        source_type: SourceType::Git,
        source_revision_type: SourceRevisionType::Default,
    };
    let mut events = world.hub.events();
    let mut ended = async |revision: &str| {
        world.hub.refresh(refresh(revision), None).unwrap();
        let found = events.find(|event| match event {
            HubEvent::RefreshEnded { result, .. } => Some(result.clone()),
            _ => None,
        });
        in_time("the refresh is answered", found).await
    };
    assert_eq!(ended("main").await.unwrap().len(), 40);
    assert!(ended("nowhere").await.unwrap_err().message.contains("nowhere"));
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_from_the_server_is_harmless() {
    use serde_json::json;
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let mut runner = world.runner("one");
    let kinds = [
        Rubbish::NotJson,
        Rubbish::NotAMessage,
        Rubbish::UnknownType,
        Rubbish::UnknownMethod,
        Rubbish::StrayCompletion,
        Rubbish::Bytes(vec![0xff, 0x1e, 0, 0x1e]),
        Rubbish::Text("{\"type\":1}\u{1e}".into()),
    ];
    for rubbish in kinds {
        world.connected(1).await;
        // The runner may be reconnecting; then this push is not sent, and the next check waits.
        world.hub.send_rubbish(rubbish);
    }
    for arguments in [vec![], vec![json!(null)], vec![json!({"jobId": 5})], vec![json!([]), json!([])]] {
        world.connected(1).await;
        let _ = world.hub.push("one", "Plan", arguments);
    }
    world.connected(1).await;
    let ended = world.ended(world.hub.submit(job(JobKind::Plan, &url, "after"))).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(runner.child.try_wait().unwrap().is_none());
    assert!(!runner.log().contains("panicked"), "{}", runner.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_cannot_be_read_is_answered_with_a_fault_that_names_the_member() {
    use serde_json::json;
    let world = World::new().await;
    let url = world.repository("repo", GREETING);
    let _runner = world.runner("one");
    world.connected(1).await;
    // The hub knows the job and waits for its task. The other pushes are garbage.
    world.hub.misbehave(Rule::new(Moment::push("GetDefinitiveRevision"), Fault::Lose));
    let id = world.hub.submit(job(JobKind::Plan, &url, "odd"));
    eventually("the push is lost", || world.hub.has_misbehaved()).await;
    world
        .hub
        .push(
            "one",
            "GetDefinitiveRevision",
            vec![json!({"jobId": id, "organizationId": id, "sourceType": "Floppy"})],
        )
        .unwrap();
    let ended = world.ended(id).await;
    assert!(ended.error.as_ref().is_some_and(|error| error.message.contains("sourceType")), "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_method_is_answered_with_an_error() {
    use serde_json::json;
    let world = World::new().await;
    let runner = world.runner("one");
    world.connected(1).await;
    let answer = in_time("the answer", world.hub.invoke("one", "MakeCoffee", vec![json!({})])).await.unwrap();
    assert!(answer.as_ref().is_err_and(|error| error.contains("MakeCoffee")), "{answer:?}");
    // Neither the log nor the answer repeats a long name.
    let long = "Coffee".repeat(2000);
    let answer = in_time("the answer", world.hub.invoke("one", &long, vec![json!({})])).await.unwrap();
    let error = answer.unwrap_err();
    assert!(error.contains("CoffeeCoffee") && error.len() < 300, "{error}");
    assert!(!runner.log().contains(&"Coffee".repeat(200)), "{}", runner.log());
    // A known method is handled and answered.
    let cancel = json!({"jobId": uuid::Uuid::new_v4()});
    let answer =
        in_time("the answer", world.hub.invoke("one", "CancelGraceful", vec![cancel])).await.unwrap();
    assert_eq!(answer, Ok(serde_json::Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_graceful_cancel_becomes_a_kill_after_the_grace_period() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let _runner = world.runner_with("one", &[("Runner__CancelGraceSeconds", "1")]);
    let pid_file = world.path("deaf.pid");
    let mut spec = job(JobKind::Apply, &url, "deaf");
    spec.hooks.apply_before = Some(format!(
        "trap '' TERM; bash -c 'trap \"\" INT TERM; echo $$ > \"{}\"; echo deaf; while :; do sleep 0.1; done'",
        pid_file.display()
    ));
    let id = world.hub.submit(spec);
    eventually("it ignores interrupts", || world.messages(id).iter().any(|line| line == "deaf")).await;
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let task = ended.tasks.iter().find(|it| it.task == Task::ApplyFromPlan).unwrap();
    assert_eq!(task.state, TaskState::Cancelled);
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "it still runs");
    let messages = world.messages(id);
    let at = |text: &str| messages.iter().position(|line| line.contains(text));
    let (interrupt, kill) = (at("SIGTERM sent"), at("kill sent"));
    assert!(interrupt.is_some() && interrupt < kill, "{messages:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_works_in_every_task_that_runs_a_script() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let _runner = world.runner_with("one", &[("Runner__MaxConcurrentSteps", "7")]);
    let hook = || Some("echo reached; while :; do sleep 0.1; done".to_owned());
    let submit = |task: Task| {
        let kind = match task {
            Task::PlanDestroy | Task::DestroyFromPlan => JobKind::Destroy,
            _ => JobKind::Apply,
        };
        let mut spec = job(kind, &url, &task.to_string());
        let hooks = &mut spec.hooks;
        match task {
            Task::Init => hooks.init_before = hook(),
            Task::Validate => hooks.validate_before = hook(),
            Task::Plan => hooks.plan_after = hook(),
            Task::PlanDestroy => hooks.plan_destroy_before = hook(),
            Task::ApplyFromPlan => hooks.apply_after = hook(),
            Task::DestroyFromPlan => hooks.destroy_before = hook(),
            _ => hooks.output_before = hook(),
        }
        world.hub.submit(spec)
    };
    let scripted = [
        Task::Init,
        Task::Validate,
        Task::Plan,
        Task::PlanDestroy,
        Task::ApplyFromPlan,
        Task::DestroyFromPlan,
        Task::Output,
    ];
    // Init first and alone: it locks the plugin cache while its hook runs.
    for tasks in [&scripted[..1], &scripted[1..]] {
        let jobs: Vec<_> = tasks.iter().map(|task| (*task, submit(*task))).collect();
        for (task, id) in jobs {
            eventually(&format!("{task} is reached"), || {
                world.messages(id).iter().any(|line| line == "reached")
            })
            .await;
            world.hub.cancel(id, CancelKind::Graceful).unwrap();
            let ended = world.ended(id).await;
            assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
            let own = ended.tasks.iter().find(|it| it.task == task).unwrap();
            assert_eq!(own.state, TaskState::Cancelled, "{ended:#?}");
        }
    }
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_a_git_that_is_waiting_for_its_server() {
    let world = World::new().await;
    let _runner = world.runner("one");
    world.connected(1).await;
    for task in [Task::GetDefinitiveRevision, Task::GetModule] {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/silent.git", server.local_addr().unwrap());
        let mut spec = job(JobKind::Tasks(vec![task]), &url, &task.to_string());
        spec.source.source_definitive_revision = Some("0123456789012345678901234567890123456789".into());
        let id = world.hub.submit(spec);
        let _silent = in_time("git calls", server.accept()).await.unwrap();
        world.hub.cancel(id, CancelKind::Graceful).unwrap();
        let ended = world.ended(id).await;
        assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    }
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_an_engine_that_is_waiting_for_its_backend() {
    let world = World::new().await;
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let backend =
        format!("terraform {{\n  backend \"http\" {{\n    address = \"http://{address}/\"\n  }}\n}}\n");
    let url = world.repository("repo", &[("main.tf", &backend)]);
    let _runner = world.runner_with("one", &[("Runner__CancelGraceSeconds", "1")]);
    let id = world.hub.submit(job(JobKind::Plan, &url, "waiting"));
    let (mut silent, _) = in_time("terraform calls", server.accept()).await.unwrap();
    world.hub.cancel(id, CancelKind::Graceful).unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    let init = ended.tasks.iter().find(|it| it.task == Task::Init).unwrap();
    assert_eq!(init.state, TaskState::Cancelled);
    assert!(world.messages(id).iter().any(|line| line.contains("interrupt sent")));
    // The other end of the connection is gone.
    let mut rest = Vec::new();
    let _ = in_time("the end", tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut rest)).await;
    world.assert_no_violation();
}
